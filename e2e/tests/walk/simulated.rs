//! The embedded cluster on a paused clock, with the checks in process.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use kube::{Client, CustomResourceExt as _};
use nodekeeper_core::api::{NodeGate, NodeGateSpec};
use nodekeeper_core::worker::Template;
use nodekeeper_operator::clock::Clock;
use nodekeeper_operator::{Settings, run};
use nodekeeper_sim::actors::kubelet::{Kubelets, NodeSpec};
use nodekeeper_sim::actors::{self, Actors, Timing};
use nodekeeper_sim::network::{self, Outage};
use nodekeeper_sim::worker::Workers;
use nodekeeper_sim::{Cluster, Options};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::world::{Dns, NAMESPACE, TAINT, World};

pub struct Simulated {
    cluster: Cluster,
    _actors: Actors,
    _kubelets: Kubelets,
    controller: Option<JoinHandle<()>>,
}

impl Simulated {
    pub fn start(dns: Dns) -> Result<Self> {
        let cluster = Cluster::new(Options::simulated(7));
        let actors = actors::start(&cluster, Timing::default());
        network::install(&cluster)?;
        if dns == Dns::NotYet {
            network::run_cluster_dns(&cluster, false)?;
        }
        let kubelets = Kubelets::start(&cluster, 7, Arc::new(Workers));
        for name in names() {
            let taints =
                vec![nodekeeper_sim::value::json!({"key": TAINT, "value": "true", "effect": "NoSchedule"})];
            kubelets.join(NodeSpec { name, taints, ..NodeSpec::default() });
        }
        Ok(Self { cluster, _actors: actors, _kubelets: kubelets, controller: None })
    }
}

fn names() -> Vec<String> {
    (1..=3).map(|n| format!("node-{n}")).collect()
}

impl Drop for Simulated {
    fn drop(&mut self) {
        if let Some(controller) = &self.controller {
            controller.abort();
        }
    }
}

impl World for Simulated {
    fn nodes(&self) -> Vec<String> {
        names()
    }

    fn client(&self) -> Client {
        self.cluster.client("scenario")
    }

    fn patience(&self) -> Duration {
        Duration::from_mins(5)
    }

    async fn start_controller(&mut self, gate: &NodeGateSpec) -> Result<()> {
        let admin = self.cluster.local("admin");
        let create = |version: &str, kind: &str, namespace: &str, mut body: Value| {
            body["apiVersion"] = json!(version);
            body["kind"] = json!(kind);
            admin.create(version, kind, namespace, body)
        };
        let definition = serde_json::to_value(NodeGate::crd())?;
        create("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", definition)?;
        create("v1", "Namespace", "", json!({"metadata": {"name": NAMESPACE}}))?;
        let account = json!({"metadata": {"name": "nodekeeper-worker", "namespace": NAMESPACE}});
        create("v1", "ServiceAccount", NAMESPACE, account)?;
        let gate = json!({"metadata": {"name": "default"}, "spec": gate});
        create("nodekeeper.dev/v1alpha1", "NodeGate", "", gate)?;
        let clock = self.cluster.clock().clone();
        let clock = Clock::new(move || clock.now());
        let settings = Settings::new(template("nodekeeper.local/worker:1"), "controller".into(), 7);
        let client = self.cluster.client("controller");
        self.controller = Some(tokio::spawn(run(client, settings, clock, std::future::pending())));
        Ok(())
    }

    async fn break_dns(&self, node: &str) -> Result<()> {
        self.cluster.network().fail(Outage::Node(node.to_owned()));
        Ok(())
    }

    async fn heal_dns(&self, node: &str) -> Result<()> {
        self.cluster.network().heal(&Outage::Node(node.to_owned()));
        Ok(())
    }

    async fn start_cluster_dns(&self) -> Result<()> {
        Ok(network::run_cluster_dns(&self.cluster, true)?)
    }

    fn hint(&self) -> String {
        "the run is the same each time: print its trace with `cluster.trace().enable()`".into()
    }
}

pub fn template(image: &str) -> Template {
    Template {
        namespace: NAMESPACE.into(),
        image: image.into(),
        service_account: "nodekeeper-worker".into(),
        ..Template::default()
    }
}
