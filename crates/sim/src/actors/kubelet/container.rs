//! One container of a pod, and its status.

use std::time::Duration;

use crate::value::{Value, json};

use super::runtime::Terminated;
use crate::object::text;

/// The kubelet keeps this many bytes of all termination messages of a pod, divided among its containers.
const ALL_MESSAGES: usize = 12 * 1024;
/// The kubelet keeps at most this many bytes of one termination message.
const ONE_MESSAGE: usize = 4 * 1024;

pub(super) struct Container {
    pub(super) spec: Value,
    pub(super) state: ContainerState,
    /// The `lastState` of a container that was restarted.
    last: Option<ContainerState>,
    restarts: u32,
}

#[derive(Clone)]
pub(super) enum ContainerState {
    Waiting(&'static str),
    Running { since: String },
    Ended { since: String, at: String, code: i32, reason: &'static str, message: String },
}

impl ContainerState {
    fn show(&self) -> Value {
        match self {
            Self::Waiting(reason) => json!({"waiting": {"reason": reason}}),
            Self::Running { since } => json!({"running": {"startedAt": since}}),
            Self::Ended { since, at, code, reason, message } => {
                let mut ended =
                    json!({"exitCode": code, "reason": reason, "startedAt": since, "finishedAt": at});
                if !message.is_empty() {
                    ended["message"] = json!(message);
                }
                json!({"terminated": ended})
            }
        }
    }
}

impl Container {
    pub(super) fn new(spec: &Value) -> Self {
        let state = ContainerState::Waiting("ContainerCreating");
        Self { spec: spec.clone(), state, last: None, restarts: 0 }
    }

    pub(super) fn start(&mut self, now: &str) {
        if self.last.is_some() {
            self.restarts += 1;
        }
        self.state = ContainerState::Running { since: now.to_owned() };
    }

    /// Records the exit of the container and truncates its termination message.
    pub(super) fn finish(&mut self, end: &Terminated, now: &str, containers: usize) {
        let limit = (ALL_MESSAGES / containers.max(1)).min(ONE_MESSAGE);
        match end {
            Terminated::Exit { code: 0, message } => {
                self.set_end(0, "Completed", cut_to(message, limit), now);
            }
            Terminated::Exit { code, message } => self.set_end(*code, "Error", cut_to(message, limit), now),
            Terminated::OutOfMemory => self.set_end(137, "OOMKilled", String::new(), now),
        }
    }

    /// Records that the container was killed, unless it had exited.
    pub(super) fn kill(&mut self, code: i32, reason: &'static str, now: &str) {
        if !matches!(self.state, ContainerState::Ended { .. }) {
            self.set_end(code, reason, String::new(), now);
        }
    }

    fn set_end(&mut self, code: i32, reason: &'static str, message: String, now: &str) {
        let since = match &self.state {
            ContainerState::Running { since } => since.clone(),
            _ => now.to_owned(),
        };
        self.state = ContainerState::Ended { since, at: now.to_owned(), code, reason, message };
    }

    /// Returns the delay before the restart: 100 ms, then 10 s, doubled up to 5 min.
    pub(super) fn back_off(&mut self) -> Duration {
        let waiting = ContainerState::Waiting("CrashLoopBackOff");
        self.last = Some(std::mem::replace(&mut self.state, waiting));
        match self.restarts {
            0 => Duration::from_millis(100),
            n => Duration::from_secs(10 * 2_u64.pow((n - 1).min(5))).min(Duration::from_mins(5)),
        }
    }

    /// Whether it is a sidecar: an init container that runs beside the containers of the pod.
    pub(super) fn is_sidecar(&self) -> bool {
        text(&self.spec, "restartPolicy") == "Always"
    }

    /// Whether the next container may start.
    pub(super) fn is_initialized(&self) -> bool {
        if self.is_sidecar() { !self.never_started() } else { self.exit_code() == Some(0) }
    }

    pub(super) fn never_started(&self) -> bool {
        matches!(self.state, ContainerState::Waiting(_)) && self.last.is_none()
    }

    pub(super) fn is_running(&self) -> bool {
        matches!(self.state, ContainerState::Running { .. })
    }

    pub(super) fn exit_code(&self) -> Option<i32> {
        match self.state {
            ContainerState::Ended { code, .. } => Some(code),
            _ => None,
        }
    }

    pub(super) fn status(&self) -> Value {
        let running = self.is_running();
        let mut status = json!({"name": self.spec["name"], "image": self.spec["image"], "imageID": "", "ready": running,
            "started": running, "restartCount": self.restarts, "state": self.state.show()});
        if let Some(last) = &self.last {
            status["lastState"] = last.show();
        }
        status
    }
}

/// The longest valid prefix of at most this many bytes.
fn cut_to(message: &str, bytes: usize) -> String {
    let end = (0..=bytes.min(message.len())).rev().find(|i| message.is_char_boundary(*i)).unwrap_or(0);
    message[..end].to_owned()
}
