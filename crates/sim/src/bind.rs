//! Serves the cluster on a TLS port, for kubectl and other clients.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use http::{Request, Response, header};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use tokio_rustls::TlsAcceptor;

use crate::api::Answer;
use crate::api::status::ApiError;
use crate::cluster::Cluster;
use crate::server::{self, Body};

/// About the limit of a real server.
const MAX_BODY: usize = 3 * 1024 * 1024;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot listen on {address}: {source}; choose another port, or 0 for a free one")]
    Listen { address: SocketAddr, source: std::io::Error },
    #[error("cannot create the certificate of the embedded API server: {0}")]
    Certificate(#[from] rcgen::Error),
    #[error("cannot set up TLS for the embedded API server: {0}")]
    Tls(#[from] rustls::Error),
}

/// A cluster on a port, until it is dropped.
#[derive(Debug)]
pub struct Bound {
    pub address: SocketAddr,
    /// The kubeconfig of an administrator, including the token.
    pub kubeconfig: String,
    /// The CA certificate, in PEM.
    pub authority: String,
    secret: Arc<str>,
    serving: JoinHandle<()>,
}

impl Bound {
    /// A bearer token of a user, such as a pod's service account.
    #[must_use]
    pub fn token_of(&self, user: &str) -> String {
        format!("{}.{}", BASE64.encode(user), self.secret)
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// Port 0 chooses a free port.
pub async fn bind(cluster: &Cluster, address: SocketAddr) -> Result<Bound, Error> {
    let listen = |source| Error::Listen { address, source };
    let listener = TcpListener::bind(address).await.map_err(listen)?;
    let address = listener.local_addr().map_err(listen)?;
    let identity = Identity::new("nodekeeper-sim", address)?;
    let kubeconfig = identity.kubeconfig(address);
    let Identity { authority, acceptor, token: secret } = identity;
    let serving = tokio::spawn(accept(cluster.clone(), listener, acceptor, secret.clone()));
    Ok(Bound { address, kubeconfig, authority, secret, serving })
}

pub(crate) struct Identity {
    authority: String,
    pub(crate) acceptor: TlsAcceptor,
    token: Arc<str>,
}

impl Identity {
    pub(crate) fn new(name: &str, address: SocketAddr) -> Result<Self, Error> {
        let mut authority = CertificateParams::default();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        authority.distinguished_name.push(DnType::CommonName, name);
        let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate()?)?;
        let names = vec![address.ip().to_string(), "localhost".into(), "kubernetes.default.svc".into()];
        let key = KeyPair::generate()?;
        let certificate = CertificateParams::new(names)?.signed_by(&key, &authority)?;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)?;
        // A new public key is unguessable, and needs no further crate.
        let token = BASE64.encode(&KeyPair::generate()?.public_key_raw()[1..25]);
        Ok(Self {
            authority: authority.pem(),
            acceptor: TlsAcceptor::from(Arc::new(config)),
            token: token.into(),
        })
    }

    fn kubeconfig(&self, address: SocketAddr) -> String {
        let authority = BASE64.encode(&self.authority);
        let token = &self.token;
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: nodekeeper-sim\n\
             clusters:\n- name: nodekeeper-sim\n  cluster:\n    server: https://{address}\n    certificate-authority-data: {authority}\n\
             users:\n- name: nodekeeper-sim\n  user:\n    token: {token}\n\
             contexts:\n- name: nodekeeper-sim\n  context:\n    cluster: nodekeeper-sim\n    user: nodekeeper-sim\n"
        )
    }
}

async fn accept(cluster: Cluster, listener: TcpListener, acceptor: TlsAcceptor, token: Arc<str>) {
    // Connections end with the listener.
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        // Accept errors are transient: the client went away, or too many files are open.
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            continue;
        };
        connections.spawn(serve_connection(cluster.clone(), stream, acceptor.clone(), token.clone()));
    }
}

async fn serve_connection(cluster: Cluster, stream: TcpStream, acceptor: TlsAcceptor, token: Arc<str>) {
    let _ = stream.set_nodelay(true);
    let Ok(stream) = acceptor.accept(stream).await else { return };
    let service = service_fn(move |request| {
        let (cluster, token) = (cluster.clone(), token.clone());
        async move { Ok::<_, Infallible>(serve(&cluster, &token, request).await) }
    });
    // A broken connection concerns only its client.
    let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

async fn serve(cluster: &Cluster, token: &str, request: Request<Incoming>) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let refuse = |error: &ApiError| server::respond(cluster, Answer::refusal(error));
    let bearer =
        parts.headers.get(header::AUTHORIZATION).and_then(|v| v.to_str().ok()?.strip_prefix("Bearer "));
    let is_probe = matches!(parts.uri.path(), "/healthz" | "/livez" | "/readyz" | "/version");
    let agent = parts.headers.get(header::USER_AGENT).and_then(|v| v.to_str().ok()).unwrap_or("anonymous");
    let agent = || agent.split([' ', '/']).next().unwrap_or("anonymous").to_owned();
    let user = match bearer {
        Some(bearer) if bearer == token => agent(),
        Some(bearer) => match user_of(bearer, token) {
            Some(user) => user,
            None if is_probe => agent(),
            None => return refuse(&ApiError::unauthorized()),
        },
        None if is_probe => agent(),
        None => return refuse(&ApiError::unauthorized()),
    };
    let body: Bytes = match Limited::new(body, MAX_BODY).collect().await {
        Ok(body) => body.to_bytes(),
        Err(_) => return refuse(&ApiError::too_large(MAX_BODY)),
    };
    let request = Request::from_parts(parts, body);
    let answer = server::answer(cluster, &user, &request, None);
    server::respond(cluster, answer)
}

/// The user of a token from [`Bound::token_of`].
fn user_of(bearer: &str, secret: &str) -> Option<String> {
    let user = bearer.strip_suffix(secret)?.strip_suffix('.')?;
    String::from_utf8(BASE64.decode(user).ok()?).ok()
}
