//! Whether this replica is alive and ready, as its manager reports it.

use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

/// The manager reports every five seconds; one try at the lease takes four.
const MAX_SILENCE: Duration = Duration::from_secs(30);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Role {
    Starting,
    /// Another replica leads.
    Follower,
    /// The lease can be neither read nor written.
    Unreachable(String),
    Leader,
    /// There is no lease: this process is the only one of its kind on its node.
    Alone,
    Stopping,
}

#[derive(Debug)]
struct State {
    heartbeat: Duration,
    role: Role,
    /// Kinds whose caches were not listed yet.
    unsynced: Vec<&'static str>,
    /// Why the process cannot do its part although it runs.
    held: Option<String>,
}

/// What the manager last reported about itself. Times are those of its clock.
#[derive(Debug)]
pub struct Health {
    state: Mutex<State>,
}

impl Default for Health {
    fn default() -> Self {
        let state =
            State { heartbeat: Duration::ZERO, role: Role::Starting, unsynced: Vec::new(), held: None };
        Self { state: Mutex::new(state) }
    }
}

impl Health {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub fn heartbeat(&self, now: Duration) {
        self.state().heartbeat = now;
    }

    /// These caches were not listed yet.
    pub fn caches(&self, unsynced: Vec<&'static str>) {
        self.state().unsynced = unsynced;
    }

    pub fn follows(&self) {
        self.set(Role::Follower);
    }

    /// The lease could not be read or written. A leader stays one until its lease expires.
    pub fn lease_failed(&self, error: &str) {
        let mut state = self.state();
        if !matches!(state.role, Role::Leader | Role::Stopping) {
            state.role = Role::Unreachable(error.to_owned());
        }
    }

    pub fn leads(&self) {
        self.set(Role::Leader);
    }

    /// The process needs no lease.
    pub fn runs_alone(&self) {
        self.set(Role::Alone);
    }

    /// Why the process cannot do its part although it runs; none if it can.
    pub fn hold(&self, why: Option<String>) {
        self.state().held = why;
    }

    pub fn stopping(&self) {
        self.set(Role::Stopping);
    }

    fn set(&self, role: Role) {
        let mut state = self.state();
        if state.role != Role::Stopping {
            state.role = role;
        }
    }

    /// Whether the manager runs.
    ///
    /// # Errors
    /// Says for how long it has not.
    pub fn alive(&self, now: Duration) -> Result<(), String> {
        let silent = now.saturating_sub(self.state().heartbeat);
        if silent > MAX_SILENCE {
            return Err(format!("the manager has not run for {} s", silent.as_secs()));
        }
        Ok(())
    }

    /// Whether this replica can do its part: as leader, or as one that can take over.
    ///
    /// # Errors
    /// Says what is missing.
    pub fn ready(&self, now: Duration) -> Result<&'static str, String> {
        self.alive(now)?;
        let state = self.state();
        let role = match &state.role {
            Role::Starting => return Err("the lease was not read yet".into()),
            Role::Unreachable(error) => return Err(format!("the lease cannot be read or written: {error}")),
            Role::Stopping => return Err("stopping".into()),
            Role::Follower => "following",
            Role::Leader => "leading",
            Role::Alone => "running",
        };
        if let Some(why) = &state.held {
            return Err(why.clone());
        }
        if state.unsynced.is_empty() {
            return Ok(role);
        }
        Err(format!("{role}, and these caches are not synced: {}", state.unsynced.join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_manager_that_does_not_run_is_neither_alive_nor_ready() {
        let health = Health::default();
        health.follows();
        health.heartbeat(at(100));
        assert_eq!(health.alive(at(130)), Ok(()));
        assert_eq!(health.alive(at(131)), Err("the manager has not run for 31 s".into()));
        assert!(health.ready(at(131)).is_err());
        health.heartbeat(at(131));
        assert_eq!(health.ready(at(131)), Ok("following"));
    }

    #[test]
    fn f21_ready_means_of_use_and_not_only_alive() {
        let health = Health::default();
        assert_eq!(health.ready(at(0)), Err("the lease was not read yet".into()));
        health.lease_failed("connection refused");
        assert_eq!(
            health.ready(at(0)),
            Err("the lease cannot be read or written: connection refused".into())
        );
        health.follows();
        assert_eq!(health.ready(at(0)), Ok("following"));
        health.caches(vec!["nodes", "gates"]);
        assert_eq!(
            health.ready(at(0)),
            Err("following, and these caches are not synced: nodes, gates".into())
        );
        health.leads();
        assert!(health.ready(at(0)).is_err());
        health.caches(Vec::new());
        assert_eq!(health.ready(at(0)), Ok("leading"));
        health.lease_failed("a renewal that is tried again");
        assert_eq!(health.ready(at(0)), Ok("leading"));
        health.stopping();
        health.leads();
        assert_eq!(health.ready(at(0)), Err("stopping".into()));
    }

    #[test]
    fn an_agent_without_its_gate_is_alive_and_not_ready() {
        let health = Health::default();
        health.runs_alone();
        assert_eq!(health.ready(at(0)), Ok("running"));
        health.hold(Some("there is no NodeGate default".into()));
        assert_eq!(health.ready(at(0)), Err("there is no NodeGate default".into()));
        assert_eq!(health.alive(at(0)), Ok(()));
        health.hold(None);
        assert_eq!(health.ready(at(0)), Ok("running"));
    }
}
