//! The connection of one client to the API server, with latency and faults.

use std::collections::BTreeSet;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::{self, Stream, StreamExt as _};
use http::{Method, Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use jiff::Timestamp;
use tokio::time::sleep;

use crate::api::Answer;
use crate::api::status::ApiError;
use crate::cluster::Cluster;
use crate::faults::{Fault, Faults, OpenWatch, WatchFault};
use crate::object::text;
use crate::server::{self, Body};
use crate::store::Origin;

/// Without it a busy loop would stop virtual time.
const MIN_LATENCY: Duration = Duration::from_millis(1);

pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A write that a client sent, and what came of it.
#[derive(Clone, Copy, Debug)]
pub struct SentWrite<'a> {
    pub user: &'a str,
    pub request: &'a Request<Bytes>,
    /// When it was sent.
    pub sent: Timestamp,
    /// When it was answered or lost.
    pub at: Timestamp,
    /// The status code of the answer, which its client may not get; none if the request was lost.
    pub code: Option<u16>,
}

/// Called for each write of a client.
pub type WriteObserver = Box<dyn FnMut(SentWrite<'_>) + Send>;

/// A `tower::Service` for `kube::Client`.
#[derive(Clone)]
pub struct Transport {
    cluster: Cluster,
    user: String,
    faults: Option<Faults>,
}

impl Transport {
    /// A connection without faults.
    #[must_use]
    pub fn new(cluster: &Cluster, user: &str) -> Self {
        Self { cluster: cluster.clone(), user: user.to_owned(), faults: None }
    }

    #[must_use]
    pub fn with_faults(self, faults: Faults) -> Self {
        Self { faults: Some(faults), ..self }
    }

    /// Call it inside a tokio runtime.
    #[must_use]
    pub fn client(self) -> kube::Client {
        kube::Client::new(self, "default")
    }

    async fn send(self, request: Request<kube::client::Body>) -> Result<Response<Body>, BoxError> {
        let (parts, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        let request = Request::from_parts(parts, body);
        let Some(faults) = self.faults.clone() else {
            let origin = self.origin();
            sleep(MIN_LATENCY).await;
            let answer = server::answer_late(&self.cluster, origin, &request, None);
            self.report(origin, &request, Some(&answer), "");
            return Ok(server::respond(&self.cluster, answer));
        };
        let (delay, fault) = faults.for_request(&request);
        if fault == Fault::Delayed {
            let client_timeout = faults.client_timeout();
            // The write is on its way, even if its client crashes.
            tokio::spawn(self.deliver_late(faults, request, delay));
            sleep(client_timeout).await;
            return Err("connection reset: the request may have been applied".into());
        }
        let origin = self.origin();
        sleep(MIN_LATENCY + delay).await;
        self.send_with_fault(&faults, fault, origin, &request).await
    }

    /// The origin of a request that is sent now.
    fn origin(&self) -> Origin<'_> {
        Origin { user: &self.user, sent: self.cluster.clock().now(), is_delayed: false }
    }

    async fn send_with_fault(
        &self,
        faults: &Faults,
        fault: Fault,
        origin: Origin<'_>,
        request: &Request<Bytes>,
    ) -> Result<Response<Body>, BoxError> {
        if faults.has_crashed() {
            return never().await;
        }
        let refused = match fault {
            Fault::Conflict => Some(faults.spurious_conflict(request)),
            Fault::TooMany => Some(ApiError::too_many_requests()),
            Fault::Internal => Some(ApiError::internal("etcdserver: leader changed")),
            Fault::Refused(code) => Some(faults.refusal(code, request)),
            _ => None,
        };
        if let Some(error) = refused {
            let answer = Answer::refusal(&error);
            self.report(origin, request, Some(&answer), fault.name());
            return Ok(server::respond(&self.cluster, answer));
        }
        match fault {
            Fault::LostRequest => {
                self.report(origin, request, None, "");
                sleep(faults.client_timeout()).await;
                return Err("connection reset: the request may have been applied".into());
            }
            Fault::CrashBefore => {
                self.cluster.trace().record(|| format!("{} crashes before {}", self.user, summary(request)));
                faults.crash();
                return never().await;
            }
            _ => {}
        }
        let cache_at = faults.stale_revision(request, &self.cluster.state().store);
        let answer = server::answer_late(&self.cluster, origin, request, cache_at);
        self.report(origin, request, Some(&answer), fault.name());
        match fault {
            Fault::LostAnswer => {
                sleep(faults.client_timeout()).await;
                return Err("connection reset: the request may have been applied".into());
            }
            Fault::CrashAfter => {
                self.cluster.trace().record(|| format!("{} crashes after {}", self.user, summary(request)));
                faults.crash();
                return never().await;
            }
            _ => {}
        }
        Ok(match answer {
            Answer::Events(watch, lasts, bookmarks) => {
                let events = server::events(self.cluster.clone(), *watch, lasts, bookmarks);
                let lines = inject_watch_faults(Box::pin(events), faults.clone(), faults.open_watch(request));
                Response::new(StreamBody::new(lines.map(|line| Ok(Frame::data(line)))).boxed_unsync())
            }
            answer => server::respond(&self.cluster, answer),
        })
    }

    /// Applies a write after its client has timed out.
    async fn deliver_late(self, faults: Faults, request: Request<Bytes>, delay: Duration) {
        let led = self.leases();
        let origin = Origin { is_delayed: true, ..self.origin() };
        sleep(delay).await;
        let answer = server::answer_late(&self.cluster, origin, &request, None);
        self.report(origin, &request, Some(&answer), Fault::Delayed.name());
        let landed = matches!(&answer, Answer::Document(code, _) if code.is_success());
        faults.count(if landed { "delayed write applied" } else { "delayed write refused" });
        if landed && led != self.leases() {
            faults.count("write applied after its writer's lease");
        }
    }

    /// The leases that this client holds.
    fn leases(&self) -> BTreeSet<String> {
        let state = self.cluster.state();
        let all = state.store.all("coordination.k8s.io/leases");
        let own = all.filter(|(_, lease)| text(lease, "spec.holderIdentity").starts_with(&self.user));
        own.map(|(key, lease)| format!("{key} {}", text(lease, "spec.holderIdentity"))).collect()
    }

    /// Tells the trace and the observers what came of a request. Without an answer it was lost.
    fn report(&self, origin: Origin<'_>, request: &Request<Bytes>, answer: Option<&Answer>, fault: &str) {
        if request.method() != Method::GET {
            let (sent, at) = (origin.sent, self.cluster.clock().now());
            let code = answer.map(|answer| answer.code().as_u16());
            self.cluster.observed_write(SentWrite { user: &self.user, request, sent, at, code });
        }
        self.cluster.trace().record(|| {
            let Some(answer) = answer else { return format!("{} {} lost", self.user, summary(request)) };
            let outcome = match answer {
                Answer::Document(code, document) => {
                    let version = text(document, "metadata.resourceVersion");
                    let version = if version.is_empty() { String::new() } else { format!(" rv={version}") };
                    format!("{}{version}", code.as_u16())
                }
                Answer::Plain(code, _) => code.as_u16().to_string(),
                Answer::Events(..) => "events".into(),
            };
            let fault = if fault.is_empty() { String::new() } else { format!(" ({fault})") };
            format!("{} {} -> {outcome}{fault}", self.user, summary(request))
        });
    }
}

fn summary(request: &Request<Bytes>) -> String {
    format!("{} {}", request.method(), request.uri())
}

/// The response to a client that has crashed.
async fn never<T>() -> T {
    std::future::pending().await
}

/// Delays events and cuts the stream, but never loses an event in between, as TCP.
fn inject_watch_faults(
    events: impl Stream<Item = Bytes> + Send + Unpin + 'static,
    faults: Faults,
    watch: OpenWatch,
) -> impl Stream<Item = Bytes> {
    stream::unfold(Some((events, faults, watch)), |place| async move {
        let (mut events, faults, watch) = place?;
        let line = events.next().await;
        faults.resumed(&watch).await;
        let line = line?;
        match faults.for_watch_event() {
            WatchFault::Cut => None,
            WatchFault::Delay(delay) => {
                sleep(delay).await;
                if faults.has_crashed() { None } else { Some((line, Some((events, faults, watch)))) }
            }
        }
    })
}

impl tower::Service<Request<kube::client::Body>> for Transport {
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<kube::client::Body>) -> Self::Future {
        Box::pin(self.clone().send(request))
    }
}
