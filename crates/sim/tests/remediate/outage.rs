//! No node is remediated for a cluster-wide DNS outage.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nodekeeper_sim::actors::cloud::Flaws;
use nodekeeper_sim::network::Outage;
use nodekeeper_sim::value::json;
use tokio::time::{Instant, sleep};

use super::test_cluster::{TestCluster, group, permissive_policy};

/// The number of random outages, unless SEEDS is set.
const SEEDS: u64 = 30;

struct OutageScenario {
    seed: u64,
    new_nodes: usize,
    zones: usize,
    /// The number of verified nodes in each zone.
    good: usize,
    /// Whether the circuit breaker is on.
    breaker: bool,
    /// Seconds between the start of the outage and the new nodes; negative if they join first.
    ahead: i64,
    lasts: Duration,
    /// How often the leader crashes.
    crash_interval: Option<Duration>,
}

impl OutageScenario {
    fn of(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        Self {
            seed,
            new_nodes: random.usize(1..30),
            zones: random.usize(1..4),
            good: random.usize(2..5),
            breaker: random.bool(),
            ahead: random.i64(-120..120),
            lasts: Duration::from_secs(random.u64(10 * 60..40 * 60)),
            crash_interval: random.bool().then(|| Duration::from_secs(random.u64(25..200))),
        }
    }

    async fn run(self) {
        let mut policy = permissive_policy();
        if self.breaker {
            policy["breaker"] = json!({});
        }
        let mut test = TestCluster::new(self.seed, &policy);
        test.start_controller();
        let zones = || ["a", "b", "c"].into_iter().take(self.zones);
        for zone in zones() {
            test.add_healthy_nodes(self.good, zone).await;
        }
        let mut pool = group("pool", self.new_nodes, 0);
        (pool.zones, pool.flaws) = (zones().map(str::to_owned).collect(), Flaws::default());
        let before = Duration::from_secs(self.ahead.unsigned_abs());
        if self.ahead >= 0 {
            test.cluster.network().fail(Outage::All);
            sleep(before).await;
            test.karpenter(pool);
        } else {
            test.karpenter(pool);
            sleep(before).await;
            test.cluster.network().fail(Outage::All);
        }
        self.run_outage(&mut test, self.lasts).await;
        let nodes = self.zones * self.good + self.new_nodes;
        let held = test.nodes() != (nodes, nodes);
        let said = test.true_condition("SharedDependencyDown").or_else(|| test.true_condition("BreakerOpen"));
        assert!(
            !held || said.is_some(),
            "seed {}: no condition explains the block: {:?}",
            self.seed,
            test.policy()["status"]
        );
        if held && !self.breaker {
            assert_eq!(
                test.true_condition("SharedDependencyDown").expect("the condition is True").0,
                "ControlsFail"
            );
        }
        assert!(test.deletions().is_empty(), "seed {}: {:?}", self.seed, test.deletions());

        test.cluster.network().heal(&Outage::All);
        test.until("all are verified", 20, |test| test.nodes() == (nodes, nodes)).await;
        test.until("the policy is Ready", 60, |test| test.true_condition("Ready").is_some()).await;
        sleep(Duration::from_mins(11)).await;
        assert!(test.deletions().is_empty(), "seed {}: {:?}", self.seed, test.deletions());
    }

    async fn run_outage(&self, test: &mut TestCluster, lasts: Duration) {
        let end = Instant::now() + lasts;
        let Some(every) = self.crash_interval else { return sleep(lasts).await };
        while Instant::now() < end {
            sleep(every).await;
            test.kill_controllers();
            test.start_controller();
        }
        // The last leader has time to compare nodes.
        sleep(Duration::from_mins(4)).await;
    }
}

fn on_a_paused_clock(scenario: OutageScenario) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime without I/O can be built").block_on(scenario.run());
}

#[test]
fn dns_outage_with_two_hundred_new_nodes() {
    let (ahead, lasts) = (30, Duration::from_mins(12));
    let scenario = OutageScenario {
        seed: 1,
        new_nodes: 200,
        zones: 3,
        good: 3,
        breaker: false,
        ahead,
        lasts,
        crash_interval: None,
    };
    on_a_paused_clock(scenario);
}

#[test]
fn random_dns_outages_with_leader_crashes() {
    let seeds = std::env::var("SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(SEEDS);
    let next = AtomicU64::new(0);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds {
                        return;
                    }
                    on_a_paused_clock(OutageScenario::of(seed));
                }
            });
        }
    });
}
