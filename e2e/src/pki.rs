//! The certificates of one cluster: its certificate authority, and what it signs.

use std::{fs, io, path::Path};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

use crate::nodes::network;

/// The names of the API server: from outside, and from pods.
const SERVER_NAMES: [&str; 8] = [
    "127.0.0.1",
    network::CONTROL_PLANE,
    "localhost",
    "10.96.0.1",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
];

/// The user of the API server's client certificate for kubelets.
const KUBELET_CLIENT: &str = "kube-apiserver-kubelet-client";

/// A PEM certificate and its key.
pub(crate) struct Identity {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

/// A certificate authority that lives as long as its cluster, so expiry does not matter.
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

    pub(crate) fn pem(&self) -> String {
        self.certificate.pem()
    }

    pub(crate) fn der(&self) -> Vec<u8> {
        self.certificate.der().to_vec()
    }

    /// Kubernetes reads the user from the common name and the group from the organization.
    pub(crate) fn client(&self, user: &str, group: Option<&str>) -> Result<Identity, rcgen::Error> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, user);
        if let Some(group) = group {
            params.distinguished_name.push(DnType::OrganizationName, group);
        }
        self.sign(params, ExtendedKeyUsagePurpose::ClientAuth)
    }

    /// A server certificate for these names and addresses.
    pub(crate) fn server(&self, common_name: &str, names: &[&str]) -> Result<Identity, rcgen::Error> {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name.push(DnType::CommonName, common_name);
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

    /// Writes the files that components read: the authority, the server's certificate, its client certificate for
    /// kubelets, and the keys for service account tokens.
    pub(crate) fn write_files(&self, folder: &Path) -> anyhow::Result<()> {
        let server = self.server("kube-apiserver", &SERVER_NAMES)?;
        let to_kubelets = self.client(KUBELET_CLIENT, Some("system:masters"))?;
        let tokens = KeyPair::generate()?;
        let write = |name: &str, pem: String| -> io::Result<()> { fs::write(folder.join(name), pem) };
        write("ca.crt", self.pem())?;
        write("ca.key", self.issuer.key().serialize_pem())?;
        write("apiserver.crt", server.certificate)?;
        write("apiserver.key", server.key)?;
        write("kubelet-client.crt", to_kubelets.certificate)?;
        write("kubelet-client.key", to_kubelets.key)?;
        write("sa.key", tokens.serialize_pem())?;
        write("sa.pub", tokens.public_key_pem())?;
        Ok(())
    }
}
