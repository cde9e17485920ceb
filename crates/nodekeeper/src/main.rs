//! The `nodekeeper` binary: the controller, the demo and command-line tools.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod args;
mod commands;

use std::process::ExitCode;

use args::{Args, Command, Config};
use clap::Parser as _;

fn main() -> ExitCode {
    let result = match Args::parse().command {
        Command::Controller(controller) => commands::controller::run(*controller),
        Command::Agent(agent) => return commands::agent::run(*agent),
        Command::Check(check) => return commands::check::run(&check),
        Command::Config(Config::Check(check)) => return commands::config::run(&check),
        Command::Crds { kind } => commands::crds::run(kind),
        Command::Reference { page } => commands::reference::run(page),
        #[cfg(feature = "demo")]
        Command::Demo(demo) => nodekeeper_demo::run(&demo),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
