//! The way to a real API server.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response};
use kube::client::{Body, ClientBuilder};
use kube::{Client, Config};
use tokio::time::Instant;
use tower::{Layer, Service};

use crate::metrics::Metrics;

/// A client that never hides an answer and never waits forever. Each call has its own timeout besides.
///
/// # Errors
/// Where the configuration names certificates or tokens that cannot be read.
pub fn client(config: Config) -> kube::Result<Client> {
    Client::try_from(cautious(config))
}

/// The same, and every answer is counted.
///
/// # Errors
/// As [`client`].
pub fn counted_client(config: Config, metrics: Arc<Metrics>) -> kube::Result<Client> {
    let host = config.cluster_url.authority().map_or_else(String::new, ToString::to_string);
    let counted = Counted { metrics, host: host.into() };
    Ok(ClientBuilder::try_from(cautious(config))?.with_layer(&counted).build())
}

fn cautious(mut config: Config) -> Config {
    // One call that is retried inside the client for minutes would hold a node up; the queue retries.
    config.default_retry = false;
    config.connect_timeout = Some(Duration::from_secs(5));
    // A little longer than any watch lasts.
    config.read_timeout = Some(Duration::from_mins(5));
    config.reset_reader_on_write = true;
    config
}

/// Counts what goes through it.
#[derive(Clone)]
struct Counted {
    metrics: Arc<Metrics>,
    host: Arc<str>,
}

impl<S> Layer<S> for Counted {
    type Service = Counting<S>;

    fn layer(&self, inner: S) -> Counting<S> {
        Counting { inner, counted: self.clone() }
    }
}

/// A service whose answers are counted.
struct Counting<S> {
    inner: S,
    counted: Counted,
}

impl<S, B> Service<Request<Body>> for Counting<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let (method, counted) = (request.method().clone(), self.counted.clone());
        let (started, answer) = (Instant::now(), self.inner.call(request));
        Box::pin(async move {
            let answer = answer.await;
            let code = answer.as_ref().ok().map(|answer| answer.status().as_u16());
            counted.metrics.request(method.as_str(), &counted.host, code, started.elapsed());
            answer
        })
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Node;
    use kube::Api;
    use tower::service_fn;

    use super::*;
    use crate::metrics::Format;

    #[tokio::test]
    async fn answers_are_counted_by_code_and_no_answer_as_an_error() {
        let metrics = Arc::new(Metrics::default());
        let counted = Counted { metrics: metrics.clone(), host: "10.0.0.1:443".into() };
        let server = service_fn(|request: Request<Body>| async move {
            if request.uri().path().ends_with("gone") {
                return Ok(Response::builder().status(404).body(Body::empty()).unwrap());
            }
            Err(std::io::Error::other("no route"))
        });
        let client = ClientBuilder::new(counted.layer(server), "default").build();
        let nodes: Api<Node> = Api::all(client);
        assert!(nodes.get("gone").await.is_err());
        assert!(nodes.get("other").await.is_err());
        let text = metrics.render(Format::Prometheus).unwrap();
        for line in [
            "rest_client_requests_total{code=\"404\",method=\"GET\",host=\"10.0.0.1:443\"} 1",
            "rest_client_requests_total{code=\"<error>\",method=\"GET\",host=\"10.0.0.1:443\"} 1",
            "rest_client_request_duration_seconds_count{verb=\"GET\",host=\"10.0.0.1:443\"} 2",
        ] {
            assert!(text.contains(line), "no {line} in {text}");
        }
    }
}
