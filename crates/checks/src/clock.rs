//! `clock`: the clocks of the node and of the API server agree, as far as the `Date` header shows.

use std::time::{Duration, UNIX_EPOCH};

use httpdate::parse_http_date;
use nodekeeper_core::report::{Outcome, reason};

use crate::net::Net;
use crate::run::Finding;

/// A small response; every status will do, because every response has a `Date`.
const VERSION: &str = "/version";
/// The precision of the `Date` header.
const RESOLUTION: Duration = Duration::from_secs(1);

pub(crate) async fn check(net: &impl Net, max_skew: u32) -> Finding {
    let before = net.clock();
    let answer = match net.api(VERSION, None).await {
        Ok(answer) => answer,
        Err(error) => return Finding::from_error(&error).inconclusive(),
    };
    let after = net.clock();
    let date = answer.date.as_deref().and_then(|date| parse_http_date(date).ok());
    let Some(date) = date.and_then(|date| date.duration_since(UNIX_EPOCH).ok()) else {
        let message = "the response of the API server has no Date";
        return Finding::new(Outcome::Inconclusive, reason::BAD_ANSWER, message);
    };
    judge(before, after, date, Duration::from_secs(max_skew.into()))
}

/// The server's clock was between `date` and 1 s later at some time between `before` and `after`; only a skew beyond both
/// is certain.
fn judge(before: Duration, after: Duration, date: Duration, max_skew: Duration) -> Finding {
    let behind = date.saturating_sub(after);
    let ahead = before.saturating_sub(date + RESOLUTION);
    let (skew, which) = if behind > ahead { (behind, "behind") } else { (ahead, "ahead of") };
    let seconds = skew.as_millis() / 1000;
    if skew > max_skew {
        let message = format!(
            "the node's clock is {seconds} s {which} the API server's, {} s are allowed",
            max_skew.as_secs()
        );
        return Finding::new(Outcome::Failed, reason::CLOCK_SKEW, message);
    }
    Finding::passed(if seconds == 0 {
        "in step".into()
    } else {
        format!("{seconds} s {which} the API server's")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::fake::Fake;

    const DATE: u64 = 784_111_777;

    /// Returns the result for a node clock that is this many milliseconds past the `Date` before and after the request.
    fn skewed(before_ms: i64, after_ms: i64) -> (Outcome, String) {
        let date = 100_000;
        let at = |ms: i64| Duration::from_millis((date + ms).unsigned_abs());
        let finding = judge(at(before_ms), at(after_ms), at(0), Duration::from_secs(5));
        (finding.outcome, finding.message)
    }

    #[test]
    fn only_a_certain_skew_counts() {
        for (before, after, outcome) in [
            (0, 10, Outcome::Passed),
            (900, 950, Outcome::Passed),
            (6_000, 6_010, Outcome::Passed),
            (6_010, 6_020, Outcome::Failed),
            (-5_000, -5_000, Outcome::Passed),
            (-5_100, -5_010, Outcome::Failed),
            (-60_000, 60_000, Outcome::Passed),
        ] {
            assert_eq!(skewed(before, after).0, outcome, "{before} {after}");
        }
        let told = "the node's clock is 59 s ahead of the API server's, 5 s are allowed";
        assert_eq!(skewed(60_000, 60_000).1, told);
        assert!(skewed(-30_000, -30_000).1.contains("30 s behind"));
    }

    #[tokio::test(start_paused = true)]
    async fn f23_a_wrong_clock_fails() {
        let date = Some("Sun, 06 Nov 1994 08:49:37 GMT".to_owned());
        for (clock, outcome) in [(DATE, Outcome::Passed), (DATE + 90, Outcome::Failed)] {
            let mut net = Fake::new();
            (net.date, net.clock) = (date.clone(), Duration::from_secs(clock));
            assert_eq!(check(&net, 5).await.outcome, outcome);
        }
        assert_eq!(check(&Fake::new(), 5).await.outcome, Outcome::Inconclusive, "there is no Date");
    }
}
