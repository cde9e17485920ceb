//! Liveness and readiness of this replica, for `/healthz` and `/readyz`.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The main loop sends a heartbeat at least every 5 s; one attempt to acquire the lease takes up to 4 s.
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Role {
    /// The lease has not been read yet.
    Starting,
    /// Another replica holds the lease.
    Standby,
    /// The lease cannot be read or written; holds the error.
    LeaseError(String),
    /// This replica holds the lease; holds the kinds whose caches are not synced.
    Leading(Vec<&'static str>),
    Stopping,
}

/// The state of the main loop. Times are elapsed times of the controller's clock.
#[derive(Debug)]
pub struct Health {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    heartbeat: Duration,
    role: Role,
}

impl Default for Health {
    fn default() -> Self {
        Self { state: Mutex::new(State { heartbeat: Duration::ZERO, role: Role::Starting }) }
    }
}

impl Health {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that the main loop runs.
    pub fn heartbeat(&self, now: Duration) {
        self.state().heartbeat = now;
    }

    /// Records that another replica holds the lease.
    pub fn set_standby(&self) {
        self.state().role = Role::Standby;
    }

    /// Records that the lease cannot be read or written. A leader stays leader until its lease expires.
    pub fn set_lease_error(&self, error: &str) {
        let mut state = self.state();
        if !matches!(state.role, Role::Leading(_) | Role::Stopping) {
            state.role = Role::LeaseError(error.to_owned());
        }
    }

    /// Records that this replica leads, and the kinds whose caches are not synced yet.
    pub fn set_leading(&self, unsynced: Vec<&'static str>) {
        let mut state = self.state();
        if state.role != Role::Stopping {
            state.role = Role::Leading(unsynced);
        }
    }

    /// Records that this replica does not lead any more and has not read the lease since.
    pub fn set_starting(&self) {
        self.state().role = Role::Starting;
    }

    /// Records that the process is shutting down and starts no more work.
    pub fn set_stopping(&self) {
        self.state().role = Role::Stopping;
    }

    /// Answers `/healthz`.
    ///
    /// # Errors
    /// If the last heartbeat is more than 30 s ago; the message says how long.
    pub fn alive(&self, now: Duration) -> Result<(), String> {
        let silent = now.saturating_sub(self.state().heartbeat);
        if silent > HEARTBEAT_TIMEOUT {
            return Err(format!("the main loop has not run for {} s", silent.as_secs()));
        }
        Ok(())
    }

    /// Answers `/readyz`: ready is a leader with synced caches, or a standby that can take over.
    ///
    /// # Errors
    /// If the replica is not ready; the message says why.
    pub fn ready(&self, now: Duration) -> Result<&'static str, String> {
        self.alive(now)?;
        match &self.state().role {
            Role::Starting => Err("the lease was not read yet".into()),
            Role::Standby => Ok("standing by"),
            Role::LeaseError(error) => Err(format!("the lease cannot be read or written: {error}")),
            Role::Leading(unsynced) if unsynced.is_empty() => Ok("leading"),
            Role::Leading(unsynced) => {
                Err(format!("leading, caches not synced yet: {}", unsynced.join(", ")))
            }
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
    fn a_stuck_loop_is_neither_alive_nor_ready() {
        let health = Health::default();
        health.set_standby();
        health.heartbeat(at(100));
        assert_eq!(health.alive(at(130)), Ok(()));
        assert_eq!(health.alive(at(131)), Err("the main loop has not run for 31 s".into()));
        assert!(health.ready(at(131)).is_err());
        health.heartbeat(at(131));
        assert_eq!(health.ready(at(131)), Ok("standing by"));
    }

    #[test]
    fn f21_ready_means_leading_or_able_to_take_over() {
        let health = Health::default();
        assert_eq!(health.ready(at(0)), Err("the lease was not read yet".into()));
        health.set_lease_error("connection refused");
        assert_eq!(
            health.ready(at(0)),
            Err("the lease cannot be read or written: connection refused".into())
        );
        health.set_standby();
        assert_eq!(health.ready(at(0)), Ok("standing by"));
        health.set_leading(vec!["nodes", "gates"]);
        assert_eq!(health.ready(at(0)), Err("leading, caches not synced yet: nodes, gates".into()));
        health.set_leading(Vec::new());
        assert_eq!(health.ready(at(0)), Ok("leading"));
        health.set_lease_error("a renewal that is retried");
        assert_eq!(health.ready(at(0)), Ok("leading"));
        health.set_starting();
        assert!(health.ready(at(0)).is_err());
        health.set_stopping();
        health.set_leading(Vec::new());
        assert_eq!(health.ready(at(0)), Err("stopping".into()));
    }
}
