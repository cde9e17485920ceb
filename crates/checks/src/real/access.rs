//! Address and credentials of the API server: from the pod, or from a kubeconfig.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

use super::tls::{self, Identity};
use super::{Credentials, Options, yaml};
use crate::http::{host_and_port, parse_url};

pub(super) struct Access {
    pub(super) host: String,
    pub(super) port: u16,
    /// The path prefix of the server URL; usually empty.
    pub(super) prefix: String,
    /// The name that the certificate has to match.
    pub(super) server_name: String,
    pub(super) authority: Result<Vec<u8>, String>,
    pub(super) token: Result<Option<Vec<u8>>, String>,
    pub(super) identity: Option<Identity>,
}

impl Access {
    /// Uses the API server of the options, otherwise the kubeconfig.
    pub(super) fn find(options: &Options) -> Result<Self, String> {
        match (&options.api_server, &options.kubeconfig) {
            (Some((host, port)), _) => Ok(Self {
                host: host.clone(),
                port: *port,
                prefix: String::new(),
                server_name: host.clone(),
                authority: authority(options.ca_file.as_deref().unwrap_or(&Credentials::of_pod().ca_file)),
                token: token(options.token_file.as_deref().unwrap_or(&Credentials::of_pod().token_file)),
                identity: None,
            }),
            (None, Some(file)) => {
                let said = |error: String| format!("{}: {error}", file.display());
                let text = std::fs::read_to_string(file).map_err(|e| said(format!("cannot read it: {e}")))?;
                let folder = file.parent().unwrap_or(Path::new(""));
                of_kubeconfig(&text, folder, options).map_err(said)
            }
            (None, None) => Err("not inside a cluster (KUBERNETES_SERVICE_HOST is not set), and there is no kubeconfig (KUBECONFIG, ~/.kube/config)".into()),
        }
    }
}

fn authority(file: &Path) -> Result<Vec<u8>, String> {
    tls::read(file, "the cluster's certificate authority", "--ca-file")
}

fn token(file: &Path) -> Result<Option<Vec<u8>>, String> {
    tls::read(file, "the token", "--token-file").map(Some)
}

/// The fields of a kubeconfig that are used, or refused with an error.
#[derive(Deserialize)]
struct Kubeconfig {
    #[serde(rename = "current-context", default)]
    current_context: String,
    #[serde(default)]
    clusters: Vec<Named<Cluster>>,
    #[serde(default)]
    contexts: Vec<Named<Context>>,
    #[serde(default)]
    users: Vec<Named<User>>,
}

#[derive(Deserialize)]
struct Named<T> {
    name: String,
    #[serde(alias = "cluster", alias = "context", alias = "user")]
    is: T,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Cluster {
    #[serde(default)]
    server: String,
    certificate_authority: Option<PathBuf>,
    certificate_authority_data: Option<String>,
    tls_server_name: Option<String>,
    #[serde(default)]
    insecure_skip_tls_verify: bool,
    proxy_url: Option<String>,
}

#[derive(Deserialize)]
struct Context {
    cluster: String,
    #[serde(default)]
    user: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct User {
    token: Option<String>,
    #[serde(rename = "tokenFile")]
    token_file: Option<PathBuf>,
    client_certificate: Option<PathBuf>,
    client_certificate_data: Option<String>,
    client_key: Option<PathBuf>,
    client_key_data: Option<String>,
    username: Option<String>,
    exec: Option<Plugin>,
    auth_provider: Option<Plugin>,
}

#[derive(Deserialize)]
struct Plugin {
    #[serde(alias = "name", default)]
    command: String,
}

fn of_kubeconfig(text: &str, folder: &Path, options: &Options) -> Result<Access, String> {
    let wrong = |error: &dyn std::fmt::Display| format!("it is no kubeconfig: {error}");
    let document = yaml::read(text).map_err(|e| wrong(&e))?;
    let config: Kubeconfig = serde_json::from_value(document).map_err(|e| wrong(&e))?;
    let context = config.current_context.as_str();
    if context.is_empty() {
        return Err("it has no current-context: choose one with kubectl config use-context".into());
    }
    let context = find(config.contexts, context, "context")?;
    let cluster = find(config.clusters, &context.cluster, "cluster")?;
    let user =
        if context.user.is_empty() { User::default() } else { find(config.users, &context.user, "user")? };
    let url = parse_url(&cluster.server).filter(|url| url.scheme() == "https");
    let url = url.ok_or_else(|| format!("server {:?} is no https URL", cluster.server))?;
    if cluster.insecure_skip_tls_verify {
        return Err("insecure-skip-tls-verify is not supported: give the authority with --ca-file".into());
    }
    if cluster.proxy_url.is_some() {
        return Err("proxy-url is not supported: a check through a proxy would be one of the proxy".into());
    }
    let (host, port) = host_and_port(&url);
    let (token, identity) = credentials(&user, &context.user, folder, options)?;
    Ok(Access {
        server_name: cluster.tls_server_name.clone().unwrap_or_else(|| host.clone()),
        prefix: url.path().trim_end_matches('/').to_owned(),
        authority: match &options.ca_file {
            Some(file) => authority(file),
            None => inline(
                cluster.certificate_authority_data.as_ref(),
                cluster.certificate_authority.as_ref(),
                folder,
            )?
            .ok_or_else(|| "the kubeconfig names no certificate-authority: give it with --ca-file".into()),
        },
        host,
        port,
        token,
        identity,
    })
}

type Proof = (Result<Option<Vec<u8>>, String>, Option<Identity>);

/// Returns the token of the flag, otherwise the credentials of the user. Credential plugins are not run.
fn credentials(user: &User, name: &str, folder: &Path, options: &Options) -> Result<Proof, String> {
    if let Some(file) = &options.token_file {
        return Ok((token(file), None));
    }
    let certificate =
        inline(user.client_certificate_data.as_ref(), user.client_certificate.as_ref(), folder)?;
    let key = inline(user.client_key_data.as_ref(), user.client_key.as_ref(), folder)?;
    let identity = certificate.zip(key).map(|(certificate, key)| Identity { certificate, key });
    let own = match (&user.token, &user.token_file) {
        (Some(token), _) => Some(token.clone().into_bytes()),
        (None, Some(file)) => Some(read_in(folder, file)?),
        (None, None) => None,
    };
    if own.is_some() || identity.is_some() {
        return Ok((Ok(own), identity));
    }
    let plugin = user.exec.as_ref().or(user.auth_provider.as_ref()).map(|plugin| plugin.command.as_str());
    Err(match plugin {
        Some(command) => format!(
            "user {name:?} gets its credentials from a plugin ({command}), and plugins are not run: write a token to a file, as with kubectl create token, and give it with --token-file"
        ),
        None if user.username.is_some() => format!(
            "user {name:?} has a password, which API servers no longer take: give a token with --token-file"
        ),
        None => format!("user {name:?} has neither token nor certificate: give a token with --token-file"),
    })
}

fn find<T>(list: Vec<Named<T>>, name: &str, what: &str) -> Result<T, String> {
    let found = list.into_iter().find(|one| one.name == name).map(|one| one.is);
    found.ok_or_else(|| format!("there is no {what} {name:?} in it"))
}

/// Returns inline base64 data, or the content of the named file.
fn inline(data: Option<&String>, file: Option<&PathBuf>, folder: &Path) -> Result<Option<Vec<u8>>, String> {
    match (data, file) {
        (Some(data), _) if !data.is_empty() => {
            let decoded = STANDARD.decode(data.split_whitespace().collect::<String>());
            decoded.map(Some).map_err(|e| format!("a field that ends with -data is no base64: {e}"))
        }
        (_, Some(file)) => read_in(folder, file).map(Some),
        _ => Ok(None),
    }
}

/// Reads a file relative to the folder of the kubeconfig, as kubectl does.
fn read_in(folder: &Path, file: &Path) -> Result<Vec<u8>, String> {
    let file = folder.join(file);
    std::fs::read(&file).map_err(|e| format!("cannot read {}: {e}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &str = "\
apiVersion: v1
kind: Config
current-context: work
contexts:
  - name: home
    context: {cluster: none, user: none}
  - name: work
    context: {cluster: c, user: u, namespace: x}
clusters:
  - name: c
    cluster:
      server: https://k8s.example:6443/k8s/clusters/c-1
      certificate-authority-data: QVVUSE9SSVRZ
users:
  - name: u
    user:
      token: a-token
preferences: {}
";

    fn read(text: &str) -> Result<Access, String> {
        of_kubeconfig(text, Path::new(""), &Options::default())
    }

    fn refused(from: &str, to: &str) -> String {
        assert!(WHOLE.contains(from), "{from}");
        read(&WHOLE.replace(from, to)).err().unwrap_or_default()
    }

    #[test]
    fn a_kubeconfig_is_read() {
        let access = read(WHOLE).unwrap_or_else(|e| unreachable!("{e}"));
        assert_eq!((access.host.as_str(), access.port), ("k8s.example", 6443));
        assert_eq!(
            (access.prefix.as_str(), access.server_name.as_str()),
            ("/k8s/clusters/c-1", "k8s.example")
        );
        assert_eq!(access.authority, Ok(b"AUTHORITY".to_vec()));
        assert_eq!(access.token, Ok(Some(b"a-token".to_vec())));
    }

    #[test]
    fn a_json_kubeconfig_is_read() {
        let json = r#"{"current-context":"x","contexts":[{"name":"x","context":{"cluster":"c","user":"u"}}],
            "clusters":[{"name":"c","cluster":{"server":"https://10.0.0.1","certificate-authority-data":"QQ=="}}],
            "users":[{"name":"u","user":{"token":"t"}}]}"#;
        let access = read(json).unwrap_or_else(|e| unreachable!("{e}"));
        assert_eq!((access.host.as_str(), access.port, access.prefix.as_str()), ("10.0.0.1", 443, ""));
    }

    #[test]
    fn unsupported_fields_are_refused_with_a_fix() {
        let plugin =
            refused("token: a-token", "exec: {apiVersion: v1, command: aws, args: [eks, get-token]}");
        assert!(plugin.contains("plugin (aws)") && plugin.contains("--token-file"), "{plugin}");
        let provider = refused("token: a-token", "auth-provider: {name: gcp}");
        assert!(provider.contains("plugin (gcp)"), "{provider}");
        assert!(refused("token: a-token", "username: me").contains("--token-file"));
        assert!(refused("token: a-token", "{}").contains("neither token nor certificate"));
        let data = "certificate-authority-data: QVVUSE9SSVRZ";
        assert!(refused(data, "insecure-skip-tls-verify: true").contains("--ca-file"));
        assert!(refused(data, "proxy-url: http://p").contains("proxy-url"));
        assert!(refused("https://", "http://").contains("https"));
        assert!(refused("QVVUSE9SSVRZ", "\"%%%\"").contains("base64"));
        assert!(refused("current-context: work", "current-context: play").contains("no context \"play\""));
        assert!(refused("current-context: work", "x: y").contains("current-context"));
        assert!(refused("user: u,", "user: v,").contains("no user \"v\""));
        assert!(read("what?").is_err_and(|e| e.contains("no kubeconfig")));
    }

    #[test]
    fn a_missing_authority_is_an_error() {
        let without = WHOLE.replace("      certificate-authority-data: QVVUSE9SSVRZ\n", "");
        let access = read(&without).unwrap_or_else(|e| unreachable!("{e}"));
        assert!(access.authority.is_err_and(|e| e.contains("--ca-file")));
    }

    #[test]
    fn the_token_flag_wins() {
        let folder = tempfile::tempdir().expect("there is room");
        let file = folder.path().join("token");
        std::fs::write(&file, "typed").expect("there is room");
        let options = Options { token_file: Some(file), ..Options::default() };
        let plugin = WHOLE.replace("token: a-token", "exec: {command: aws}");
        let access = of_kubeconfig(&plugin, Path::new(""), &options).unwrap_or_else(|e| unreachable!("{e}"));
        assert_eq!(access.token, Ok(Some(b"typed".to_vec())));
    }
}
