//! Whether this replica lives, and whether it is of use. Said by the loop itself, not assumed.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The loop turns at least every five seconds; one try at the lease takes four.
const SILENT: Duration = Duration::from_secs(30);

/// What the controller does.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Role {
    /// It has not heard of the lease yet.
    Starting,
    /// Somebody else leads, and we would if they did not.
    StandingBy,
    /// The lease cannot be read or written.
    CutOff(String),
    /// It leads, and these were not listed yet.
    Leading(Vec<&'static str>),
    /// It was asked to stop.
    Stopping,
}

/// What the loop last said about itself. Times are those of the controller's clock.
#[derive(Debug)]
pub struct Health {
    said: Mutex<(Duration, Role)>,
}

impl Default for Health {
    fn default() -> Self {
        Self { said: Mutex::new((Duration::ZERO, Role::Starting)) }
    }
}

impl Health {
    fn said(&self) -> MutexGuard<'_, (Duration, Role)> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The loop turns.
    pub fn beat(&self, now: Duration) {
        self.said().0 = now;
    }

    /// The lease is somebody else's.
    pub fn stands_by(&self) {
        self.said().1 = Role::StandingBy;
    }

    /// There is no answer about the lease. While we lead, that is not yet the end of it.
    pub fn cut_off(&self, why: &str) {
        let mut said = self.said();
        if !matches!(said.1, Role::Leading(_) | Role::Stopping) {
            said.1 = Role::CutOff(why.to_owned());
        }
    }

    /// We lead, and these were not listed yet.
    pub fn leads(&self, missing: Vec<&'static str>) {
        let mut said = self.said();
        if said.1 != Role::Stopping {
            said.1 = Role::Leading(missing);
        }
    }

    /// We lead no longer.
    pub fn stepped_down(&self) {
        self.said().1 = Role::Starting;
    }

    /// No more work is begun.
    pub fn stops(&self) {
        self.said().1 = Role::Stopping;
    }

    /// Whether the loop turns.
    ///
    /// # Errors
    /// In words, for how long it has not.
    pub fn alive(&self, now: Duration) -> Result<(), String> {
        let silent = now.saturating_sub(self.said().0);
        if silent > SILENT {
            return Err(format!("the main loop has not turned for {} s", silent.as_secs()));
        }
        Ok(())
    }

    /// Whether this replica is of use: as leader that sees everything, or as one that can take over.
    ///
    /// # Errors
    /// In words, what is missing.
    pub fn ready(&self, now: Duration) -> Result<&'static str, String> {
        self.alive(now)?;
        match &self.said().1 {
            Role::Starting => Err("the lease was not read yet".into()),
            Role::StandingBy => Ok("standing by"),
            Role::CutOff(why) => Err(format!("no answer about the lease: {why}")),
            Role::Leading(missing) if missing.is_empty() => Ok("leading"),
            Role::Leading(missing) => Err(format!("leading, and not listed yet: {}", missing.join(", "))),
            Role::Stopping => Err("stopping".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_loop_that_stands_still_is_neither_alive_nor_ready() {
        let health = Health::default();
        health.stands_by();
        health.beat(at(100));
        assert_eq!(health.alive(at(130)), Ok(()));
        assert_eq!(health.alive(at(131)), Err("the main loop has not turned for 31 s".into()));
        assert!(health.ready(at(131)).is_err());
        health.beat(at(131));
        assert_eq!(health.ready(at(131)), Ok("standing by"));
    }

    #[test]
    fn f21_ready_means_of_use_and_not_only_alive() {
        let health = Health::default();
        assert_eq!(health.ready(at(0)), Err("the lease was not read yet".into()));
        health.cut_off("connection refused");
        assert_eq!(health.ready(at(0)), Err("no answer about the lease: connection refused".into()));
        health.stands_by();
        assert_eq!(health.ready(at(0)), Ok("standing by"));
        health.leads(vec!["nodes", "gates"]);
        assert_eq!(health.ready(at(0)), Err("leading, and not listed yet: nodes, gates".into()));
        health.leads(Vec::new());
        assert_eq!(health.ready(at(0)), Ok("leading"));
        health.cut_off("a renewal that is tried again");
        assert_eq!(health.ready(at(0)), Ok("leading"));
        health.stepped_down();
        assert!(health.ready(at(0)).is_err());
        health.stops();
        health.leads(Vec::new());
        assert_eq!(health.ready(at(0)), Err("stopping".into()));
    }
}
