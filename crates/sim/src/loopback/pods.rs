//! A port that stands for all pods of other nodes, and can refuse connections.

use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::api::{BACKLOG, RETRY_DELAY, bind};
use super::{Pods, any_port};
use crate::bind::Error;

#[derive(Debug)]
pub(super) struct Switch(watch::Sender<Pods>);

impl Switch {
    pub(super) fn set(&self, pods: Pods) {
        self.0.send_replace(pods);
    }
}

pub(super) fn serve(tasks: &mut JoinSet<()>) -> Result<(SocketAddr, Switch), Error> {
    let listen = |source| Error::Listen { address: any_port(), source };
    let port = bind(any_port()).map_err(listen)?;
    let address = port.local_addr().map_err(listen)?;
    let open = bind(address).and_then(|socket| socket.listen(BACKLOG)).map_err(listen)?;
    #[expect(clippy::disallowed_methods, reason = "it has one receiver, and sockets are real here")]
    let (switch, changed) = watch::channel(Pods::default());
    tasks.spawn(watch(port, address, open, changed));
    Ok((address, Switch(switch)))
}

/// Listens while it is healthy. `_kept` reserves the port meanwhile.
async fn watch(_kept: TcpSocket, address: SocketAddr, open: TcpListener, mut changed: watch::Receiver<Pods>) {
    let mut open = Some(open);
    loop {
        let pods = *changed.borrow_and_update();
        match (pods, &open) {
            (Pods::Refuse, _) => {
                open = None;
                if changed.changed().await.is_err() {
                    return;
                }
            }
            (Pods::Healthy, None) => {
                open = bind(address).and_then(|socket| socket.listen(BACKLOG)).ok();
                if open.is_none() {
                    sleep(RETRY_DELAY).await;
                }
            }
            (Pods::Healthy, Some(listener)) => tokio::select! {
                biased;
                is_there = changed.changed() => if is_there.is_err() { return },
                // Accepting a connection is all that a pod has to do.
                taken = listener.accept() => if taken.is_err() { sleep(RETRY_DELAY).await },
            },
        }
    }
}
