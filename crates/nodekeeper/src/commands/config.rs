//! `nodekeeper config check`: validates a configuration file without a cluster.

use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use nodekeeper_core::api::{NodeGate, RemediationPolicy};
use nodekeeper_operator::config::{File, LegacyConfig, Problem, check_manifest, load};

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
    let text = match read_text(&flags.file) {
        Ok(text) => text,
        Err(error) => {
            eprintln!("error: {error:#}");
            return ExitCode::FAILURE;
        }
    };
    if let Some(checked) = check_manifest(&text) {
        return report_manifest(&flags.file, checked);
    }
    let loaded = match load_texts(&flags.file, &text, flags.worker_config.as_deref()) {
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
        for setting in &loaded.outside_objects {
            eprintln!("warning: not in the printed objects: {setting}");
        }
        for setting in permissions(loaded) {
            eprintln!("warning: the installation has to allow it: {setting}");
        }
        if let Some(policy) = &loaded.policy {
            let policy = RemediationPolicy::new("default", policy.clone());
            write!(out, "---\n{}", serde_saphyr::to_string(&policy)?)?;
        }
    } else {
        writeln!(out, "{}: valid; --print shows the resulting objects", flags.file.display())?;
    }
    Ok(())
}

/// What a controller allows its configuration file to use, and other gates only by a flag.
fn permissions(loaded: &LegacyConfig) -> impl Iterator<Item = String> {
    let worker = &loaded.gate.worker;
    let image = worker.image.iter().map(|image| {
        format!("`worker.image` {image}: the flag --worker-allow-image; `worker.allowed.images` in the chart")
    });
    let class = worker.priority_class_name.iter().filter(|class| class.starts_with("system-"));
    image.chain(class.map(|class| {
        format!(
            "`worker.priorityClassName` {class}: the flag --worker-allow-priority-class; \
             `worker.allowed.priorityClasses` in the chart"
        )
    }))
}

fn report_manifest(file: &Path, checked: Result<&'static str, Vec<Problem>>) -> ExitCode {
    let file = file.display();
    match checked {
        Ok(kind) => {
            println!("{file}: valid {kind}");
            ExitCode::SUCCESS
        }
        Err(problems) => {
            for problem in problems {
                eprintln!("{file}:{}: {problem}", problem.line);
            }
            ExitCode::from(2)
        }
    }
}

/// Reads and validates the files; `-` is standard input.
pub fn read(config: &Path, worker: Option<&Path>) -> Result<LegacyConfig, ConfigError> {
    let text = read_text(config).map_err(ConfigError::Unreadable)?;
    load_texts(config, &text, worker)
}

fn load_texts(config: &Path, text: &str, worker: Option<&Path>) -> Result<LegacyConfig, ConfigError> {
    let worker_text = worker.map(read_text).transpose().map_err(ConfigError::Unreadable)?;
    load(text, worker_text.as_deref()).map_err(|problems| {
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
