//! A scripted network for tests; every operation takes simulated time.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::sleep;
use url::Url;

use super::{Answer, Environment, Net, NetError, Packets, Server};

/// The scripted result; without one the operation never ends.
pub(crate) type Reply<T> = Option<Result<T, NetError>>;
type Boxed<'a, I, O> = Box<dyn Fn(I) -> O + Send + Sync + 'a>;
type OnApi<'a> = Box<dyn Fn(&str, Option<&Value>) -> (u16, Value) + Send + Sync + 'a>;

/// Names, connections and bulk transfers take 1 s, requests to the API server 0.5 s.
pub(crate) struct Fake<'a> {
    pub(crate) environment: Environment,
    pub(crate) date: Option<String>,
    pub(crate) clock: Duration,
    resolve: Boxed<'a, String, Reply<Vec<IpAddr>>>,
    resolve_at: Boxed<'a, Server, Reply<Vec<IpAddr>>>,
    connect: Boxed<'a, (String, u16), Reply<()>>,
    pods: Boxed<'a, SocketAddr, Reply<()>>,
    api: OnApi<'a>,
    bulk: Boxed<'a, Packets, Reply<()>>,
    get: Boxed<'a, Url, Reply<u16>>,
}

impl<'a> Fake<'a> {
    /// A healthy network: every name has an address, a Service two ready endpoints on other nodes.
    pub(crate) fn new() -> Self {
        Self {
            environment: Environment {
                api_server: Ok(("10.96.0.1".into(), 443)),
                node: "here".into(),
                inside: true,
                cluster_domain: "cluster.local".into(),
            },
            date: None,
            clock: Duration::ZERO,
            resolve: Box::new(|_| Some(Ok(vec![Ipv4Addr::LOCALHOST.into()]))),
            resolve_at: Box::new(|_| Some(Ok(vec![Ipv4Addr::LOCALHOST.into()]))),
            connect: Box::new(|_| Some(Ok(()))),
            pods: Box::new(|_| Some(Ok(()))),
            api: Box::new(|_, _| (200, answer(&[("10.0.0.1", "n1", "a"), ("10.0.0.2", "n2", "b")]))),
            bulk: Box::new(|_| Some(Ok(()))),
            get: Box::new(|_| Some(Ok(200))),
        }
    }

    pub(crate) fn outside() -> Self {
        let environment = Environment {
            api_server: Err("no cluster here".into()),
            node: String::new(),
            inside: false,
            cluster_domain: "cluster.local".into(),
        };
        Self { environment, ..Self::new() }
    }

    pub(crate) fn on_resolve(self, does: impl Fn(String) -> Reply<Vec<IpAddr>> + Send + Sync + 'a) -> Self {
        Self { resolve: Box::new(does), ..self }
    }

    pub(crate) fn on_resolve_at(
        self,
        does: impl Fn(Server) -> Reply<Vec<IpAddr>> + Send + Sync + 'a,
    ) -> Self {
        Self { resolve_at: Box::new(does), ..self }
    }

    pub(crate) fn on_connect(self, does: impl Fn((String, u16)) -> Reply<()> + Send + Sync + 'a) -> Self {
        Self { connect: Box::new(does), ..self }
    }

    pub(crate) fn on_pods(self, does: impl Fn(SocketAddr) -> Reply<()> + Send + Sync + 'a) -> Self {
        Self { pods: Box::new(does), ..self }
    }

    pub(crate) fn on_api(
        self,
        does: impl Fn(&str, Option<&Value>) -> (u16, Value) + Send + Sync + 'a,
    ) -> Self {
        Self { api: Box::new(does), ..self }
    }

    pub(crate) fn on_bulk(self, does: impl Fn(Packets) -> Reply<()> + Send + Sync + 'a) -> Self {
        Self { bulk: Box::new(does), ..self }
    }

    pub(crate) fn on_get(self, does: impl Fn(Url) -> Reply<u16> + Send + Sync + 'a) -> Self {
        Self { get: Box::new(does), ..self }
    }
}

/// The response to every API request: a user name, and EndpointSlices with these endpoints, nodes and zones.
pub(crate) fn answer(endpoints: &[(&str, &str, &str)]) -> Value {
    let endpoint = |(address, node, zone): &(&str, &str, &str)| json!({"addresses": [address], "nodeName": node, "zone": zone});
    let ports = json!([{"port": 9153}, {"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]);
    json!({"status": {"userInfo": {"username": "worker"}},
        "items": [{"endpoints": endpoints.iter().map(endpoint).collect::<Vec<_>>(), "ports": ports}]})
}

async fn after_a_second<T>(reply: Reply<T>) -> Result<T, NetError> {
    sleep(Duration::from_secs(1)).await;
    match reply {
        Some(reply) => reply,
        None => std::future::pending().await,
    }
}

impl Net for Fake<'_> {
    fn environment(&self) -> Environment {
        self.environment.clone()
    }

    fn clock(&self) -> Duration {
        self.clock
    }

    async fn resolve(&self, name: &str) -> Result<Vec<IpAddr>, NetError> {
        after_a_second((self.resolve)(name.to_owned())).await
    }

    async fn resolve_at(&self, server: Server, _: &str) -> Result<Vec<IpAddr>, NetError> {
        after_a_second((self.resolve_at)(server)).await
    }

    async fn connect(&self, host: &str, port: u16) -> Result<(), NetError> {
        after_a_second((self.connect)((host.to_owned(), port))).await
    }

    async fn connect_pod(&self, pod: SocketAddr) -> Result<(), NetError> {
        after_a_second((self.pods)(pod)).await
    }

    async fn api(&self, path: &str, body: Option<&Value>) -> Result<Answer, NetError> {
        sleep(Duration::from_millis(500)).await;
        let (status, body) = (self.api)(path, body);
        Ok(Answer { status, date: self.date.clone(), body: body.to_string().into_bytes() })
    }

    async fn bulk(&self, packets: Packets, _: usize) -> Result<(), NetError> {
        after_a_second((self.bulk)(packets)).await
    }

    async fn get(&self, url: &Url, _: Option<&str>) -> Result<u16, NetError> {
        after_a_second((self.get)(url.clone())).await
    }
}
