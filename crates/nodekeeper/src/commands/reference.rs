//! `nodekeeper reference`: the pages of the documentation that `make generate` writes.

use std::io::Write;

use anyhow::Result;
use clap::CommandFactory as _;
use nodekeeper_operator::metrics::Metrics;

use crate::args::{Args, Page};

/// Prints one of them.
pub fn run(page: Page) -> Result<()> {
    match page {
        Page::Cli => commands(),
        Page::Metrics => Ok(write!(std::io::stdout(), "{}", Metrics::reference())?),
    }
}

/// The help of every command.
fn commands() -> Result<()> {
    let mut out = std::io::stdout();
    writeln!(out, "<!-- Written by `make generate` from crates/nodekeeper/src/args.rs: do not edit. -->\n")?;
    writeln!(
        out,
        "# The command line\n\nEvery error names what is wrong and what to do; the exit code is then 1, or 2 for words that are not understood."
    )?;
    let mut all = Args::command();
    all.build();
    for command in
        all.get_subcommands_mut().filter(|command| !command.is_hide_set() && command.get_name() != "help")
    {
        let name = format!("nodekeeper {}", command.get_name());
        section(&mut out, command, &name)?;
    }
    Ok(())
}

/// A command, or those below it.
fn section(out: &mut impl Write, command: &mut clap::Command, name: &str) -> Result<()> {
    if !command.has_subcommands() {
        writeln!(out, "\n## `{name}`\n\n```text\n{}\n```", unstyled(command))?;
    }
    for below in command.get_subcommands_mut().filter(|below| below.get_name() != "help") {
        let name = format!("{name} {}", below.get_name());
        section(out, below, &name)?;
    }
    Ok(())
}

/// Without what the environment of whoever generates it happens to hold, and without blanks at line ends.
fn unstyled(command: &mut clap::Command) -> String {
    let command = std::mem::take(command).mut_args(|argument| argument.hide_env_values(true));
    let help = command.term_width(100).render_long_help().to_string();
    help.lines().map(str::trim_end).collect::<Vec<_>>().join("\n").trim_end().to_owned()
}
