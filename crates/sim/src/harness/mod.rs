//! Runs a program under test through seeds of faults and checks invariants at every commit.
//!
//! One seed is one run: nodes join, replicas of the program run with faulty transports and crash around their writes,
//! machines reboot and die, and other users write to the same objects. Then everything is healed, and the final state
//! is checked. The same seed gives the same run.

mod chaos;
mod metrics;
pub mod soak;
mod sweep;

pub use metrics::MetricsEndpoint;
use parking_lot::Mutex;
pub use sweep::{Sweep, sweep};

use std::sync::Arc;
use std::time::Duration;

use crate::value::Value;
use futures::future::BoxFuture;
use tokio::sync::Notify;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use crate::actors::autoscaler::Autoscaler;
use crate::actors::cloud::{Cloud, Group};
use crate::actors::karpenter::Karpenter;
use crate::actors::kubelet::{ContainerRuntime, FakeRuntime, Kubelets, NodeSpec};
use crate::actors::{self, Timing};
use crate::clock::Clock;
use crate::cluster::{Cluster, Local, Options};
use crate::faults::{Admission, Coverage, Faults, Rates};
use crate::store::Change;
use crate::transport::{SentWrite, Transport};

pub struct Replica {
    /// What the run is like. The program must not write through it.
    pub cluster: Cluster,
    /// A client with faults.
    pub client: kube::Client,
    /// The replica's clock, which may jump.
    pub clock: Clock,
    /// `replica-0`, `replica-1`: the user of its writes.
    pub name: String,
    pub seed: u64,
    /// Where the program serves its metrics.
    pub metrics: MetricsEndpoint,
}

/// The program under test. It runs until it is dropped.
pub type Program = Arc<dyn Fn(Replica) -> BoxFuture<'static, ()> + Send + Sync>;

/// A condition that holds at every commit, and one that holds in the end.
pub trait Invariant: Send {
    fn name(&self) -> &'static str;

    /// Called at the start of a run.
    fn begin(&mut self, _cluster: &Cluster) {}

    /// Checks a change at its commit.
    fn check(&mut self, change: &Change) -> Result<(), String>;

    /// Checks a write that the program sent, once it was answered or lost.
    fn check_write(&mut self, _write: SentWrite<'_>) -> Result<(), String> {
        Ok(())
    }

    /// Checks the metrics that a replica serves, in some virtual minutes. `is_final` if everything was healed and has
    /// settled.
    fn check_metrics(&mut self, _cluster: &Cluster, _text: &str, _is_final: bool) -> Result<(), String> {
        Ok(())
    }

    /// Checks the cluster after everything was healed and has settled.
    fn check_final(&mut self, _cluster: &Cluster) -> Result<(), String> {
        Ok(())
    }
}

#[derive(Clone)]
pub struct Scenario {
    pub program: Program,
    /// The number of replicas. Without leader election all of them lead.
    pub replicas: usize,
    /// Called once for each run.
    pub invariants: fn() -> Vec<Box<dyn Invariant>>,
    /// How long faults are injected.
    pub chaos_duration: Duration,
    /// How long the cluster may settle after that.
    pub settle_duration: Duration,
    pub runtime: Arc<dyn ContainerRuntime>,
    /// Creates the initial objects.
    pub setup: fn(&Cluster),
    /// The taints that a machine registers with, by its number.
    pub taints: fn(&Local, usize) -> Vec<Value>,
    /// Whether there are machines that are not part of a group.
    pub fixed: bool,
    /// The pools of a Karpenter stand-in, which runs if there are any.
    pub karpenter: Vec<Group>,
    /// The groups of an autoscaler stand-in, which runs if there are any.
    pub autoscaled: Vec<Group>,
    /// A label that kubelets set on their Nodes falsely.
    pub false_label: (String, String),
    /// A random action of a user and its name for the report; none if it did not apply.
    pub user_action: fn(&Local, &mut fastrand::Rng) -> Option<&'static str>,
    /// Undoes what the program wrote about the node of this name, as another controller would at each reconcile. Returns
    /// whether there was anything to undo.
    pub revert: fn(&Local, &str) -> bool,
    /// The name under which the report counts a change, if it does.
    pub count_as: fn(&Change) -> Option<&'static str>,
    /// Reverts what user actions left behind.
    pub heal: fn(&Local),
}

impl Scenario {
    /// Two replicas, ten minutes of chaos, three to settle.
    pub fn new(program: Program, invariants: fn() -> Vec<Box<dyn Invariant>>) -> Self {
        let (chaos_duration, settle_duration) = (Duration::from_mins(10), Duration::from_mins(3));
        let false_label = ("kubelet.example.com/false_label".to_owned(), "yes".to_owned());
        Self {
            program,
            replicas: 2,
            invariants,
            chaos_duration,
            settle_duration,
            runtime: Arc::new(FakeRuntime),
            setup: |_| {},
            taints: |_, _| Vec::new(),
            fixed: true,
            karpenter: Vec::new(),
            autoscaled: Vec::new(),
            false_label,
            user_action: |_, _| None,
            revert: |_, _| false,
            count_as: |_| None,
            heal: |_| {},
        }
    }
}

#[derive(Debug)]
pub struct Report {
    pub seed: u64,
    /// The first violation of an invariant.
    pub violation: Option<String>,
    pub coverage: Coverage,
    /// Empty unless the trace was enabled.
    pub trace: String,
}

/// A program that sends more requests is in a busy loop.
const MAX_REQUESTS_PER_MINUTE: u64 = 4_000;

/// How often the metrics of the replicas are checked.
const SCRAPE_PERIOD: Duration = Duration::from_mins(2);

/// In one of so many seeds the writes of components of the cluster are decoded as those of clients are.
const CHECK_COMPONENTS_IN: u64 = 10;

/// The prefix of replica names.
const REPLICA: &str = "replica-";

/// Runs one seed.
///
/// # Panics
/// If no tokio runtime can be built.
#[must_use]
pub fn run(scenario: &Scenario, seed: u64, keep_trace: bool) -> Report {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let runtime = runtime.expect("a runtime without I/O can be built");
    // Inside the runtime, since tokio's clock is real outside and the run would not be deterministic.
    runtime.block_on(async { Run::new(scenario, seed, keep_trace).execute().await })
}

/// The first violation of a run, and a notification of it.
#[derive(Clone, Default)]
struct Violation {
    first: Arc<Mutex<Option<String>>>,
    notify: Arc<Notify>,
}

impl Violation {
    fn report(&self, text: String) {
        let mut first = self.first.lock();
        if first.is_none() {
            *first = Some(text);
            self.notify.notify_one();
        }
    }

    fn get(&self) -> Option<String> {
        self.first.lock().clone()
    }
}

type Invariants = Arc<Mutex<Vec<Box<dyn Invariant>>>>;

struct Run<'s> {
    scenario: &'s Scenario,
    seed: u64,
    random: fastrand::Rng,
    cluster: Cluster,
    coverage: Arc<Mutex<Coverage>>,
    violation: Violation,
    invariants: Invariants,
    faults: Arc<Mutex<Vec<Faults>>>,
    admission: Admission,
    rates: Rates,
    /// One for each replica.
    metrics: Vec<MetricsEndpoint>,
}

impl<'s> Run<'s> {
    fn new(scenario: &'s Scenario, seed: u64, keep_trace: bool) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let cluster = Cluster::new(Options::simulated(random.u64(..)));
        cluster.state().checks_components = seed.is_multiple_of(CHECK_COMPONENTS_IN);
        if keep_trace {
            cluster.trace().enable();
        }
        let mut rates = random_rates(&mut random);
        if is_large(seed) {
            // Otherwise no list of so many nodes would ever be complete.
            (rates.cut, rates.late) = (rates.cut / 8, rates.late / 8);
        }
        Self {
            scenario,
            seed,
            random,
            cluster,
            rates,
            coverage: Arc::default(),
            violation: Violation::default(),
            invariants: Arc::new(Mutex::new((scenario.invariants)())),
            faults: Arc::default(),
            admission: Admission::default(),
            metrics: (0..scenario.replicas).map(|_| MetricsEndpoint::default()).collect(),
        }
    }

    async fn execute(mut self) -> Report {
        self.install_invariants();
        (self.scenario.setup)(&self.cluster);
        let mut actors = actors::start(&self.cluster, Timing::default());
        let started = actors.running();
        let kubelets = Kubelets::start(&self.cluster, self.random.u64(..), self.scenario.runtime.clone());
        let cloud = Cloud::new(&self.cluster, &kubelets);
        let (karpenter, autoscaler) = self.start_provisioners(&cloud);
        let nodes = if self.scenario.fixed { self.choose_nodes() } else { Vec::new() };
        let seed = self.random.u64(..);
        let clients = chaos::Clients {
            faults: self.faults.clone(),
            admission: self.admission.clone(),
            coverage: self.coverage.clone(),
        };
        let chaos =
            chaos::Chaos::new(&self.cluster, (&kubelets, &cloud), self.scenario, nodes, seed, clients);

        let mut replicas = JoinSet::new();
        let clocks: Vec<Clock> =
            (0..self.scenario.replicas).map(|_| self.cluster.clock().independent()).collect();
        for (i, clock) in clocks.iter().enumerate() {
            replicas.spawn(self.run_replica(i, clock.clone()));
        }
        let calm_at = Instant::now() + self.scenario.chaos_duration;
        let chaos = chaos.run(clocks, calm_at);
        let end = calm_at + self.scenario.settle_duration;
        let timeline = async {
            chaos.await;
            for faults in self.faults.lock().iter() {
                faults.set_rates(Rates::NONE);
            }
            (self.scenario.heal)(&self.cluster.local("user"));
            self.cluster.trace().record(|| "all faults healed".into());
            sleep_until(end).await;
        };
        tokio::select! {
            biased;
            () = self.violation.notify.notified() => {}
            () = self.scrape_metrics() => {}
            Some(Err(error)) = replicas.join_next() => {
                self.violation.report(format!("the program under test panicked: {}", panic_message(error)));
            }
            () = timeline => {
                self.check_final_state();
                let stand_ins = karpenter.as_ref().is_none_or(Karpenter::is_running)
                    && autoscaler.as_ref().is_none_or(Autoscaler::is_running);
                if actors.running() != started || !kubelets.is_running() || !stand_ins {
                    self.violation.report("a component of the embedded cluster panicked: see the output above".into());
                }
            }
        }
        let violation = self.violation.get();
        if let Some(violation) = &violation {
            self.cluster.trace().record(|| format!("VIOLATION {violation}"));
        }
        let coverage = self.coverage.lock().clone();
        Report { seed: self.seed, violation, coverage, trace: self.cluster.trace().text() }
    }

    fn start_provisioners(&mut self, cloud: &Cloud) -> (Option<Karpenter>, Option<Autoscaler>) {
        let (pools, groups) = (self.scenario.karpenter.clone(), self.scenario.autoscaled.clone());
        let karpenter = (!pools.is_empty()).then(|| {
            let karpenter = Karpenter::start(&self.cluster, cloud, self.random.u64(..), pools);
            karpenter
                .inspect_err(|error| self.violation.report(format!("karpenter cannot start: {error}")))
                .ok()
        });
        let autoscaler = (!groups.is_empty())
            .then(|| Autoscaler::start(&self.cluster, cloud, self.random.u64(..), groups));
        (karpenter.flatten(), autoscaler)
    }

    fn install_invariants(&self) {
        let (invariants, violation) = (self.invariants.clone(), self.violation.clone());
        let (coverage, trace) = (self.coverage.clone(), self.cluster.trace().clone());
        let count_as = self.scenario.count_as;
        for invariant in invariants.lock().iter_mut() {
            invariant.begin(&self.cluster);
        }
        self.cluster.observe(Box::new(move |change| {
            trace.record(|| describe(change));
            let mut coverage = coverage.lock();
            let by_whom =
                if change.user.starts_with(REPLICA) { "writes, by the program" } else { "writes, by others" };
            for what in [Some(by_whom), count_as(change)].into_iter().flatten() {
                *coverage.observations.entry(what).or_default() += 1;
            }
            for invariant in invariants.lock().iter_mut() {
                *coverage.checks.entry(invariant.name()).or_default() += 1;
                if let Err(wrong) = invariant.check(change) {
                    violation.report(format!(
                        "{}: {wrong} (by {}, {})",
                        invariant.name(),
                        change.user,
                        describe(change)
                    ));
                }
            }
        }));
        let (invariants, violation) = (self.invariants.clone(), self.violation.clone());
        self.cluster.observe_writes(Box::new(move |write| {
            if !write.user.starts_with(REPLICA) {
                return;
            }
            for invariant in invariants.lock().iter_mut() {
                if let Err(wrong) = invariant.check_write(write) {
                    let (name, user, request) = (invariant.name(), write.user, write.request);
                    let (method, uri) = (request.method(), request.uri());
                    let code = write.code.map_or_else(|| "lost".to_owned(), |code| code.to_string());
                    violation.report(format!("{name}: {wrong} (by {user}, {method} {uri}: {code})"));
                }
            }
        }));
    }

    /// Checks the metrics now and then, until the run ends.
    async fn scrape_metrics(&self) {
        loop {
            sleep(SCRAPE_PERIOD).await;
            self.check_metrics(false);
        }
    }

    fn check_metrics(&self, is_final: bool) {
        for (i, text) in self.metrics.iter().enumerate().filter_map(|(i, one)| Some((i, one.scrape()?))) {
            for invariant in self.invariants.lock().iter_mut() {
                if let Err(wrong) = invariant.check_metrics(&self.cluster, &text, is_final) {
                    let name = invariant.name();
                    self.violation.report(format!("{name}, in the metrics of {REPLICA}{i}: {wrong}"));
                }
            }
        }
    }

    fn check_final_state(&self) {
        self.check_metrics(true);
        for invariant in self.invariants.lock().iter_mut() {
            if let Err(wrong) = invariant.check_final(&self.cluster) {
                self.violation.report(format!("{}, in the end: {wrong}", invariant.name()));
            }
        }
    }

    /// 6 to 23 machines in three zones; 100 to 120 in one of ten runs, even and odd ones.
    fn choose_nodes(&mut self) -> Vec<NodeSpec> {
        let count = if is_large(self.seed) { self.random.usize(100..=120) } else { self.random.usize(6..24) };
        let zone = |i: usize| ["a", "b", "c"][i % 3].to_owned();
        let user = self.cluster.local("setup");
        let node = |i: usize| NodeSpec {
            name: format!("n{i:03}"),
            zone: zone(i),
            taints: (self.scenario.taints)(&user, i),
            ..NodeSpec::default()
        };
        (0..count).map(node).collect()
    }

    /// Runs a replica and restarts it after each crash.
    fn run_replica(&mut self, i: usize, clock: Clock) -> impl Future<Output = ()> + Send + 'static {
        let mut random = fastrand::Rng::with_seed(self.random.u64(..));
        let (cluster, program) = (self.cluster.clone(), self.scenario.program.clone());
        let (coverage, all_faults) = (self.coverage.clone(), self.faults.clone());
        let (violation, rates, admission) = (self.violation.clone(), self.rates, self.admission.clone());
        let calm_at = Instant::now() + self.scenario.chaos_duration;
        let metrics = self.metrics[i].clone();
        async move {
            loop {
                let rates = if Instant::now() < calm_at { rates } else { Rates::NONE };
                let faults = Faults::new(random.u64(..), rates, coverage.clone()).with_admission(&admission);
                all_faults.lock().push(faults.clone());
                let name = format!("{REPLICA}{i}");
                cluster.trace().record(|| format!("{name} starts"));
                let client = Transport::new(&cluster, &name).with_faults(faults.clone()).client();
                let replica = Replica {
                    cluster: cluster.clone(),
                    client,
                    clock: clock.clone(),
                    name: name.clone(),
                    seed: random.u64(..),
                    metrics: metrics.clone(),
                };
                let running = program(replica);
                tokio::select! {
                    biased;
                    () = faults.crashed() => {}
                    () = busy(&faults) => {
                        violation.report(format!("{name} sent more than {MAX_REQUESTS_PER_MINUTE} requests in one minute: a busy loop"));
                    }
                    () = running => cluster.trace().record(|| format!("{name} returned")),
                }
                // Cuts off tasks that the replica left behind.
                faults.crash();
                metrics.close();
                sleep(Duration::from_millis(random.u64(200..5_000))).await;
            }
        }
    }
}

/// Whether a run has a hundred nodes.
fn is_large(seed: u64) -> bool {
    matches!(seed % 20, 0 | 11)
}

/// The message of a panic, without the task id, which differs between runs.
fn panic_message(error: JoinError) -> String {
    let Ok(payload) = error.try_into_panic() else { return "it was cancelled".into() };
    let text = payload.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_default()
}

/// Returns when a client has sent too many requests within one virtual minute.
async fn busy(faults: &Faults) {
    loop {
        let before = faults.requests();
        let minute = Instant::now() + Duration::from_mins(1);
        // A busy client wakes this up early.
        let _ = timeout_at(minute, faults.wait_for_requests(before + MAX_REQUESTS_PER_MINUTE)).await;
        if faults.requests() - before >= MAX_REQUESTS_PER_MINUTE {
            return;
        }
    }
}

/// Varies the rates, since frequent faults hide rare ones.
fn random_rates(random: &mut fastrand::Rng) -> Rates {
    let mut scale = |rate: u32| rate * random.u32(0..=4) / 2;
    let Rates { refused, lost, delayed, crash, cut, late, stale } = Rates::CHAOS;
    Rates {
        refused: scale(refused),
        lost: scale(lost),
        delayed: scale(delayed),
        crash: scale(crash),
        cut: scale(cut),
        late: scale(late),
        stale: scale(stale),
    }
}

fn describe(change: &Change) -> String {
    let what = match (&change.before, &change.after) {
        (None, _) => "created",
        (_, None) => "deleted",
        _ => "updated",
    };
    let delayed = if change.is_delayed { " (delayed)" } else { "" };
    let Change { user, collection, key, revision, .. } = change;
    format!("{user} {what} {collection}/{key} rv={revision}{delayed}")
}
