//! A stand-in for Cluster Autoscaler on Auto Scaling groups: it launches a machine for each Node that its group
//! lacks. The machine of a deleted Node runs on until the cloud terminates it, and does not register again.

use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::cloud::{Cloud, Group, PendingReplacements};
use crate::cluster::{Cluster, Local};
use crate::object::{condition_status, is_deleting, text};

/// The node label that names the group.
pub const GROUP: &str = "eks.amazonaws.com/nodegroup";

const PERIOD: Duration = Duration::from_secs(1);

/// Runs the autoscaler until it is dropped.
#[must_use = "the autoscaler stops when this is dropped"]
pub struct Autoscaler(JoinHandle<()>);

impl Drop for Autoscaler {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Autoscaler {
    /// Fills the groups and keeps them full. A replacement launches 10 to 40 seconds after its Node is gone.
    pub fn start(cluster: &Cluster, cloud: &Cloud, seed: u64, groups: Vec<Group>) -> Self {
        let api = cluster.local("cluster-autoscaler");
        let cloud_manager = cluster.local("cloud-node-lifecycle-controller");
        let groups = groups.into_iter().map(|group| ManagedGroup {
            group,
            made: 0,
            pending: PendingReplacements::default(),
        });
        let mut reconciler = Reconciler {
            api,
            cloud: cloud.clone(),
            random: fastrand::Rng::with_seed(seed),
            groups: groups.collect(),
        };
        Self(tokio::spawn(async move {
            loop {
                delete_terminated_nodes(&cloud_manager, &reconciler.cloud);
                reconciler.fill();
                sleep(PERIOD).await;
            }
        }))
    }

    /// False once its task has panicked.
    #[must_use]
    pub fn is_running(&self) -> bool {
        !self.0.is_finished()
    }
}

struct ManagedGroup {
    group: Group,
    made: u64,
    pending: PendingReplacements,
}

struct Reconciler {
    api: Local,
    cloud: Cloud,
    random: fastrand::Rng,
    groups: Vec<ManagedGroup>,
}

impl Reconciler {
    fn fill(&mut self) {
        for ManagedGroup { group, made, pending } in &mut self.groups {
            let of_group = |labels: &crate::value::Value| labels[GROUP] == group.name;
            let nodes = self.api.all("nodes");
            let there =
                nodes.iter().filter(|n| !is_deleting(n) && of_group(&n["metadata"]["labels"])).count();
            let is_first = *made == 0;
            let pause = || {
                if is_first { Duration::ZERO } else { Duration::from_millis(self.random.u64(10_000..40_000)) }
            };
            for _ in 0..pending.due(group.size.saturating_sub(there), pause) {
                let mut machine = group.machine(*made);
                machine.labels.insert(GROUP.to_owned(), group.name.clone());
                let flaws = group.flaws.at(*made);
                self.api
                    .cluster()
                    .trace()
                    .record(|| format!("autoscaler: launches {} with {flaws:?}", machine.name));
                self.cloud.launch(machine, flaws);
                *made += 1;
            }
        }
    }
}

/// Deletes the Nodes that are not Ready and whose machine the cloud has terminated.
fn delete_terminated_nodes(api: &Local, cloud: &Cloud) {
    for node in api.all("nodes") {
        let ours = node["metadata"]["labels"].get(GROUP).is_some();
        let silent = condition_status(&node, "Ready") != "True";
        if ours && silent && !is_deleting(&node) && !cloud.has(text(&node, "spec.providerID")) {
            let _ = api.delete(&node, None);
        }
    }
}
