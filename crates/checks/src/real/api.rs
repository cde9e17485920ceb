//! An HTTP/1 client of the API server with TLS and the token of the pod, which reuses idle connections.

use std::future::Future;
use std::net::IpAddr;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1::SendRequest;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, DATE, HOST, HeaderValue, USER_AGENT};
use hyper::{Request, Response, body::Incoming};
use parking_lot::Mutex;
use rustls::pki_types::ServerName;
use serde_json::{Value, json};
use tokio_rustls::TlsConnector;

use super::access::Access;
use super::http::{self, Connection, WHO, broken};
use super::tls;
use crate::api::WHO_AM_I;
use crate::net::{Answer, NetError, Packets};
use crate::plan::join;

/// Largest response in bytes; more than a page of the largest `EndpointSlices`.
const LARGEST_ANSWER: usize = 8 * 1024 * 1024;
/// A path that every user may read, with a response of some ten kilobytes: more than one jumbo packet.
const LARGE: &str = "/openapi/v3";

pub(super) struct Client {
    host: String,
    port: u16,
    prefix: String,
    name: ServerName<'static>,
    tls: TlsConnector,
    bearer: Option<HeaderValue>,
    idle: Mutex<Vec<Connection>>,
}

impl Client {
    pub(super) fn new(access: Access) -> Result<Self, String> {
        let bearer = access.token?.map(|token| {
            let token = String::from_utf8_lossy(&token);
            let mut bearer = HeaderValue::try_from(format!("Bearer {}", token.trim()))
                .map_err(|_| "the token has characters that no token has".to_owned())?;
            bearer.set_sensitive(true);
            Ok::<_, String>(bearer)
        });
        Ok(Self {
            bearer: bearer.transpose()?,
            tls: tls::connector(&[&access.authority?], access.identity.as_ref())?,
            name: ServerName::try_from(access.server_name).map_err(|_| {
                format!("the host of the API server, {:?}, is neither a name nor an address", access.host)
            })?,
            host: access.host,
            port: access.port,
            prefix: access.prefix,
            idle: Mutex::default(),
        })
    }

    pub(super) fn host(&self) -> &str {
        &self.host
    }

    /// Sends one request; the server name is resolved only if there is no idle connection.
    pub(super) async fn send<F>(
        &self,
        path: &str,
        body: Option<&Value>,
        addresses: impl FnOnce() -> F,
    ) -> Result<Answer, NetError>
    where
        F: Future<Output = Result<Vec<IpAddr>, NetError>>,
    {
        let request = self.request(path, body).map_err(|e| NetError::NoClient(e.to_string()))?;
        let mut connection = match self.free_connection() {
            Some(connection) => connection,
            None => self.open(&addresses().await?, Packets::Full).await?,
        };
        let response = connection.send_request(request).await.map_err(|e| broken(&e))?;
        let answer = read(response).await?;
        self.idle.lock().push(connection);
        Ok(answer)
    }

    /// Sends a large request, and a request with a large response. Their status does not matter.
    pub(super) async fn bulk(
        &self,
        addresses: &[IpAddr],
        packets: Packets,
        bytes: usize,
    ) -> Result<(), NetError> {
        let padding = json!({"nodekeeper.dev/padding": "x".repeat(bytes)});
        let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview",
            "metadata": {"annotations": padding}});
        let mut connection = self.open(addresses, packets).await?;
        for (path, body) in [(WHO_AM_I, Some(&review)), (LARGE, None)] {
            let request = self.request(path, body).map_err(|e| NetError::NoClient(e.to_string()))?;
            let response = connection.send_request(request).await.map_err(|e| broken(&e))?;
            read(response).await?;
            connection.ready().await.map_err(|e| broken(&e))?;
        }
        Ok(())
    }

    fn request(&self, path: &str, body: Option<&Value>) -> Result<Request<Full<Bytes>>, hyper::http::Error> {
        let mut request = Request::builder()
            .method(if body.is_some() { "POST" } else { "GET" })
            .uri(format!("{}{path}", self.prefix))
            .header(HOST, join(&self.host, self.port))
            .header(ACCEPT, "application/json")
            .header(CONTENT_TYPE, "application/json")
            .header(USER_AGENT, WHO);
        if let Some(bearer) = &self.bearer {
            request = request.header(AUTHORIZATION, bearer);
        }
        request.body(Full::new(body.map_or_else(Bytes::new, |body| Bytes::from(body.to_string()))))
    }

    fn free_connection(&self) -> Option<Connection> {
        let mut idle = self.idle.lock();
        idle.retain(|connection| !connection.is_closed());
        let ready = idle.iter().position(SendRequest::is_ready)?;
        Some(idle.swap_remove(ready))
    }

    async fn open(&self, addresses: &[IpAddr], packets: Packets) -> Result<Connection, NetError> {
        let stream = super::dial(addresses, self.port, packets).await?;
        http::over_tls(stream, &self.tls, self.name.clone()).await
    }
}

async fn read(response: Response<Incoming>) -> Result<Answer, NetError> {
    let status = response.status().as_u16();
    let date = response.headers().get(DATE).and_then(|date| date.to_str().ok()).map(str::to_owned);
    let body = Limited::new(response.into_body(), LARGEST_ANSWER).collect().await;
    let body = body.map_err(|e| NetError::BadAnswer(format!("the answer broke off: {e}")))?.to_bytes();
    Ok(Answer { status, date, body: body.into() })
}
