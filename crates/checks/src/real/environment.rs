//! Reads addresses and credentials from the environment, as they are set in every pod and as kubectl has them.

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use super::Options;

/// The CA bundle of most distributions.
const TRUSTED: &str = "/etc/ssl/certs/ca-certificates.crt";

impl Options {
    /// Reads the environment variables of a pod, those of kubectl and our own.
    ///
    /// # Errors
    /// Names the variable that is wrong.
    pub fn from_environment(environment: impl Fn(&str) -> Option<OsString>) -> Result<Self, String> {
        let set = |name: &str| variable(&environment, name);
        let mut options = Self {
            node: set("NODE_NAME")?.unwrap_or_default(),
            token_file: set("NODEKEEPER_TOKEN_FILE")?.map(PathBuf::from),
            ca_file: set("NODEKEEPER_CA_FILE")?.map(PathBuf::from),
            trusted_file: Some(set("SSL_CERT_FILE")?.map_or_else(|| TRUSTED.into(), PathBuf::from)),
            kubeconfig: find_kubeconfig(set("KUBECONFIG")?, set("HOME")?),
            ..Self::default()
        };
        if let Some(host) = set("KUBERNETES_SERVICE_HOST")? {
            let port = set("KUBERNETES_SERVICE_PORT")?.unwrap_or_else(|| "443".into());
            let port = port.parse().map_err(|_| format!("KUBERNETES_SERVICE_PORT: {port:?} is no port"))?;
            options.api_server = Some((host, port));
        }
        for server in split(&set("NODEKEEPER_DNS_SERVERS")?.unwrap_or_default()) {
            options.dns_servers.push(read_server(&server)?);
        }
        Ok(options)
    }
}

/// The value of a variable; none if it is empty.
///
/// # Errors
/// If it is not UTF-8.
pub fn variable(
    environment: impl Fn(&str) -> Option<OsString>,
    name: &str,
) -> Result<Option<String>, String> {
    match environment(name).map(OsString::into_string).transpose() {
        Ok(value) => Ok(value.filter(|value| !value.is_empty())),
        Err(value) => Err(format!("{name}: {} is not UTF-8", value.display())),
    }
}

/// Returns the first file that exists. If none does, the first is returned, and reading it fails with its name.
fn find_kubeconfig(named: Option<String>, home: Option<String>) -> Option<PathBuf> {
    if let Some(named) = named {
        let mut files = named.split(':').filter(|file| !file.is_empty()).map(PathBuf::from);
        let first = files.clone().next();
        return files.find(|file| file.exists()).or(first);
    }
    home.map(|home| PathBuf::from(home).join(".kube/config")).filter(|file| file.exists())
}

/// The words of a list with commas.
#[must_use]
pub fn split(list: &str) -> Vec<String> {
    list.split(',').map(str::trim).filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

/// The address of a DNS server; its port is 53 if it names none.
///
/// # Errors
/// If it is no address.
pub fn read_server(word: &str) -> Result<SocketAddr, String> {
    let alone = word.parse::<IpAddr>().map(|ip| SocketAddr::new(ip, 53));
    alone.or_else(|_| word.parse()).map_err(|_| {
        format!("--dns-server: {word:?} is no address; write 10.96.0.10, 10.96.0.10:53 or [fd00::a]:53")
    })
}
