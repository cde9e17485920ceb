//! `nodekeeper-worker` verifies the network of the node that it runs on, writes a report and ends.

mod args;
mod log;
mod worker;

use std::env;
use std::process::ExitCode;

fn main() -> ExitCode {
    // A panic must not have the exit code of a failed check.
    std::panic::set_hook(Box::new(|panic| {
        worker::eprint(&format!("{panic}; this is a bug"));
        std::process::exit(worker::UNEXPECTED.into());
    }));
    let parsed = args::parse(env::args_os().skip(1), |name| env::var_os(name));
    let colours = env::var_os("NO_COLOR").is_none();
    ExitCode::from(worker::run(parsed, colours))
}
