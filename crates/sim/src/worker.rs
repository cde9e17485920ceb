//! Runs workers in process: the real checks in the simulated network, on the cluster's clock.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::value::Value;
use bytes::Bytes;
use futures::future::BoxFuture;
use http::header::CONTENT_TYPE;
use nodekeeper_checks::{Answer, Environment, Net, NetError, Packets, Server, Url};
use nodekeeper_core::checks::Assignment;
use nodekeeper_core::report::{MESSAGE_LIMIT, Report};
use tokio::time::sleep;

use crate::actors::kubelet::{ContainerConfig, ContainerRuntime, FakeRuntime, Terminated};
use crate::api;
use crate::cluster::Cluster;
use crate::network::{self, Fault};
use crate::object::{items, name, namespace, text, uid};
use crate::server;

/// Runs worker containers in process, and all others as [`FakeRuntime`] does.
#[derive(Debug)]
pub struct Workers;

impl ContainerRuntime for Workers {
    fn has_image(&self, container: &Value) -> bool {
        FakeRuntime.has_image(container)
    }

    fn shutdown_time(&self, container: &Value) -> Duration {
        FakeRuntime.shutdown_time(container)
    }

    fn run(&self, config: ContainerConfig) -> BoxFuture<'static, Terminated> {
        match assignment(&config.container) {
            Some(text) => Box::pin(run_worker(text.to_owned(), config)),
            None => FakeRuntime.run(config),
        }
    }
}

/// The assignment of a worker container.
#[must_use]
pub fn assignment(container: &Value) -> Option<&str> {
    let variable = items(container, "env").iter().find(|e| text(e, "name") == Assignment::ENV);
    variable.filter(|_| text(container, "name") == "worker").map(|e| text(e, "value"))
}

/// The user name of a pod's service account.
#[must_use]
pub fn service_account(pod: &Value) -> String {
    let account = match text(pod, "spec.serviceAccountName") {
        "" => "default",
        account => account,
    };
    format!("system:serviceaccount:{}:{account}", namespace(pod))
}

async fn run_worker(text: String, config: ContainerConfig) -> Terminated {
    let mut random = fastrand::Rng::with_seed(hash(uid(&config.pod)));
    // The start of sandbox and process; the checks take some milliseconds more.
    sleep(Duration::from_millis(random.u64(200..1800))).await;
    let net = PodNetwork {
        user: service_account(&config.pod),
        latency: Duration::from_millis(random.u64(1..50)),
        cluster: config.cluster.clone(),
        node: config.node.clone(),
        zone: config.zone.clone(),
    };
    let report = match nodekeeper_checks::read_assignment(&text) {
        Ok(assignment) => nodekeeper_checks::run(&net, &assignment).await,
        Err(report) => *report,
    };
    log_report(&config, &report);
    Terminated::Exit { code: report.exit_code().into(), message: report.to_message(MESSAGE_LIMIT) }
}

fn log_report(config: &ContainerConfig, report: &Report) {
    let pod = &config.pod;
    let line =
        || format!("worker {} on {}: {}: {}", name(pod), config.node, report.verdict, report.summary());
    config.cluster.trace().record(line);
}

/// FNV-1a, which unlike the standard hasher is stable across runs and machines.
fn hash(text: &str) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, step)
}

/// The network of a pod in the cluster.
#[derive(Clone)]
pub struct PodNetwork {
    pub cluster: Cluster,
    pub node: String,
    pub zone: String,
    /// The user of the pod's token.
    pub user: String,
    pub latency: Duration,
}

impl PodNetwork {
    /// Waits for the latency. Never returns during an outage, since packets are dropped and not refused.
    async fn traverse(&self, fault: Fault) {
        if !self.cluster.network().works(fault, &self.node, &self.zone) {
            std::future::pending::<()>().await;
        }
        sleep(self.latency).await;
    }

    fn lookup(&self, name: &str) -> Result<Vec<IpAddr>, NetError> {
        network::lookup(&self.cluster, name).map(|address| vec![address]).ok_or(NetError::NxDomain)
    }
}

impl Net for PodNetwork {
    fn environment(&self) -> Environment {
        let address = network::lookup(&self.cluster, "kubernetes.default.svc.cluster.local");
        let api_server = address.map(|address| (address.to_string(), 443));
        Environment {
            api_server: api_server.ok_or_else(|| "the Service of the API server is missing".to_owned()),
            node: self.node.clone(),
            inside: true,
            cluster_domain: nodekeeper_core::checks::CLUSTER_DOMAIN.to_owned(),
        }
    }

    fn clock(&self) -> Duration {
        Duration::from_millis(u64::try_from(self.cluster.clock().now().as_millisecond()).unwrap_or_default())
    }

    async fn resolve(&self, name: &str) -> Result<Vec<IpAddr>, NetError> {
        self.traverse(Fault::Dns).await;
        self.lookup(name)
    }

    async fn resolve_at(&self, server: Server, name: &str) -> Result<Vec<IpAddr>, NetError> {
        if matches!(server, Server::Pod(_)) {
            self.traverse(Fault::Pods).await;
        }
        self.resolve(name).await
    }

    async fn connect(&self, _: &str, _: u16) -> Result<(), NetError> {
        self.traverse(Fault::Services).await;
        Ok(())
    }

    async fn connect_pod(&self, _: SocketAddr) -> Result<(), NetError> {
        self.traverse(Fault::Pods).await;
        Ok(())
    }

    async fn api(&self, path: &str, body: Option<&serde_json::Value>) -> Result<Answer, NetError> {
        self.traverse(Fault::Services).await;
        let method = if body.is_some() { "POST" } else { "GET" };
        let request =
            http::Request::builder().method(method).uri(path).header(CONTENT_TYPE, "application/json");
        let body = body.map(|b| Bytes::from(b.to_string())).unwrap_or_default();
        let request = request.body(body).map_err(|e| NetError::BadAnswer(e.to_string()))?;
        let (status, body) = match server::answer(&self.cluster, &self.user, &request, None) {
            api::Answer::Document(status, body) => (status, server::bytes_of(&body).into()),
            api::Answer::Plain(status, _) => (status, Vec::new()),
            api::Answer::Events(..) => {
                return Err(NetError::BadAnswer("an unexpected watch".into()));
            }
        };
        let date = self.cluster.clock().now().strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
        Ok(Answer { status: status.as_u16(), date: Some(date), body })
    }

    async fn bulk(&self, packets: Packets, _: usize) -> Result<(), NetError> {
        if packets == Packets::Full {
            self.traverse(Fault::LargePackets).await;
        }
        self.traverse(Fault::Services).await;
        Ok(())
    }

    /// Only Services have addresses, and none serves HTTP.
    async fn get(&self, url: &Url, _: Option<&str>) -> Result<u16, NetError> {
        if let Some(name) = url.domain() {
            self.resolve(name).await?;
        }
        self.traverse(Fault::Services).await;
        Err(NetError::Refused)
    }
}
