//! Runs `xtask lint` on this repository, and on a small one that violates the rules.

use std::path::{Path, PathBuf};
use std::process::Command;

fn lint(root: &Path) -> (bool, String) {
    let output =
        Command::new(env!("CARGO_BIN_EXE_xtask")).arg("lint").arg(root).output().expect("it was just built");
    (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
}

fn write(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    std::fs::create_dir_all(path.parent().unwrap_or(root)).expect("a folder can be made");
    std::fs::write(path, text).expect("a file can be written");
}

fn member(name: &str, rest: &str) -> String {
    format!(
        "[package]\nname = \"{name}\"\nversion.workspace = true\nedition.workspace = true\nrust-version.workspace = true\n\
         license.workspace = true\npublish.workspace = true\n\n[lints]\nworkspace = true\n\n{rest}"
    )
}

/// The lints that must be on in core.
const LINTS: &str = "#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::print_stdout, clippy::print_stderr))]\n";

/// A workspace of two crates; removed on drop.
struct Workspace(PathBuf);

impl Workspace {
    fn new(name: &str) -> Self {
        let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = std::fs::remove_dir_all(&root);
        write(
            &root,
            "Cargo.toml",
            "[workspace]\nresolver = \"3\"\nmembers = [\"crates/core\", \"e2e\"]\n\n[workspace.package]\nversion = \"0.1.0\"\n\
             edition = \"2024\"\nrust-version = \"1.95\"\nlicense = \"Apache-2.0\"\npublish = false\n\n\
             [workspace.lints.rust]\n",
        );
        write(&root, "crates/core/Cargo.toml", &member("nodekeeper-core", ""));
        write(&root, "crates/core/src/lib.rs", LINTS);
        write(&root, "crates/deny.toml", "{ crate = \"nodekeeper-e2e\", wrappers = [] }\n");
        write(&root, "e2e/Cargo.toml", &member("nodekeeper-e2e", ""));
        write(&root, "e2e/src/lib.rs", "");
        Self(root)
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn this_repository_follows_its_rules() {
    let (held, output) = lint(Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap());
    assert!(held, "{output}");
}

#[test]
fn violations_are_printed_and_the_exit_code_is_nonzero() {
    let workspace = Workspace::new("violations");
    let root = &workspace.0;
    let (held, output) = lint(root);
    assert!(held, "the workspace is valid at first: {output}");

    let dependency = "[dependencies]\ntokio = \"1\"\n";
    write(root, "e2e/Cargo.toml", &member("nodekeeper-e2e", dependency));
    write(root, "crates/core/src/lib.rs", "//! Without its lints.\n");
    write(root, "crates/core/tests/forgotten.rs", concat!("// TO", "DO: later\n"));
    let (held, output) = lint(root);
    assert!(!held, "{output}");
    for line in [
        "e2e/Cargo.toml:13: inherited: this dependency has a version or place of its own",
        "crates/core/src/lib.rs:1: checked-by-tools: clippy::disallowed_methods is not on",
        concat!("crates/core/tests/forgotten.rs:1: no-stray: TO", "DO left behind"),
        "crates/core/tests/forgotten.rs:1: every-test-runs: ",
    ] {
        assert!(output.contains(line), "{line} is missing in\n{output}");
    }
}
