//! The API server over HTTP/1 and TLS, with the token of the pod; a connection is used again where one is free.

use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue, USER_AGENT};
use hyper::{Request, Response, body::Incoming};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;
use tokio_rustls::TlsConnector;

use crate::net::{Answer, Trouble};
use crate::plan::join;

/// More than a page of the largest `EndpointSlices`; past it something else is answering.
const LARGEST_ANSWER: usize = 8 * 1024 * 1024;
const WHO: &str = concat!("nodekeeper-worker/", env!("CARGO_PKG_VERSION"));

type Connection = SendRequest<Full<Bytes>>;

/// A client of one API server.
pub(super) struct Client {
    host: String,
    port: u16,
    name: ServerName<'static>,
    tls: TlsConnector,
    bearer: HeaderValue,
    idle: Mutex<Vec<Connection>>,
}

impl Client {
    pub(super) fn new(host: &str, port: u16, token: &Path, authority: &Path) -> Result<Self, String> {
        let read = |file: &Path, what: &str, flag: &str| {
            std::fs::read(file).map_err(|e| {
                format!("cannot read {what} in {}: {e}; {flag} says where it is", file.display())
            })
        };
        let token = read(token, "the token", "--token-file")?;
        let token = String::from_utf8_lossy(&token);
        let mut bearer = HeaderValue::try_from(format!("Bearer {}", token.trim()))
            .map_err(|_| "the token has characters that no token has".to_owned())?;
        bearer.set_sensitive(true);
        let authority = read(authority, "the cluster's certificate authority", "--ca-file")?;
        Ok(Self {
            host: host.to_owned(),
            port,
            name: ServerName::try_from(host.to_owned())
                .map_err(|_| format!("KUBERNETES_SERVICE_HOST: {host:?} is neither a name nor an address"))?,
            tls: TlsConnector::from(Arc::new(trusting(&authority)?)),
            bearer,
            idle: Mutex::default(),
        })
    }

    pub(super) fn host(&self) -> &str {
        &self.host
    }

    /// Sends one request; the addresses of the server are only asked for where no connection is free.
    pub(super) async fn send<F>(
        &self,
        path: &str,
        body: Option<&Value>,
        addresses: impl FnOnce() -> F,
    ) -> Result<Answer, Trouble>
    where
        F: Future<Output = Result<Vec<IpAddr>, Trouble>>,
    {
        let request = self.request(path, body).map_err(|e| Trouble::NoClient(e.to_string()))?;
        let mut connection = match self.free_connection() {
            Some(connection) => connection,
            None => self.open(&addresses().await?).await?,
        };
        let response = connection.send_request(request).await.map_err(|e| broken(&e))?;
        let answer = read(response).await?;
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
        Ok(answer)
    }

    fn request(&self, path: &str, body: Option<&Value>) -> Result<Request<Full<Bytes>>, hyper::http::Error> {
        let request = Request::builder()
            .method(if body.is_some() { "POST" } else { "GET" })
            .uri(path)
            .header(HOST, join(&self.host, self.port))
            .header(AUTHORIZATION, self.bearer.clone())
            .header(ACCEPT, "application/json")
            .header(CONTENT_TYPE, "application/json")
            .header(USER_AGENT, WHO);
        request.body(Full::new(body.map_or_else(Bytes::new, |body| Bytes::from(body.to_string()))))
    }

    fn free_connection(&self) -> Option<Connection> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|connection| !connection.is_closed());
        let ready = idle.iter().position(SendRequest::is_ready)?;
        Some(idle.swap_remove(ready))
    }

    async fn open(&self, addresses: &[IpAddr]) -> Result<Connection, Trouble> {
        let stream = super::dial(addresses, self.port).await?;
        // Requests are small and waited for; without it they might wait for a timer.
        let _ = stream.set_nodelay(true);
        let stream = self.tls.connect(self.name.clone(), stream).await.map_err(|e| not_trusted(&e))?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|e| broken(&e))?;
        // Its errors reach whoever waits for an answer on it.
        tokio::spawn(connection);
        Ok(sender)
    }
}

fn trusting(authority: &[u8]) -> Result<ClientConfig, String> {
    let bad =
        |error: &dyn std::fmt::Display| format!("the cluster's certificate authority is unusable: {error}");
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(authority) {
        roots.add(certificate.map_err(|e| bad(&e))?).map_err(|e| bad(&e))?;
    }
    if roots.is_empty() {
        return Err(bad(&"there is no certificate in it"));
    }
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|e| bad(&e))?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}

async fn read(response: Response<Incoming>) -> Result<Answer, Trouble> {
    let status = response.status().as_u16();
    let body = Limited::new(response.into_body(), LARGEST_ANSWER).collect().await;
    let body = body.map_err(|e| Trouble::BadAnswer(format!("the answer broke off: {e}")))?.to_bytes();
    Ok(Answer { status, body: body.into() })
}

fn not_trusted(error: &io::Error) -> Trouble {
    match error.kind() {
        io::ErrorKind::InvalidData => Trouble::Tls(error.to_string()),
        io::ErrorKind::UnexpectedEof => {
            Trouble::Tls("the other side hung up during the TLS handshake".into())
        }
        _ => super::trouble(error),
    }
}

fn broken(error: &hyper::Error) -> Trouble {
    if error.is_parse() {
        Trouble::BadAnswer(format!("that is no API server: {error}"))
    } else {
        Trouble::Unreachable(format!("the connection broke: {error}"))
    }
}
