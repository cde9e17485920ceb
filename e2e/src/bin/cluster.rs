//! A cluster with real nodes that keeps running between commands: `make cluster-up` and `make cluster-down`.

use std::{env, path::PathBuf, process::ExitCode};

use anyhow::{Context as _, bail};
use nodekeeper_e2e::{
    assets::Settings, image::Image, is_unavailable, nodes::NodeOptions, persistent_cluster::PersistentCluster,
};

const HELP: &str = "\
Runs one cluster with real nodes in the background.

usage: cluster up [--nodes N] [--image NAME=BINARY]... [--taint KEY]...
       cluster down

  up              starts the cluster if it is not running, and prints how to reach it
    --nodes N       the number of nodes; 3 by default
    --image N=B     adds an image N with the binary B to every node
    --taint KEY     registers nodes with this taint (NoSchedule)
  down            stops the cluster and removes everything it created

exit code: 0 done, 1 failed, 3 not possible on this machine (not root, no Go, no apt-get)
";

/// The internal command of the background process.
const HOLD: &str = "hold";

fn parse(arguments: &[String]) -> anyhow::Result<NodeOptions> {
    let mut options = NodeOptions::new(3);
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().with_context(|| format!("{argument} needs a value"));
        match argument.as_str() {
            "--nodes" => options.count = value()?.parse().context("--nodes needs a number")?,
            "--taint" => options = options.tainted(value()?),
            "--image" => {
                let (name, binary) = value()?.split_once('=').context("--image needs NAME=BINARY")?;
                let binary = PathBuf::from(binary);
                let file = binary.file_name().context("--image needs the path of a binary")?;
                let entrypoint = format!("/{}", file.to_string_lossy());
                options = options.with_image(Image::new(name, &binary, &entrypoint));
            }
            unknown => bail!("unknown argument {unknown}\n\n{HELP}"),
        }
    }
    Ok(options)
}

async fn run() -> anyhow::Result<()> {
    let arguments: Vec<_> = env::args().skip(1).collect();
    let cluster = PersistentCluster::of(Settings::from_env()?);
    match arguments.split_first().map(|(command, rest)| (command.as_str(), rest)) {
        Some(("up", rest)) => {
            // Invalid arguments are refused here rather than in the background process.
            parse(rest)?;
            let mut hold = vec![HOLD.to_owned()];
            hold.extend_from_slice(rest);
            println!("{}", cluster.up(&env::current_exe()?, &hold)?);
        }
        Some((HOLD, rest)) => cluster.hold(parse(rest)?).await?,
        Some(("down", [])) => println!("{}", cluster.down()?),
        Some(("--help" | "-h", _)) => print!("{HELP}"),
        _ => bail!("what shall be done?\n\n{HELP}"),
    }
    Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> anyhow::Result<NodeOptions> {
        parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn arguments_are_parsed_or_refused() {
        assert_eq!(parsed("").unwrap().count, 3);
        let options = parsed("--nodes 5 --image a.b/c:1=/bin/sh --taint node-ready/unverified").unwrap();
        assert_eq!((options.count, options.images[0].name()), (5, "a.b/c:1"));
        assert_eq!(options.taints[0].key, "node-ready/unverified");
        for wrong in ["--nodes", "--nodes many", "--image x", "--what"] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }
}
