//! Runs the checks on the real network of the agent's pod.

use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt as _};
use nodekeeper_checks::real::{self, Real};
use nodekeeper_checks::{Answers, Progress, run_again};
use nodekeeper_core::checks::Assignment;
use nodekeeper_core::report::{Outcome, Report};
use nodekeeper_operator::agent::RunChecks;
use tracing::{debug, warn};

/// How long answers about Services are used again.
const ANSWERS_VALID_FOR: Duration = Duration::from_mins(10);

/// The checks of the agent's node.
pub struct NodeChecks {
    options: Arc<real::Options>,
    answers: Arc<Answers>,
}

impl NodeChecks {
    pub fn new(options: real::Options) -> Self {
        Self { options: Arc::new(options), answers: Arc::new(Answers::new(ANSWERS_VALID_FOR)) }
    }
}

impl RunChecks for NodeChecks {
    fn run(&self, assignment: Assignment) -> BoxFuture<'static, Report> {
        let (options, answers) = (self.options.clone(), self.answers.clone());
        async move {
            // Read anew each time: the token of the pod is replaced every hour, and resolv.conf may change.
            let net = Real::new(&options);
            run_again(&net, &assignment, &answers, &log).await
        }
        .boxed()
    }
}

/// Logs the end of a check.
#[expect(clippy::needless_pass_by_value, reason = "the checks pass each event by value")]
pub fn log(progress: Progress<'_>) {
    let Progress::Ended { result, .. } = progress else { return };
    let (check, target, duration) = (&*result.name, &*result.target, format!("{}ms", result.ms));
    match result.outcome {
        Outcome::Passed => debug!(check, target, duration, result = result.message, "check passed"),
        Outcome::Skipped => {
            warn!(check, target, reason = result.reason, why = result.message, "check skipped");
        }
        Outcome::Failed | Outcome::Inconclusive | Outcome::Warned => {
            let outcome = result.outcome.as_str();
            warn!(
                check,
                target,
                duration,
                outcome,
                reason = result.reason,
                why = result.message,
                "check did not pass"
            );
        }
    }
}
