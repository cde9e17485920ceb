//! The shipped programs: static binaries for images that contain nothing else.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, bail};

use crate::{image::Image, progress::progress};

/// The image names in tests.
pub const CONTROLLER_IMAGE: &str = "nodekeeper.local/nodekeeper:test";
pub const WORKER_IMAGE: &str = "nodekeeper.local/nodekeeper-worker:test";

/// The environment of the controller's image. By default glibc keeps what was freed after a large list, because it raises
/// these thresholds with the size of what is freed.
pub const CONTROLLER_VARIABLE: (&str, &str) =
    ("GLIBC_TUNABLES", "glibc.malloc.trim_threshold=131072:glibc.malloc.mmap_threshold=131072");

#[derive(Clone, Debug)]
pub struct Product {
    /// Built without the embedded cluster.
    pub controller: PathBuf,
    pub worker: PathBuf,
}

impl Product {
    /// Builds the binaries, or reuses an earlier build.
    pub fn build() -> anyhow::Result<Self> {
        let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("e2e is in no workspace")?;
        let host = host()?;
        let folder = target_folder(workspace)?.join("static");
        progress("building the static binaries (usually 3 min the first time, then 1 s)");
        let worker = ["-p", "nodekeeper-checks", "--bin", "nodekeeper-worker", "--features", "real"];
        let controller = ["-p", "nodekeeper", "--bin", "nodekeeper"];
        for (profile, package) in [("worker", worker.as_slice()), ("image", &controller)] {
            let status = cargo()
                .current_dir(workspace)
                .args(["build", "--quiet", "--locked", "--no-default-features", "--profile", profile])
                .args(["--target", &host, "--target-dir"])
                .arg(&folder)
                .args(package)
                // With --target this applies to the binaries only: build scripts and macros cannot be linked
                // statically.
                .env("RUSTFLAGS", "-C target-feature=+crt-static")
                .env_remove("CARGO_ENCODED_RUSTFLAGS")
                .envs(stamps(workspace))
                .status()
                .context("cargo did not start")?;
            if !status.success() {
                bail!("cargo could not build {}: {status}", package.join(" "));
            }
        }
        let built = folder.join(host);
        let (controller, worker) = (built.join("image/nodekeeper"), built.join("worker/nodekeeper-worker"));
        Ok(Self { controller, worker })
    }

    #[must_use]
    pub fn images(&self) -> [Image; 2] {
        let user = 65532;
        [
            // On the PATH, so that `kubectl exec … -- nodekeeper check` works.
            Image::new(CONTROLLER_IMAGE, &self.controller, "/usr/local/bin/nodekeeper")
                .as_user(user)
                .with_variable(CONTROLLER_VARIABLE),
            Image::new(WORKER_IMAGE, &self.worker, "/nodekeeper-worker").as_user(user),
        ]
    }
}

/// The values for `--version`, equal to those of the Makefile, so that both build identical binaries.
fn stamps(workspace: &Path) -> [(&'static str, String); 2] {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").current_dir(workspace).args(arguments).output().ok()?;
        let output = String::from_utf8(output.stdout).ok()?.trim().to_owned();
        (!output.is_empty()).then_some(output)
    };
    let stamp = |name, arguments: &[&str]| {
        let set = std::env::var(name).ok().filter(|set| !set.is_empty());
        (name, set.or_else(|| git(arguments)).unwrap_or_else(|| "unknown".into()))
    };
    [
        stamp("NODEKEEPER_COMMIT", &["rev-parse", "--short=12", "--verify", "--quiet", "HEAD"]),
        stamp("NODEKEEPER_DATE", &["show", "-s", "--format=%cs", "HEAD"]),
    ]
}

/// Cargo without the variables that it sets for this crate: build scripts that depend on them (such as ring's) would
/// run again and force a rebuild.
fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in std::env::vars_os() {
        if is_about_one_crate(&name.to_string_lossy()) {
            cargo.env_remove(name);
        }
    }
    cargo
}

fn is_about_one_crate(variable: &str) -> bool {
    let prefixes = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_CRATE_", "CARGO_BIN_"];
    let names = ["CARGO_PRIMARY_PACKAGE", "CARGO_TARGET_TMPDIR", "OUT_DIR"];
    prefixes.iter().any(|prefix| variable.starts_with(prefix)) || names.contains(&variable)
}

/// The target folder. It can be configured in four ways, so cargo is asked.
fn target_folder(workspace: &Path) -> anyhow::Result<PathBuf> {
    let asked =
        cargo().current_dir(workspace).args(["metadata", "--format-version=1", "--no-deps"]).output()?;
    let output: serde_json::Value = serde_json::from_slice(&asked.stdout).context("cargo metadata")?;
    let folder = output["target_directory"].as_str().context("cargo metadata names no target folder")?;
    Ok(PathBuf::from(folder))
}

fn host() -> anyhow::Result<String> {
    let output =
        Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into())).arg("-vV").output()?;
    let output = String::from_utf8_lossy(&output.stdout).into_owned();
    let host = output.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc does not name its host")?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chart_sets_the_variable_of_the_image() {
        // The image may be built by others.
        let template = include_str!("../../charts/nodekeeper/templates/controller/deployment.yaml");
        let (name, value) = CONTROLLER_VARIABLE;
        assert!(template.contains(&format!("- name: {name}\n              value: {value}\n")), "{template}");
    }

    #[test]
    fn a_build_does_not_depend_on_the_calling_crate() {
        let ours = std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("CARGO_PKG_"));
        let cargo = cargo();
        for (name, _) in ours {
            assert!(cargo.get_envs().any(|removed| removed == (&name, None)), "{name:?} is not removed");
        }
        assert!(is_about_one_crate("CARGO_MANIFEST_DIR") && is_about_one_crate("CARGO_CRATE_NAME"));
        for shared in ["CARGO", "CARGO_HOME", "CARGO_TARGET_DIR", "CARGO_BUILD_JOBS"] {
            assert!(!is_about_one_crate(shared), "{shared} is removed");
        }
    }
}
