//! The metrics of an agent, under the names that kube-node-ready documents for its DaemonSet mode.

use jiff::Timestamp;
use nodekeeper_core::checks::Checks;
use nodekeeper_core::report::{CheckResult, Outcome, Report, Verdict};

use super::{Metrics, flag};

impl Metrics {
    /// Serves all series of the agent's node from the start: a rate over a counter that appears with its first event misses
    /// that event.
    pub fn register_agent(&self, node: &str) {
        let agents = &self.agents;
        for gauge in [&agents.status, &agents.dns, &agents.api, &agents.completion] {
            gauge.set(&[node], 0.0);
        }
        for check in Checks::OF_WORKER {
            agents.failures.init(&[node, check]);
        }
    }

    /// Records a run of the checks in this process, whether or not the node is written for it.
    pub fn observe_agent_run(&self, node: &str, report: &Report, now: Timestamp) {
        let agents = &self.agents;
        agents.status.set(&[node], flag(report.verdict == Verdict::Passed));
        #[expect(clippy::cast_precision_loss, reason = "a f64 holds Unix seconds exactly")]
        agents.completion.set(&[node], now.as_second() as f64);
        for (gauge, name) in [(&agents.dns, "dns"), (&agents.api, "api")] {
            let ran = |check: &&CheckResult| check.name == name && check.outcome != Outcome::Skipped;
            let longest = report.checks.iter().filter(ran).map(|check| check.ms).max();
            #[expect(clippy::cast_precision_loss, reason = "a check takes seconds")]
            if let Some(ms) = longest {
                gauge.set(&[node], ms as f64 / 1000.0);
            }
        }
        for check in report.checks.iter().filter(|check| check.outcome == Outcome::Failed) {
            agents.failures.inc(&[node, &check.name]);
        }
    }

    /// Records a run that passed and is not recorded on the node, beside [`Self::observe_agent_run`].
    pub fn observe_confirmation(&self, gate: &str, report: &Report) {
        self.gates.verifications.inc(&[gate, "passed"]);
        self.observe_checks(&report.checks);
    }

    /// Records whether the agent used up its attempts, so that the node stays tainted.
    pub fn set_agent_gave_up(&self, gave_up: bool) {
        self.agents.gave_up.set(&[], flag(gave_up));
    }
}
