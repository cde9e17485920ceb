//! Builds container images without a container engine: an OCI layout with one layer, in a tar file that containerd
//! imports.

use std::{
    collections::BTreeSet,
    env::consts::ARCH,
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};

/// The user id that most images without root use.
pub const NONROOT: u32 = 65532;

/// An image built from files of this machine.
#[derive(Clone, Debug)]
pub struct Image {
    name: String,
    files: Vec<(PathBuf, String)>,
    entrypoint: String,
    arguments: Vec<String>,
    environment: Vec<String>,
    user: u32,
}

impl Image {
    /// An image that runs `binary` as `entrypoint`, as root. `name` must have a host and a tag, such as
    /// `nodekeeper.local/worker:test`; otherwise Kubernetes and containerd normalise it differently.
    ///
    /// Shared libraries of a dynamic binary are included.
    #[must_use]
    pub fn new(name: &str, binary: &Path, entrypoint: &str) -> Self {
        Self {
            name: name.to_owned(),
            files: vec![(binary.to_owned(), entrypoint.to_owned())],
            entrypoint: entrypoint.to_owned(),
            arguments: Vec::new(),
            environment: vec!["PATH=/usr/local/bin:/usr/bin:/bin".to_owned()],
            user: 0,
        }
    }

    #[must_use]
    pub fn with_file(mut self, file: &Path, path_in_image: &str) -> Self {
        self.files.push((file.to_owned(), path_in_image.to_owned()));
        self
    }

    /// The default arguments.
    #[must_use]
    pub fn with_arguments(mut self, arguments: &[&str]) -> Self {
        self.arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        self
    }

    /// Sets a variable of the environment.
    #[must_use]
    pub fn with_variable(mut self, (name, value): (&str, &str)) -> Self {
        self.environment.push(format!("{name}={value}"));
        self
    }

    /// Sets the user, and the group with the same id.
    #[must_use]
    pub fn as_user(mut self, user: u32) -> Self {
        self.user = user;
        self
    }

    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The name with characters that are valid in file names.
    pub(crate) fn file_name(&self) -> String {
        format!("{}.tar", self.name.replace(['/', ':'], "_"))
    }

    /// Writes the image into a folder as [`Image::file_name`], atomically.
    pub(crate) fn write(&self, folder: &Path) -> anyhow::Result<()> {
        let is_full = self
            .name
            .split_once('/')
            .is_some_and(|(host, rest)| host.contains('.') && rest.contains(':') && !rest.ends_with(':'));
        ensure!(is_full, "{} is no full image name: write it as host.name/image:tag", self.name);
        let unfinished = folder.join(format!(".{}", self.file_name()));
        fs::write(&unfinished, self.layout()?)?;
        fs::rename(unfinished, folder.join(self.file_name()))?;
        Ok(())
    }

    fn layout(&self) -> anyhow::Result<Vec<u8>> {
        let architecture = match ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        let layer = self.layer()?;
        let layer_digest = digest(&layer)?;
        let config = serde_json::to_vec(&json!({
            "architecture": architecture,
            "os": "linux",
            "config": {
                "Entrypoint": [self.entrypoint],
                "Cmd": self.arguments,
                "Env": self.environment,
                "User": format!("{0}:{0}", self.user),
                "WorkingDir": "/",
            },
            "rootfs": {"type": "layers", "diff_ids": [layer_digest]},
        }))?;
        let manifest = serde_json::to_vec(&json!({
            "schemaVersion": 2,
            "mediaType": media_type("manifest.v1+json"),
            "config": descriptor("config.v1+json", &config)?,
            "layers": [descriptor("layer.v1.tar", &layer)?],
        }))?;
        let mut in_index = descriptor("manifest.v1+json", &manifest)?;
        in_index["platform"] = json!({"architecture": architecture, "os": "linux"});
        in_index["annotations"] = json!({"io.containerd.image.name": self.name});
        let index =
            json!({"schemaVersion": 2, "mediaType": media_type("index.v1+json"), "manifests": [in_index]});

        let mut tar = Tar::default();
        tar.file("oci-layout", 0o644, br#"{"imageLayoutVersion":"1.0.0"}"#)?;
        tar.file("index.json", 0o644, &serde_json::to_vec(&index)?)?;
        for blob in [config, manifest, layer] {
            tar.file(&format!("blobs/{}", digest(&blob)?.replace(':', "/")), 0o644, &blob)?;
        }
        Ok(tar.finish())
    }

    fn layer(&self) -> anyhow::Result<Vec<u8>> {
        let mut tar = Tar::default();
        tar.folder("tmp", 0o1777)?;
        let users = format!("root:x:0:0::/:/\nnonroot:x:{NONROOT}:{NONROOT}::/:/\n");
        tar.file("etc/passwd", 0o644, users.as_bytes())?;
        let mut libraries = BTreeSet::new();
        for (source, path) in &self.files {
            let content =
                fs::read(source).with_context(|| format!("cannot put {} into an image", source.display()))?;
            tar.file(path.trim_start_matches('/'), 0o755, &content)?;
            libraries.extend(libraries_of(source)?);
        }
        for library in libraries {
            tar.file(library.trim_start_matches('/'), 0o755, &fs::read(&library)?)?;
        }
        Ok(tar.finish())
    }
}

/// The dynamic loader and the libraries of a binary; empty for a static one.
fn libraries_of(binary: &Path) -> anyhow::Result<Vec<String>> {
    // Fails for static binaries, and `ldd` is missing only where there are no dynamic ones.
    let Ok(output) = Command::new("ldd").arg(binary).output() else { return Ok(Vec::new()) };
    let said = String::from_utf8(output.stdout)?;
    ensure!(!said.contains("not found"), "{} lacks libraries:\n{said}", binary.display());
    let path = |line: &str| line.split_whitespace().find(|word| word.starts_with('/')).map(str::to_owned);
    Ok(if output.status.success() { said.lines().filter_map(path).collect() } else { Vec::new() })
}

fn media_type(of: &str) -> String {
    format!("application/vnd.oci.image.{of}")
}

fn descriptor(of: &str, content: &[u8]) -> anyhow::Result<Value> {
    Ok(json!({"mediaType": media_type(of), "digest": digest(content)?, "size": content.len()}))
}

/// Uses `sha256sum`, so that the workspace needs no hash crate.
fn digest(content: &[u8]) -> anyhow::Result<String> {
    let mut child = Command::new("sha256sum")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("sha256sum")?;
    child.stdin.take().context("sha256sum has no stdin")?.write_all(content)?;
    let said = String::from_utf8(child.wait_with_output()?.stdout)?;
    let hex = said.split_whitespace().next().context("sha256sum said nothing")?;
    Ok(format!("sha256:{hex}"))
}

/// A POSIX tar file whose entries belong to root and date from 1970, so that equal content gives an equal image.
#[derive(Default)]
struct Tar {
    bytes: Vec<u8>,
    folders: BTreeSet<String>,
}

impl Tar {
    const BLOCK: usize = 512;

    /// Adds a file and its parent folders.
    fn file(&mut self, path: &str, mode: u32, content: &[u8]) -> anyhow::Result<()> {
        for (slash, _) in path.match_indices('/') {
            self.folder(&path[..slash], 0o755)?;
        }
        self.header(path, mode, content.len(), b'0')?;
        self.bytes.extend_from_slice(content);
        self.pad();
        Ok(())
    }

    fn folder(&mut self, path: &str, mode: u32) -> anyhow::Result<()> {
        if self.folders.insert(path.to_owned()) {
            self.header(&format!("{path}/"), mode, 0, b'5')?;
        }
        Ok(())
    }

    fn header(&mut self, path: &str, mode: u32, size: usize, kind: u8) -> anyhow::Result<()> {
        ensure!(path.len() <= 100, "{path} is too long for a tar file");
        let mut header = [0; Self::BLOCK];
        let mut put = |at: usize, field: &str| header[at..at + field.len()].copy_from_slice(field.as_bytes());
        put(0, path);
        put(100, &format!("{mode:07o}"));
        put(108, "0000000");
        put(116, "0000000");
        put(124, &format!("{size:011o}"));
        put(136, "00000000000");
        // The checksum is calculated with spaces in its own field.
        put(148, "        ");
        put(257, "ustar\x0000");
        header[156] = kind;
        let checksum: u32 = header.iter().copied().map(u32::from).sum();
        header[148..155].copy_from_slice(format!("{checksum:06o}\0").as_bytes());
        self.bytes.extend_from_slice(&header);
        Ok(())
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(Self::BLOCK), 0);
    }

    fn finish(mut self) -> Vec<u8> {
        self.bytes.resize(self.bytes.len() + 2 * Self::BLOCK, 0);
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(tar: &Path) -> String {
        let output = Command::new("tar").arg("-tvf").arg(tar).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    #[test]
    fn a_digest_is_sha256() {
        let empty = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(digest(b"").unwrap(), empty);
    }

    #[test]
    fn a_layer_contains_the_files_at_their_paths() {
        let folder = tempfile::tempdir().unwrap();
        let binary = folder.path().join("binary");
        fs::write(&binary, "content").unwrap();
        let image = Image::new("nodekeeper.local/x:1", &binary, "/opt/x/run").with_file(&binary, "/second");
        let layer = folder.path().join("layer.tar");
        fs::write(&layer, image.layer().unwrap()).unwrap();
        let listed = listed(&layer);
        for part in
            ["drwxrwxrwt", "opt/x/\n", "-rwxr-xr-x", "7 1970", "opt/x/run\n", "second\n", "etc/passwd\n"]
        {
            assert!(listed.contains(part), "{part} is missing in:\n{listed}");
        }
        assert_eq!(listed.matches("opt/x/\n").count(), 1, "{listed}");
    }

    #[test]
    fn the_same_files_make_the_same_image() {
        let folder = tempfile::tempdir().unwrap();
        let binary = folder.path().join("binary");
        fs::write(&binary, "content").unwrap();
        let image = Image::new("nodekeeper.local/x:1", &binary, "/x").as_user(NONROOT);
        image.write(folder.path()).unwrap();
        let tar = folder.path().join("nodekeeper.local_x_1.tar");
        assert_eq!(fs::read(&tar).unwrap(), image.layout().unwrap());
        assert_eq!(listed(&tar).matches("blobs/sha256/").count(), 4);
        assert!(String::from_utf8_lossy(&fs::read(&tar).unwrap()).contains(r#""User":"65532:65532""#));
    }

    #[test]
    fn a_dynamic_binary_brings_its_loader() {
        let libraries = libraries_of(Path::new("/bin/sh")).unwrap();
        assert!(libraries.iter().all(|library| Path::new(library).is_file()), "{libraries:?}");
        assert!(libraries.iter().any(|library| library.contains("ld-")), "{libraries:?}");
    }

    #[test]
    fn a_short_name_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["worker", "worker:1", "nodekeeper.local/worker", "library/worker:1"] {
            let error = Image::new(name, Path::new("/bin/sh"), "/sh").write(folder.path()).unwrap_err();
            assert!(error.to_string().contains("full image name"), "{error}");
        }
    }
}
