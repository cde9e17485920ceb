//! Maintenance windows: what recyclers and persons request is approved only within them.

use jiff::{SignedDuration, Timestamp};
use nodekeeper_sim::cluster::Local;
use nodekeeper_sim::harness::Invariant;
use nodekeeper_sim::object::{items, text};
use nodekeeper_sim::store::Change;
use nodekeeper_sim::value::{Value, json};

use super::history::{History, approved};
use super::invariants::CLOCK_JUMPS;
use crate::gate::dice;

pub const WINDOWS: &str = "what persons and recyclers request is approved only within the windows";

const DAYS: [&str; 7] = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];

/// The windows of the policy: in every seventh run the day of the run, which is a Thursday, in another one of the other
/// days. Runs begin at midnight.
pub fn of_a_run(user: &Local) -> Value {
    let day = match dice(user, 14) {
        0 | 1 => "Thursday",
        2 => "Wednesday",
        3 => "Friday",
        _ => return json!([]),
    };
    json!([{"days": [day], "start": "00:00", "end": "12:00"}])
}

#[derive(Default)]
pub struct WithinTheWindows(History);

/// Whether the time is within a window, by any clock. All windows are in UTC and end on the day on which they start.
fn is_within(window: &Value, at: Timestamp) -> bool {
    let is_open = |at: Timestamp| {
        let (day, time) = (at.strftime("%A").to_string(), at.strftime("%H:%M").to_string());
        let days = items(window, "days");
        let is_day = days.is_empty() || days.iter().any(|one| one.as_str() == Some(day.as_str()));
        assert!(DAYS.contains(&day.as_str()), "{day} is no day");
        is_day && text(window, "start") <= time.as_str() && time.as_str() < text(window, "end")
    };
    [-CLOCK_JUMPS, SignedDuration::ZERO, CLOCK_JUMPS].into_iter().any(|jump| is_open(at + jump))
}

impl Invariant for WithinTheWindows {
    fn name(&self) -> &'static str {
        WINDOWS
    }

    fn check(&mut self, change: &Change) -> Result<(), String> {
        let mut wrong = Ok(());
        for one in approved(change) {
            let windows =
                change.before.as_ref().map(|policy| items(policy, "spec.windows")).unwrap_or_default();
            let is_open = windows.is_empty() || windows.iter().any(|window| is_within(window, change.sent));
            let request = self.0.requests.get(text(one, "remediation"));
            let causes = request.map(|request| items(request, "spec.causes")).unwrap_or_default();
            let is_by_a_gate = causes.iter().any(|cause| text(cause, "source") == "Gate");
            if !is_open && !is_by_a_gate {
                wrong = Err(format!("{one} is approved, and the windows are {windows:?}"));
            }
        }
        self.0.record(change);
        wrong
    }
}
