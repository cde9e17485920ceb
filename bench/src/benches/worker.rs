//! Edge: the size, memory and run time of a worker whose checks pass.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use nodekeeper_core::checks::Assignment;
use nodekeeper_core::report::{Verdict, parse};
use nodekeeper_e2e::product::Product;
use nodekeeper_sim::bind::bind;
use nodekeeper_sim::loopback::Endpoints;
use nodekeeper_sim::{Cluster, Options, network};
use tokio::task::spawn_blocking;

use crate::process::memory;
use crate::table::{Table, percentile, short};

const RUNS: usize = 40;
const PATIENCE: Duration = Duration::from_secs(20);
/// Between two reads of its memory, which is not available after it has exited.
const LOOK: Duration = Duration::from_micros(200);

pub async fn run(product: Product) -> Result<Table> {
    let cluster = Cluster::new(Options::real(1));
    network::install(&cluster)?;
    let bound = bind(&cluster, SocketAddr::from(([127, 0, 0, 1], 0))).await?;
    let endpoints = Endpoints::open(bound.address).await?;
    let folder = tempfile::tempdir()?;
    fs::write(folder.path().join("ca.crt"), &bound.authority)?;
    fs::write(folder.path().join("token"), bound.token_of("system:serviceaccount:ns:default"))?;
    let (mut times, mut sizes) = (Vec::new(), Vec::new());
    for _ in 0..RUNS {
        let (binary, place) = (product.worker.clone(), folder.path().to_owned());
        let (dns, api) = (endpoints.dns, endpoints.api);
        let (time, kib) = spawn_blocking(move || once(&binary, &place, dns, api)).await??;
        times.push(time.as_secs_f64() * 1000.0);
        sizes.push(kib);
    }
    let of = |hundredths| percentile(&times, hundredths).context("no runs");
    let megabytes = f64::from(u32::try_from(fs::metadata(&product.worker)?.len())?) / 1e6;
    let most = sizes.into_iter().max().context("no runs")?;
    let mut table = Table::new("The worker");
    table.budget("image", megabytes, 4.0, "MB");
    table.budget("memory, at most", f64::from(u32::try_from(most)?) / 1024.0, 5.0, "MiB");
    table.budget("wall time, median", of(50)?, 100.0, "ms");
    table.figure("wall time, p90", format!("{} ms", short(of(90)?)));
    table.note(format!(
        "{RUNS} runs, one after the other, of the static binary, the only file of the image, with the default \
         checks against a DNS server and the embedded API server on loopback; from spawn to exit. Memory is VmHWM, \
         read every {LOOK:?}."
    ));
    Ok(table)
}

fn once(binary: &Path, folder: &Path, dns: SocketAddr, api: SocketAddr) -> Result<(Duration, u64)> {
    let log = folder.join("log");
    let assignment = serde_json::to_string(&Assignment::default())?;
    let mut command = Command::new(binary);
    command.env_clear().env(Assignment::ENV, assignment).env("NODE_NAME", "n");
    command.env("KUBERNETES_SERVICE_HOST", api.ip().to_string());
    command.env("KUBERNETES_SERVICE_PORT", api.port().to_string());
    command.arg("--dns-server").arg(dns.to_string());
    command.arg("--token-file").arg(folder.join("token")).arg("--ca-file").arg(folder.join("ca.crt"));
    command.arg("--termination-log").arg(&log);
    let start = Instant::now();
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    let mut most = 0;
    let status = loop {
        if let Ok(now) = memory(child.id()) {
            most = now.most;
        }
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if start.elapsed() > PATIENCE {
            child.kill()?;
            child.wait()?;
            anyhow::bail!("the worker did not end in {PATIENCE:?}");
        }
        std::thread::sleep(LOOK);
    };
    let took = start.elapsed();
    let report = parse(&fs::read_to_string(&log)?)?;
    ensure!(status.success() && report.verdict == Verdict::Passed, "the worker reports {}", report.summary());
    ensure!(most > 0, "the worker exited before its memory was read");
    Ok((took, most))
}
