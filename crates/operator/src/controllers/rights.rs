//! Asks the API server for the permissions that acts need, and remembers the answer for some minutes.

use std::time::Duration;

use futures::future::try_join_all;
use nodekeeper_core::remediate::{Policy, Right, needed_rights};
use tokio::sync::Mutex;
use tracing::warn;

use crate::apply::Writer;
use crate::clock::Clock;

/// The permissions are asked for again after so long.
const REVIEW_PERIOD: Duration = Duration::from_mins(3);
/// The same after an error.
const RETRY_PERIOD: Duration = Duration::from_secs(10);

#[derive(Default)]
struct Reviewed {
    /// The uid and the generation of the policy that this was asked for.
    policy: (String, i64),
    missing: Vec<Right>,
    ask_again_at: Duration,
}

/// What the API server last answered.
#[derive(Default)]
pub struct Rights(Mutex<Reviewed>);

impl Rights {
    /// The permissions that acts under this policy need, and that the controller does not have. An error of the API
    /// server changes nothing: as far as is known, nothing is missing that was not missing before.
    pub async fn missing(&self, writer: &Writer, clock: &Clock, policy: Option<&Policy>) -> Vec<Right> {
        let Some(policy) = policy else { return Vec::new() };
        let needed = needed_rights(&policy.spec);
        if needed.is_empty() {
            return needed;
        }
        // Held while it asks, so that many remediations ask once.
        let mut reviewed = self.0.lock().await;
        let version = (policy.uid.clone(), policy.generation);
        if reviewed.policy != version || clock.elapsed() >= reviewed.ask_again_at {
            let period = match try_join_all(needed.iter().map(|right| writer.is_permitted(*right))).await {
                Ok(permitted) => {
                    let answers = needed.iter().zip(permitted);
                    reviewed.missing =
                        answers.filter(|(_, permitted)| !permitted).map(|(right, _)| *right).collect();
                    REVIEW_PERIOD
                }
                Err(error) => {
                    warn!(%error, "permissions not reviewed");
                    RETRY_PERIOD
                }
            };
            reviewed.policy = version;
            reviewed.ask_again_at = clock.elapsed() + period;
        }
        reviewed.missing.iter().filter(|right| needed.contains(right)).copied().collect()
    }
}
