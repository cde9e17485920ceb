//! A DNS server with two names.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::{Dns, Switches, any_port};
use crate::bind::Error;

/// How often to try for a port that is free for both UDP and TCP.
const TRIES: usize = 16;
/// Longer queries are not served.
const MAX_PACKET: usize = 4096;

const NAMES: [(&str, Ipv4Addr); 2] = [
    ("kubernetes.default.svc.cluster.local", Ipv4Addr::new(10, 96, 0, 1)),
    ("kube-dns.kube-system.svc.cluster.local", Ipv4Addr::new(10, 96, 0, 10)),
];

/// Response codes of RFC 1035.
const NO_ERROR: u8 = 0;
const SERV_FAIL: u8 = 2;
const NX_DOMAIN: u8 = 3;

pub(super) async fn serve(switches: &Arc<Switches>, tasks: &mut JoinSet<()>) -> Result<SocketAddr, Error> {
    let (udp, tcp, address) = sockets().await?;
    tasks.spawn(serve_udp(udp, switches.clone()));
    tasks.spawn(serve_tcp(tcp, switches.clone()));
    Ok(address)
}

async fn sockets() -> Result<(UdpSocket, TcpListener, SocketAddr), Error> {
    let mut tries = 0;
    loop {
        tries += 1;
        let listen = |source| Error::Listen { address: any_port(), source };
        let udp = UdpSocket::bind(any_port()).await.map_err(listen)?;
        let address = udp.local_addr().map_err(listen)?;
        match TcpListener::bind(address).await {
            Ok(tcp) => return Ok((udp, tcp, address)),
            Err(_) if tries < TRIES => {}
            Err(source) => return Err(Error::Listen { address, source }),
        }
    }
}

async fn serve_udp(socket: UdpSocket, switches: Arc<Switches>) {
    let mut packet = [0; MAX_PACKET];
    loop {
        // An ICMP error for an earlier reply.
        let Ok((length, from)) = socket.recv_from(&mut packet).await else { continue };
        if let Some(answer) = reply(&packet[..length], switches.now().0) {
            let _ = socket.send_to(&answer, from).await;
        }
    }
}

async fn serve_tcp(listener: TcpListener, switches: Arc<Switches>) {
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((stream, _)) => drop(connections.spawn(serve_connection(stream, switches.clone()))),
            Err(_) => sleep(Duration::from_millis(50)).await,
        }
    }
}

/// Serves length-prefixed queries on one connection.
async fn serve_connection(mut stream: TcpStream, switches: Arc<Switches>) {
    while let Ok(length) = stream.read_u16().await {
        let mut question = vec![0; usize::from(length)];
        if stream.read_exact(&mut question).await.is_err() {
            return;
        }
        let Some(answer) = reply(&question, switches.now().0) else { continue };
        let Ok(length) = u16::try_from(answer.len()) else { return };
        let mut framed = length.to_be_bytes().to_vec();
        framed.extend(answer);
        if stream.write_all(&framed).await.is_err() {
            return;
        }
    }
}

/// The reply to a query; none if the packet is no query or replies are dropped.
fn reply(packet: &[u8], upstream: Dns) -> Option<Vec<u8>> {
    let (name, kind, end) = read_question(packet)?;
    let known = NAMES.iter().find(|(n, _)| *n == name).map(|(_, address)| *address);
    let (code, address) = match (upstream, known) {
        (Dns::Drop, _) => return None,
        (Dns::ServFail, _) => (SERV_FAIL, None),
        (Dns::NxDomain, _) | (Dns::Healthy, None) => (NX_DOMAIN, None),
        // Only A records; another type of a known name has no records.
        (Dns::Healthy, Some(address)) => (NO_ERROR, Some(address).filter(|_| kind == 1)),
    };
    let mut reply = packet.get(..2)?.to_vec();
    // Response, authoritative, recursion as requested; one question, at most one answer.
    let desired = packet.get(2)? & 1;
    reply.extend([0x84 | desired, 0x80 | code, 0, 1, 0, u8::from(address.is_some()), 0, 0, 0, 0]);
    reply.extend(packet.get(12..end)?);
    if let Some(address) = address {
        // The name of the question, A, IN, TTL 5 s, four bytes.
        reply.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 5, 0, 4]);
        reply.extend(address.octets());
    }
    Some(reply)
}

/// Name, type and end of the first question of a packet.
fn read_question(packet: &[u8]) -> Option<(String, u16, usize)> {
    let is_question = packet.get(2)? & 0x80 == 0 && packet.get(4..6)? == [0, 1];
    let mut labels = Vec::new();
    let mut at = 12;
    loop {
        let length = usize::from(*packet.get(at)?);
        if length == 0 || length > 63 {
            break;
        }
        labels.push(String::from_utf8_lossy(packet.get(at + 1..at + 1 + length)?).to_ascii_lowercase());
        at += 1 + length;
    }
    let end = at + 5;
    let kind = packet.get(at + 1..at + 3)?;
    packet.get(..end)?;
    (is_question && packet.get(at) == Some(&0))
        .then(|| (labels.join("."), u16::from_be_bytes([kind[0], kind[1]]), end))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(name: &str, kind: u8) -> Vec<u8> {
        let mut packet = vec![7, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        for label in name.split('.') {
            packet.push(u8::try_from(label.len()).expect("it is short"));
            packet.extend(label.bytes());
        }
        packet.extend([0, 0, kind, 0, 1]);
        packet
    }

    /// Response code, number of answers, last four bytes.
    fn query(name: &str, kind: u8, upstream: Dns) -> Option<(u8, u8, Vec<u8>)> {
        let answer = reply(&question(name, kind), upstream)?;
        assert_eq!(answer[..2], [7, 7]);
        Some((answer[3] & 15, answer[7], answer[answer.len() - 4..].to_vec()))
    }

    #[test]
    fn two_names_resolve() {
        let api = "Kubernetes.default.svc.cluster.local";
        assert_eq!(query(api, 1, Dns::Healthy), Some((NO_ERROR, 1, vec![10, 96, 0, 1])));
        assert_eq!(query(api, 28, Dns::Healthy).map(|a| (a.0, a.1)), Some((NO_ERROR, 0)));
        let dns = "kube-dns.kube-system.svc.cluster.local";
        assert_eq!(query(dns, 1, Dns::Healthy), Some((NO_ERROR, 1, vec![10, 96, 0, 10])));
        assert_eq!(query("example.com", 1, Dns::Healthy).map(|a| (a.0, a.1)), Some((NX_DOMAIN, 0)));
    }

    #[test]
    fn each_failure_mode_has_its_response() {
        let api = "kubernetes.default.svc.cluster.local";
        assert_eq!(query(api, 1, Dns::Drop), None);
        assert_eq!(query(api, 1, Dns::ServFail).map(|a| a.0), Some(SERV_FAIL));
        assert_eq!(query(api, 1, Dns::NxDomain).map(|a| a.0), Some(NX_DOMAIN));
    }

    #[test]
    fn packets_that_are_no_query_get_no_reply() {
        let whole = question("a.b", 1);
        for end in 0..whole.len() {
            assert_eq!(reply(&whole[..end], Dns::Healthy), None, "{end}");
        }
        let mut answer = whole;
        answer[2] |= 0x80;
        assert_eq!(reply(&answer, Dns::Healthy), None, "replies must not be answered");
    }
}
