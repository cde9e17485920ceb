//! The memory, requests and CPU of an agent whose node is well.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nodekeeper_e2e::product::Product;
use nodekeeper_sim::cluster::Local;
use nodekeeper_sim::loopback::Endpoints;
use nodekeeper_sim::object::{items, text};
use nodekeeper_sim::value::json;
use nodekeeper_sim::{Cluster, Options, network};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep};

use super::PATIENCE;
use super::idle::{difference, list};
use crate::counting_server::{CountingServer, RecordedRequest, count};
use crate::fake_kubelet::TAINT;
use crate::fleet::Fleet;
use crate::process::Process;
use crate::table::{Table, short};

/// The shortest interval that the agent accepts.
const INTERVAL: &str = "10s";
/// Rounds before the measurement, and during it.
const FIRST_ROUNDS: u32 = 2;
const ROUNDS: u32 = 10;
/// At the default interval a kubelet writes the status of its node once in so many rounds.
const ROUNDS_OF_STATUS: u32 = 5;
/// In minutes: how long the agent uses answers about Services again.
const ANSWERS_VALID_FOR: f64 = 10.0;
/// Requests for which CPU is measured.
const REPEATED: u32 = 100;
/// How often the probes of the chart and a Prometheus with an interval of 30 s ask an agent in a minute.
const PROBES: f64 = 15.0;
const SCRAPES: f64 = 2.0;
/// After the end of a round, until the agent is idle.
const PAUSE: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(100);
/// The names of the bench's DNS server; the agent's default are two names, too.
const NAMES: &str = "kubernetes.default.svc.cluster.local.,kube-dns.kube-system.svc.cluster.local.";
/// The checks of the agent, with their targets: those of the default set, and the second name.
const CHECKS: [(&str, u32); 5] = [("dns", 2), ("api", 1), ("tcp", 1), ("services", 2), ("peers", 1)];

pub async fn run(product: Product) -> Result<Table> {
    let folder = tempfile::tempdir()?;
    let cluster = Cluster::new(Options::real(1));
    network::install(&cluster)?;
    let kubelet = cluster.local("kubelet");
    let node = join(&kubelet)?;
    let server = CountingServer::start(&cluster, None, folder.path()).await?;
    // Only its DNS server and its pods: requests have to reach the server that counts them.
    let endpoints = Endpoints::open(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await?;
    let (dns, pods) = (endpoints.dns.to_string(), endpoints.pods.to_string());
    let (metrics, health) = (free_port().await?, free_port().await?);
    let ports = [metrics.to_string(), health.to_string()];
    let mut flags = vec!["--node-name", &node, "--mode", "continuous", "--check-interval", INTERVAL];
    flags.extend(["--dns-server", &dns, "--pods-at", &pods, "--dns-test-domains", NAMES]);
    flags.extend(["--metrics-port", &ports[0], "--health-port", &ports[1]]);
    let agent = Process::agent(&product.controller, &server.kubeconfig("agent")?, folder.path(), &flags)?;

    until_round(&agent, FIRST_ROUNDS).await?;
    ensure!(is_untainted(&kubelet, &node)?, "the agent keeps the taint of its node: {}", agent.log_tail());
    get(metrics, "/metrics").await?;
    get(health, "/readyz").await?;
    let started = server.requests();
    let (used, start) = (agent.cpu_of_threads()?, Instant::now());
    for round in 1..=ROUNDS {
        if round % ROUNDS_OF_STATUS == 0 {
            write_status(&kubelet, &node)?;
        }
        until_round(&agent, FIRST_ROUNDS + round).await?;
    }
    let seconds = start.elapsed().as_secs_f64();
    let of_round = per(agent.cpu_of_threads()?.saturating_sub(used), ROUNDS);
    let more = difference(&server.counts(), &count(&started));
    // Directly after a round, so that none begins meanwhile.
    let of_probe = cpu_of(&agent, health, "/readyz").await?;
    let of_scrape = cpu_of(&agent, metrics, "/metrics").await?;
    let memory = agent.memory()?;
    ensure_passed(&get(metrics, "/metrics").await?, &agent)?;
    agent.stop().await?;

    let mut table = Table::new("The agent");
    table.budget("memory", mib(memory.now), 8.0, "MiB");
    table.figure("memory, anonymous", format!("{} MiB", short(mib(memory.anonymous))));
    table.figure("memory, at most", format!("{} MiB", short(mib(memory.most))));
    let in_rounds = f64::from(u32::try_from(more.values().sum::<u64>())?) / f64::from(ROUNDS);
    table.budget("API requests", in_rounds + in_background(&started)?, 2.0, "/min");
    table.figure("requests, from the start to the second round", list(&count(&started)));
    table.figure(format!("requests, {ROUNDS} rounds"), list(&more));
    table.figure("CPU of a round", format!("{} ms", short(of_round)));
    table.figure("CPU of a probe", format!("{} ms", short(of_probe)));
    table.figure("CPU of a scrape", format!("{} ms", short(of_scrape)));
    let in_minute = of_round + PROBES * of_probe + SCRAPES * of_scrape;
    table.budget("CPU", in_minute / 60_000.0 * 100.0, 0.1, "% of one core");
    table.note(note(seconds));
    Ok(table)
}

/// What was measured, and how.
fn note(seconds: f64) -> String {
    format!(
        "The static binary of the image as `agent --mode continuous`, with the environment of the image, over TLS; {ROUNDS} \
         rounds of all its checks in {} s, at an interval of {INTERVAL}. Requests and CPU are given for the default interval \
         of 60 s. Requests a minute: those of a round, counted by the server, and what depends on time and not on rounds: \
         the watch of the Node, at the timeout that the agent asks for, and the Service reads of the first round once in {} \
         min. The kubelet writes the status of the Node (9.7 KB) in every fifth round. CPU: of its threads in \
         /proc/PID/schedstat; a round, 15 probes and 2 scrapes a minute. The budget of CPU is ours, a tenth of the chart's \
         request of 10m. Memory is VmRSS after {REPEATED} probes and {REPEATED} scrapes, of which anonymous is what is no \
         page of the binary; and VmHWM.",
        short(seconds),
        short(ANSWERS_VALID_FOR),
    )
}

/// Creates a Ready node with the gate's taint, and returns its name.
fn join(kubelet: &Local) -> Result<String> {
    let fleet = Fleet::new(100, "agent");
    let name = fleet.make_ready(0);
    let index = fleet.find(&name).context("no such node")?;
    let mut node: Value = serde_json::from_str(&fleet.node(index, 1))?;
    let status = node["status"].take();
    if let Some(metadata) = node["metadata"].as_object_mut() {
        metadata.remove("resourceVersion");
    }
    let node = kubelet.create("v1", "Node", "", node)?;
    kubelet.change(&node, Some("status"), |node| node["status"] = status.into())?;
    Ok(name)
}

fn is_untainted(kubelet: &Local, name: &str) -> Result<bool> {
    let node = kubelet.get("nodes", "", name).context("there is no node")?;
    Ok(!items(&node, "spec.taints").iter().any(|taint| text(taint, "key") == TAINT))
}

/// Writes the status as a kubelet does when nothing has changed.
fn write_status(kubelet: &Local, name: &str) -> Result<()> {
    let node = kubelet.get("nodes", "", name).context("there is no node")?;
    let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    kubelet.change(&node, Some("status"), |node| {
        for condition in node["status"]["conditions"].as_array_mut().into_iter().flatten() {
            condition["lastHeartbeatTime"] = json!(now.clone());
        }
    })?;
    Ok(())
}

/// Returns when the agent has ended this many rounds, and is idle.
async fn until_round(agent: &Process, round: u32) -> Result<()> {
    let end = Instant::now() + PATIENCE;
    loop {
        let ended = agent.log().matches("checks ended").count();
        if ended >= usize::try_from(round)? {
            sleep(PAUSE).await;
            return Ok(());
        }
        agent.memory()?;
        ensure!(Instant::now() < end, "{ended} rounds have ended, of {round}: {}", agent.log_tail());
        sleep(LOOK).await;
    }
}

/// Fails unless all checks ran in each round and passed.
fn ensure_passed(page: &str, agent: &Process) -> Result<()> {
    let failures = ["nodekeeper_check_failures_total{", "node_check_failures_total{"];
    let is_failure =
        |line: &&str| failures.iter().any(|name| line.starts_with(name)) && !line.ends_with(" 0");
    let failed = page.lines().find(is_failure);
    ensure!(failed.is_none(), "a check failed: {failed:?}: {}", agent.log_tail());
    for (check, targets) in CHECKS {
        let line =
            format!("nodekeeper_check_runs_total{{check=\"{check}\"}} {}", (FIRST_ROUNDS + ROUNDS) * targets);
        ensure!(page.lines().any(|served| served == line), "the agent does not serve {line}: {page}");
    }
    Ok(())
}

/// The requests a minute that do not depend on the number of rounds.
fn in_background(started: &[RecordedRequest]) -> Result<f64> {
    let watch = started.iter().find(|one| one.what == "WATCH nodes").context("the agent watches no node")?;
    let seconds = watch.query.split('&').find_map(|pair| pair.strip_prefix("timeoutSeconds="));
    let seconds: f64 = seconds.context("the watch has no timeout")?.parse()?;
    let is_about_service = |one: &&RecordedRequest| {
        [" services", " endpointslices"].iter().any(|resource| one.what.ends_with(resource))
    };
    let services = started.iter().filter(is_about_service).count();
    Ok(60.0 / seconds + f64::from(u32::try_from(services)?) / ANSWERS_VALID_FOR)
}

/// The CPU of the agent for one request, in ms.
async fn cpu_of(agent: &Process, port: u16, path: &str) -> Result<f64> {
    let used = agent.cpu_of_threads()?;
    for _ in 0..REPEATED {
        get(port, path).await?;
    }
    Ok(per(agent.cpu_of_threads()?.saturating_sub(used), REPEATED))
}

/// The body of the response.
async fn get(port: u16, path: &str) -> Result<String> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).await?;
    let mut response = String::new();
    stream.read_to_string(&mut response).await?;
    ensure!(response.starts_with("HTTP/1.0 200 "), "{path}: {response}");
    let (_, body) = response.split_once("\r\n\r\n").context("the response has no body")?;
    Ok(body.to_owned())
}

async fn free_port() -> Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?.local_addr()?.port())
}

fn per(used: Duration, times: u32) -> f64 {
    used.as_secs_f64() * 1000.0 / f64::from(times)
}

#[expect(clippy::cast_precision_loss, reason = "memory sizes are small")]
fn mib(kib: u64) -> f64 {
    kib as f64 / 1024.0
}
