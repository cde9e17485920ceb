//! `nodekeeper reference`: prints the pages that `make generate` writes.

use std::io::Write;

use anyhow::Result;
use clap::CommandFactory as _;
use nodekeeper_operator::metrics::Metrics;

use crate::args::{Args, Page};

pub fn run(page: Page) -> Result<()> {
    match page {
        Page::Cli => commands(),
        Page::Metrics => Ok(write!(std::io::stdout(), "{}", Metrics::reference())?),
    }
}

fn commands() -> Result<()> {
    let mut out = std::io::stdout();
    writeln!(out, "<!-- Written by `make generate` from crates/nodekeeper/src/args.rs: do not edit. -->\n")?;
    writeln!(
        out,
        "# The command line\n\nExit code 1 means an error, 2 an invalid command line or configuration file. Every error says what is wrong and how to fix it."
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

/// Prints the help of a command, or of its subcommands.
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

/// Returns the help without values of environment variables and without trailing blanks.
fn unstyled(command: &mut clap::Command) -> String {
    let command = std::mem::take(command).mut_args(|argument| argument.hide_env_values(true));
    let help = command.term_width(100).render_long_help().to_string();
    help.lines().map(str::trim_end).collect::<Vec<_>>().join("\n").trim_end().to_owned()
}
