//! HTTP/1 requests with or without TLS.

use std::io;

use bytes::Bytes;
use http_body_util::Full;
use hyper::Request;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{ACCEPT, HOST, USER_AGENT};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use url::{Position, Url};

use crate::net::NetError;

pub(super) const WHO: &str = concat!("nodekeeper-worker/", env!("CARGO_PKG_VERSION"));

pub(super) type Connection = SendRequest<Full<Bytes>>;

pub(super) async fn over_tls(
    stream: TcpStream,
    tls: &TlsConnector,
    name: ServerName<'static>,
) -> Result<Connection, NetError> {
    speak(tls.connect(name, stream).await.map_err(|e| not_trusted(&e))?).await
}

pub(super) async fn speak(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> Result<Connection, NetError> {
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|e| broken(&e))?;
    // The pending request gets the errors of the connection.
    tokio::spawn(connection);
    Ok(sender)
}

/// Returns the status code without reading the body.
pub(super) async fn get(mut connection: Connection, url: &Url) -> Result<u16, NetError> {
    let request = Request::builder()
        .uri(&url[Position::BeforePath..])
        .header(HOST, &url[Position::BeforeHost..Position::AfterPort])
        .header(ACCEPT, "*/*")
        .header(USER_AGENT, WHO)
        .body(Full::default());
    let request = request.map_err(|e| NetError::NoClient(e.to_string()))?;
    let response = connection.send_request(request).await.map_err(|e| broken(&e))?;
    Ok(response.status().as_u16())
}

fn not_trusted(error: &io::Error) -> NetError {
    match error.kind() {
        io::ErrorKind::InvalidData => NetError::Tls(error.to_string()),
        io::ErrorKind::UnexpectedEof => {
            NetError::Tls("the other side hung up during the TLS handshake".into())
        }
        _ => super::net_error(error),
    }
}

pub(super) fn broken(error: &hyper::Error) -> NetError {
    if error.is_parse() {
        NetError::BadAnswer(format!("that does not speak HTTP: {error}"))
    } else {
        NetError::Unreachable(format!("the connection broke: {error}"))
    }
}
