//! `nodekeeper config check`: what a configuration file means, without a cluster.

use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use nodekeeper_core::api::{NodeGate, RemediationPolicy};
use nodekeeper_operator::config::{File, LegacyConfig, Problem, load};

use crate::args::Check;

/// Why there is no configuration.
#[derive(Debug)]
pub enum Unusable {
    /// A file could not be read.
    Unread(anyhow::Error),
    /// Lines that say where, what and how to mend it.
    Wrong(Vec<String>),
}

/// Says what is wrong, what should be known, and what comes of it.
pub fn run(told: &Check) -> ExitCode {
    let loaded = match read(&told.file, told.worker_config.as_deref()) {
        Ok(loaded) => loaded,
        Err(Unusable::Unread(error)) => {
            eprintln!("error: {error:#}");
            return ExitCode::FAILURE;
        }
        Err(Unusable::Wrong(lines)) => {
            for line in lines {
                eprintln!("{line}");
            }
            return ExitCode::from(2);
        }
    };
    for warning in &loaded.warnings {
        eprintln!("warning: {warning}");
    }
    for hint in &loaded.hints {
        eprintln!("hint: {hint}");
    }
    match say(told, &loaded) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn say(told: &Check, loaded: &LegacyConfig) -> Result<()> {
    let mut out = std::io::stdout();
    if told.print {
        let gate = NodeGate::new("config", loaded.gate.clone());
        write!(out, "{}", serde_saphyr::to_string(&gate)?)?;
        if let Some(policy) = &loaded.policy {
            let policy = RemediationPolicy::new("default", policy.clone());
            write!(out, "---\n{}", serde_saphyr::to_string(&policy)?)?;
        }
    } else {
        writeln!(out, "{}: a controller takes it; --print shows what comes of it", told.file.display())?;
    }
    Ok(())
}

/// Reads the files, `-` being standard input.
pub fn read(config: &Path, worker: Option<&Path>) -> Result<LegacyConfig, Unusable> {
    let text = text_of(config).map_err(Unusable::Unread)?;
    let of_worker = worker.map(text_of).transpose().map_err(Unusable::Unread)?;
    load(&text, of_worker.as_deref()).map_err(|problems| {
        let line = |problem: &Problem| {
            let file = match problem.file {
                File::Config => config,
                File::Worker => worker.unwrap_or(config),
            };
            format!("{}:{}: {problem}", file.display(), problem.line)
        };
        Unusable::Wrong(problems.iter().map(line).collect())
    })
}

fn text_of(path: &Path) -> Result<String> {
    if path == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).context("cannot read standard input")?;
        return Ok(text);
    }
    std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}
