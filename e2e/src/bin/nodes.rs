//! Prepares real nodes: packages, kubelet, kube-proxy, `CoreDNS` and Helm.

use std::{env, process::ExitCode};

use anyhow::ensure;
use nodekeeper_e2e::{
    assets::{self, Assets, NodeAssets, Settings},
    is_unavailable, machine,
};

const HELP: &str = "\
Makes sure that real nodes can run on this machine: installs Debian packages (containerd, runc, CNI plugins, nftables,
iptables, conntrack), builds kubelet, kube-proxy, CoreDNS and Helm with Go (5 minutes on 2 cores, once, in addition to the
control plane), and prints where they are.

usage: nodes [--help]

exit code: 0 done, 1 failed, 3 not possible on this machine (not root, no Go, no apt-get)
";

fn run() -> anyhow::Result<()> {
    let arguments: Vec<_> = env::args().skip(1).collect();
    if arguments == ["--help"] || arguments == ["-h"] {
        print!("{HELP}");
        return Ok(());
    }
    ensure!(arguments.is_empty(), "unknown arguments {}\n\n{HELP}", arguments.join(" "));
    let settings = Settings::from_env()?;
    machine::ensure_nodes_can_run(&settings.cache)?;
    println!("{}", Assets::ensure(&settings)?.folder().display());
    let NodeAssets { kubelet, kube_proxy, coredns, testtool } = NodeAssets::ensure(&settings)?;
    for path in [kubelet, kube_proxy, coredns, testtool, assets::helm(&settings)?] {
        println!("{}", path.display());
    }
    Ok(())
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::from(if is_unavailable(&error) { 3 } else { 1 })
        }
    }
}
