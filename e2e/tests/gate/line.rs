//! The line between a controller and its API server: who listens here knows what was asked and answered, and can cut it
//! before or after any write. To the controller a cut is `kill -9`.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use http::{Method, Request, Response, StatusCode};
use kube::Client;
use kube::client::Body;
use tokio::sync::watch;

/// Where a line is cut: so many writes are made, counted from 1. Renewals of the lease do not count: they are all alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// The write is never sent.
    Before(usize),
    /// It lands, and the answer is lost.
    After(usize),
}

impl Cut {
    /// Which write.
    pub fn write(self) -> usize {
        match self {
            Self::Before(n) | Self::After(n) => n,
        }
    }
}

/// What happens just before a write is carried on, told by its method and path: others write at the worst of moments.
pub type Before = Box<dyn Fn(Method, String) -> BoxFuture<'static, ()> + Send + Sync>;

/// One request and its answer.
#[derive(Clone, Debug)]
pub struct Asked {
    pub method: Method,
    pub uri: String,
    pub status: StatusCode,
}

impl Asked {
    /// Whether it was about nodes themselves.
    pub fn is_about_nodes(&self) -> bool {
        self.uri.split('?').next().is_some_and(|path| path.starts_with("/api/v1/nodes"))
    }

    /// Whether somebody would miss something after it: a node, or a pod that is no worker.
    pub fn is_harm(&self) -> bool {
        let deletes_node = self.method == Method::DELETE && self.is_about_nodes();
        deletes_node || self.uri.contains("/eviction") || self.uri.contains("/nodeclaims/")
    }
}

/// A line. Clones are the same one.
#[derive(Clone, Default)]
pub struct Line(Arc<Inner>);

#[derive(Default)]
struct Inner {
    cut: Option<Cut>,
    before_write: Option<Before>,
    /// So many reads are answered with a 500 first.
    refused: AtomicUsize,
    writes: AtomicUsize,
    dead: watch::Sender<bool>,
    asked: Mutex<Vec<Asked>>,
}

impl Line {
    pub fn cut_at(cut: Cut) -> Self {
        Self(Arc::new(Inner { cut: Some(cut), ..Inner::default() }))
    }

    /// Somebody is faster with every write.
    pub fn overtaken(before_write: Before) -> Self {
        Self(Arc::new(Inner { before_write: Some(before_write), ..Inner::default() }))
    }

    /// The API server is in trouble at first.
    pub fn refusing(reads: usize) -> Self {
        Self(Arc::new(Inner { refused: AtomicUsize::new(reads), ..Inner::default() }))
    }

    /// A client at the near end.
    pub fn client(&self, far: Client) -> Client {
        Client::new(End { line: self.clone(), far }, "default")
    }

    /// How many writes were begun.
    pub fn writes(&self) -> usize {
        self.0.writes.load(Ordering::SeqCst)
    }

    /// What was asked so far.
    pub fn asked(&self) -> Vec<Asked> {
        self.0.asked.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// From now on nothing gets through.
    pub fn kill(&self) {
        self.0.dead.send_replace(true);
    }

    /// Returns when it is cut.
    pub async fn killed(&self) {
        // The sender lives as long as we do.
        let _ = self.0.dead.subscribe().wait_for(|dead| *dead).await;
    }

    async fn carry(self, far: Client, request: Request<Body>) -> kube::Result<Response<Body>> {
        let (method, uri) = (request.method().clone(), request.uri().to_string());
        let is_read = method == Method::GET;
        if is_read && self.refuses() {
            let trouble = Response::builder().status(StatusCode::INTERNAL_SERVER_ERROR).body(Body::empty());
            return trouble.map_err(kube::Error::HttpError);
        }
        if let Some(before) = self.0.before_write.as_ref().filter(|_| !is_read) {
            before(method.clone(), request.uri().path().to_owned()).await;
        }
        let is_renewal = method == Method::PUT && uri.contains("/leases/");
        let counts = !is_read && !is_renewal;
        let write = if counts { self.0.writes.fetch_add(1, Ordering::SeqCst) + 1 } else { 0 };
        if self.0.cut == Some(Cut::Before(write)) {
            self.kill();
        }
        if *self.0.dead.borrow() {
            return std::future::pending().await;
        }
        let answer = far.send(request).await;
        if self.0.cut == Some(Cut::After(write)) {
            self.kill();
        }
        if *self.0.dead.borrow() {
            return std::future::pending().await;
        }
        if let Ok(answer) = &answer {
            let asked = Asked { method, uri, status: answer.status() };
            self.0.asked.lock().unwrap_or_else(PoisonError::into_inner).push(asked);
        }
        answer
    }

    /// Every other read, so that what is refused once is asked again.
    fn refuses(&self) -> bool {
        let left = self.0.refused.load(Ordering::SeqCst);
        self.0.refused.store(left.saturating_sub(1), Ordering::SeqCst);
        left % 2 == 1
    }
}

struct End {
    line: Line,
    far: Client,
}

impl tower::Service<Request<Body>> for End {
    type Response = Response<Body>;
    type Error = kube::Error;
    type Future = BoxFuture<'static, kube::Result<Response<Body>>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<kube::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.line.clone().carry(self.far.clone(), request))
    }
}
