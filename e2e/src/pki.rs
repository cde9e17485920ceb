//! The certificates of one cluster: a certificate authority of its own, and what it has signed.

use std::{fs, io, path::Path};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

/// How the API server is called: from outside, and from pods.
const SERVER_NAMES: [&str; 7] = [
    "127.0.0.1",
    "localhost",
    "10.96.0.1",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
];

/// A certificate and its key, as PEM.
pub(crate) struct Identity {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

/// A certificate authority that lives as long as its cluster, and so needs no care about expiry.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: rcgen::Certificate,
}

impl Authority {
    pub(crate) fn new() -> Result<Self, rcgen::Error> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "nodekeeper-e2e");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages =
            vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
        let certificate = params.self_signed(&key)?;
        Ok(Self { issuer: Issuer::new(params, key), certificate })
    }

    /// The authority's own certificate, as PEM.
    pub(crate) fn pem(&self) -> String {
        self.certificate.pem()
    }

    /// The authority's own certificate, as DER.
    pub(crate) fn der(&self) -> Vec<u8> {
        self.certificate.der().to_vec()
    }

    /// Kubernetes takes the user from the common name and the group from the organization.
    pub(crate) fn client(&self, user: &str, group: Option<&str>) -> Result<Identity, rcgen::Error> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, user);
        if let Some(group) = group {
            params.distinguished_name.push(DnType::OrganizationName, group);
        }
        self.sign(params, ExtendedKeyUsagePurpose::ClientAuth)
    }

    fn server(&self) -> Result<Identity, rcgen::Error> {
        let mut params = CertificateParams::new(SERVER_NAMES.map(str::to_owned))?;
        params.distinguished_name.push(DnType::CommonName, "kube-apiserver");
        self.sign(params, ExtendedKeyUsagePurpose::ServerAuth)
    }

    fn sign(
        &self,
        mut params: CertificateParams,
        purpose: ExtendedKeyUsagePurpose,
    ) -> Result<Identity, rcgen::Error> {
        let key = KeyPair::generate()?;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![purpose];
        let certificate = params.signed_by(&key, &self.issuer)?;
        Ok(Identity { certificate: certificate.pem(), key: key.serialize_pem() })
    }

    /// Writes what the components read from files: the authority, the server's certificate, and the keys with
    /// which service account tokens are signed and checked.
    pub(crate) fn write_files(&self, folder: &Path) -> anyhow::Result<()> {
        let server = self.server()?;
        let tokens = KeyPair::generate()?;
        let write = |name: &str, pem: String| -> io::Result<()> { fs::write(folder.join(name), pem) };
        write("ca.crt", self.pem())?;
        write("ca.key", self.issuer.key().serialize_pem())?;
        write("apiserver.crt", server.certificate)?;
        write("apiserver.key", server.key)?;
        write("sa.key", tokens.serialize_pem())?;
        write("sa.pub", tokens.public_key_pem())?;
        Ok(())
    }
}
