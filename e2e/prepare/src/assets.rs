//! Finds the Kubernetes binaries in a folder, or builds them once from the Go modules in `e2e/kubernetes`.

mod build;

use std::{
    env,
    ffi::OsString,
    io,
    path::{self, Path, PathBuf},
};

/// The Kubernetes version that is used unless `KUBE` names another.
pub const DEFAULT_VERSION: &str = "1.36.4";

/// The binaries of a control plane, and `kubectl`.
pub const BINARIES: [&str; 5] =
    ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl"];

/// The additional binaries of a node, its DNS server, and the tool that tests run in pods.
pub const NODE_BINARIES: [&str; 4] = ["kubelet", "kube-proxy", "coredns", "testtool"];

#[derive(Clone, Debug)]
pub struct Settings {
    /// The Kubernetes version without a leading `v`: the name of a folder in `e2e/kubernetes`.
    pub kube: String,
    /// A folder with prebuilt binaries. If set, nothing is built, and `kube` is ignored.
    pub prebuilt: Option<PathBuf>,
    /// The folder of built binaries (`kubernetes/`) and of running clusters (`run/`).
    pub cache: PathBuf,
}

impl Settings {
    /// Reads `KUBE`, `KUBEBUILDER_ASSETS`, and `NODEKEEPER_CACHE`, `XDG_CACHE_HOME` or `HOME`.
    pub fn from_env() -> Result<Self, AssetsError> {
        Self::from_variables(|name| env::var_os(name))
    }

    fn from_variables(variable: impl Fn(&str) -> Option<OsString>) -> Result<Self, AssetsError> {
        // An empty variable counts as unset, as in the XDG specification.
        let set = |name| variable(name).filter(|value| !value.is_empty());
        // Absolute, because builds and components run in folders of their own.
        let path = |name| set(name).map(|value| path::absolute(&value).unwrap_or(value.into()));
        let kube = set("KUBE").map_or(DEFAULT_VERSION.into(), |value| value.to_string_lossy().into_owned());
        Ok(Self {
            kube: kube.trim_start_matches('v').to_owned(),
            prebuilt: path("KUBEBUILDER_ASSETS"),
            cache: path("NODEKEEPER_CACHE")
                .or_else(|| Some(path("XDG_CACHE_HOME")?.join("nodekeeper")))
                .or_else(|| Some(path("HOME")?.join(".cache/nodekeeper")))
                .ok_or(AssetsError::NoCacheFolder)?,
        })
    }
}

/// A folder that contains all [`BINARIES`].
#[derive(Clone, Debug)]
pub struct Assets {
    folder: PathBuf,
}

impl Assets {
    /// Finds the binaries or builds missing ones, which takes minutes the first time.
    pub fn ensure(settings: &Settings) -> Result<Self, AssetsError> {
        let folder = match &settings.prebuilt {
            Some(folder) => complete(folder)?,
            None => build::kubernetes(&BINARIES, &settings.kube, &settings.cache)?,
        };
        Ok(Self { folder })
    }

    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    #[must_use]
    pub fn path(&self, binary: &str) -> PathBuf {
        self.folder.join(binary)
    }
}

#[derive(Clone, Debug)]
pub struct NodeAssets {
    pub kubelet: PathBuf,
    pub kube_proxy: PathBuf,
    pub coredns: PathBuf,
    pub testtool: PathBuf,
}

impl NodeAssets {
    /// Finds the binaries, first in the prebuilt folder, or builds missing ones, which takes two minutes the first
    /// time.
    pub fn ensure(settings: &Settings) -> Result<Self, AssetsError> {
        Ok(Self {
            kubelet: of_kubernetes("kubelet", settings)?,
            kube_proxy: of_kubernetes("kube-proxy", settings)?,
            coredns: own_module("coredns", settings)?,
            testtool: own_module("testtool", settings)?,
        })
    }
}

/// Karpenter with its kwok provider, which creates Node objects without machines, and kwok, which acts as their
/// kubelet.
#[derive(Clone, Debug)]
pub struct KarpenterAssets {
    pub karpenter: PathBuf,
    pub crds: Vec<PathBuf>,
    pub kwok: PathBuf,
    /// The kwok stages, one file each.
    pub stages: Vec<PathBuf>,
}

impl KarpenterAssets {
    /// Finds the binaries or builds missing ones, which takes four minutes the first time. Prebuilt binaries are
    /// never used: they lack the CRDs and stages of the same source.
    pub fn ensure(settings: &Settings) -> Result<Self, AssetsError> {
        let karpenter = build::tool("karpenter", &settings.cache)?;
        let kwok = build::tool("kwok", &settings.cache)?;
        let (crds, stages) =
            (build::KARPENTER_CRDS.cached_paths(&karpenter), build::KWOK_STAGES.cached_paths(&kwok));
        Ok(Self { karpenter, crds, kwok, stages })
    }
}

/// Finds Helm 4, first in the prebuilt folder, or builds it, which takes three minutes the first time.
pub fn helm(settings: &Settings) -> Result<PathBuf, AssetsError> {
    own_module("helm", settings)
}

/// The same for Helm 3, as `helm3`.
pub fn helm3(settings: &Settings) -> Result<PathBuf, AssetsError> {
    own_module("helm3", settings)
}

fn of_kubernetes(binary: &'static str, settings: &Settings) -> Result<PathBuf, AssetsError> {
    let built = || Ok(build::kubernetes(&[binary], &settings.kube, &settings.cache)?.join(binary));
    ready_made(binary, settings).map_or_else(built, Ok)
}

fn own_module(binary: &'static str, settings: &Settings) -> Result<PathBuf, AssetsError> {
    ready_made(binary, settings).map_or_else(|| build::tool(binary, &settings.cache), Ok)
}

fn ready_made(binary: &str, settings: &Settings) -> Option<PathBuf> {
    settings.prebuilt.as_ref().map(|folder| folder.join(binary)).filter(|path| path.is_file())
}

fn complete(folder: &Path) -> Result<PathBuf, AssetsError> {
    match BINARIES.into_iter().find(|binary| !folder.join(binary).is_file()) {
        Some(binary) => Err(AssetsError::PrebuiltIncomplete { folder: folder.to_owned(), binary }),
        None => Ok(folder.to_owned()),
    }
}

#[derive(Debug, thiserror::Error)]
pub enum AssetsError {
    #[error("no place for a cache: set NODEKEEPER_CACHE (or XDG_CACHE_HOME, or HOME)")]
    NoCacheFolder,

    #[error(
        "KUBEBUILDER_ASSETS={} has no `{binary}`: put it there (needed: {}), or unset KUBEBUILDER_ASSETS to \
         build all of them with Go", folder.display(), BINARIES.join(", ")
    )]
    PrebuiltIncomplete { folder: PathBuf, binary: &'static str },

    #[error(
        "no `go` in PATH to build Kubernetes with: install Go 1.26 or newer (https://go.dev/dl), or set \
         KUBEBUILDER_ASSETS to a folder with {}", BINARIES.join(", ")
    )]
    GoMissing,

    /// Go is too old for the module and cannot download a newer toolchain.
    #[error(
        "this `go` cannot build Kubernetes: {reason}. Install the version it asks for (https://go.dev/dl), \
         or set KUBEBUILDER_ASSETS to a folder with {}", BINARIES.join(", ")
    )]
    GoUnusable { reason: String },

    #[error(
        "no Kubernetes {version} in {}: there is {}. {}/README.md says how to add one",
        modules.display(), known.join(", "), modules.display()
    )]
    UnknownVersion { version: String, known: Vec<String>, modules: PathBuf },

    #[error("cannot build {binary}:\n{output}")]
    BuildFailed {
        binary: &'static str,
        /// The last lines of the output of `go build`.
        output: String,
    },

    #[error("{action} {}", path.display())]
    File {
        /// Such as "cannot create".
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
}

impl AssetsError {
    /// Whether this machine lacks a dependency. A test may be skipped then.
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Self::GoMissing | Self::GoUnusable { .. })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn settings(variables: &[(&str, &str)]) -> Result<Settings, AssetsError> {
        Settings::from_variables(|name| {
            variables.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value))
        })
    }

    #[test]
    fn the_most_specific_cache_variable_wins() {
        let home = ("HOME", "/me");
        let cache = |variables: &[_]| settings(variables).unwrap().cache;
        assert_eq!(cache(&[home]), Path::new("/me/.cache/nodekeeper"));
        assert_eq!(cache(&[home, ("XDG_CACHE_HOME", "/xdg")]), Path::new("/xdg/nodekeeper"));
        assert_eq!(cache(&[home, ("XDG_CACHE_HOME", "")]), Path::new("/me/.cache/nodekeeper"));
        assert_eq!(
            cache(&[home, ("XDG_CACHE_HOME", "/xdg"), ("NODEKEEPER_CACHE", "/own")]),
            Path::new("/own")
        );
        assert!(cache(&[("NODEKEEPER_CACHE", "relative")]).is_absolute());
        assert!(matches!(settings(&[]), Err(AssetsError::NoCacheFolder)));
    }

    #[test]
    fn a_version_may_be_written_with_a_v() {
        let kube = |variables: &[_]| settings(&[variables, &[("HOME", "/")]].concat()).unwrap().kube;
        assert_eq!(kube(&[]), DEFAULT_VERSION);
        assert_eq!(kube(&[("KUBE", "1.34.4")]), "1.34.4");
        assert_eq!(kube(&[("KUBE", "v1.34.4")]), "1.34.4");
    }

    #[test]
    fn an_incomplete_prebuilt_folder_is_an_error_with_a_fix() {
        let folder = tempfile::tempdir().unwrap();
        for binary in ["etcd", "kube-apiserver", "kubectl"] {
            fs::write(folder.path().join(binary), "").unwrap();
        }
        let settings =
            settings(&[("HOME", "/"), ("KUBEBUILDER_ASSETS", folder.path().to_str().unwrap())]).unwrap();
        let error = Assets::ensure(&settings).unwrap_err().to_string();
        for part in
            ["KUBEBUILDER_ASSETS", folder.path().to_str().unwrap(), "`kube-controller-manager`", "unset"]
        {
            assert!(error.contains(part), "{part} is missing in: {error}");
        }

        for binary in BINARIES {
            fs::write(folder.path().join(binary), "").unwrap();
        }
        assert_eq!(Assets::ensure(&settings).unwrap().folder(), folder.path());
    }
}
