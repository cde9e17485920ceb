//! The runtime with more controllers than the product has: they are added without a change of another, and one that
//! hangs holds no other up.

mod gate;

use std::sync::Arc;
use std::time::Duration;

use gate::bench::Bench;
use gate::template;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use nodekeeper_core::node::NodeView;
use nodekeeper_operator::runtime::reconciler::Controller;
use nodekeeper_operator::runtime::watcher::Selector;
use nodekeeper_operator::runtime::{Action, Cache, Change, Manager, ReconcileError, Reconciler, controller};
use nodekeeper_operator::{Settings, run_with};
use parking_lot::Mutex;
use tokio::time::sleep;

/// The decision of the toy controller: whether a node deserves a greeting.
fn deserves_greeting(node: &NodeView) -> bool {
    node.ready
}

/// Greets each Ready node once.
struct Greeter {
    nodes: Cache<NodeView>,
    greeted: Arc<Mutex<Vec<Arc<str>>>>,
    hangs: bool,
}

impl Reconciler for Greeter {
    const NAME: &'static str = "greeter";
    type Key = Arc<str>;

    fn needs(&self) -> Vec<&'static str> {
        vec![self.nodes.kind()]
    }

    fn keys(&self, change: &Change) -> Vec<Arc<str>> {
        (change.kind == self.nodes.kind()).then(|| change.key.clone()).into_iter().collect()
    }

    fn all_keys(&self) -> Vec<Arc<str>> {
        self.nodes.lock().keys().cloned().collect()
    }

    async fn reconcile(&self, key: &Arc<str>) -> Result<Action, ReconcileError> {
        if self.hangs {
            sleep(Duration::from_hours(1)).await;
        }
        let node = self.nodes.lock().get(key).cloned();
        let mut greeted = self.greeted.lock();
        if node.is_some_and(|node| deserves_greeting(&node)) && !greeted.contains(key) {
            greeted.push(key.clone());
        }
        Ok(Action::AwaitChange)
    }
}

fn start(bench: &Bench, hangs: bool) -> Arc<Mutex<Vec<Arc<str>>>> {
    let greeted: Arc<Mutex<Vec<Arc<str>>>> = Arc::default();
    let client = bench.cluster.client("replica-0");
    let settings = Settings::new(template(), "replica-0_1".into(), 1);
    let (api, log) = (Api::<Node>::all(client.clone()), greeted.clone());
    let extend = move |manager: &mut Manager| {
        let projection = Arc::new(|node: &Node| Some(NodeView::new(node)));
        let nodes = manager.watch("all nodes", api, Selector::default(), projection);
        move || -> Vec<Arc<dyn Controller>> {
            vec![controller(Greeter { nodes: nodes.clone(), greeted: log.clone(), hangs })]
        }
    };
    tokio::spawn(run_with(client, settings, bench.clock(), std::future::pending(), extend));
    greeted
}

#[tokio::test(start_paused = true)]
async fn a_third_controller_needs_no_change_of_another() {
    let bench = Bench::new();
    let greeted = start(&bench, false);
    bench.join("n1");
    bench.until("n1 is verified", |bench| bench.is_verified("n1")).await;
    bench.until("n1 is greeted", |_| !greeted.lock().is_empty()).await;
    assert_eq!(*greeted.lock(), ["n1".into()]);
}

#[tokio::test(start_paused = true)]
async fn a_reconcile_that_hangs_holds_up_no_other_controller() {
    let bench = Bench::new();
    let greeted = start(&bench, true);
    for name in ["n1", "n2", "n3"] {
        bench.join(name);
        let took = bench.until("it is verified", |bench| bench.is_verified(name)).await;
        assert!(took < Duration::from_mins(1), "{took:?}");
    }
    assert!(greeted.lock().is_empty(), "the other controller hangs");
}
