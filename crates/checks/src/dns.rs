//! The check `dns`: a name resolves at the pod's resolver, at one server or at each endpoint of the cluster DNS.

use std::net::{IpAddr, SocketAddr};

use futures::future::join_all;
use nodekeeper_core::report::{Outcome, reason};
use tokio::time::Instant;

use crate::net::{Net, NetError, Server, answer_by};
use crate::run::Finding;
use crate::slices;

const PORT: u16 = 53;
/// No more endpoints of the cluster DNS are queried.
const MAX_SERVERS: usize = 50;

pub(crate) async fn check(net: &impl Net, name: &str) -> Finding {
    judge(net.resolve(name).await)
}

/// An NXDOMAIN answer passes: the server may not know the names of the cluster.
pub(crate) async fn check_server(net: &impl Net, server: IpAddr, name: &str) -> Finding {
    match net.resolve_at(Server::At(SocketAddr::new(server, PORT)), name).await {
        Err(error @ (NetError::NxDomain | NetError::NoAddress)) => {
            Finding::passed(format!("it answers: {error}"))
        }
        answer => judge(answer),
    }
}

/// Fails if no server resolves the name. If some do, the others may be broken, which is inconclusive.
pub(crate) async fn check_each(net: &impl Net, name: &str, end: Instant) -> Finding {
    let mut servers = Vec::new();
    let (mut ready, mut slices) = (0, 0);
    let found = slices::read(net, "kube-system", "kube-dns", |page| {
        for slice in page {
            slices += 1;
            let port = slice.port("UDP");
            for endpoint in slice.ready() {
                ready += 1;
                let addresses = endpoint.addresses.iter().filter_map(|address| address.parse().ok());
                let node = endpoint.node_name.as_deref().unwrap_or("a node without a name");
                servers.extend(
                    addresses.zip(port).map(|(ip, port)| (SocketAddr::new(ip, port), node.to_owned())),
                );
            }
        }
        servers.len() >= MAX_SERVERS
    });
    if let Err(finding) = found.await {
        return finding.inconclusive();
    }
    servers.truncate(MAX_SERVERS);
    if servers.is_empty() {
        return no_server(slices, ready);
    }
    let ask = |server: SocketAddr| answer_by(end, net.resolve_at(Server::Pod(server), name));
    let answers = join_all(servers.iter().map(|(server, _)| ask(*server))).await;
    let silent: Vec<(&(SocketAddr, String), &NetError)> = servers
        .iter()
        .zip(&answers)
        .filter_map(|(server, answer)| Some((server, answer.as_ref().err()?)))
        .collect();
    let Some((_, first)) = silent.first() else {
        return Finding::passed(format!("{} of {} know it", servers.len(), servers.len()));
    };
    let outcome = if silent.len() == servers.len() { Outcome::Failed } else { Outcome::Inconclusive };
    let told: Vec<String> =
        silent.iter().map(|((server, node), error)| format!("{server} on {node}: {error}")).collect();
    let message = format!("{} of {}: {}", silent.len(), servers.len(), told.join("; "));
    Finding::new(outcome, first.reason(), message)
}

fn no_server(slices: usize, ready: usize) -> Finding {
    match (slices, ready) {
        (0, _) => {
            Finding::new(Outcome::Skipped, reason::NOT_FOUND, "there is no Service kube-system/kube-dns")
        }
        (_, 0) => Finding::new(
            Outcome::Inconclusive,
            reason::CLUSTER_DNS_NOT_RUNNING,
            "none of the endpoints of kube-system/kube-dns is ready",
        ),
        _ => Finding::new(Outcome::Skipped, reason::NO_PEERS, "kube-system/kube-dns has no UDP port"),
    }
}

fn judge(answer: Result<Vec<IpAddr>, NetError>) -> Finding {
    match answer {
        Ok(addresses) => match addresses.first() {
            Some(first) => {
                let more = addresses.len() - 1;
                let told = if more == 0 { first.to_string() } else { format!("{first} and {more} more") };
                Finding { addresses, ..Finding::passed(told) }
            }
            None => Finding::from_error(&NetError::NoAddress),
        },
        Err(error) => Finding::from_error(&error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::fake::{Fake, answer};
    use std::time::Duration;

    async fn each(net: &Fake<'_>) -> Finding {
        check_each(net, "a.", Instant::now() + Duration::from_secs(10)).await
    }

    fn is_first(server: Server) -> bool {
        server == Server::Pod(SocketAddr::from(([10, 0, 0, 1], 53)))
    }

    #[tokio::test(start_paused = true)]
    async fn f23_each_server_of_the_cluster_dns_is_queried() {
        let all = each(&Fake::new()).await;
        assert_eq!((all.outcome, all.message.as_str()), (Outcome::Passed, "2 of 2 know it"));
        let one_silent = each(&Fake::new().on_resolve_at(|s| (!is_first(s)).then(|| Ok(vec![])))).await;
        assert_eq!((one_silent.outcome, one_silent.reason), (Outcome::Inconclusive, reason::TIMEOUT));
        assert_eq!(one_silent.message, "1 of 2: 10.0.0.1:53 on n1: no answer");
        let none = each(&Fake::new().on_resolve_at(|_| Some(Err(NetError::ServFail)))).await;
        assert_eq!((none.outcome, none.reason), (Outcome::Failed, reason::SERV_FAIL));
    }

    #[tokio::test(start_paused = true)]
    async fn no_server_to_query_does_not_fail_the_node() {
        use serde_json::json;
        let down = each(&Fake::new().on_api(|_, _| (200, answer(&[])))).await;
        assert_eq!((down.outcome, down.reason), (Outcome::Inconclusive, reason::CLUSTER_DNS_NOT_RUNNING));
        let other = each(&Fake::new().on_api(|_, _| (200, json!({"items": []})))).await;
        assert_eq!((other.outcome, other.reason), (Outcome::Skipped, reason::NOT_FOUND));
        let unknown = each(&Fake::new().on_api(|_, _| (401, json!({})))).await;
        assert_eq!((unknown.outcome, unknown.reason), (Outcome::Inconclusive, reason::UNAUTHORIZED));
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_knows_no_such_name_has_answered() {
        let ask = |error: Option<NetError>| async move {
            let net = Fake::new().on_resolve_at(move |_| Some(error.clone().map_or(Ok(vec![]), Err)));
            check_server(&net, [10, 96, 0, 10].into(), "a.").await.outcome
        };
        assert_eq!(ask(Some(NetError::NxDomain)).await, Outcome::Passed);
        assert_eq!(ask(Some(NetError::NoAddress)).await, Outcome::Passed);
        for error in [NetError::ServFail, NetError::Declined, NetError::Refused] {
            assert_eq!(ask(Some(error)).await, Outcome::Failed);
        }
    }
}
