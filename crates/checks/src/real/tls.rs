//! TLS configuration.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ConfigBuilder, RootCertStore, WantsVerifier};
use tokio_rustls::TlsConnector;

/// Certificate and key of a client, in PEM.
pub(super) struct Identity {
    pub(super) certificate: Vec<u8>,
    pub(super) key: Vec<u8>,
}

/// Reads a file; the error names the flag that sets another.
pub(super) fn read(file: &Path, what: &str, flag: &str) -> Result<Vec<u8>, String> {
    std::fs::read(file)
        .map_err(|e| format!("cannot read {what} in {}: {e}; {flag} says where it is", file.display()))
}

/// Returns a connector that trusts the authorities in these PEM files.
pub(super) fn connector(authorities: &[&[u8]], identity: Option<&Identity>) -> Result<TlsConnector, String> {
    let mut roots = RootCertStore::empty();
    for authority in authorities {
        for certificate in CertificateDer::pem_slice_iter(authority) {
            roots.add(certificate.map_err(|e| bad(&e))?).map_err(|e| bad(&e))?;
        }
    }
    if roots.is_empty() {
        return Err(bad(&"there is no certificate in it"));
    }
    let trusting = builder()?.with_root_certificates(roots);
    let config = match identity {
        Some(identity) => {
            let wrong =
                |error: &dyn std::fmt::Display| format!("the client's certificate is unusable: {error}");
            let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&identity.certificate).collect();
            let key = PrivateKeyDer::from_pem_slice(&identity.key).map_err(|e| wrong(&e))?;
            trusting.with_client_auth_cert(chain.map_err(|e| wrong(&e))?, key).map_err(|e| wrong(&e))?
        }
        None => trusting.with_no_client_auth(),
    };
    Ok(TlsConnector::from(Arc::new(config)))
}

fn builder() -> Result<ConfigBuilder<ClientConfig, WantsVerifier>, String> {
    ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|e| bad(&e))
}

fn bad(error: &dyn std::fmt::Display) -> String {
    format!("the certificate authority is unusable: {error}")
}
