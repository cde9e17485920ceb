//! Builds the Kubernetes binaries. Can also keep a control plane running for manual tests.

use std::{env, process::ExitCode};

use anyhow::bail;
use nodekeeper_e2e::{
    Cluster,
    assets::{Assets, AssetsError, Settings},
    control_plane::Options,
    shell_word,
};

const HELP: &str = "\
Makes sure that etcd, kube-apiserver, kube-controller-manager, kube-scheduler and kubectl exist, builds
missing ones with Go (8 minutes on 2 cores, once), and prints their folder.

usage: kubernetes [--kube VERSION] [--hold]

  --kube VERSION  another Kubernetes version; also KUBE=VERSION
  --hold          then start a control plane, print how to reach it, and run until Ctrl-C
  --help          this

exit code: 0 done, 1 failed, 3 not possible on this machine (no Go)
";

struct Arguments {
    kube: Option<String>,
    hold: bool,
    help: bool,
}

fn parse(mut arguments: impl Iterator<Item = String>) -> anyhow::Result<Arguments> {
    let mut parsed = Arguments { kube: None, hold: false, help: false };
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--kube" => match arguments.next() {
                Some(version) => parsed.kube = Some(version.trim_start_matches('v').to_owned()),
                None => bail!("--kube needs a version"),
            },
            "--hold" => parsed.hold = true,
            "--help" | "-h" => parsed.help = true,
            unknown => bail!("unknown argument {unknown}\n\n{HELP}"),
        }
    }
    Ok(parsed)
}

async fn run() -> anyhow::Result<()> {
    let arguments = parse(env::args().skip(1))?;
    if arguments.help {
        print!("{HELP}");
        return Ok(());
    }
    let mut settings = Settings::from_env()?;
    if let Some(version) = arguments.kube {
        settings.kube = version;
    }
    if !arguments.hold {
        println!("{}", Assets::ensure(&settings)?.folder().display());
        return Ok(());
    }

    let cluster = Cluster::start(Options::new(settings)).await?;
    let paths = [cluster.kubeconfig_path(), cluster.kubectl()];
    let [kubeconfig, kubectl] = paths.map(|path| shell_word(&path.to_string_lossy()));
    println!("export KUBECONFIG={kubeconfig}\n{kubectl} get namespaces");
    eprintln!("ctrl-c ends it");
    // The cluster's reaper stops the cluster when this process exits.
    std::future::pending().await
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            let unavailable = error.downcast_ref().is_some_and(AssetsError::is_unavailable);
            ExitCode::from(if unavailable { 3 } else { 1 })
        }
    }
}
