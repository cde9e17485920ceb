//! Repository tasks: `lint` checks the repository rules, `test` runs the test tiers, `generate` and `rules` write generated
//! files.

mod code;
mod generate;
mod repo;
mod rules;
mod run;
mod summary;
mod tiers;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo run -q -p xtask -- COMMAND

  lint [ROOT]   check the repository rules (of the workspace in ROOT)
  test          run every test tier and print a summary
  prepare SET   build and install what a tier needs (kubernetes, karpenter, nodes) and print where it is; exit code 3 if this
                machine lacks a dependency
  generate      write the generated files
  rules         print docs/rules.md
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let here = workspace_root();
    let outcome = match words.as_slice() {
        ["lint"] => lint(&here),
        ["lint", root] => lint(Path::new(root)),
        ["test"] => run::all(&here),
        ["prepare", set] => match nodekeeper_prepare::prepare(set) {
            Ok(paths) => {
                for path in paths {
                    println!("{}", path.display());
                }
                Ok(true)
            }
            Err(error) if error.is_unavailable() => {
                eprintln!("{error}");
                return ExitCode::from(run::UNAVAILABLE);
            }
            Err(error) => Err(error.to_string()),
        },
        ["generate"] => generate::write_all(&here).map(|()| true),
        ["rules"] => {
            print!("{}", rules::page());
            Ok(true)
        }
        _ => {
            eprint!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}

fn workspace_root() -> PathBuf {
    let own = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    own.parent().map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}

fn lint(root: &Path) -> Result<bool, String> {
    let repo = repo::load(root)?;
    if let Some(repo::ResultsAge::NotChecked(why)) = &repo.results_age {
        println!("SKIPPED: the age of {}, because {why}", repo::RESULTS);
    }
    let mut broken = 0;
    for (rule, violations) in rules::check_all(&repo) {
        for violation in &violations {
            println!("{}", violation.line_for(rule));
        }
        broken += usize::from(!violations.is_empty());
    }
    let total = rules::RULES.len();
    if broken == 0 {
        println!("{total} repository rules hold in {} files", repo.files.len());
    } else {
        println!("{broken} of {total} repository rules are violated; docs/rules.md explains each");
    }
    Ok(broken == 0)
}
