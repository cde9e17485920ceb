//! Edge: arguments and environment enter the worker here.
//!
//! `nodekeeper-worker` proves the network of the node that it runs on, leaves a report and ends.

mod args;
mod console;
mod log;
mod worker;

use std::env;
use std::process::ExitCode;

fn main() -> ExitCode {
    // A bug must not look like a check that failed.
    std::panic::set_hook(Box::new(|panic| {
        worker::eprint(&format!("{panic}; this is a bug"));
        std::process::exit(worker::UNEXPECTED.into());
    }));
    let typed = args::parse(env::args_os().skip(1), |name| env::var_os(name));
    let colours = env::var_os("NO_COLOR").is_none();
    ExitCode::from(worker::run(typed, colours))
}
