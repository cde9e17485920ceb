//! `nodekeeper config check`: validates a configuration file without a cluster.

use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use nodekeeper_core::api::{NodeGate, RemediationPolicy};
use nodekeeper_operator::config::{File, LegacyConfig, Problem, load};

use crate::args::Check;

/// Why a configuration file cannot be used.
#[derive(Debug)]
pub enum ConfigError {
    /// A file cannot be read.
    Unreadable(anyhow::Error),
    /// One line per error, with file and line number.
    Invalid(Vec<String>),
}

/// Prints errors, warnings and, on request, the resulting objects.
pub fn run(flags: &Check) -> ExitCode {
    let loaded = match read(&flags.file, flags.worker_config.as_deref()) {
        Ok(loaded) => loaded,
        Err(ConfigError::Unreadable(error)) => {
            eprintln!("error: {error:#}");
            return ExitCode::FAILURE;
        }
        Err(ConfigError::Invalid(lines)) => {
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
    match print(flags, &loaded) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn print(flags: &Check, loaded: &LegacyConfig) -> Result<()> {
    let mut out = std::io::stdout();
    if flags.print {
        let gate = NodeGate::new("config", loaded.gate.clone());
        write!(out, "{}", serde_saphyr::to_string(&gate)?)?;
        if let Some(policy) = &loaded.policy {
            let policy = RemediationPolicy::new("default", policy.clone());
            write!(out, "---\n{}", serde_saphyr::to_string(&policy)?)?;
        }
    } else {
        writeln!(out, "{}: valid; --print shows the resulting objects", flags.file.display())?;
    }
    Ok(())
}

/// Reads and validates the files; `-` is standard input.
pub fn read(config: &Path, worker: Option<&Path>) -> Result<LegacyConfig, ConfigError> {
    let text = read_text(config).map_err(ConfigError::Unreadable)?;
    let worker_text = worker.map(read_text).transpose().map_err(ConfigError::Unreadable)?;
    load(&text, worker_text.as_deref()).map_err(|problems| {
        let line = |problem: &Problem| {
            let file = match problem.file {
                File::Config => config,
                File::Worker => worker.unwrap_or(config),
            };
            format!("{}:{}: {problem}", file.display(), problem.line)
        };
        ConfigError::Invalid(problems.iter().map(line).collect())
    })
}

fn read_text(path: &Path) -> Result<String> {
    if path == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).context("cannot read standard input")?;
        return Ok(text);
    }
    std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}
