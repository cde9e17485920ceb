//! Conformance cases for a Kubernetes API server. A real kube-apiserver with controller-manager and scheduler defines
//! the expected behaviour; `sim` must match it.
//!
//! A case is an `async fn(&Ctx) -> Result<()>`. It runs on a paused tokio clock in process as well as on a real
//! socket: it waits with tokio only, and never reads the wall clock.

#![allow(clippy::similar_names, reason = "a path and a patch are what most cases are about")]

#[macro_use]
mod registry;
mod check;
mod ctx;
mod fake_kubelet;
mod http;
mod objects;

mod budgets;
mod crd;
mod crd_values;
mod create;
mod delete;
mod discovery;
mod errors;
mod events;
mod evictions;
mod finalizers;
mod gc;
mod kinds;
mod lifecycle;
mod list;
mod nodes;
mod patch_json;
mod patch_merge;
mod patch_strategic;
mod pods;
mod scheduling;
mod selectors;
mod status;
mod update;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, anyhow};
use futures::StreamExt as _;
use futures::future::BoxFuture;
use tokio::time::{Instant, timeout};

use ctx::{Ctx, Run};

/// The timeout of a case.
const CASE_DEADLINE: Duration = Duration::from_secs(90);
/// The timeout of a slow case.
const SLOW_CASE_DEADLINE: Duration = Duration::from_mins(3);

type Body = for<'a> fn(&'a Ctx) -> BoxFuture<'a, Result<()>>;

pub struct Case {
    pub group: &'static str,
    pub name: &'static str,
    slow: bool,
    run: Body,
}

pub struct Outcome {
    pub group: &'static str,
    pub name: &'static str,
    pub result: Result<()>,
    /// The duration on tokio's clock, without clean-up.
    pub took: Duration,
}

#[must_use]
pub fn cases() -> Vec<Case> {
    registry::GROUPS.iter().flat_map(|group| group().into_iter()).collect()
}

/// Runs the cases whose `group/name` contains `filter`, at most `concurrency` at a time, and cleans up. The outcomes
/// are in the order of [`cases`].
///
/// The client must not retry by itself (`Config::default_retry`), or a case never sees a 504.
pub async fn run(client: kube::Client, filter: Option<&str>, concurrency: usize) -> Vec<Outcome> {
    let shared = Arc::new(Run::new(client));
    let mut chosen: Vec<(usize, Case)> = cases()
        .into_iter()
        .filter(|case| filter.is_none_or(|f| format!("{}/{}", case.group, case.name).contains(f)))
        .enumerate()
        .collect();
    chosen.sort_by_key(|(_, case)| !case.slow);
    let mut outcomes: Vec<(usize, Outcome)> = futures::stream::iter(chosen)
        .map(|(number, case)| {
            let shared = Arc::clone(&shared);
            async move { (number, run_case(shared, number, case).await) }
        })
        .buffer_unordered(concurrency.max(1))
        .collect()
        .await;
    shared.clean_up().await;
    outcomes.sort_by_key(|(number, _)| *number);
    outcomes.into_iter().map(|(_, outcome)| outcome).collect()
}

async fn run_case(shared: Arc<Run>, number: usize, case: Case) -> Outcome {
    let ctx = Ctx::new(shared, number);
    let start = Instant::now();
    let deadline = if case.slow { SLOW_CASE_DEADLINE } else { CASE_DEADLINE };
    let result = timeout(deadline, (case.run)(&ctx))
        .await
        .unwrap_or_else(|_| Err(anyhow!("not over after {deadline:?}")));
    let took = start.elapsed();
    ctx.clean_up().await;
    Outcome { group: case.group, name: case.name, result, took }
}
