//! Runs a program under test through seeds of faults, and checks invariants at every step.
//!
//! One seed is one run: nodes join, replicas of the program start on wires that lose, delay and refuse, machines
//! reboot and die, user else writes to the same objects, and replicas crash before and after their writes. Then
//! everything is healed, and what must come true in the end is looked at. The same seed gives the same run.

mod chaos;
mod sweep;

pub use sweep::{Sweep, sweep};

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use serde_json::Value;
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
use crate::faults::{Coverage, Faults, Rates};
use crate::store::Change;
use crate::transport::Transport;

/// What a replica of the program under test is given.
pub struct Replica {
    /// Its way to the cluster, faults included.
    pub client: kube::Client,
    /// Its clock, which may jump.
    pub clock: Clock,
    /// `replica-0`, `replica-1`: the name that its writes carry in the trace and for the invariants.
    pub name: String,
    /// For whatever the program does at random.
    pub seed: u64,
}

/// The program under test: runs until it is dropped.
pub type Program = Arc<dyn Fn(Replica) -> BoxFuture<'static, ()> + Send + Sync>;

/// Something that must hold at every step, and something that must be so in the end.
pub trait Invariant: Send {
    /// What must hold, in a few words.
    fn name(&self) -> &'static str;

    /// The run begins, in this cluster.
    fn begin(&mut self, _cluster: &Cluster) {}

    /// Looks at a change as it is committed; an error says what is wrong with it.
    fn check(&mut self, change: &Change) -> Result<(), String>;

    /// Looks at the cluster after everything was healed and had time to settle.
    fn check_final(&mut self, _cluster: &Cluster) -> Result<(), String> {
        Ok(())
    }
}

/// What is run.
#[derive(Clone)]
pub struct Scenario {
    /// The program.
    pub program: Program,
    /// How many of it at once. More than one without a leader is two leaders.
    pub replicas: usize,
    /// What must hold, made anew for each run.
    pub invariants: fn() -> Vec<Box<dyn Invariant>>,
    /// How long things go wrong.
    pub chaos_duration: Duration,
    /// How long everything then has to settle.
    pub settle_duration: Duration,
    /// Runs the containers.
    pub runner: Arc<dyn ContainerRuntime>,
    /// What the cluster has before anything else happens.
    pub setup: fn(&Cluster),
    /// The taints that every node registers with.
    pub taints: Vec<Value>,
    /// Whether there are machines that nobody replaces, besides those of pools and groups.
    pub fixed: bool,
    /// Pools that a stand-in for Karpenter keeps full; there is none where this is empty.
    pub karpenter: Vec<Group>,
    /// Groups that a stand-in for an autoscaler keeps full; there is none where this is empty.
    pub autoscaled: Vec<Group>,
    /// A label that lying kubelets give themselves.
    pub false_label: (String, String),
    /// What else user may do now and then, in a word or two; none where there was nothing to do it to.
    pub user_action: fn(&Local, &mut fastrand::Rng) -> Option<&'static str>,
    /// What a change means in this timeline, in a word or two, where that is worth counting.
    pub count_as: fn(&Change) -> Option<&'static str>,
    /// Undoes what meddling may have left, when everything is healed.
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
            runner: Arc::new(FakeRuntime),
            setup: |_| {},
            taints: Vec::new(),
            fixed: true,
            karpenter: Vec::new(),
            autoscaled: Vec::new(),
            false_label,
            user_action: |_, _| None,
            count_as: |_| None,
            heal: |_| {},
        }
    }
}

/// How a run ended.
#[derive(Debug)]
pub struct Report {
    /// Which run.
    pub seed: u64,
    /// The first thing that was wrong, if anything was.
    pub violation: Option<String>,
    /// What the run met.
    pub coverage: Coverage,
    /// What observations, if the trace was kept.
    pub trace: String,
}

/// A program that sends more requests than this in one virtual minute asks again and again without a pause.
const MAX_REQUESTS_PER_MINUTE: u64 = 4_000;

/// How the names of replicas begin.
const REPLICA: &str = "replica-";

/// Runs one seed.
///
/// # Panics
/// Where no tokio runtime can be made.
#[must_use]
pub fn run(scenario: &Scenario, seed: u64, keep_trace: bool) -> Report {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let runtime = runtime.expect("a runtime without I/O needs nothing that can be missing");
    // Inside the runtime: outside of it tokio's clock is the real one, and the run would begin at a random moment.
    runtime.block_on(async { Run::new(scenario, seed, keep_trace).go().await })
}

/// The first violation of a run, and a notify that rings for it.
#[derive(Clone, Default)]
struct Violation {
    first: Arc<Mutex<Option<String>>>,
    notify: Arc<Notify>,
}

impl Violation {
    fn report(&self, text: String) {
        let mut first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        if first.is_none() {
            *first = Some(text);
            self.notify.notify_one();
        }
    }

    fn get(&self) -> Option<String> {
        self.first.lock().unwrap_or_else(PoisonError::into_inner).clone()
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
    rates: Rates,
}

impl<'s> Run<'s> {
    fn new(scenario: &'s Scenario, seed: u64, keep_trace: bool) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let cluster = Cluster::new(Options::simulated(random.u64(..)));
        if keep_trace {
            cluster.trace().enable();
        }
        let rates = random_rates(&mut random);
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
        }
    }

    async fn go(mut self) -> Report {
        self.install_invariants();
        (self.scenario.setup)(&self.cluster);
        let mut actors = actors::start(&self.cluster, Timing::default());
        let started = actors.is_running();
        let kubelets = Kubelets::start(&self.cluster, self.random.u64(..), self.scenario.runner.clone());
        let cloud = Cloud::new(&self.cluster, &kubelets);
        let (karpenter, autoscaler) = self.start_stand_ins(&cloud);
        let nodes = if self.scenario.fixed { self.choose_nodes() } else { Vec::new() };
        let (seed, coverage) = (self.random.u64(..), self.coverage.clone());
        let chaos =
            chaos::Chaos::new(&self.cluster, (&kubelets, &cloud), self.scenario, nodes, seed, coverage);

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
            for faults in self.faults.lock().unwrap_or_else(PoisonError::into_inner).iter() {
                faults.set_rates(Rates::NONE);
            }
            (self.scenario.heal)(&self.cluster.local("user"));
            self.cluster.trace().record(|| "everything is healed".into());
            sleep_until(end).await;
        };
        tokio::select! {
            biased;
            () = self.violation.notify.notified() => {}
            Some(Err(error)) = replicas.join_next() => {
                self.violation.report(format!("the program under test panicked: {}", panic_message(error)));
            }
            () = timeline => {
                self.check_final_state();
                let stand_ins = karpenter.as_ref().is_none_or(Karpenter::is_running)
                    && autoscaler.as_ref().is_none_or(Autoscaler::is_running);
                if actors.is_running() != started || !kubelets.is_running() || !stand_ins {
                    self.violation.report("part of the embedded cluster itself panicked: see the output above".into());
                }
            }
        }
        let violation = self.violation.get();
        if let Some(violation) = &violation {
            self.cluster.trace().record(|| format!("VIOLATION {violation}"));
        }
        let coverage = self.coverage.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Report { seed: self.seed, violation, coverage, trace: self.cluster.trace().text() }
    }

    /// Those who replace machines, where the scenario has any to replace.
    fn start_stand_ins(&mut self, cloud: &Cloud) -> (Option<Karpenter>, Option<Autoscaler>) {
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
        for invariant in invariants.lock().unwrap_or_else(PoisonError::into_inner).iter_mut() {
            invariant.begin(&self.cluster);
        }
        self.cluster.observe(Box::new(move |change| {
            trace.record(|| describe(change));
            let mut coverage = coverage.lock().unwrap_or_else(PoisonError::into_inner);
            let by_whom =
                if change.user.starts_with(REPLICA) { "writes, by the program" } else { "writes, by others" };
            for what in [Some(by_whom), count_as(change)].into_iter().flatten() {
                *coverage.observations.entry(what).or_default() += 1;
            }
            for invariant in invariants.lock().unwrap_or_else(PoisonError::into_inner).iter_mut() {
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
    }

    fn check_final_state(&self) {
        for invariant in self.invariants.lock().unwrap_or_else(PoisonError::into_inner).iter_mut() {
            if let Err(wrong) = invariant.check_final(&self.cluster) {
                self.violation.report(format!("{}, in the end: {wrong}", invariant.name()));
            }
        }
    }

    /// 6 to 23 machines in three zones, and 200 in two of a hundred runs, an even and an odd one.
    fn choose_nodes(&mut self) -> Vec<NodeSpec> {
        let count = if matches!(self.seed % 100, 0 | 51) { 200 } else { self.random.usize(6..24) };
        let zone = |i: usize| ["a", "b", "c"][i % 3].to_owned();
        let node = |i: usize| NodeSpec {
            name: format!("n{i:03}"),
            zone: zone(i),
            taints: self.scenario.taints.clone(),
            ..NodeSpec::default()
        };
        (0..count).map(node).collect()
    }

    /// Starts a replica, and starts it again whenever it crashed.
    fn run_replica(&mut self, i: usize, clock: Clock) -> impl Future<Output = ()> + Send + 'static {
        let mut random = fastrand::Rng::with_seed(self.random.u64(..));
        let (cluster, program) = (self.cluster.clone(), self.scenario.program.clone());
        let (coverage, all_faults) = (self.coverage.clone(), self.faults.clone());
        let (violation, rates) = (self.violation.clone(), self.rates);
        let calm_at = Instant::now() + self.scenario.chaos_duration;
        async move {
            loop {
                let rates = if Instant::now() < calm_at { rates } else { Rates::NONE };
                let faults = Faults::new(random.u64(..), rates, coverage.clone());
                all_faults.lock().unwrap_or_else(PoisonError::into_inner).push(faults.clone());
                let name = format!("{REPLICA}{i}");
                cluster.trace().record(|| format!("{name} starts"));
                let client = Transport::new(&cluster, &name).with_faults(faults.clone()).client();
                let replica =
                    Replica { client, clock: clock.clone(), name: name.clone(), seed: random.u64(..) };
                let running = program(replica);
                tokio::select! {
                    biased;
                    () = faults.crashed() => {}
                    () = busy(&faults) => {
                        violation.report(format!("{name} sent more than {MAX_REQUESTS_PER_MINUTE} requests in one minute: a busy loop"));
                    }
                    () = running => cluster.trace().record(|| format!("{name} ended by itself")),
                }
                // Whatever the replica left running can no longer reach anybody.
                faults.crash();
                sleep(Duration::from_millis(random.u64(200..5_000))).await;
            }
        }
    }
}

/// What a panic said, without the number of its task, which is another in each run.
fn panic_message(error: JoinError) -> String {
    let Ok(payload) = error.try_into_panic() else { return "it was cancelled".into() };
    let text = payload.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_default()
}

/// Returns when a client sent too much within one virtual minute.
async fn busy(faults: &Faults) {
    loop {
        let before = faults.requests();
        let minute = Instant::now() + Duration::from_mins(1);
        // A busy client wakes us early; an idle one lets the minute pass.
        let _ = timeout_at(minute, faults.wait_for_requests(before + MAX_REQUESTS_PER_MINUTE)).await;
        if faults.requests() - before >= MAX_REQUESTS_PER_MINUTE {
            return;
        }
    }
}

/// Not every run is equally chaos_duration: some faults hide others.
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
        (None, _) => "made",
        (_, None) => "removed",
        _ => "changed",
    };
    format!("{} {what} {}/{} rv={}", change.user, change.collection, change.key, change.revision)
}
