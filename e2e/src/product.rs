//! What we ship, as it is shipped: static binaries for images with nothing else in them.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, bail};

use crate::{image::Image, progress::progress};

/// The images under which tests know them.
pub const CONTROLLER_IMAGE: &str = "nodekeeper.local/nodekeeper:test";
/// See [`CONTROLLER_IMAGE`].
pub const WORKER_IMAGE: &str = "nodekeeper.local/nodekeeper-worker:test";

/// The binaries.
#[derive(Clone, Debug)]
pub struct Product {
    /// The controller, without the embedded cluster.
    pub controller: PathBuf,
    /// The worker.
    pub worker: PathBuf,
}

impl Product {
    /// Builds them, or finds them built.
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
                // With --target these are the binaries' alone: build scripts and macros cannot be linked statically.
                .env("RUSTFLAGS", "-C target-feature=+crt-static")
                .env_remove("CARGO_ENCODED_RUSTFLAGS")
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

    /// Their images.
    #[must_use]
    pub fn images(&self) -> [Image; 2] {
        let user = 65532;
        [
            Image::new(CONTROLLER_IMAGE, &self.controller, "/nodekeeper").as_user(user),
            Image::new(WORKER_IMAGE, &self.worker, "/nodekeeper-worker").as_user(user),
        ]
    }
}

/// The cargo that runs us, or the one on the path.
fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Where this workspace is built. Asked rather than guessed: it can be set in four ways.
fn target_folder(workspace: &Path) -> anyhow::Result<PathBuf> {
    let asked =
        cargo().current_dir(workspace).args(["metadata", "--format-version=1", "--no-deps"]).output()?;
    let told: serde_json::Value = serde_json::from_slice(&asked.stdout).context("cargo metadata")?;
    let folder = told["target_directory"].as_str().context("cargo metadata names no target folder")?;
    Ok(PathBuf::from(folder))
}

fn host() -> anyhow::Result<String> {
    let told =
        Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into())).arg("-vV").output()?;
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    let host = told.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc does not name its host")?.to_owned())
}
