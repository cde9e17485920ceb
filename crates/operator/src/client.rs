//! The Kubernetes client of the controller.

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

/// Returns a client that does not retry and has timeouts for connecting and reading. Callers set a timeout for each call.
///
/// # Errors
/// If the configuration names certificates or tokens that cannot be read.
pub fn client(config: Config) -> kube::Result<Client> {
    Client::try_from(with_timeouts(config))
}

/// Returns the same client with metrics for every request.
///
/// # Errors
/// See [`client`].
pub fn client_with_metrics(config: Config, metrics: Arc<Metrics>) -> kube::Result<Client> {
    let host = config.cluster_url.authority().map_or_else(String::new, ToString::to_string);
    let layer = MetricsLayer { metrics, host: host.into() };
    Ok(ClientBuilder::try_from(with_timeouts(config))?.with_layer(&layer).build())
}

fn with_timeouts(mut config: Config) -> Config {
    // A retry inside the client could hold up a node for minutes; the workqueue retries.
    config.default_retry = false;
    config.connect_timeout = Some(Duration::from_secs(5));
    // Longer than the timeout of any watch.
    config.read_timeout = Some(Duration::from_mins(5));
    config.reset_reader_on_write = true;
    config
}

#[derive(Clone)]
struct MetricsLayer {
    metrics: Arc<Metrics>,
    host: Arc<str>,
}

impl<S> Layer<S> for MetricsLayer {
    type Service = MetricsService<S>;

    fn layer(&self, inner: S) -> MetricsService<S> {
        MetricsService { inner, layer: self.clone() }
    }
}

struct MetricsService<S> {
    inner: S,
    layer: MetricsLayer,
}

impl<S, B> Service<Request<Body>> for MetricsService<S>
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
        let (method, layer) = (request.method().clone(), self.layer.clone());
        let (started, response) = (Instant::now(), self.inner.call(request));
        Box::pin(async move {
            let response = response.await;
            let code = response.as_ref().ok().map(|response| response.status().as_u16());
            layer.metrics.observe_request(method.as_str(), &layer.host, code, started.elapsed());
            response
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
    async fn requests_are_counted_by_status_code() {
        let metrics = Arc::new(Metrics::default());
        let layer = MetricsLayer { metrics: metrics.clone(), host: "10.0.0.1:443".into() };
        let server = service_fn(|request: Request<Body>| async move {
            if request.uri().path().ends_with("gone") {
                return Ok(Response::builder().status(404).body(Body::empty()).unwrap());
            }
            Err(std::io::Error::other("no route"))
        });
        let client = ClientBuilder::new(layer.layer(server), "default").build();
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
