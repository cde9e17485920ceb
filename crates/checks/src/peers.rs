//! `peers`: pods on other nodes accept TCP connections at their pod addresses.
//!
//! A peer that does not answer may be broken itself. So the check fails only if no peer answers at all, or none of two or
//! more in a zone. It is inconclusive if the only peer of a zone does not answer and others do. For a peer that does not
//! answer, one more peer of its zone on another node is tried.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use futures::future::join_all;
use nodekeeper_core::checks::Peers;
use nodekeeper_core::report::{Outcome, reason};
use tokio::time::Instant;

use crate::net::{Net, NetError, answer_by};
use crate::run::Finding;
use crate::slices::{self, Slice};

/// Largest number of peers in the first sample, for any number of zones.
const MAX_SAMPLE: usize = 5;
/// Largest number of candidates that the sample is chosen from.
const MAX_CANDIDATES: usize = 1000;

/// A ready pod on another node.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Peer {
    address: SocketAddr,
    node: String,
    zone: String,
}

impl fmt::Display for Peer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} on {}", self.address, self.node)?;
        if self.zone.is_empty() { Ok(()) } else { write!(out, " in {}", self.zone) }
    }
}

/// The endpoints of a Service.
#[derive(Default)]
struct Found {
    slices: usize,
    ready: usize,
    nameless: usize,
    without_port: usize,
    elsewhere: Vec<Peer>,
}

type Tried = Vec<(Peer, Result<(), NetError>)>;

pub(crate) async fn check(net: &impl Net, peers: &Peers, end: Instant) -> Finding {
    let own = net.environment().node;
    let mut found = Found::default();
    let read = slices::read(net, &peers.namespace, &peers.name, |page| {
        for slice in page {
            found.add(slice, &own);
        }
        found.elsewhere.len() >= MAX_CANDIDATES
    });
    if let Err(finding) = read.await {
        return finding.inconclusive();
    }
    if found.elsewhere.is_empty() {
        return found.no_peers(peers);
    }
    let per_zone = usize::try_from(peers.per_zone).unwrap_or(1);
    let (sample, mut spare) = choose(found.elsewhere, &own, per_zone);
    // Half of the time, so that some is left for the other peers of their zones.
    let half = Instant::now() + end.saturating_duration_since(Instant::now()) / 2;
    let mut tried = connect(net, sample, half).await;
    let silent = zones(&tried).into_iter().filter(|(_, answers)| !answers.contains(&true));
    let others: Vec<Peer> = silent.filter_map(|(zone, _)| spare.remove(&zone)).collect();
    tried.extend(connect(net, others, end).await);
    tried.sort_by_key(|(peer, _)| peer.address);
    judge(&tried)
}

impl Found {
    fn add(&mut self, slice: Slice<'_>, own: &str) {
        self.slices += 1;
        let port = slice.port("TCP");
        for endpoint in slice.ready() {
            self.ready += 1;
            let ip = endpoint.addresses.first().and_then(|address| address.parse::<IpAddr>().ok());
            match (endpoint.node_name.as_deref(), ip.zip(port)) {
                (None, _) => self.nameless += 1,
                (Some(node), _) if node == own => {}
                (_, None) => self.without_port += 1,
                (Some(node), Some((ip, port))) => self.elsewhere.push(Peer {
                    address: SocketAddr::new(ip, port),
                    node: node.to_owned(),
                    zone: endpoint.zone.as_deref().unwrap_or_default().to_owned(),
                }),
            }
        }
    }

    fn no_peers(&self, peers: &Peers) -> Finding {
        let of = format!("{}/{}", peers.namespace, peers.name);
        let skipped = |message: String| Finding::new(Outcome::Skipped, reason::NO_PEERS, message);
        if self.slices == 0 {
            skipped(format!("there is no EndpointSlice of {of}"))
        } else if self.ready == 0 {
            let message = format!("none of the endpoints of {of} is ready");
            Finding::new(Outcome::Inconclusive, reason::NO_READY_ENDPOINTS, message)
        } else if self.without_port > 0 {
            skipped(format!("{of} has no TCP port"))
        } else if self.nameless > 0 {
            skipped(format!("the endpoints of {of} do not say on which node they are"))
        } else {
            skipped(format!("no pod of {of} is on another node"))
        }
    }
}

/// Returns at most `per_zone` peers of each zone on different nodes, and a spare one for each zone. The choice depends on
/// the name of the node, so that nodes choose different peers and a node always chooses the same.
fn choose(mut peers: Vec<Peer>, own: &str, per_zone: usize) -> (Vec<Peer>, BTreeMap<String, Peer>) {
    peers.sort_by_key(|peer| (hash(own, &peer.address.to_string()), peer.address));
    let mut nodes = BTreeSet::new();
    peers.retain(|peer| nodes.insert(peer.node.clone()));
    let mut taken: BTreeMap<String, usize> = BTreeMap::new();
    let (mut sample, mut spare) = (Vec::new(), BTreeMap::new());
    for round in 0..per_zone {
        let mut left = Vec::new();
        for peer in peers {
            let of_zone = taken.entry(peer.zone.clone()).or_default();
            if *of_zone == round && sample.len() < MAX_SAMPLE {
                *of_zone += 1;
                sample.push(peer);
            } else {
                left.push(peer);
            }
        }
        peers = left;
    }
    for peer in peers {
        spare.entry(peer.zone.clone()).or_insert(peer);
    }
    (sample, spare)
}

async fn connect(net: &impl Net, peers: Vec<Peer>, until: Instant) -> Tried {
    let one = |peer: Peer| async move {
        let answer = answer_by(until, net.connect_pod(peer.address)).await;
        (peer, answer)
    };
    join_all(peers.into_iter().map(one)).await
}

/// Groups by zone whether each peer answered.
fn zones(tried: &Tried) -> BTreeMap<String, Vec<bool>> {
    let mut zones: BTreeMap<String, Vec<bool>> = BTreeMap::new();
    for (peer, answer) in tried {
        zones.entry(peer.zone.clone()).or_default().push(answer.is_ok());
    }
    zones
}

fn judge(tried: &Tried) -> Finding {
    let silent: Vec<(&Peer, &NetError)> =
        tried.iter().filter_map(|(peer, answer)| Some((peer, answer.as_ref().err()?))).collect();
    let answered: Vec<String> =
        tried.iter().filter(|(_, answer)| answer.is_ok()).map(|(peer, _)| peer.to_string()).collect();
    let Some((_, first)) = silent.first() else { return Finding::passed(answered.join(", ")) };
    let told: Vec<String> = silent.iter().map(|(peer, error)| format!("{peer}: {error}")).collect();
    let told = told.join("; ");
    if answered.is_empty() {
        return Finding::new(Outcome::Failed, first.reason(), told);
    }
    let zones = zones(tried);
    let mut dark = zones.values().filter(|answers| !answers.contains(&true)).peekable();
    if dark.peek().is_none() {
        return Finding::passed(format!(
            "{}; another in its zone did not answer: {told}",
            answered.join(", ")
        ));
    }
    // That this node cannot reach two others is more likely than that both are broken.
    let outcome = if dark.any(|answers| answers.len() > 1) { Outcome::Failed } else { Outcome::Inconclusive };
    Finding::new(outcome, first.reason(), format!("{told}; others answer: {}", answered.join(", ")))
}

/// FNV-1a of both names: the same in every run.
fn hash(own: &str, peer: &str) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    own.bytes().chain([0]).chain(peer.bytes()).fold(0xcbf2_9ce4_8422_2325, step)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::fake::{Fake, answer};
    use parking_lot::Mutex;
    use serde_json::json;
    use std::time::Duration;

    type Pods = &'static [(&'static str, &'static str, &'static str)];

    /// Returns the result for these ready pods and silent addresses, and the addresses that were tried.
    async fn run(pods: Pods, silent: &[&str], per_zone: i32) -> (Finding, Vec<String>) {
        let tried = Mutex::new(Vec::new());
        let net = Fake::new().on_api(|_, _| (200, answer(pods))).on_pods(|pod| {
            tried.lock().push(pod.to_string());
            (!silent.contains(&pod.ip().to_string().as_str())).then_some(Ok(()))
        });
        let end = Instant::now() + Duration::from_secs(10);
        let finding = check(&net, &Peers { per_zone, ..Peers::default() }, end).await;
        assert!(Instant::now() <= end, "it keeps to its time");
        drop(net);
        (finding, tried.into_inner())
    }

    const A1: (&str, &str, &str) = ("10.0.0.1", "n1", "a");
    const A2: (&str, &str, &str) = ("10.0.0.2", "n2", "a");
    const B1: (&str, &str, &str) = ("10.0.1.1", "n3", "b");
    const OWN: (&str, &str, &str) = ("10.0.9.9", "here", "a");

    #[tokio::test(start_paused = true)]
    async fn f23_a_pod_on_another_node_is_connected_to() {
        let (finding, tried) = run(&[A1, OWN], &[], 1).await;
        assert_eq!((finding.outcome, tried), (Outcome::Passed, vec!["10.0.0.1:53".to_owned()]));
        assert_eq!(finding.message, "10.0.0.1:53 on n1 in a");
    }

    #[tokio::test(start_paused = true)]
    async fn no_answer_from_any_peer_fails() {
        let (finding, _) = run(&[A1, B1, OWN], &["10.0.0.1", "10.0.1.1"], 1).await;
        assert_eq!((finding.outcome, finding.reason), (Outcome::Failed, reason::TIMEOUT));
        for told in ["10.0.0.1:53 on n1 in a: no answer", "10.0.1.1:53 on n3 in b: no answer"] {
            assert!(finding.message.contains(told), "{}", finding.message);
        }
        assert_eq!(run(&[A1], &["10.0.0.1"], 1).await.0.outcome, Outcome::Failed, "there is only one");
    }

    #[tokio::test(start_paused = true)]
    async fn another_peer_of_the_zone_replaces_a_silent_one() {
        for silent in ["10.0.0.1", "10.0.0.2"] {
            for per_zone in [1, 2] {
                let (finding, _) = run(&[A1, A2, B1], &[silent], per_zone).await;
                assert_eq!(finding.outcome, Outcome::Passed, "{}", finding.message);
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_only_peer_of_a_zone_is_inconclusive() {
        let (finding, _) = run(&[A1, B1], &["10.0.1.1"], 1).await;
        assert_eq!((finding.outcome, finding.reason), (Outcome::Inconclusive, reason::TIMEOUT));
        assert!(finding.message.ends_with("; others answer: 10.0.0.1:53 on n1 in a"), "{}", finding.message);
    }

    #[tokio::test(start_paused = true)]
    async fn two_silent_peers_of_a_zone_fail() {
        let (finding, tried) = run(&[A1, A2, B1], &["10.0.0.1", "10.0.0.2"], 1).await;
        assert_eq!((finding.outcome, tried.len()), (Outcome::Failed, 3));
    }

    #[tokio::test(start_paused = true)]
    async fn no_peers_on_other_nodes_is_skipped() {
        let (finding, tried) = run(&[OWN], &[], 1).await;
        assert_eq!((finding.outcome, finding.reason, tried.len()), (Outcome::Skipped, reason::NO_PEERS, 0));
        let (finding, _) = run(&[], &[], 1).await;
        assert_eq!((finding.outcome, finding.reason), (Outcome::Inconclusive, reason::NO_READY_ENDPOINTS));
        let end = Instant::now() + Duration::from_secs(10);
        for (items, outcome, why) in [
            (json!([]), Outcome::Skipped, "no EndpointSlice"),
            (
                json!([{"endpoints": [{"addresses": ["10.0.0.1"]}], "ports": [{"port": 53}]}]),
                Outcome::Skipped,
                "on which node",
            ),
            (
                json!([{"endpoints": [{"addresses": ["10.0.0.1"], "nodeName": "n1"}], "ports": [{"port": 53, "protocol": "UDP"}]}]),
                Outcome::Skipped,
                "no TCP port",
            ),
        ] {
            let net = Fake::new().on_api(move |_, _| (200, json!({"items": items})));
            let finding = check(&net, &Peers::default(), end).await;
            assert_eq!(finding.outcome, outcome);
            assert!(finding.message.contains(why), "{}", finding.message);
        }
    }

    #[test]
    fn the_sample_is_small_and_spans_zones() {
        let peers: Vec<Peer> = (0..100_u8)
            .map(|n| Peer {
                address: SocketAddr::from(([10, 0, n, 1], 53)),
                node: format!("n{}", n / 2),
                zone: format!("z{}", n % 8 / 2),
            })
            .collect();
        let (sample, spare) = choose(peers.clone(), "here", 1);
        let zones: BTreeSet<_> = sample.iter().map(|peer| &peer.zone).collect();
        assert_eq!((sample.len(), zones.len(), spare.len()), (4, 4, 4));
        let (more, _) = choose(peers.clone(), "here", 5);
        assert_eq!(more.len(), MAX_SAMPLE);
        let nodes: BTreeSet<_> = more.iter().map(|peer| &peer.node).collect();
        assert_eq!(nodes.len(), MAX_SAMPLE, "one a node");
        assert_ne!(choose(peers.clone(), "there", 1).0, sample, "others choose others");
        assert_eq!(choose(peers, "here", 1).0, sample, "the same chooses the same");
    }
}
