//! Builds the binaries with Go into a cache.

use std::{
    fmt::{self, Write as _},
    fs::{self, File, TryLockError},
    hash::{DefaultHasher, Hasher as _},
    io,
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

use super::AssetsError;
use crate::{progress::progress, text};

/// The Go modules: one folder per Kubernetes version, and one per other program.
const MODULES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../kubernetes");
const ETCD_PACKAGE: &str = "go.etcd.io/etcd/server/v3";

/// The CRDs in Karpenter's module.
pub(super) const KARPENTER_CRDS: Files = Files {
    of: "sigs.k8s.io/karpenter",
    paths: &[
        "pkg/apis/crds/autoscaling.x-k8s.io_capacitybuffers.yaml",
        "pkg/apis/crds/karpenter.sh_nodeclaims.yaml",
        "pkg/apis/crds/karpenter.sh_nodeoverlays.yaml",
        "pkg/apis/crds/karpenter.sh_nodepools.yaml",
        "kwok/apis/crds/karpenter.kwok.sh_kwoknodeclasses.yaml",
    ],
};

/// The stages in kwok's module, without which kwok does nothing.
pub(super) const KWOK_STAGES: Files = Files {
    of: "sigs.k8s.io/kwok",
    paths: &[
        "kustomize/stage/node/fast/node-initialize.yaml",
        "kustomize/stage/node/heartbeat-with-lease/node-heartbeat-with-lease.yaml",
        "kustomize/stage/pod/fast/pod-ready.yaml",
        "kustomize/stage/pod/fast/pod-complete.yaml",
        "kustomize/stage/pod/fast/pod-delete.yaml",
    ],
};

/// Files of a Go module that are cached next to the binary.
pub(super) struct Files {
    of: &'static str,
    paths: &'static [&'static str],
}

impl Files {
    const NONE: Self = Self { of: "", paths: &[] };

    /// The cached paths. File names are unique.
    pub(super) fn cached_paths(&self, binary: &Path) -> Vec<PathBuf> {
        self.paths.iter().map(|path| binary.with_file_name(file_name(path))).collect()
    }

    fn are_in(&self, folder: &Path) -> bool {
        self.paths.iter().all(|path| folder.join(file_name(path)).is_file())
    }

    /// Copies the files. Go has downloaded the module before, because it has just built a binary of it.
    fn copy(&self, module: &Path, folder: &Path) -> Result<(), AssetsError> {
        if self.paths.is_empty() {
            return Ok(());
        }
        let output = Command::new("go")
            .args(["list", "-mod=readonly", "-m", "-f", "{{.Dir}}", self.of])
            .current_dir(module)
            .env("GOWORK", "off")
            .output()
            .map_err(file_error("cannot run go in", module))?;
        if !output.status.success() {
            let output = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(AssetsError::BuildFailed { binary: self.of, output });
        }
        let source = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
        for path in self.paths {
            let from = source.join(path);
            // Not `fs::copy`: Go's files are read-only, and the copies must be writable.
            let content = fs::read(&from).map_err(file_error("cannot read", &from))?;
            let to = folder.join(file_name(path));
            fs::write(&to, content).map_err(file_error("cannot write", &to))?;
        }
        Ok(())
    }
}

fn file_name(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(_, name)| name)
}

struct Recipe {
    binary: &'static str,
    package: String,
    linker_flags: String,
    files: &'static Files,
    /// The usual duration on 2 cores.
    usually: &'static str,
}

/// Builds missing `binaries` of Kubernetes `version` and returns their folder.
pub(super) fn kubernetes(
    binaries: &[&'static str],
    version: &str,
    cache: &Path,
) -> Result<PathBuf, AssetsError> {
    let modules = Path::new(MODULES);
    let module = modules.join(format!("v{version}"));
    if !module.join("go.mod").is_file() {
        let known = known_versions(modules)?;
        return Err(AssetsError::UnknownVersion {
            version: version.to_owned(),
            known,
            modules: modules.to_owned(),
        });
    }
    let etcd_module = modules.join("etcd");
    let etcd_version = module_version(&etcd_module, ETCD_PACKAGE)?;
    let folder = cache.join("kubernetes").join(Toolchain::detect(&module)?.cache_key(version, &etcd_version));
    ensure(&folder, binaries, |binary| {
        let usually = match binary {
            "kube-apiserver" => "5 to 6 min",
            "kube-controller-manager" => "75 s",
            "etcd" => "45 s",
            "kubectl" | "kubelet" => "20 s",
            _ => "10 s",
        };
        let (module, package) = if binary == "etcd" {
            (&etcd_module, ETCD_PACKAGE.to_owned())
        } else {
            (&module, format!("k8s.io/kubernetes/cmd/{binary}"))
        };
        let linker_flags = kubernetes_linker_flags(version);
        (module, Recipe { binary, package, linker_flags, files: &Files::NONE, usually })
    })?;
    Ok(folder)
}

/// Builds a binary that has its own module, if missing, and returns its path.
pub(super) fn tool(name: &'static str, cache: &Path) -> Result<PathBuf, AssetsError> {
    let module = Path::new(MODULES).join(name);
    let toolchain = Toolchain::detect(&module)?;
    let key = format!("{name}-{:016x}-{toolchain}", fingerprint(&module)?);
    let folder = cache.join("kubernetes").join(key);
    let (package, stamp, files, usually): (String, _, _, _) = match name {
        "helm" | "helm3" => {
            let source = if name == "helm" { "helm.sh/helm/v4" } else { "helm.sh/helm/v3" };
            let version = module_version(&module, source)?;
            let mut stamp = format!("-X {source}/internal/version.version=v{version}");
            if name == "helm3" {
                // Helm 4 reads this from its build information. Without it a chart is rendered for Kubernetes 1.20.
                let client = module_version(&module, "k8s.io/client-go")?;
                let minor = client.split('.').nth(1).unwrap_or_default();
                let package = "helm.sh/helm/v3/pkg/chartutil.k8sVersion";
                let _ = write!(stamp, " -X {package}Major=1 -X {package}Minor={minor}");
            }
            (format!("{source}/cmd/helm"), stamp, &Files::NONE, "200 s")
        }
        "coredns" => (".".into(), String::new(), &Files::NONE, "90 s"),
        "karpenter" => ("sigs.k8s.io/karpenter/kwok".into(), String::new(), &KARPENTER_CRDS, "2 min"),
        "kwok" => ("sigs.k8s.io/kwok/cmd/kwok".into(), String::new(), &KWOK_STAGES, "2 min"),
        _ => (".".into(), String::new(), &Files::NONE, "5 s"),
    };
    ensure(&folder, &[name], |binary| {
        let linker_flags = format!("-s -w {stamp}");
        (&module, Recipe { binary, package: package.clone(), linker_flags, files, usually })
    })?;
    Ok(folder.join(name))
}

/// Builds those of `binaries` that are not in `folder`. `how` returns the module and recipe of each.
fn ensure<'m>(
    folder: &Path,
    binaries: &[&'static str],
    how: impl Fn(&'static str) -> (&'m PathBuf, Recipe),
) -> Result<(), AssetsError> {
    let is_there = |binary: &'static str| folder.join(binary).is_file() && how(binary).1.files.are_in(folder);
    if binaries.iter().all(|binary| is_there(binary)) {
        return Ok(());
    }
    fs::create_dir_all(folder).map_err(file_error("cannot create", folder))?;
    let _lock = lock(folder)?;
    remove_leftovers(folder)?;
    for binary in binaries.iter().filter(|binary| !is_there(binary)) {
        let (module, recipe) = how(binary);
        build(&recipe, module, folder)?;
    }
    Ok(())
}

fn build(recipe: &Recipe, module: &Path, folder: &Path) -> Result<(), AssetsError> {
    let Recipe { binary, package, linker_flags, files, usually } = recipe;
    let source = module.file_name().unwrap_or_default().to_string_lossy();
    progress(&format!("building {binary} ({source}), usually {usually} on 2 cores ..."));
    let begun = Instant::now();

    // A `go build` outlives this process if it is killed, so the name of the unfinished file contains the process id.
    let unfinished = folder.join(format!(".{binary}.{}", std::process::id()));
    let output = Command::new("go")
        .args(["build", "-mod=readonly", "-trimpath", "-ldflags", linker_flags, "-o"])
        .arg(&unfinished)
        .arg(package)
        .current_dir(module)
        .envs([("CGO_ENABLED", "0"), ("GOWORK", "off")])
        .output()
        .map_err(file_error("cannot run go in", module))?;
    if !output.status.success() {
        let output = text::tail(&String::from_utf8_lossy(&output.stderr), 30).to_owned();
        return Err(AssetsError::BuildFailed { binary, output });
    }
    files.copy(module, folder)?;
    let finished = folder.join(binary);
    fs::rename(&unfinished, &finished).map_err(file_error("cannot rename to", &finished))?;
    progress(&format!("built {binary} in {} s", begun.elapsed().as_secs()));
    Ok(())
}

/// Without a version the API server reports v0.0.0, and kubectl and Helm refuse to work.
fn kubernetes_linker_flags(version: &str) -> String {
    let mut numbers = version.split('.');
    let (major, minor) = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
    let stamps = ["k8s.io/component-base/version", "k8s.io/client-go/pkg/version"].map(|package| {
        format!(
            "-X {package}.gitVersion=v{version} -X {package}.gitMajor={major} -X {package}.gitMinor={minor}"
        )
    });
    format!("-s -w {}", stamps.join(" "))
}

/// The properties of the Go toolchain that affect its output.
#[derive(Debug, PartialEq)]
struct Toolchain {
    version: String,
    os: String,
    arch: String,
}

impl Toolchain {
    /// Runs in the module's folder, because Go may switch to the toolchain that the module requires.
    fn detect(module: &Path) -> Result<Self, AssetsError> {
        let asked =
            Command::new("go").args(["env", "GOVERSION", "GOOS", "GOARCH"]).current_dir(module).output();
        let output = match asked {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(AssetsError::GoMissing),
            asked => asked.map_err(file_error("cannot run go in", module))?,
        };
        let answer = String::from_utf8_lossy(&output.stdout);
        Self::parse(&answer).filter(|_| output.status.success()).ok_or_else(|| {
            let said = format!("{answer}{}", String::from_utf8_lossy(&output.stderr));
            AssetsError::GoUnusable { reason: said.trim().to_owned() }
        })
    }

    fn parse(answer: &str) -> Option<Self> {
        let mut lines = answer.lines().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty());
        let toolchain = Self { version: lines.next()?, os: lines.next()?, arch: lines.next()? };
        // An experiment is part of the version: "go1.26.8 X:nogreenteagc".
        let version = toolchain.version.replace([' ', ':'], "_");
        version.starts_with("go").then_some(Self { version, ..toolchain })
    }

    fn cache_key(&self, kubernetes: &str, etcd: &str) -> String {
        format!("v{kubernetes}-etcd{etcd}-{self}")
    }
}

impl fmt::Display for Toolchain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}", self.version, self.os, self.arch)
    }
}

fn known_versions(modules: &Path) -> Result<Vec<String>, AssetsError> {
    let entries = fs::read_dir(modules).map_err(file_error("cannot read", modules))?;
    let mut versions: Vec<_> = entries
        .filter_map(|entry| Some(entry.ok()?.file_name().to_str()?.strip_prefix('v')?.to_owned()))
        .collect();
    versions.sort();
    Ok(versions)
}

/// A hash of all sources of a small module, so that a change causes a rebuild. The hash may differ between Rust
/// versions.
fn fingerprint(module: &Path) -> Result<u64, AssetsError> {
    let mut hasher = DefaultHasher::new();
    for name in ["go.mod", "go.sum", "main.go"] {
        let path = module.join(name);
        match fs::read(&path) {
            Ok(content) => hasher.write(&content),
            // A module without dependencies has no go.sum, and one without code of ours has no main.go.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(file_error("cannot read", &path)(error)),
        }
        hasher.write_u8(0);
    }
    Ok(hasher.finish())
}

fn module_version(module: &Path, of: &str) -> Result<String, AssetsError> {
    let path = module.join("go.mod");
    let go_mod = fs::read_to_string(&path).map_err(file_error("cannot read", &path))?;
    Ok(required_version(&go_mod, of).unwrap_or("unknown").to_owned())
}

/// The version, without its `v`, that a go.mod requires of a module.
fn required_version<'a>(go_mod: &'a str, module: &str) -> Option<&'a str> {
    go_mod
        .lines()
        .find_map(|line| line.trim().strip_prefix(module)?.split_whitespace().next()?.strip_prefix('v'))
}

/// Held until dropped; the kernel releases it if the process is killed.
fn lock(folder: &Path) -> Result<File, AssetsError> {
    let path = folder.join(".lock");
    let file = File::create(&path).map_err(file_error("cannot create", &path))?;
    if let Err(TryLockError::WouldBlock) = file.try_lock() {
        progress(&format!("another process is building in {}, waiting for it ...", folder.display()));
    }
    file.lock().map_err(file_error("cannot lock", &path))?;
    Ok(file)
}

/// Removes unfinished files of killed builds. An orphaned `go build` that writes one again does no harm.
fn remove_leftovers(folder: &Path) -> Result<(), AssetsError> {
    for entry in fs::read_dir(folder).map_err(file_error("cannot read", folder))?.flatten() {
        let name = entry.file_name();
        let of_a_process = |(binary, pid): (&str, &str)| !binary.is_empty() && pid.parse::<u32>().is_ok();
        let unfinished = |name: &str| name.strip_prefix('.')?.rsplit_once('.').map(of_a_process);
        if name.to_str().and_then(unfinished) == Some(true) {
            fs::remove_file(entry.path()).map_err(file_error("cannot remove", &entry.path()))?;
        }
    }
    Ok(())
}

fn file_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> AssetsError {
    move |source| AssetsError::File { action, path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_key_contains_all_inputs() {
        let toolchain = Toolchain::parse("go1.26.8\nlinux\namd64\n").unwrap();
        assert_eq!(toolchain.cache_key("1.36.4", "3.6.4"), "v1.36.4-etcd3.6.4-go1.26.8-linux-amd64");
    }

    #[test]
    fn go_versions_are_parsed_or_refused() {
        let version = |answer: &str| Toolchain::parse(answer).map(|toolchain| toolchain.version);
        assert_eq!(version("go1.27\nlinux\narm64"), Some("go1.27".into()));
        assert_eq!(version("go1.26.8 X:nogreenteagc\nlinux\narm64"), Some("go1.26.8_X_nogreenteagc".into()));
        assert_eq!(version("devel +3f1a\nlinux\narm64"), None);
        assert_eq!(version("go1.26.8\nlinux\n\n"), None);
        assert_eq!(version(""), None);
    }

    #[test]
    fn the_etcd_version_comes_from_its_module() {
        let go_mod = fs::read_to_string(Path::new(MODULES).join("etcd/go.mod")).unwrap();
        assert!(required_version(&go_mod, ETCD_PACKAGE).unwrap().starts_with("3."));
        assert_eq!(required_version("tool go.etcd.io/etcd/server/v3\n", ETCD_PACKAGE), None);
    }

    #[test]
    fn an_edit_of_a_small_module_changes_its_fingerprint() {
        let module = tempfile::tempdir().unwrap();
        fs::write(module.path().join("main.go"), "package main").unwrap();
        let before = fingerprint(module.path()).unwrap();
        assert_eq!(fingerprint(module.path()).unwrap(), before);
        fs::write(module.path().join("main.go"), "package main // changed").unwrap();
        assert_ne!(fingerprint(module.path()).unwrap(), before);
    }

    #[test]
    fn added_files_are_copied_although_the_binary_exists() {
        let folder = tempfile::tempdir().unwrap();
        for path in &KWOK_STAGES.paths[1..] {
            fs::write(folder.path().join(file_name(path)), "").unwrap();
        }
        assert!(Files::NONE.are_in(folder.path()) && !KWOK_STAGES.are_in(folder.path()));
        let cached = KWOK_STAGES.cached_paths(&folder.path().join("kwok"));
        fs::write(&cached[0], "").unwrap();
        assert!(KWOK_STAGES.are_in(folder.path()));
    }

    #[test]
    fn an_unknown_version_is_an_error_with_the_known_ones() {
        let error = kubernetes(&[], "0.1.2", Path::new("/nowhere")).unwrap_err().to_string();
        for part in ["0.1.2", super::super::DEFAULT_VERSION, "README.md"] {
            assert!(error.contains(part), "{part} is missing in: {error}");
        }
    }

    #[test]
    fn the_version_is_set_by_linker_flags() {
        let flags = kubernetes_linker_flags("1.34.4");
        assert!(flags.contains("-X k8s.io/component-base/version.gitVersion=v1.34.4"), "{flags}");
        assert!(flags.contains("-X k8s.io/client-go/pkg/version.gitMinor=34"), "{flags}");
    }

    #[test]
    fn only_remains_of_killed_builds_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        for name in [".lock", "etcd", ".etcd.4711", ".kube-apiserver.1"] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        remove_leftovers(folder.path()).unwrap();
        let mut left: Vec<_> =
            fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, [".lock", "etcd"]);
    }
}
