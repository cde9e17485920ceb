//! DNS is down for all: no node is blamed for it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nodekeeper_sim::actors::cloud::Flaws;
use nodekeeper_sim::network::Outage;
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::stage::{Stage, group, roomy};

/// How many outages there are, unless SEEDS says otherwise.
const SEEDS: u64 = 30;

struct Story {
    seed: u64,
    newcomers: usize,
    zones: usize,
    /// Verified nodes in each zone.
    good: usize,
    /// Whether too many failures alone would stop everything.
    breaker: bool,
    /// How long before the newcomers DNS goes down; after them if it is negative.
    ahead: i64,
    lasts: Duration,
    /// How often a leader dies.
    dies_every: Option<Duration>,
}

impl Story {
    fn of(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        Self {
            seed,
            newcomers: random.usize(1..30),
            zones: random.usize(1..4),
            good: random.usize(2..5),
            breaker: random.bool(),
            ahead: random.i64(-120..120),
            lasts: Duration::from_secs(random.u64(10 * 60..40 * 60)),
            dies_every: random.bool().then(|| Duration::from_secs(random.u64(25..200))),
        }
    }

    async fn play(self) {
        let mut policy = roomy();
        if self.breaker {
            policy["breaker"] = json!({});
        }
        let mut stage = Stage::new(self.seed, &policy);
        stage.lead();
        let zones = || ["a", "b", "c"].into_iter().take(self.zones);
        for zone in zones() {
            stage.good(self.good, zone).await;
        }
        let mut pool = group("pool", self.newcomers, 0);
        (pool.zones, pool.flaws) = (zones().map(str::to_owned).collect(), Flaws::default());
        let before = Duration::from_secs(self.ahead.unsigned_abs());
        if self.ahead >= 0 {
            stage.cluster.network().fail(Outage::All);
            sleep(before).await;
            stage.karpenter(pool);
        } else {
            stage.karpenter(pool);
            sleep(before).await;
            stage.cluster.network().fail(Outage::All);
        }
        self.suffer(&mut stage, self.lasts).await;
        let nodes = self.zones * self.good + self.newcomers;
        let held = stage.nodes() != (nodes, nodes);
        let said = stage.says("SharedDependencyDown").or_else(|| stage.says("BreakerOpen"));
        assert!(
            !held || said.is_some(),
            "seed {}: nobody says why: {:?}",
            self.seed,
            stage.policy()["status"]
        );
        if held && !self.breaker {
            assert_eq!(stage.says("SharedDependencyDown").expect("it is shared").0, "ControlsFail");
        }
        assert!(stage.deletions().is_empty(), "seed {}: {:?}", self.seed, stage.deletions());

        stage.cluster.network().heal(&Outage::All);
        stage.until("all are open", 20, |stage| stage.nodes() == (nodes, nodes)).await;
        stage.until("it is over", 60, |stage| stage.says("Ready").is_some()).await;
        sleep(Duration::from_mins(11)).await;
        assert!(stage.deletions().is_empty(), "seed {}: {:?}", self.seed, stage.deletions());
    }

    async fn suffer(&self, stage: &mut Stage, lasts: Duration) {
        let end = Instant::now() + lasts;
        let Some(every) = self.dies_every else { return sleep(lasts).await };
        while Instant::now() < end {
            sleep(every).await;
            stage.kill();
            stage.lead();
        }
        // Whoever leads last has time to find out.
        sleep(Duration::from_mins(4)).await;
    }
}

fn on_a_paused_clock(story: Story) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime without I/O needs nothing that can be missing").block_on(story.play());
}

#[test]
fn all_dns_down_two_hundred_new_nodes() {
    let (ahead, lasts) = (30, Duration::from_mins(12));
    let story =
        Story { seed: 1, newcomers: 200, zones: 3, good: 3, breaker: false, ahead, lasts, dies_every: None };
    on_a_paused_clock(story);
}

#[test]
fn all_dns_down_whenever_and_whoever_dies() {
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
                    on_a_paused_clock(Story::of(seed));
                }
            });
        }
    });
}
