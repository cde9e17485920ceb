//! Checks and installs what real nodes need on this machine: root, namespaces, and a few packages.

use std::{
    env,
    ffi::OsString,
    fs::{self, File},
    io::{self, Read as _, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{progress::progress, text};

/// A program and the Debian package that contains it.
const PROGRAMS: [(&str, &str); 12] = [
    ("containerd", "containerd"),
    ("ctr", "containerd"),
    ("runc", "runc"),
    ("nft", "nftables"),
    ("iptables", "iptables"),
    ("conntrack", "conntrack"),
    ("ip", "iproute2"),
    ("mount", "mount"),
    ("nsenter", "util-linux"),
    ("unshare", "util-linux"),
    ("setsid", "util-linux"),
    ("sha256sum", "coreutils"),
];
const CNI_PACKAGE: &str = "containernetworking-plugins";
const CNI_FOLDERS: [&str; 2] = ["/usr/lib/cni", "/opt/cni/bin"];
/// Folders of programs for root, which may be missing in `PATH` after `su`.
const ROOTS_FOLDERS: [&str; 2] = ["/usr/sbin", "/sbin"];
const PROBE: &str = include_str!("probe.sh");
/// The script that decides whether Debian starts an installed service.
const SERVICE_POLICY: &str = "/usr/sbin/policy-rc.d";
/// The content identifies the script as this program's, so that it can be removed even after a crash.
const NO_SERVICES: &str = "#!/bin/sh\n# By nodekeeper's e2e, while it installs packages.\nexit 101\n";

/// Why this machine cannot run nodes. Each is a reason to skip a test, not to fail it.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// Namespaces and mounts need root.
    #[error(
        "real nodes need root, for namespaces and mounts: run as root, in a machine or container of its own"
    )]
    NotRoot,

    /// Root without the capability to create namespaces.
    #[error(
        "root may not make namespaces here ({reason}): use a virtual machine, or a container with --privileged"
    )]
    NoNamespaces {
        /// The output of `unshare`.
        reason: String,
    },

    /// Namespaces exist, but lack a feature that nodes need.
    #[error(
        "root may not do what nodes do, {missing}: use a virtual machine, or a container with --privileged"
    )]
    Incapable {
        /// The failed operation and its error.
        missing: String,
    },

    #[error("real nodes need packages that are missing ({reason}): apt-get install {}", packages.join(" "))]
    Packages {
        /// The Debian names.
        packages: Vec<&'static str>,
        /// Why the packages were not installed.
        reason: String,
    },

    /// Container images use overlayfs, which cannot be stacked on itself.
    #[error("nodes cannot live in {}, which is on an overlay: set NODEKEEPER_CACHE to a folder on a volume", folder.display())]
    Overlay { folder: PathBuf },

    /// The background process reported one of the above.
    #[error("{reason}")]
    InBackground { reason: String },
}

/// Ensures that nodes can run with data below `folder`. Installs packages with `apt-get` if needed.
pub fn ensure_nodes_can_run(folder: &Path) -> Result<(), MachineError> {
    if !is_root() {
        return Err(MachineError::NotRoot);
    }
    remove_forgotten(Path::new(SERVICE_POLICY));
    let packages = missing_packages();
    if !packages.is_empty() {
        install(&packages).map_err(|reason| MachineError::Packages { packages, reason })?;
        let packages = missing_packages();
        if !packages.is_empty() {
            let reason = "they were installed, but their programs are not in PATH, /usr/sbin or /sbin".into();
            return Err(MachineError::Packages { packages, reason });
        }
    }
    let namespaces = ["--net", "--mount", "--pid", "--uts", "--ipc", "--fork"];
    let unshare = |words: &[&str]| run(command("unshare").args(namespaces).args(words));
    unshare(&["true"]).map_err(|reason| MachineError::NoNamespaces { reason })?;
    unshare(&["sh", "-c", PROBE]).map_err(|missing| MachineError::Incapable { missing })?;
    if is_on_overlay(folder) {
        return Err(MachineError::Overlay { folder: folder.to_owned() });
    }
    Ok(())
}

/// Returns false if unknown; containerd then reports the error.
fn is_on_overlay(folder: &Path) -> bool {
    let Some(existing) = folder.ancestors().find(|folder| folder.exists()) else { return false };
    let asked = Command::new("stat").args(["--file-system", "--format=%T"]).arg(existing).output();
    asked.is_ok_and(|answer| answer.stdout.starts_with(b"overlay"))
}

/// A command that finds the programs that [`ensure_nodes_can_run`] has found.
#[must_use]
pub fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    command.env("PATH", with_roots_folders(env::var_os("PATH").unwrap_or_default()));
    command
}

/// Appended last, so that existing entries of `PATH` take precedence.
fn with_roots_folders(path: OsString) -> OsString {
    let folders: Vec<PathBuf> = env::split_paths(&path).collect();
    let missing = ROOTS_FOLDERS.map(PathBuf::from).into_iter().filter(|folder| !folders.contains(folder));
    env::join_paths(folders.iter().cloned().chain(missing)).unwrap_or(path)
}

#[must_use]
pub fn cni_folder() -> Option<&'static Path> {
    CNI_FOLDERS.map(Path::new).into_iter().find(|folder| folder.join("ptp").is_file())
}

fn is_root() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    effective_user(&status) == Some("0")
}

/// Reads `Uid:`, which lists the real, effective, saved and file system user.
fn effective_user(status: &str) -> Option<&str> {
    status.lines().find_map(|line| line.strip_prefix("Uid:"))?.split_whitespace().nth(1)
}

fn missing_packages() -> Vec<&'static str> {
    let path = with_roots_folders(env::var_os("PATH").unwrap_or_default());
    let folders: Vec<PathBuf> = env::split_paths(&path).collect();
    let is_missing = |program: &str| !folders.iter().any(|folder| folder.join(program).is_file());
    let mut packages: Vec<_> =
        PROGRAMS.iter().filter(|(program, _)| is_missing(program)).map(|(_, package)| *package).collect();
    packages.extend(cni_folder().is_none().then_some(CNI_PACKAGE));
    packages.dedup();
    packages
}

fn install(packages: &[&str]) -> Result<(), String> {
    if !Path::new("/usr/bin/apt-get").is_file() {
        return Err("there is no apt-get to install them with".into());
    }
    progress(&format!("installing {} (usually 15 s) ...", packages.join(" ")));
    let _services_stay_off = ServicesStayOff::new(Path::new(SERVICE_POLICY))
        .map_err(|error| format!("{SERVICE_POLICY}: {error}"))?;
    // Waits for another apt-get process instead of failing.
    let apt = || {
        let mut apt = command("apt-get");
        apt.args(["-o", "DPkg::Lock::Timeout=300", "-y", "-q"]).env("DEBIAN_FRONTEND", "noninteractive");
        apt
    };
    run(apt().arg("update"))?;
    run(apt().args(["install", "--no-install-recommends"]).args(packages))
}

/// While it exists, installed packages do not start their services: each node runs its own containerd, and the
/// machine's must not be started.
struct ServicesStayOff {
    /// Locked, which distinguishes it from a forgotten one. `None` if the machine has its own policy.
    ours: Option<(PathBuf, File)>,
}

impl ServicesStayOff {
    fn new(policy: &Path) -> io::Result<Self> {
        loop {
            match File::options().write(true).create_new(true).mode(0o755).open(policy) {
                Ok(mut file) => {
                    // Locks the file before it is visible under its final name.
                    file.lock()?;
                    file.write_all(NO_SERVICES.as_bytes())?;
                    return Ok(Self { ours: Some((policy.to_owned(), file)) });
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
            match File::open(policy) {
                Ok(mut there) => {
                    // Another process of ours may be installing: wait for it.
                    there.lock()?;
                    if !is_ours(&mut there) {
                        // The policy of the machine stays in place.
                        return Ok(Self { ours: None });
                    }
                    remove(policy)?;
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
    }
}

impl Drop for ServicesStayOff {
    fn drop(&mut self) {
        if let Some((policy, _locked)) = &self.ours {
            let _ = remove(policy);
        }
    }
}

/// Removes a policy left by a killed process, which would keep all services of this machine off.
fn remove_forgotten(policy: &Path) {
    let Ok(mut file) = File::open(policy) else { return };
    if file.try_lock().is_ok() && is_ours(&mut file) {
        progress(&format!("removing {}, left by a killed run", policy.display()));
        let _ = remove(policy);
    }
}

fn is_ours(policy: &mut File) -> bool {
    let mut text = String::new();
    policy.read_to_string(&mut text).is_ok() && text == NO_SERVICES
}

fn remove(policy: &Path) -> io::Result<()> {
    match fs::remove_file(policy) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Returns the end of the output if the command failed.
fn run(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = [output.stdout, output.stderr].concat();
    Err(text::tail(&String::from_utf8_lossy(&said), 5).to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn the_effective_user_is_used() {
        assert_eq!(effective_user("Name:\tx\nUid:\t1000\t0\t0\t0\nGid:\t5\t5\t5\t5\n"), Some("0"));
        assert_eq!(effective_user("Name:\tx\n"), None);
    }

    #[test]
    fn only_a_forgotten_service_policy_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let policy = folder.path().join("policy-rc.d");
        remove_forgotten(&policy);

        let needed = ServicesStayOff::new(&policy).unwrap();
        remove_forgotten(&policy);
        assert_eq!(fs::read_to_string(&policy).unwrap(), NO_SERVICES);
        drop(needed);
        assert!(!policy.exists());

        fs::write(&policy, NO_SERVICES).unwrap();
        remove_forgotten(&policy);
        assert!(!policy.exists());

        fs::write(&policy, "#!/bin/sh\nexit 101\n").unwrap();
        remove_forgotten(&policy);
        drop(ServicesStayOff::new(&policy).unwrap());
        assert!(policy.exists(), "the machine's own policy was removed");
    }

    #[test]
    fn programs_are_also_found_in_roots_folders() {
        assert_eq!(with_roots_folders("/bin:/sbin".into()), "/bin:/sbin:/usr/sbin");
        assert_eq!(with_roots_folders("/sbin:/usr/sbin:/bin".into()), "/sbin:/usr/sbin:/bin");
    }

    #[test]
    fn a_missing_capability_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let probe = || run(Command::new("/bin/sh").args(["-c", PROBE]).env("PATH", folder.path()));
        for (program, end) in [("mount", "exit 0"), ("ip", "exit 0"), ("nft", "echo no netlink; exit 1")] {
            let path = folder.path().join(program);
            fs::write(&path, format!("#!/bin/sh\n{end}\n")).unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        assert_eq!(probe(), Err("use nftables: no netlink".into()));
        fs::write(folder.path().join("mount"), "#!/bin/sh\necho denied\nexit 32\n").unwrap();
        let error = MachineError::Incapable { missing: probe().unwrap_err() }.to_string();
        assert!(error.contains("mount a tmpfs: denied"), "{error}");
    }

    #[test]
    fn missing_packages_are_named() {
        let error = MachineError::Packages { packages: vec!["runc", "conntrack"], reason: "no apt".into() };
        assert!(error.to_string().ends_with("(no apt): apt-get install runc conntrack"), "{error}");
    }
}
