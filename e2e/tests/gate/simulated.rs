//! The embedded cluster on a paused clock, with the checks in process.

use nodekeeper_e2e::scenario::world::{Machine, NAMESPACE, WorkerBehaviour, WorkerBehaviours, World};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use futures::future::BoxFuture;
use kube::Client;
use nodekeeper_core::api::definitions;
use nodekeeper_core::checks::Assignment;
use nodekeeper_operator::clock::Clock;
use nodekeeper_sim::actors::kubelet::{
    ContainerConfig, ContainerRuntime, FalseReport, Kubelets, NodeSpec, Terminated,
};
use nodekeeper_sim::actors::{self, Actors, Timing};
use nodekeeper_sim::network::{self, Outage};
use nodekeeper_sim::value::{Value, json};
use nodekeeper_sim::worker::{Workers, assignment};
use nodekeeper_sim::{Cluster, Options};

pub struct Simulated {
    cluster: Cluster,
    _actors: Actors,
    kubelets: Kubelets,
    behaviours: WorkerBehaviours,
}

impl Simulated {
    pub fn start() -> Result<Self> {
        let cluster = Cluster::new(Options::simulated(7));
        let actors = actors::start(&cluster, Timing::default());
        network::install(&cluster)?;
        let admin = cluster.local("admin");
        let create = |version: &str, kind: &str, namespace: &str, mut body: Value| {
            body["apiVersion"] = json!(version);
            body["kind"] = json!(kind);
            admin.create(version, kind, namespace, body)
        };
        for definition in definitions() {
            create("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", json!(definition))?;
        }
        create("v1", "Namespace", "", json!({"metadata": {"name": NAMESPACE}}))?;
        let account = json!({"metadata": {"name": "nodekeeper-worker", "namespace": NAMESPACE}});
        create("v1", "ServiceAccount", NAMESPACE, account)?;
        let behaviours = WorkerBehaviours::default();
        let kubelets = Kubelets::start(&cluster, 7, Arc::new(ScriptedWorkers(behaviours.clone())));
        Ok(Self { cluster, _actors: actors, kubelets, behaviours })
    }
}

/// Runs the real checks in a simulated network that depends on the node's [`WorkerBehaviour`].
struct ScriptedWorkers(WorkerBehaviours);

impl ContainerRuntime for ScriptedWorkers {
    fn has_image(&self, container: &Value) -> bool {
        Workers.has_image(container)
    }

    fn run(&self, job: ContainerConfig) -> BoxFuture<'static, Terminated> {
        if assignment(&job.container).is_none() {
            return Workers.run(job);
        }
        let first = match self.0.of(&job.node) {
            WorkerBehaviour::Fails { first } => first,
            // No query gets a response.
            WorkerBehaviour::TimesOut => u32::MAX,
            WorkerBehaviour::Hangs => return Box::pin(std::future::pending()),
        };
        let outage = Outage::Node(job.node.clone());
        if number(&job.container) <= first {
            job.cluster.network().fail(outage);
        } else {
            job.cluster.network().heal(&outage);
        }
        Workers.run(job)
    }
}

fn number(container: &Value) -> u32 {
    let assignment = assignment(container).and_then(|text| serde_json::from_str::<Assignment>(text).ok());
    assignment.map(|assignment| assignment.identity.number).unwrap_or_default()
}

impl World for Simulated {
    fn client(&self) -> Client {
        self.cluster.client("scenario")
    }

    fn clock(&self) -> Clock {
        let clock = self.cluster.clock().clone();
        Clock::new(move || clock.now())
    }

    fn patience(&self) -> Duration {
        Duration::from_mins(10)
    }

    fn about(&self, nodes: usize) -> usize {
        nodes
    }

    fn behaviours(&self) -> &WorkerBehaviours {
        &self.behaviours
    }

    async fn join(&self, machine: Machine) -> Result<()> {
        let Machine { name, labels, taints, ready } = machine;
        let taints = taints.into_iter().map(Value::from).collect();
        self.kubelets.join(NodeSpec { name: name.clone(), labels, taints, ..NodeSpec::default() });
        if !ready {
            self.say_ready(&name, false).await?;
        }
        // The kubelets run in their own task and register the node soon.
        tokio::task::yield_now().await;
        Ok(())
    }

    async fn say_ready(&self, node: &str, ready: bool) -> Result<()> {
        let lie = if ready { None } else { Some(false) };
        self.kubelets.set_false_report(node, FalseReport { ready: lie, ..FalseReport::default() });
        Ok(())
    }

    async fn reboot(&self, node: &str) -> Result<()> {
        self.kubelets.reboot(node, Duration::from_secs(5));
        Ok(())
    }

    async fn power_off(&self, node: &str) -> Result<()> {
        self.kubelets.power_off(node);
        Ok(())
    }

    fn hint(&self) -> String {
        "the run is the same each time: print its trace with `cluster.trace().enable()`".into()
    }
}
