//! Kubeconfigs without references to other files.

use k8s_openapi::ByteString;
use serde_json::{Value, json};

use crate::pki::{Authority, Identity};

pub(crate) fn kubeconfig(url: &str, authority: &Authority, identity: &Identity) -> String {
    let ca = ByteString(authority.pem().into_bytes());
    let cluster = json!({"server": url, "certificate-authority-data": ca});
    let kubeconfig = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "e2e", "cluster": cluster}],
        "users": [{"name": "e2e", "user": user(identity)}],
        "contexts": [{"name": "e2e", "context": {"cluster": "e2e", "user": "e2e"}}],
        "current-context": "e2e",
    });
    format!("{kubeconfig:#}")
}

/// The user entry of a kubeconfig. `ByteString` is base64 there, as in the API.
pub(crate) fn user(identity: &Identity) -> Value {
    json!({
        "client-certificate-data": ByteString(identity.certificate.clone().into_bytes()),
        "client-key-data": ByteString(identity.key.clone().into_bytes()),
    })
}
