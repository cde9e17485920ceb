//! The table of generated files and their commands. `generate` writes them, `lint` compares them.

use std::path::Path;

use crate::repo;

/// A file that a command writes to its standard output.
pub struct Generated {
    /// Relative to the repository root.
    pub file: &'static str,
    /// Program and arguments, run in the repository root.
    pub command: &'static [&'static str],
}

/// The current output of a generator.
pub struct Output {
    pub file: String,
    /// The new text, or the error of the generator.
    pub text: Result<String, String>,
}

const GENERATED: &[Generated] = &[
    Generated { file: "docs/rules.md", command: &["cargo", "run", "-q", "-p", "xtask", "--", "rules"] },
    Generated {
        file: "charts/nodekeeper/files/crds/nodegates.yaml",
        command: &["cargo", "run", "-q", "--bin", "nodekeeper", "--", "crds", "nodegates"],
    },
    Generated {
        file: "charts/nodekeeper/files/crds/noderemediations.yaml",
        command: &["cargo", "run", "-q", "--bin", "nodekeeper", "--", "crds", "noderemediations"],
    },
    Generated {
        file: "charts/nodekeeper/files/crds/remediationpolicies.yaml",
        command: &["cargo", "run", "-q", "--bin", "nodekeeper", "--", "crds", "remediationpolicies"],
    },
    Generated {
        file: "docs/cli.md",
        command: &["cargo", "run", "-q", "--bin", "nodekeeper", "--", "reference"],
    },
    Generated {
        file: "docs/metrics.md",
        command: &["cargo", "run", "-q", "--bin", "nodekeeper", "--", "reference", "metrics"],
    },
    Generated {
        file: "docs/worker.txt",
        command: &["cargo", "run", "-q", "--bin", "nodekeeper-worker", "--", "--help"],
    },
];

/// Runs every generator whose crate is in `root`.
pub fn outputs(root: &Path) -> Vec<Output> {
    GENERATED
        .iter()
        .filter(|entry| has_generator(root, entry))
        .map(|entry| Output { file: entry.file.to_owned(), text: run(root, entry.command) })
        .collect()
}

/// Writes every generated file that is not up to date.
pub fn write_all(root: &Path) -> Result<(), String> {
    for output in outputs(root) {
        let text = output.text?;
        let path = root.join(&output.file);
        if std::fs::read_to_string(&path).is_ok_and(|old| old == text) {
            println!("{} is up to date", output.file);
            continue;
        }
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(|e| format!("cannot make {}: {e}", folder.display()))?;
        }
        std::fs::write(&path, text).map_err(|e| format!("cannot write {}: {e}", output.file))?;
        println!("{} written", output.file);
    }
    Ok(())
}

/// A workspace without the generator's crate, such as a test fixture, has nothing to generate.
fn has_generator(root: &Path, entry: &Generated) -> bool {
    let package = entry.command.iter().skip_while(|word| !matches!(**word, "-p" | "--bin")).nth(1);
    let folder = package.map(|name| if *name == "nodekeeper-worker" { "checks" } else { name });
    folder.is_none_or(|name| root.join(name).exists() || root.join("crates").join(name).exists())
}

fn run(root: &Path, command: &[&str]) -> Result<String, String> {
    let [program, arguments @ ..] = command else { return Err("no command".to_owned()) };
    let output = repo::command(program)
        .args(arguments)
        .current_dir(root)
        .output()
        .map_err(|e| format!("{} did not start: {e}", command.join(" ")))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(format!("{} failed: {}", command.join(" "), String::from_utf8_lossy(&output.stderr).trim()))
    }
}
