//! A stand-in for Karpenter (`karpenter.sh/v1`). Deleting a `NodeClaim` or its Node drains the Node and removes both;
//! a new `NodeClaim` follows a few seconds later. Pools have a fixed size here, since pending pods do not provision
//! nodes.

mod claim;
mod crds;
mod termination;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::value::Value;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::cloud::{Cloud, Group, PendingReplacements};
use super::kubelet::NodeSpec;
use crate::api::status::ApiError;
use crate::cluster::{Cluster, Local};
use crate::object::{has_finalizer, is_deleting, name, text, uid};

const CLAIMS: &str = "karpenter.sh/nodeclaims";
const POOLS: &str = "karpenter.sh/nodepools";
const API: &str = "karpenter.sh/v1";
/// The finalizer of a `NodeClaim` and its Node, removed once the machine is terminated.
const TERMINATION: &str = "karpenter.sh/termination";
/// The label of a `NodeClaim` and its Node that names the pool.
pub const POOL: &str = "karpenter.sh/nodepool";
const REGISTERED: &str = "karpenter.sh/registered";
const INITIALIZED: &str = "karpenter.sh/initialized";
const HASH: &str = "karpenter.sh/nodepool-hash";
const UNREGISTERED_TAINT: &str = "karpenter.sh/unregistered";
const DISRUPTED_TAINT: &str = "karpenter.sh/disrupted";

const PERIOD: Duration = Duration::from_secs(1);

/// Runs Karpenter until it is dropped.
#[must_use = "Karpenter stops when this is dropped"]
pub struct Karpenter(JoinHandle<()>);

impl Drop for Karpenter {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Karpenter {
    /// Installs the CRDs and a `NodePool` for each group, with the group's taints as startup taints, and keeps the
    /// pools full. A replacement is made from the `NodePool` as it is at that time.
    pub fn start(cluster: &Cluster, cloud: &Cloud, seed: u64, pools: Vec<Group>) -> Result<Self, ApiError> {
        let api = cluster.local("karpenter");
        crds::install(&api, &pools)?;
        let pools = pools.into_iter().map(|group| (group.name.clone(), Pool { group, ..Pool::default() }));
        let mut reconciler = Reconciler {
            api,
            cloud: cloud.clone(),
            random: fastrand::Rng::with_seed(seed),
            pools: pools.collect(),
            launching: BTreeMap::new(),
        };
        Ok(Self(tokio::spawn(async move {
            loop {
                reconciler.reconcile();
                sleep(PERIOD).await;
            }
        })))
    }

    /// False once its task has panicked.
    #[must_use]
    pub fn is_running(&self) -> bool {
        !self.0.is_finished()
    }
}

#[derive(Default)]
struct Pool {
    group: Group,
    made: u64,
    pending: PendingReplacements,
}

struct PendingLaunch {
    machine: NodeSpec,
    number: u64,
    boots_at: Instant,
}

struct Reconciler {
    api: Local,
    cloud: Cloud,
    random: fastrand::Rng,
    pools: BTreeMap<String, Pool>,
    /// By the uid of the claim.
    launching: BTreeMap<String, PendingLaunch>,
}

impl Reconciler {
    fn reconcile(&mut self) {
        self.boot_machines();
        let claims = self.api.all(CLAIMS);
        let nodes = self.nodes();
        for claim in claims.iter().filter(|claim| has_finalizer(claim, TERMINATION)) {
            let node = nodes.get(text(claim, "status.providerID"));
            if is_deleting(claim) {
                self.finalize_claim(claim, node);
            } else if node.is_some_and(|node| is_deleting(node)) {
                let _ = self.api.delete(claim, None);
            } else {
                self.advance(claim, node);
            }
        }
        for node in nodes.values().filter(|node| is_deleting(node) && has_finalizer(node, TERMINATION)) {
            self.finalize_node(node);
        }
        self.provision(&claims);
    }

    /// By provider id.
    fn nodes(&self) -> BTreeMap<String, Arc<Value>> {
        let nodes = self.api.all("nodes").into_iter();
        let nodes = nodes.map(|node| (text(&node, "spec.providerID").to_owned(), node));
        nodes.filter(|(id, _)| !id.is_empty()).collect()
    }

    fn provision(&mut self, claims: &[Arc<Value>]) {
        let mut wanted = Vec::new();
        for (pool, Pool { group, made, pending }) in &mut self.pools {
            let lives = |c: &&Arc<Value>| !is_deleting(c) && c["metadata"]["labels"][POOL] == **pool;
            let missing = group.size.saturating_sub(claims.iter().filter(lives).count());
            let is_first = *made == 0;
            let pause = || {
                if is_first { Duration::ZERO } else { Duration::from_millis(self.random.u64(1_000..6_000)) }
            };
            for _ in 0..pending.due(missing, pause) {
                wanted.push((pool.clone(), *made));
                *made += 1;
            }
        }
        for (pool, number) in wanted {
            self.create_claim(&pool, number);
        }
    }

    fn create_claim(&mut self, pool: &str, number: u64) {
        let Some(kept) = self.pools.get(pool) else { return };
        let Some(template) = self.api.get(POOLS, "", pool) else { return };
        let mut machine = kept.group.machine(number);
        let body = claim::body(&template, &machine);
        let Ok(claim) = self.api.create(API, "NodeClaim", "", body) else { return };
        claim::apply_claim(&mut machine, &claim);
        let launched = [("providerID", machine.provider_id.as_str()), ("imageID", "image-1")];
        self.update_status(&claim, &launched, "Launched", "True", "Launched");
        self.api
            .cluster()
            .trace()
            .record(|| format!("karpenter: nodeclaim {} launches {}", name(&claim), machine.name));
        let boots_at = Instant::now() + Duration::from_millis(self.random.u64(2_000..8_000));
        self.launching.insert(uid(&claim).to_owned(), PendingLaunch { machine, number, boots_at });
    }

    fn boot_machines(&mut self) {
        let now = Instant::now();
        for (_, launching) in self.launching.extract_if(.., |_, launching| launching.boots_at <= now) {
            let pool = launching.machine.labels.get(POOL).and_then(|pool| self.pools.get(pool));
            let flaws = pool.map(|pool| pool.group.flaws.at(launching.number)).unwrap_or_default();
            let line = || format!("karpenter: {} boots with {flaws:?}", launching.machine.name);
            self.api.cluster().trace().record(line);
            self.cloud.launch(launching.machine, flaws);
        }
    }
}
