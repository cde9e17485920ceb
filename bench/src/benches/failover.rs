//! Failover from one controller to the next, after SIGTERM and after SIGKILL of the leader.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use futures::StreamExt as _;
use nodekeeper_e2e::product::Product;
use tokio::time::{Instant, sleep, timeout};

use super::{Setup, fleet_server};
use crate::counting_server::{CountingServer, Counts, RecordedRequest, count};
use crate::fake_kubelet::{has_gate_taint, pass};
use crate::process::Process;
use crate::real_cluster::{PATIENCE, RealCluster};
use crate::table::{Table, percentile, short};
use crate::watch::watch;

const NODES: usize = 10_000;
const GRACEFUL: usize = 5;
const CRASHES: usize = 3;

/// A leader renews the lease every two seconds: the leaders end at different moments of that interval.
const STAGGER: Duration = Duration::from_millis(400);
/// Seconds. A follower watches the lease, and takes it 15 s after it has seen the last renewal.
const CRASH_LEASE: f64 = 15.1;
const POLL: Duration = Duration::from_millis(5);

/// How a leader ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Graceful,
    Crash,
}

impl End {
    fn all() -> Vec<Self> {
        [vec![Self::Graceful; GRACEFUL], vec![Self::Crash; CRASHES]].concat()
    }

    async fn apply(self, leader: Process) -> Result<()> {
        match self {
            Self::Graceful => leader.stop().await,
            Self::Crash => {
                leader.crash();
                Ok(())
            }
        }
    }
}

/// One failover at [`NODES`] nodes.
struct Failover {
    end: End,
    /// Seconds from the signal to the successor's first write of the lease.
    lease: f64,
    /// Seconds from the signal to the successor's first reconcile: the creation of a worker.
    reconcile: f64,
    /// The successor's requests in between, and the bytes of their responses and of watch events.
    requests: Counts,
    bytes: u64,
}

pub async fn run(product: Product) -> Result<Table> {
    let mut table = Table::new("Failover");
    on_real_cluster(&product.controller, &mut table).await.context("on a real control plane")?;
    at_scale(&product.controller, &mut table).await.with_context(|| format!("at {NODES} nodes"))?;
    table.note(format!(
        "Two controllers as processes, {GRACEFUL} times SIGTERM and {CRASHES} times SIGKILL of the leader, spread over the two \
         seconds between two renewals. Real API server: from the signal to the removal of a taint by the \
         successor; a worker's report arrives as soon as the leader has exited."
    ));
    table.note(format!(
        "{NODES} nodes: on the bench's own server, with one more tainted node that becomes Ready as soon as the leader has \
         exited. Lease: the successor's first write of the lease. First reconcile: its creation of that node's worker. \
         Requests and bytes are the successor's, from the signal to its first reconcile; the bytes include watch events, \
         which are {} a second.",
        short(f64::from(u32::try_from(NODES)?) / crate::fleet::HEARTBEAT.as_secs_f64())
    ));
    Ok(table)
}

async fn on_real_cluster(binary: &Path, table: &mut Table) -> Result<()> {
    let real = RealCluster::start().await?;
    real.make_gate().await?;
    let mut leader = real.lead(binary, "controller-0").await?;
    let (mut graceful, mut crash) = (Vec::new(), Vec::new());
    for (n, end) in End::all().into_iter().enumerate() {
        let next = real.start_controller(binary, &format!("controller-{}", n + 1))?;
        next.settle(PATIENCE).await?;
        let seconds = until_untainted(&real, n, leader, end).await.with_context(|| next.log_tail())?;
        if end == End::Graceful { &mut graceful } else { &mut crash }.push(seconds);
        leader = next;
    }
    leader.stop().await?;
    let of = |runs: &[f64], hundredths| percentile(runs, hundredths).context("no runs");
    table.budget("real API server: graceful, longest", of(&graceful, 100)?, 2.0, "s");
    table.figure("real API server: graceful, median", format!("{} s", short(of(&graceful, 50)?)));
    table.budget("real API server: crash, longest", of(&crash, 100)?, CRASH_LEASE + 1.0, "s");
    table.figure("real API server: crash, median", format!("{} s", short(of(&crash, 50)?)));
    Ok(())
}

/// Ends the leader while a node waits, and returns when its successor has removed the taint.
async fn until_untainted(real: &RealCluster, n: usize, leader: Process, end: End) -> Result<f64> {
    let name = format!("failover-{n}");
    real.join(std::slice::from_ref(&name)).await?;
    let pod = real.worker_of(&name).await?;
    sleep(STAGGER * u32::try_from(n)?).await;
    let start = Instant::now();
    end.apply(leader).await?;
    pass(&real.pods(), &pod).await?;
    let mut node = watch(real.nodes(), "", &format!("metadata.name={name}"));
    let untainted = async { while node.next().await.as_ref().is_some_and(has_gate_taint) {} };
    timeout(PATIENCE, untainted).await.with_context(|| format!("the taint of {name} is not removed"))?;
    Ok(start.elapsed().as_secs_f64())
}

async fn at_scale(binary: &Path, table: &mut Table) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = fleet_server(NODES, folder.path(), Setup::Gate).await?;
    let start = |name: &str| Process::controller(binary, &server.kubeconfig(name)?, folder.path(), name);
    let mut leader = start("controller-0")?;
    first_reconcile(&server, 0, "controller-0", Instant::now()).await.with_context(|| leader.log_tail())?;
    leader.settle(PATIENCE).await?;
    let mut failovers = Vec::new();
    for (n, end) in End::all().into_iter().enumerate() {
        let name = format!("controller-{}", n + 1);
        let next = start(&name)?;
        next.settle(PATIENCE).await?;
        sleep(STAGGER * u32::try_from(n)?).await;
        let failover =
            fail_over(&server, n + 1, leader, &name, end).await.with_context(|| next.log_tail())?;
        next.settle(PATIENCE).await?;
        failovers.push(failover);
        leader = next;
    }
    leader.stop().await?;
    add_rows(table, "graceful", failovers.iter().filter(|one| one.end == End::Graceful))?;
    add_rows(table, "crash", failovers.iter().filter(|one| one.end == End::Crash))
}

async fn fail_over(
    server: &CountingServer,
    n: usize,
    leader: Process,
    next: &str,
    end: End,
) -> Result<Failover> {
    let (start, before) = (Instant::now(), server.sent_to(next));
    end.apply(leader).await?;
    let reconcile = first_reconcile(server, n, next, start).await?;
    let of_next = |one: &RecordedRequest| one.client == next && one.at >= start && one.at <= reconcile.at;
    let requests: Vec<RecordedRequest> = server.requests().into_iter().filter(of_next).collect();
    let lease = requests.iter().find(|one| one.what.ends_with(" leases") && !one.what.starts_with("GET"));
    let lease = lease.context("the successor never wrote the lease")?.at;
    Ok(Failover {
        end,
        lease: (lease - start).as_secs_f64(),
        reconcile: (reconcile.at - start).as_secs_f64(),
        requests: count(&requests),
        bytes: reconcile.received - before,
    })
}

/// Makes a tainted node Ready, and returns the request with which the controller creates its worker.
async fn first_reconcile(
    server: &CountingServer,
    n: usize,
    client: &str,
    start: Instant,
) -> Result<RecordedRequest> {
    let node = server.fleet().context("no fleet")?.make_ready(n);
    let is_worker = |one: &RecordedRequest| {
        let body = || String::from_utf8_lossy(&one.body).contains(&node);
        one.client == client && one.what == "POST pods" && body()
    };
    loop {
        if let Some(request) = server.requests().into_iter().find(is_worker) {
            return Ok(request);
        }
        ensure!(start.elapsed() < PATIENCE, "{client} creates no worker for {node}");
        sleep(POLL).await;
    }
}

fn add_rows<'a>(table: &mut Table, end: &str, failovers: impl Iterator<Item = &'a Failover>) -> Result<()> {
    let mut all: Vec<&Failover> = failovers.collect();
    all.sort_by(|a, b| a.reconcile.total_cmp(&b.reconcile));
    let longest = all.last().context("no runs")?;
    let median = |of: fn(&Failover) -> f64| {
        percentile(&all.iter().map(|one| of(one)).collect::<Vec<_>>(), 50).map(short).context("no runs")
    };
    let most_lease = all.iter().map(|one| one.lease).fold(0.0, f64::max);
    let title = format!("{NODES} nodes: {end}");
    if longest.end == End::Crash {
        table.budget(format!("{title}, lease, longest"), most_lease, CRASH_LEASE, "s");
    } else {
        table.figure(format!("{title}, lease, longest"), format!("{} s", short(most_lease)));
    }
    table.figure(format!("{title}, lease, median"), format!("{} s", median(|one| one.lease)?));
    table.figure(format!("{title}, first reconcile, longest"), format!("{} s", short(longest.reconcile)));
    table.figure(format!("{title}, first reconcile, median"), format!("{} s", median(|one| one.reconcile)?));
    let requests: u64 = longest.requests.values().sum();
    let list: Vec<String> = longest.requests.iter().map(|(what, n)| format!("{n} {what}")).collect();
    table.figure(format!("{title}, requests"), format!("{requests}: {}", list.join(", ")));
    let megabytes = f64::from(u32::try_from(longest.bytes)?) / 1e6;
    table.figure(format!("{title}, received"), format!("{} MB", short(megabytes)));
    Ok(())
}
