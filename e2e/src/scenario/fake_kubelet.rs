//! One fake kubelet for all nodes of a control plane. It reports each worker as its [`WorkerBehaviour`] says.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::Result;
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{Namespace, Pod, ServiceAccount};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, WatchEvent, WatchParams};
use kube::{Api, Client, ResourceExt as _};
use nodekeeper_core::api::definitions;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::worker::{State, identity, say};
use super::world::{MISSING, NAMESPACE, WorkerBehaviour};
use crate::fake_kubelet::create;

/// The check timeout in the gates of the scenarios.
const CHECK: Duration = Duration::from_secs(2);
const RETRY: Duration = Duration::from_millis(50);

/// Creates what the controller needs in a cluster: its namespace, the account of its workers, and the CRDs.
pub async fn install(client: &Client) -> Result<()> {
    create(&Api::<Namespace>::all(client.clone()), json!({"metadata": {"name": NAMESPACE}})).await?;
    let account = json!({"metadata": {"name": "nodekeeper-worker"}});
    create(&Api::<ServiceAccount>::namespaced(client.clone(), NAMESPACE), account).await?;
    for definition in definitions() {
        let definition = serde_json::to_value(definition)?;
        create(&Api::<CustomResourceDefinition>::all(client.clone()), definition).await?;
    }
    Ok(())
}

/// Calls `report` once for each pod that is bound to a node, and removes deleted ones, except on nodes that are off. Restarts
/// its watch whenever it ends.
pub async fn run<R>(
    pods: Api<Pod>,
    selector: &str,
    is_off: impl Fn(&str) -> bool,
    report: impl Fn(Pod, String) -> R,
) where
    R: Future<Output = ()> + Send + 'static,
{
    let mut known = BTreeSet::new();
    let mut reports = JoinSet::new();
    loop {
        let params = WatchParams::streaming_lists().labels(selector).fields("spec.nodeName!=").timeout(200);
        if let Ok(events) = pods.watch(&params, "").await {
            let mut events = events.boxed();
            while let Some(Ok(event)) = events.next().await {
                let (WatchEvent::Added(pod) | WatchEvent::Modified(pod)) = event else { continue };
                let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default();
                if is_off(&node) {
                    continue;
                }
                if pod.metadata.deletion_timestamp.is_some() {
                    let (pods, gone) = (pods.clone(), DeleteParams::default().grace_period(0));
                    reports.spawn(async move { drop(pods.delete(&pod.name_any(), &gone).await) });
                } else if known.insert(pod.uid()) {
                    reports.spawn(report(pod, node));
                }
                while reports.try_join_next().is_some() {}
            }
        }
        sleep(RETRY).await;
    }
}

/// Reports a worker, and repeats a report that was lost, as a kubelet does. The API server refuses it if the pod has been deleted
/// meanwhile or somebody else has reported its end.
pub async fn report_worker(client: &Client, pod: &Pod, behaviour: WorkerBehaviour) {
    let number = identity(pod).map(|subject| subject.number).unwrap_or_default();
    let image = pod.spec.as_ref().and_then(|spec| spec.containers.first()?.image.as_deref());
    let state = match behaviour {
        _ if image == Some(MISSING) => State::NoImage,
        WorkerBehaviour::Hangs => State::Runs,
        WorkerBehaviour::TimesOut => {
            sleep(CHECK).await;
            State::Failed
        }
        WorkerBehaviour::Fails { first } if number <= first => State::Failed,
        WorkerBehaviour::Fails { .. } => State::Passed,
    };
    while let Err(error) = say(client, pod, state).await {
        if !is_lost(&error) {
            return;
        }
        sleep(RETRY).await;
    }
}

/// Whether the same request may succeed later.
fn is_lost(error: &anyhow::Error) -> bool {
    match error.downcast_ref() {
        Some(kube::Error::Api(status)) => status.code == 429 || status.code >= 500,
        error => error.is_some(),
    }
}
