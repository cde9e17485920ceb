//! Runs a control plane for manual tests until Ctrl-C: of the Kubernetes version in `KUBE`.

use std::process::ExitCode;

use nodekeeper_e2e::{Cluster, control_plane::Options, is_unavailable, shell_word};

async fn run() -> anyhow::Result<()> {
    let cluster = Cluster::start(Options::from_env()?).await?;
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
            ExitCode::from(if is_unavailable(&error) { 3 } else { 1 })
        }
    }
}
