//! Test servers on loopback: DNS, HTTP and an API server.

#![allow(dead_code, reason = "not every test needs all of it")]
#![allow(clippy::unwrap_used, reason = "all of it is part of a test")]

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use nodekeeper_checks::real::Options;
use parking_lot::Mutex;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio_rustls::TlsAcceptor;

pub const TOKEN: &str = "a-token";

/// How the DNS server responds to every query.
#[derive(Clone, Copy)]
pub enum Dns {
    /// 10.96.0.1 for A, nothing for AAAA.
    Answers,
    /// 10.96.0.1 for A; queries for AAAA are dropped.
    OnlyA,
    /// All queries are dropped.
    Silent,
    /// Responds with this code.
    Code(u8),
}

/// An HTTP server without TLS; it answers `/missing` with 404 and all else with 204.
pub async fn http() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(
                TokioIo::new(stream),
                service_fn(|request: Request<Incoming>| async move {
                    let mut response = Response::new(Full::<Bytes>::default());
                    let is_missing = request.uri().path() == "/missing";
                    *response.status_mut() =
                        hyper::StatusCode::from_u16(if is_missing { 404 } else { 204 }).unwrap();
                    Ok::<_, Infallible>(response)
                }),
            ));
        }
    });
    address
}

/// A proxy to a server that drops large packets: connections with full-size segments get only the first bytes through.
pub async fn black_hole(server: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (mut client, _) = listener.accept().await.unwrap();
            let is_small = socket2::SockRef::from(&client).tcp_mss().unwrap() <= 1000;
            tokio::spawn(async move {
                let mut server = TcpStream::connect(server).await.unwrap();
                if is_small {
                    let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
                } else {
                    let (mut up, _down) = client.split();
                    let _ = tokio::io::copy(&mut (&mut up).take(300), &mut server).await;
                    std::future::pending::<()>().await;
                }
            });
        }
    });
    address
}

pub async fn dns(way: Dns) -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap();
    tokio::spawn(async move {
        let mut packet = [0; 512];
        loop {
            let (length, from) = socket.recv_from(&mut packet).await.unwrap();
            let Some(answer) = reply(&packet[..length], way) else { continue };
            socket.send_to(&answer, from).await.unwrap();
        }
    });
    address
}

/// A DNS server that records the queried names.
pub async fn counting_dns() -> (SocketAddr, Arc<Mutex<Vec<String>>>) {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let names = asked.clone();
    tokio::spawn(async move {
        let mut packet = [0; 512];
        loop {
            let (length, from) = socket.recv_from(&mut packet).await.unwrap();
            let (mut labels, mut at) = (Vec::new(), 12);
            while packet[at] != 0 {
                let end = at + 1 + usize::from(packet[at]);
                labels.push(String::from_utf8_lossy(&packet[at + 1..end]).into_owned());
                at = end;
            }
            names.lock().push(labels.join("."));
            socket.send_to(&reply(&packet[..length], Dns::Answers).unwrap(), from).await.unwrap();
        }
    });
    (address, asked)
}

fn reply(question: &[u8], way: Dns) -> Option<Vec<u8>> {
    let code = match way {
        Dns::Answers | Dns::OnlyA => 0,
        Dns::Silent => return None,
        Dns::Code(code) => code,
    };
    let mut end = 12;
    while question[end] != 0 {
        end += usize::from(question[end]) + 1;
    }
    end += 5;
    let is_a = question[end - 4..end - 2] == [0, 1];
    if !is_a && matches!(way, Dns::OnlyA) {
        return None;
    }
    let answers = u8::from(is_a && matches!(way, Dns::Answers | Dns::OnlyA));
    let mut reply = question[..2].to_vec();
    reply.extend([0x81, 0x80 | code, 0, 1, 0, answers, 0, 0, 0, 0]);
    reply.extend(&question[12..end]);
    if answers == 1 {
        reply.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 5, 0, 4, 10, 96, 0, 1]);
    }
    Some(reply)
}

/// An API server with a certificate, and files with what a client needs.
pub struct Api {
    pub options: Options,
    pub folder: tempfile::TempDir,
}

#[derive(Clone, Copy, PartialEq)]
pub enum Certificate {
    Good,
    /// Signed by an authority that the client does not trust.
    OtherAuthority,
    /// Issued for another name.
    OtherName,
}

/// Responds with `status` to requests with the token, otherwise with 401.
pub async fn api(status: u16, certificate: Certificate) -> Api {
    let authority = authority();
    let name = if certificate == Certificate::OtherName { "10.96.0.1" } else { "127.0.0.1" };
    let acceptor = acceptor(&authority, name);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else { return };
                let service = service_fn(move |request| answer(request, status));
                let _ = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service)
                    .await;
            });
        }
    });
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| -> PathBuf {
        let file = folder.path().join(name);
        std::fs::write(&file, text).unwrap();
        file
    };
    let trusted = certificate != Certificate::OtherAuthority;
    let pem = if trusted { authority.pem() } else { self::authority().pem() };
    let options = Options {
        dns_servers: vec![dns(Dns::Answers).await],
        api_server: Some(("127.0.0.1".into(), address.port())),
        token_file: Some(write("token", &format!("{TOKEN}\n"))),
        ca_file: Some(write("ca.crt", &pem)),
        node: "node-1".into(),
        ..Options::default()
    };
    Api { options, folder }
}

fn authority() -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

fn acceptor(authority: &CertifiedIssuer<'static, KeyPair>, name: &str) -> TlsAcceptor {
    let key = KeyPair::generate().unwrap();
    let certificate =
        CertificateParams::new(vec![name.to_owned()]).unwrap().signed_by(&key, authority).unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .unwrap();
    TlsAcceptor::from(Arc::new(config))
}

async fn answer(request: Request<Incoming>, status: u16) -> Result<Response<Full<Bytes>>, Infallible> {
    let known = request.headers().get("authorization").is_some_and(|v| v == &format!("Bearer {TOKEN}"));
    let path = request.uri().to_string();
    let is_post = request.method() == "POST";
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let (status, body) = match path.as_str() {
        _ if !known => (401, r#"{"kind":"Status","message":"Unauthorized"}"#),
        _ if status != 200 => (status, r#"{"kind":"Status","message":"as the test wants"}"#),
        "/apis/authentication.k8s.io/v1/selfsubjectreviews" if is_post && body.starts_with(b"{") => {
            (201, r#"{"status":{"userInfo":{"username":"system:serviceaccount:ns:worker"}}}"#)
        }
        "/api/v1/namespaces/default/services/kubernetes"
        | "/api/v1/namespaces/kube-system/services/kube-dns" => (200, "{}"),
        p if p.contains("service-name%3Dkube-peers") => (
            200,
            r#"{"items":[{"ports":[{"port":5353,"protocol":"TCP"}],
                "endpoints":[{"addresses":["10.0.0.7"],"nodeName":"node-2","zone":"zone-a"}]}]}"#,
        ),
        p if p.contains("/endpointslices?labelSelector=kubernetes.io%2Fservice-name%3Dkube") => {
            (200, r#"{"items":[{"endpoints":[{"addresses":["10.0.0.1"],"conditions":{"ready":true}}]}]}"#)
        }
        _ => (404, "{}"),
    };
    let mut response = Response::new(Full::new(Bytes::from_static(body.as_bytes())));
    *response.status_mut() = hyper::StatusCode::from_u16(status).unwrap();
    Ok(response)
}
