//! The Kubernetes binaries: built once from the Go modules in `e2e/kubernetes`, or taken from a folder that
//! has them.

mod build;

use std::{
    env,
    ffi::OsString,
    io,
    path::{self, Path, PathBuf},
};

/// The version that is used unless `KUBE` names another.
pub const DEFAULT_VERSION: &str = "1.36.4";

/// What a control plane needs, and `kubectl` for those who look at it.
pub const BINARIES: [&str; 5] =
    ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl"];

/// What a machine needs besides to be a node, its DNS, and what tests run on it.
pub const NODE_BINARIES: [&str; 4] = ["kubelet", "kube-proxy", "coredns", "testtool"];

/// Which binaries are wanted, and where they may be kept.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The Kubernetes version, without a leading `v`: the name of a folder in `e2e/kubernetes`.
    pub kube: String,
    /// A folder with ready-made binaries; nothing is built then, whatever version they are.
    pub prebuilt: Option<PathBuf>,
    /// Where what was built is kept (`kubernetes/`) and where clusters live (`run/`).
    pub cache: PathBuf,
}

impl Settings {
    /// From `KUBE`, `KUBEBUILDER_ASSETS`, and `NODEKEEPER_CACHE`, `XDG_CACHE_HOME` or `HOME`.
    pub fn from_env() -> Result<Self, AssetsError> {
        Self::from_variables(|name| env::var_os(name))
    }

    fn from_variables(variable: impl Fn(&str) -> Option<OsString>) -> Result<Self, AssetsError> {
        // Set but empty means unset, as it does for XDG.
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

/// A folder that holds all [`BINARIES`].
#[derive(Clone, Debug)]
pub struct Assets {
    folder: PathBuf,
}

impl Assets {
    /// Finds the binaries, or builds those that are missing: minutes the first time, then milliseconds.
    pub fn ensure(settings: &Settings) -> Result<Self, AssetsError> {
        let folder = match &settings.prebuilt {
            Some(folder) => complete(folder)?,
            None => build::kubernetes(&BINARIES, &settings.kube, &settings.cache)?,
        };
        Ok(Self { folder })
    }

    /// Where they are.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The path of one of [`BINARIES`].
    #[must_use]
    pub fn path(&self, binary: &str) -> PathBuf {
        self.folder.join(binary)
    }
}

/// The paths of all [`NODE_BINARIES`].
#[derive(Clone, Debug)]
pub struct NodeAssets {
    /// The kubelet of the wanted version.
    pub kubelet: PathBuf,
    /// The kube-proxy of the wanted version.
    pub kube_proxy: PathBuf,
    /// A `CoreDNS` with few plugins.
    pub coredns: PathBuf,
    /// What tests run in pods; see `e2e/kubernetes/testtool`.
    pub testtool: PathBuf,
}

impl NodeAssets {
    /// Finds them, in the folder of ready-made ones first, or builds those that are missing: two minutes the
    /// first time.
    pub fn ensure(settings: &Settings) -> Result<Self, AssetsError> {
        Ok(Self {
            kubelet: of_kubernetes("kubelet", settings)?,
            kube_proxy: of_kubernetes("kube-proxy", settings)?,
            coredns: own_module("coredns", settings)?,
            testtool: own_module("testtool", settings)?,
        })
    }
}

/// A Karpenter whose cloud makes Node objects and no machines, and kwok, which plays their kubelets.
#[derive(Clone, Debug)]
pub struct KarpenterAssets {
    /// Karpenter with its kwok provider.
    pub karpenter: PathBuf,
    /// The kinds that it works with.
    pub crds: Vec<PathBuf>,
    /// kwok itself.
    pub kwok: PathBuf,
    /// What kwok does to nodes and pods, a file for each.
    pub stages: Vec<PathBuf>,
}

impl KarpenterAssets {
    /// Finds them, or builds those that are missing: four minutes the first time. Never ready-made ones: they are of
    /// no use without the files from the same sources.
    pub fn ensure(settings: &Settings) -> Result<Self, AssetsError> {
        let karpenter = build::tool("karpenter", &settings.cache)?;
        let kwok = build::tool("kwok", &settings.cache)?;
        let (crds, stages) = (build::KARPENTER_CRDS.beside(&karpenter), build::KWOK_STAGES.beside(&kwok));
        Ok(Self { karpenter, crds, kwok, stages })
    }
}

/// Finds Helm, in the folder of ready-made binaries first, or builds it: three minutes the first time.
pub fn helm(settings: &Settings) -> Result<PathBuf, AssetsError> {
    own_module("helm", settings)
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

/// Why there are no binaries.
#[derive(Debug, thiserror::Error)]
pub enum AssetsError {
    /// Nothing says where a cache may be.
    #[error("no place for a cache: set NODEKEEPER_CACHE (or XDG_CACHE_HOME, or HOME)")]
    NoCacheFolder,

    /// `KUBEBUILDER_ASSETS` points at a folder that lacks a binary.
    #[error(
        "KUBEBUILDER_ASSETS={} has no `{binary}`: put it there (needed: {}), or unset KUBEBUILDER_ASSETS to \
         build all of them with Go", folder.display(), BINARIES.join(", ")
    )]
    PrebuiltIncomplete {
        /// What the variable says.
        folder: PathBuf,
        /// The first one that is missing.
        binary: &'static str,
    },

    /// There is no Go to build with.
    #[error(
        "no `go` in PATH to build Kubernetes with: install Go 1.26 or newer (https://go.dev/dl), or set \
         KUBEBUILDER_ASSETS to a folder with {}", BINARIES.join(", ")
    )]
    GoMissing,

    /// There is a Go, but it is too old for the module and cannot fetch a newer one.
    #[error(
        "this `go` cannot build Kubernetes: {reason}. Install the version it asks for (https://go.dev/dl), \
         or set KUBEBUILDER_ASSETS to a folder with {}", BINARIES.join(", ")
    )]
    GoUnusable {
        /// What Go said.
        reason: String,
    },

    /// There is no module folder for the version.
    #[error(
        "no Kubernetes {version} in {}: there is {}. {}/README.md says how to add one",
        modules.display(), known.join(", "), modules.display()
    )]
    UnknownVersion {
        /// What was asked for.
        version: String,
        /// What could have been asked for.
        known: Vec<String>,
        /// Where the versions are.
        modules: PathBuf,
    },

    /// `go build` failed.
    #[error("cannot build {binary}:\n{output}")]
    BuildFailed {
        /// What was being built.
        binary: &'static str,
        /// The end of what Go said.
        output: String,
    },

    /// A file or folder could not be used.
    #[error("{action} {}", path.display())]
    File {
        /// What was being done, as in "cannot create".
        action: &'static str,
        /// With which file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

impl AssetsError {
    /// Whether this machine lacks something, rather than that something went wrong: a test may skip then.
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
    fn the_cache_is_the_most_specific_variable_that_is_set() {
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
    fn an_incomplete_folder_of_ready_made_binaries_is_an_error_that_says_what_to_do() {
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
