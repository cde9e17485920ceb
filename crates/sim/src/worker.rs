//! Workers in process: the real checks, in the cluster's own network and on its clock.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::header::CONTENT_TYPE;
use nodekeeper_checks::{Answer, Net, Packets, Place, Server, Trouble, Url};
use nodekeeper_core::checks::Assignment;
use nodekeeper_core::report::{MESSAGE_LIMIT, Report};
use serde_json::Value;
use tokio::time::sleep;

use crate::actors::kubelet::{End, Job, Runner, Shell};
use crate::api;
use crate::cluster::Cluster;
use crate::network::{self, Fault};
use crate::object::{items, name, namespace, text, uid};
use crate::server;

/// Runs containers named `worker` that have an assignment as workers; all others as [`Shell`] does.
#[derive(Debug)]
pub struct Workers;

impl Runner for Workers {
    fn has_image(&self, container: &Value) -> bool {
        Shell.has_image(container)
    }

    fn winds_down(&self, container: &Value) -> Duration {
        Shell.winds_down(container)
    }

    fn run(&self, job: Job) -> BoxFuture<'static, End> {
        match assignment(&job.container) {
            Some(text) => Box::pin(work(text.to_owned(), job)),
            None => Shell.run(job),
        }
    }
}

/// The assignment of a container that is a worker's.
#[must_use]
pub fn assignment(container: &Value) -> Option<&str> {
    let variable = items(container, "env").iter().find(|e| text(e, "name") == Assignment::ENV);
    variable.filter(|_| text(container, "name") == "worker").map(|e| text(e, "value"))
}

/// The user that a pod is to the API server.
#[must_use]
pub fn service_account(pod: &Value) -> String {
    let account = match text(pod, "spec.serviceAccountName") {
        "" => "default",
        account => account,
    };
    format!("system:serviceaccount:{}:{account}", namespace(pod))
}

async fn work(text: String, job: Job) -> End {
    let mut random = fastrand::Rng::with_seed(hash(uid(&job.pod)));
    // To pull up the sandbox and the process; the checks themselves take some milliseconds more.
    sleep(Duration::from_millis(random.u64(200..1800))).await;
    let net = Inside {
        user: service_account(&job.pod),
        latency: Duration::from_millis(random.u64(1..50)),
        cluster: job.cluster.clone(),
        node: job.node.clone(),
        zone: job.zone.clone(),
    };
    let report = match nodekeeper_checks::read_assignment(&text) {
        Ok(assignment) => nodekeeper_checks::run(&net, &assignment).await,
        Err(report) => *report,
    };
    note(&job, &report);
    End::Exit { code: report.exit_code().into(), message: report.to_message(MESSAGE_LIMIT) }
}

fn note(job: &Job, report: &Report) {
    let pod = &job.pod;
    let line = || format!("worker {} on {}: {}: {}", name(pod), job.node, report.verdict, report.summary());
    job.cluster.trace().line(line);
}

/// FNV-1a: the same in every run and on every machine, which the hasher of the standard library does not promise.
fn hash(text: &str) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, step)
}

/// The network as a pod inside the cluster has it.
struct Inside {
    cluster: Cluster,
    node: String,
    zone: String,
    user: String,
    latency: Duration,
}

impl Inside {
    /// A way through the network. What is lost is lost, not refused: whoever waits gives up.
    async fn pass(&self, fault: Fault) {
        if !self.cluster.network().works(fault, &self.node, &self.zone) {
            std::future::pending::<()>().await;
        }
        sleep(self.latency).await;
    }

    fn lookup(&self, name: &str) -> Result<Vec<IpAddr>, Trouble> {
        network::lookup(&self.cluster, name).map(|address| vec![address]).ok_or(Trouble::NxDomain)
    }
}

impl Net for Inside {
    fn place(&self) -> Place {
        let address = network::lookup(&self.cluster, "kubernetes.default.svc.cluster.local");
        let api_server = address.map(|address| (address.to_string(), 443));
        Place {
            api_server: api_server.ok_or_else(|| "there is no Service of the API server".to_owned()),
            node: self.node.clone(),
            inside: true,
            cluster_domain: nodekeeper_core::checks::CLUSTER_DOMAIN.to_owned(),
        }
    }

    fn clock(&self) -> Duration {
        Duration::from_millis(u64::try_from(self.cluster.clock().now().as_millisecond()).unwrap_or_default())
    }

    async fn resolve(&self, name: &str) -> Result<Vec<IpAddr>, Trouble> {
        self.pass(Fault::Dns).await;
        self.lookup(name)
    }

    async fn resolve_at(&self, server: Server, name: &str) -> Result<Vec<IpAddr>, Trouble> {
        if matches!(server, Server::Pod(_)) {
            self.pass(Fault::Pods).await;
        }
        self.resolve(name).await
    }

    async fn connect(&self, _: &str, _: u16) -> Result<(), Trouble> {
        self.pass(Fault::Services).await;
        Ok(())
    }

    async fn connect_pod(&self, _: SocketAddr) -> Result<(), Trouble> {
        self.pass(Fault::Pods).await;
        Ok(())
    }

    async fn api(&self, path: &str, body: Option<&Value>) -> Result<Answer, Trouble> {
        self.pass(Fault::Services).await;
        let method = if body.is_some() { "POST" } else { "GET" };
        let request =
            http::Request::builder().method(method).uri(path).header(CONTENT_TYPE, "application/json");
        let body = body.map(|b| Bytes::from(b.to_string())).unwrap_or_default();
        let request = request.body(body).map_err(|e| Trouble::BadAnswer(e.to_string()))?;
        let (status, body) = match server::answer(&self.cluster, &self.user, &request, None) {
            api::Answer::Document(status, body) => (status, server::bytes_of(&body).into()),
            api::Answer::Plain(status, _) => (status, Vec::new()),
            api::Answer::Events(..) => {
                return Err(Trouble::BadAnswer("a watch where none was asked for".into()));
            }
        };
        let date = self.cluster.clock().now().strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
        Ok(Answer { status: status.as_u16(), date: Some(date), body })
    }

    async fn bulk(&self, packets: Packets, _: usize) -> Result<(), Trouble> {
        if packets == Packets::Full {
            self.pass(Fault::LargePackets).await;
        }
        self.pass(Fault::Services).await;
        Ok(())
    }

    /// Only what is in the cluster has an address, and nobody serves HTTP there.
    async fn get(&self, url: &Url, _: Option<&str>) -> Result<u16, Trouble> {
        if url.host.parse::<IpAddr>().is_err() {
            self.resolve(&url.host).await?;
        }
        self.pass(Fault::Services).await;
        Err(Trouble::Refused)
    }
}
