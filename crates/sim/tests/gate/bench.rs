//! A cluster without injected faults, and controllers on it.

use std::sync::Arc;
use std::time::Duration;

use nodekeeper_operator::clock::Clock;
use nodekeeper_operator::{Settings, run};
use nodekeeper_sim::actors::kubelet::{Kubelets, NodeSpec};
use nodekeeper_sim::actors::{self, Actors, Timing};
use nodekeeper_sim::object::{at, text};
use nodekeeper_sim::worker::Workers;
use nodekeeper_sim::{Cluster, Options};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::{LABEL, NAMESPACE, setup, taint, template};

pub struct Bench {
    pub cluster: Cluster,
    pub kubelets: Kubelets,
    _actors: Actors,
    /// The user and the kind of every write of a controller.
    pub writes: Arc<Mutex<Vec<(String, String)>>>,
}

impl Bench {
    pub fn new() -> Self {
        let cluster = Cluster::new(Options::simulated(1));
        let actors = actors::start(&cluster, Timing::default());
        let kubelets = Kubelets::start(&cluster, 1, Arc::new(Workers));
        setup(&cluster);
        let writes: Arc<Mutex<Vec<(String, String)>>> = Arc::default();
        let log = writes.clone();
        cluster.observe(Box::new(move |change| {
            if change.user.starts_with("replica") {
                let what = match (&change.before, &change.after) {
                    (None, _) => "created",
                    (_, None) => "deleted",
                    _ => "updated",
                };
                log.lock().push((change.user.clone(), format!("{what} {}", change.collection)));
            }
        }));
        Self { cluster, kubelets, _actors: actors, writes }
    }

    pub fn controller(&self, name: &str) -> (JoinHandle<()>, Arc<Notify>) {
        self.controller_with(Settings::new(template(), format!("{name}_1"), 1), name, self.clock())
    }

    pub fn controller_with(
        &self,
        settings: Settings,
        name: &str,
        clock: Clock,
    ) -> (JoinHandle<()>, Arc<Notify>) {
        let stop = Arc::new(Notify::new());
        let told = stop.clone();
        let running = run(self.cluster.client(name), settings, clock, async move { told.notified().await });
        (tokio::spawn(running), stop)
    }

    pub fn clock(&self) -> Clock {
        let clock = self.cluster.clock().clone();
        Clock::new(move || clock.now())
    }

    pub fn join(&self, name: &str) {
        self.kubelets.join(NodeSpec { name: name.into(), taints: vec![taint()], ..NodeSpec::default() });
    }

    pub fn is_verified(&self, name: &str) -> bool {
        let node = self.cluster.local("test").get("nodes", "", name);
        node.is_some_and(|node| {
            at(&node, "metadata.labels").is_some_and(|labels| labels.get(LABEL).is_some())
        })
    }

    pub fn holder(&self) -> String {
        let lease =
            self.cluster.local("test").get("coordination.k8s.io/leases", NAMESPACE, "kube-node-ready-leader");
        lease.map(|lease| text(&lease, "spec.holderIdentity").to_owned()).unwrap_or_default()
    }

    /// Waits for a condition. Returns the virtual time that it took.
    pub async fn until(&self, what: &str, condition: impl Fn(&Self) -> bool) -> Duration {
        self.within(Duration::from_mins(2), what, condition).await
    }

    /// The same for what takes more than two minutes.
    pub async fn until_long(&self, what: &str, condition: impl Fn(&Self) -> bool) -> Duration {
        self.within(Duration::from_mins(15), what, condition).await
    }

    async fn within(&self, limit: Duration, what: &str, condition: impl Fn(&Self) -> bool) -> Duration {
        let start = Instant::now();
        while !condition(self) {
            assert!(start.elapsed() < limit, "timed out: {what}");
            sleep(Duration::from_millis(10)).await;
        }
        start.elapsed()
    }
}
