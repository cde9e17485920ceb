//! What a gate says about itself: gathered here, decided in `core::fleet`, written by `apply`.

use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::ListParams;
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Error, ResourceExt as _};
use nodekeeper_core::api::{NodeGateSpec, NodeGateStatus};
use nodekeeper_core::autoscaler::{Autoscalers, Pool, judge};
use nodekeeper_core::fleet::{Seen, gated_nodes, shadow, status};
use nodekeeper_core::gate::{GateView, State};
use tokio::time::timeout;
use tracing::{debug, warn};

use super::{Gate, READ, locked};
use crate::apply::Trouble;
use crate::queue::Outcome;

/// How often autoscalers are looked for. Nobody waits for it.
const AUTOSCALERS: Duration = Duration::from_mins(10);

/// The gate of the configuration file.
const CONFIG: &str = "config";

impl Gate {
    /// Writes the status of a gate, if it says anything new.
    pub async fn report(&self, name: &str) -> Outcome {
        self.find_autoscalers().await;
        let Some((gate, next)) = self.next_status(name) else {
            locked(&self.line).forget(name);
            return Outcome::Settled;
        };
        if next == gate.status {
            return Outcome::Again(AUTOSCALERS);
        }
        match self.writer.report(&gate, &next).await {
            Ok(()) => {
                self.views().gates.update(name, |known| known.status = next);
                Outcome::Again(AUTOSCALERS)
            }
            // Another of its name, or none: the watch will say so.
            Err(Trouble::Conflict(why) | Trouble::Gone(why)) => {
                debug!(gate = name, why, "no status");
                Outcome::Failed
            }
            Err(trouble) => {
                warn!(gate = name, %trouble, "the status of the gate is not written");
                Outcome::Failed
            }
        }
    }

    /// Keeps the gate of the configuration file as the file says.
    pub async fn keep_file(&self, spec: Option<&NodeGateSpec>) -> Outcome {
        let Some(spec) = spec else { return Outcome::Settled };
        let known = self.views().gates.get(CONFIG).cloned();
        match self.writer.adopt(CONFIG, spec, known.as_ref()).await {
            Ok(()) => Outcome::Settled,
            Err(trouble) => {
                warn!(gate = CONFIG, %trouble, "the gate of the configuration file is not as the file says");
                Outcome::Failed
            }
        }
    }

    fn next_status(&self, name: &str) -> Option<(GateView, NodeGateStatus)> {
        let views = self.views();
        let gate = views.gates.get(name)?.clone();
        let fleet = locked(&self.fleet);
        let refused = locked(&self.line).refusal(name, self.clock.elapsed());
        let gates: Vec<&GateView> = views.gates.all().collect();
        let shadowed_by = shadow(&gate, &gates, views.nodes.all());
        let unserved = gate.spec.taints.iter().find_map(|taint| {
            let count = fleet.counts(&taint.key).count(State::Unserved);
            let example = fleet.example(&taint.key, State::Unserved)?;
            (count > 0).then_some((example, count))
        });
        let taints: Vec<&str> = gate.spec.taints.iter().map(|taint| taint.key.as_str()).collect();
        let autoscalers = locked(&self.autoscalers);
        let nothing = Autoscalers { pools: Ok(Vec::new()), cluster_autoscaler: false };
        let there = autoscalers.as_ref().map_or(&nothing, |(_, found)| found);
        let found = judge(there, &taints);
        if there.pools.as_ref().is_ok_and(|pools| !pools.is_empty()) {
            self.metrics.autoscaler("karpenter", found.reason != "TaintIsPermanent");
        }
        if there.cluster_autoscaler {
            self.metrics.autoscaler("cluster-autoscaler", found.status == "True");
        }
        let seen = Seen {
            gate: &gate,
            counts: &fleet.counts(name),
            gated_nodes: gated_nodes(&fleet, name, views.nodes.all()),
            refused: refused.as_deref(),
            shadowed_by: shadowed_by.as_ref().map(|(other, count)| (other.as_str(), *count)),
            unserved,
            autoscalers: found,
        };
        let now = self.clock.now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let next = status(&seen, &gate.status, &now);
        Some((gate, next))
    }

    async fn find_autoscalers(&self) {
        let now = self.clock.elapsed();
        let known = locked(&self.autoscalers).as_ref().map(|(at, _)| *at);
        if known.is_some_and(|at| now < at + AUTOSCALERS) {
            return;
        }
        let kind = GroupVersionKind::gvk("karpenter.sh", "v1", "NodePool");
        let pools: Api<DynamicObject> = Api::all_with(self.client.clone(), &ApiResource::from_gvk(&kind));
        let pools = match timeout(READ, pools.list(&ListParams::default().limit(500))).await {
            Ok(Ok(list)) => {
                Ok(list.items.iter().map(|pool| Pool::new(&pool.name_any(), &pool.data)).collect())
            }
            // There is no Karpenter here.
            Ok(Err(Error::Api(status))) if status.code == 404 => Ok(Vec::new()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("no answer".into()),
        };
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), "kube-system");
        let cluster_autoscaler =
            matches!(timeout(READ, maps.get_opt("cluster-autoscaler-status")).await, Ok(Ok(Some(_))));
        *locked(&self.autoscalers) = Some((now, Autoscalers { pools, cluster_autoscaler }));
    }
}
