//! A proxy between a controller and its API server. It records requests and responses, and can kill the controller
//! before or after any write.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use http::{Method, Request, Response, StatusCode};
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use tokio::sync::watch;

/// The write, counted from 1, at which the controller is killed. Lease renewals do not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KillPoint {
    /// The write is not sent.
    BeforeWrite(usize),
    /// The write is applied, and its response is lost.
    AfterWrite(usize),
}

impl KillPoint {
    /// The number of the write.
    pub fn write(self) -> usize {
        match self {
            Self::BeforeWrite(n) | Self::AfterWrite(n) => n,
        }
    }
}

/// Runs before each write is forwarded, with its method and path, so that a test can change objects first.
pub type WriteHook = Box<dyn Fn(Method, String) -> BoxFuture<'static, ()> + Send + Sync>;

#[derive(Clone, Debug)]
pub struct RecordedRequest {
    pub method: Method,
    pub uri: String,
    pub status: StatusCode,
}

impl RecordedRequest {
    pub fn is_about_nodes(&self) -> bool {
        self.uri.split('?').next().is_some_and(|path| path.starts_with("/api/v1/nodes"))
    }

    /// Whether it deletes a node or claim, or evicts a pod.
    pub fn is_destructive(&self) -> bool {
        let deletes_node = self.method == Method::DELETE && self.is_about_nodes();
        deletes_node || self.uri.contains("/eviction") || self.uri.contains("/nodeclaims/")
    }
}

/// Clones share their state.
#[derive(Clone, Default)]
pub struct FaultProxy(Arc<Inner>);

#[derive(Default)]
struct Inner {
    kill_point: Option<KillPoint>,
    before_write: Option<WriteHook>,
    /// How many reads may still fail.
    failing_reads: AtomicUsize,
    writes: AtomicUsize,
    is_killed: watch::Sender<bool>,
    requests: Mutex<Vec<RecordedRequest>>,
}

impl FaultProxy {
    pub fn killing_at(kill_point: KillPoint) -> Self {
        Self(Arc::new(Inner { kill_point: Some(kill_point), ..Inner::default() }))
    }

    pub fn with_write_hook(before_write: WriteHook) -> Self {
        Self(Arc::new(Inner { before_write: Some(before_write), ..Inner::default() }))
    }

    /// Every other one of the first `reads` reads fails with 500.
    pub fn failing_reads(reads: usize) -> Self {
        Self(Arc::new(Inner { failing_reads: AtomicUsize::new(reads), ..Inner::default() }))
    }

    pub fn client(&self, upstream: Client) -> Client {
        Client::new(ProxyService { proxy: self.clone(), upstream }, "default")
    }

    pub fn writes(&self) -> usize {
        self.0.writes.load(Ordering::SeqCst)
    }

    /// The requests with a response, in order.
    pub fn requests(&self) -> Vec<RecordedRequest> {
        self.0.requests.lock().clone()
    }

    /// From now on no request is forwarded.
    pub fn kill(&self) {
        self.0.is_killed.send_replace(true);
    }

    pub async fn killed(&self) {
        // The sender lives as long as this proxy.
        let _ = self.0.is_killed.subscribe().wait_for(|killed| *killed).await;
    }

    async fn forward(self, upstream: Client, request: Request<Body>) -> kube::Result<Response<Body>> {
        let (method, uri) = (request.method().clone(), request.uri().to_string());
        let is_read = method == Method::GET;
        if is_read && self.fails_read() {
            let error = Response::builder().status(StatusCode::INTERNAL_SERVER_ERROR).body(Body::empty());
            return error.map_err(kube::Error::HttpError);
        }
        if let Some(before) = self.0.before_write.as_ref().filter(|_| !is_read) {
            before(method.clone(), request.uri().path().to_owned()).await;
        }
        let is_renewal = method == Method::PUT && uri.contains("/leases/");
        let counts = !is_read && !is_renewal;
        let write = if counts { self.0.writes.fetch_add(1, Ordering::SeqCst) + 1 } else { 0 };
        if self.0.kill_point == Some(KillPoint::BeforeWrite(write)) {
            self.kill();
        }
        if *self.0.is_killed.borrow() {
            return std::future::pending().await;
        }
        let response = upstream.send(request).await;
        if self.0.kill_point == Some(KillPoint::AfterWrite(write)) {
            self.kill();
        }
        if *self.0.is_killed.borrow() {
            return std::future::pending().await;
        }
        if let Ok(response) = &response {
            let request = RecordedRequest { method, uri, status: response.status() };
            self.0.requests.lock().push(request);
        }
        response
    }

    /// Only every other read, so that a retry succeeds.
    fn fails_read(&self) -> bool {
        let left = self.0.failing_reads.load(Ordering::SeqCst);
        self.0.failing_reads.store(left.saturating_sub(1), Ordering::SeqCst);
        left % 2 == 1
    }
}

struct ProxyService {
    proxy: FaultProxy,
    upstream: Client,
}

impl tower::Service<Request<Body>> for ProxyService {
    type Response = Response<Body>;
    type Error = kube::Error;
    type Future = BoxFuture<'static, kube::Result<Response<Body>>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<kube::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.proxy.clone().forward(self.upstream.clone(), request))
    }
}
