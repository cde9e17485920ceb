//! A proxy to the API server that can be broken.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_rustls::TlsAcceptor;

use super::{Api, Switches, any_port};
use crate::bind::{Error, Identity};

/// The delay before a failed system call is retried.
pub(super) const RETRY_DELAY: Duration = Duration::from_millis(50);
pub(super) const BACKLOG: u32 = 64;

pub(super) fn serve(
    switches: &Arc<Switches>,
    tasks: &mut JoinSet<()>,
    api_server: SocketAddr,
) -> Result<SocketAddr, Error> {
    let listen = |source| Error::Listen { address: any_port(), source };
    let port = bind(any_port()).map_err(listen)?;
    let address = port.local_addr().map_err(listen)?;
    let wrong_certificate = Identity::new("user-else", address)?.acceptor;
    // Listens before the address is known, so that the first connection is not refused.
    let open = bind(address).and_then(|socket| socket.listen(BACKLOG)).map_err(listen)?;
    tasks.spawn(switch(port, open, switches.clone(), Upstream { api_server, wrong_certificate }));
    Ok(address)
}

/// A socket that is bound and does not listen: it reserves the port, and connections are refused.
pub(super) fn bind(address: SocketAddr) -> std::io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    // Lets a second socket listen on the port.
    socket.set_reuseport(true)?;
    socket.bind(address)?;
    Ok(socket)
}

#[derive(Clone)]
struct Upstream {
    api_server: SocketAddr,
    wrong_certificate: TlsAcceptor,
}

/// Serves one state of the switch at a time; its connections end when the switch changes.
async fn switch(kept: TcpSocket, open: TcpListener, switches: Arc<Switches>, upstream: Upstream) {
    let mut open = Some(open);
    loop {
        let api = switches.now().1;
        if api == Api::Refuse {
            open = None;
            switches.changed.notified().await;
            continue;
        }
        let Some(listener) = &open else {
            let again = kept.local_addr().and_then(bind).and_then(|socket| socket.listen(BACKLOG));
            if again.is_err() {
                sleep(RETRY_DELAY).await;
            }
            open = again.ok();
            continue;
        };
        tokio::select! {
            biased;
            () = switches.changed.notified() => {}
            () = accept(listener, api, &upstream) => {}
        }
    }
}

async fn accept(listener: &TcpListener, api: Api, upstream: &Upstream) {
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((stream, _)) => drop(connections.spawn(forward(stream, api, upstream.clone()))),
            Err(_) => sleep(RETRY_DELAY).await,
        }
    }
}

async fn forward(mut stream: TcpStream, api: Api, upstream: Upstream) {
    match api {
        Api::Healthy => {
            let Ok(mut server) = TcpStream::connect(upstream.api_server).await else { return };
            let _ = (stream.set_nodelay(true), server.set_nodelay(true));
            // If one side closes, so does the other.
            let _ = copy_bidirectional(&mut stream, &mut server).await;
        }
        Api::Blackhole => std::future::pending().await,
        // A client that verifies the certificate fails in the handshake.
        Api::WrongCertificate => drop(upstream.wrong_certificate.accept(stream).await),
        Api::Refuse => {}
    }
}
