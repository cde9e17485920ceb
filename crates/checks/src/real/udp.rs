//! Connected UDP sockets for DNS queries. The unconnected sockets of the resolver do not receive ICMP errors, so a closed
//! port looks like a timeout; connected sockets, as C libraries use, return an error.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hickory_resolver::net::runtime::{DnsUdpSocket, RuntimeProvider, TokioRuntimeProvider, TokioTime};
use parking_lot::Mutex;
use tokio::io::{Interest, ReadBuf};
use tokio::net::UdpSocket;

use crate::net::NetError;

type Made<T> = Pin<Box<dyn Send + Future<Output = io::Result<T>>>>;

/// Creates sockets and keeps the last error, which the resolver drops.
#[derive(Clone, Default)]
pub(super) struct Sockets {
    tokio: TokioRuntimeProvider,
    last: Arc<Mutex<Option<NetError>>>,
}

impl Sockets {
    pub(super) fn last(&self) -> Option<NetError> {
        self.last.lock().clone()
    }

    fn note<T>(&self, result: io::Result<T>) -> io::Result<T> {
        if let Err(error) = &result {
            *self.last.lock() = Some(super::net_error(error));
        }
        result
    }
}

impl RuntimeProvider for Sockets {
    type Handle = <TokioRuntimeProvider as RuntimeProvider>::Handle;
    type Timer = TokioTime;
    type Udp = Connected;
    type Tcp = <TokioRuntimeProvider as RuntimeProvider>::Tcp;

    fn create_handle(&self) -> Self::Handle {
        self.tokio.create_handle()
    }

    fn connect_tcp(
        &self,
        server: SocketAddr,
        from: Option<SocketAddr>,
        patience: Option<Duration>,
    ) -> Made<Self::Tcp> {
        let (stream, sockets) = (self.tokio.connect_tcp(server, from, patience), self.clone());
        Box::pin(async move { sockets.note(stream.await) })
    }

    fn bind_udp(&self, from: SocketAddr, server: SocketAddr) -> Made<Connected> {
        let sockets = self.clone();
        Box::pin(async move {
            let socket = UdpSocket::bind(from).await?;
            sockets.note(socket.connect(server).await)?;
            Ok(Connected { socket, server, sockets })
        })
    }
}

/// Sends to one server and receives from it only. It uses `send`, not `send_to`: for a virtual IP the response might
/// otherwise come from another address.
pub(super) struct Connected {
    socket: UdpSocket,
    server: SocketAddr,
    sockets: Sockets,
}

impl Connected {
    /// The kernel reports a closed port as an error of the socket, not as readiness to read.
    async fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let ready = self.socket.ready(Interest::READABLE | Interest::ERROR).await?;
            let received = if ready.is_readable() {
                self.socket.try_recv(buffer)
            } else {
                let failed = || self.socket.take_error()?.map_or(Err(io::ErrorKind::WouldBlock.into()), Err);
                self.socket.try_io(Interest::ERROR, failed)
            };
            match received {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                received => return received,
            }
        }
    }
}

impl DnsUdpSocket for Connected {
    type Time = TokioTime;

    fn recv_from<'a, 'b, 'c>(
        &'a self,
        buffer: &'b mut [u8],
    ) -> Pin<Box<dyn Future<Output = io::Result<(usize, SocketAddr)>> + Send + 'c>>
    where
        'a: 'c,
        'b: 'c,
        Self: 'c,
    {
        Box::pin(async move {
            let received = self.receive(buffer).await;
            self.sockets.note(received).map(|length| (length, self.server))
        })
    }

    fn poll_recv_from(
        &self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<(usize, SocketAddr)>> {
        let mut buffer = ReadBuf::new(buffer);
        let received = ready!(self.socket.poll_recv(cx, &mut buffer));
        Poll::Ready(self.sockets.note(received).map(|()| (buffer.filled().len(), self.server)))
    }

    fn poll_send_to(&self, cx: &mut Context<'_>, packet: &[u8], _: SocketAddr) -> Poll<io::Result<usize>> {
        let sent = ready!(self.socket.poll_send(cx, packet));
        Poll::Ready(self.sockets.note(sent))
    }
}
