//! What can be typed.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Parser, Subcommand};

/// Nodekeeper looks after the nodes of a Kubernetes cluster from birth to burial.
#[derive(Debug, Parser)]
#[command(version, propagate_version = true)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show a cluster at work, in memory, on this machine, in under a minute
    ///
    /// Starts the embedded cluster with a few machines, lets one lose its power and come back, and tells what happens.
    /// Nothing is installed and nothing outside this process is touched. Exit code 0 means that all ended as it should.
    Demo(Demo),
}

/// Flags of `nodekeeper demo`.
#[derive(Debug, clap::Args)]
pub struct Demo {
    /// Leave the cluster up until ctrl-c, and print how to reach it with kubectl
    #[arg(long)]
    pub keep: bool,
    /// Where the API server of the demo listens; port 0 is any that is free
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    pub listen: SocketAddr,
    /// Where to write the kubeconfig [default: a temporary file, removed at the end]
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
}
