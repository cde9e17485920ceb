//! Builds Karpenter and kwok.

use std::{env, process::ExitCode};

use anyhow::ensure;
use nodekeeper_e2e::{
    assets::{KarpenterAssets, Settings},
    is_unavailable,
};

const HELP: &str = "\
Makes sure that Karpenter (with its kwok provider) and kwok are there, builds them with Go if they are not (4 minutes on
2 cores, once, in addition to the control plane), and prints where they are.

usage: karpenter [--help]

exit code: 0 done, 1 failed, 3 not possible on this machine (no Go)
";

fn run() -> anyhow::Result<()> {
    let arguments: Vec<_> = env::args().skip(1).collect();
    if arguments == ["--help"] || arguments == ["-h"] {
        print!("{HELP}");
        return Ok(());
    }
    ensure!(arguments.is_empty(), "unknown arguments {}\n\n{HELP}", arguments.join(" "));
    let KarpenterAssets { karpenter, kwok, .. } = KarpenterAssets::ensure(&Settings::from_env()?)?;
    println!("{}\n{}", karpenter.display(), kwok.display());
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
