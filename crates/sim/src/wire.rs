//! The way between one client and the API server. Here requests take time, get lost, and clients die.

use std::collections::BTreeSet;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::{self, Stream, StreamExt as _};
use http::{Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use tokio::time::sleep;

use crate::api::Answer;
use crate::api::status::ApiError;
use crate::cluster::Cluster;
use crate::faults::{Fault, Faults, Line};
use crate::object::text;
use crate::server::{self, Body};
use crate::store::HELD;

/// The least time that a request takes. Without it a busy loop would never let virtual time go on.
const SHORTEST: Duration = Duration::from_millis(1);

/// Why a request had no answer.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// One client's connection: a `tower::Service` for `kube::Client`.
#[derive(Clone)]
pub struct Wire {
    cluster: Cluster,
    who: String,
    faults: Option<Faults>,
}

impl Wire {
    /// A connection on which nothing goes wrong.
    #[must_use]
    pub fn new(cluster: &Cluster, who: &str) -> Self {
        Self { cluster: cluster.clone(), who: who.to_owned(), faults: None }
    }

    /// A connection on which these faults happen.
    #[must_use]
    pub fn with_faults(self, faults: Faults) -> Self {
        Self { faults: Some(faults), ..self }
    }

    /// A client on this connection. To be called inside a tokio runtime.
    #[must_use]
    pub fn client(self) -> kube::Client {
        kube::Client::new(self, "default")
    }

    async fn carry(self, request: Request<kube::client::Body>) -> Result<Response<Body>, BoxError> {
        let (parts, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        let request = Request::from_parts(parts, body);
        let Some(faults) = self.faults.clone() else {
            sleep(SHORTEST).await;
            let answer = server::answer(&self.cluster, &self.who, &request, None);
            self.note(&request, &answer, "");
            return Ok(server::respond(&self.cluster, answer));
        };
        let (delay, fault) = faults.for_request(&request);
        if fault == Fault::Held {
            let patience = faults.patience();
            // It is on its way, whatever becomes of who sent it.
            tokio::spawn(self.hold(faults, request, delay));
            sleep(patience).await;
            return Err("connection reset: the request may or may not have arrived".into());
        }
        sleep(SHORTEST + delay).await;
        self.suffer(&faults, fault, &request).await
    }

    async fn suffer(
        &self,
        faults: &Faults,
        fault: Fault,
        request: &Request<Bytes>,
    ) -> Result<Response<Body>, BoxError> {
        if faults.is_dead() {
            return never().await;
        }
        let refused = match fault {
            Fault::Conflict => Some(faults.spurious_conflict(request)),
            Fault::TooMany => Some(ApiError::too_many_requests()),
            Fault::Internal => Some(ApiError::internal("etcdserver: leader changed")),
            _ => None,
        };
        if let Some(error) = refused {
            let answer = Answer::refusal(&error);
            self.note(request, &answer, fault.name());
            return Ok(server::respond(&self.cluster, answer));
        }
        match fault {
            Fault::LostRequest => {
                self.cluster.trace().line(|| format!("{} {} lost on the way", self.who, summary(request)));
                sleep(faults.patience()).await;
                return Err("connection reset: the request may or may not have arrived".into());
            }
            Fault::CrashBefore => {
                self.cluster.trace().line(|| format!("{} crashes before {}", self.who, summary(request)));
                faults.crash();
                return never().await;
            }
            _ => {}
        }
        let cache_at = faults.cache_age(request, &self.cluster.state().store);
        let answer = server::answer(&self.cluster, &self.who, request, cache_at);
        self.note(request, &answer, fault.name());
        match fault {
            Fault::LostAnswer => {
                sleep(faults.patience()).await;
                return Err("connection reset: the request may or may not have arrived".into());
            }
            Fault::CrashAfter => {
                self.cluster.trace().line(|| format!("{} crashes after {}", self.who, summary(request)));
                faults.crash();
                return never().await;
            }
            _ => {}
        }
        Ok(match answer {
            Answer::Events(watch, lasts, bookmarks) => {
                let events = server::events(self.cluster.clone(), *watch, lasts, bookmarks);
                let lines = troubled(Box::pin(events), faults.clone());
                Response::new(StreamBody::new(lines.map(|line| Ok(Frame::data(line)))).boxed_unsync())
            }
            answer => server::respond(&self.cluster, answer),
        })
    }

    /// Lets a write arrive when nobody waits for it any more.
    async fn hold(self, faults: Faults, request: Request<Bytes>, delay: Duration) {
        let led = self.leases();
        let who = format!("{}{HELD}{}", self.who, self.cluster.clock().now());
        sleep(delay).await;
        let answer = server::answer(&self.cluster, &who, &request, None);
        self.note(&request, &answer, Fault::Held.name());
        let landed = matches!(&answer, Answer::Document(code, _) if code.is_success());
        faults.count(if landed { "held write landed" } else { "held write refused" });
        if landed && led != self.leases() {
            faults.count("write landed after its writer's lease");
        }
    }

    /// The leases that this client holds.
    fn leases(&self) -> BTreeSet<String> {
        let state = self.cluster.state();
        let all = state.store.all("coordination.k8s.io/leases");
        let own = all.filter(|(_, lease)| text(lease, "spec.holderIdentity").starts_with(&self.who));
        own.map(|(key, lease)| format!("{key} {}", text(lease, "spec.holderIdentity"))).collect()
    }

    fn note(&self, request: &Request<Bytes>, answer: &Answer, fault: &str) {
        self.cluster.trace().line(|| {
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
            format!("{} {} -> {outcome}{fault}", self.who, summary(request))
        });
    }
}

fn summary(request: &Request<Bytes>) -> String {
    format!("{} {}", request.method(), request.uri())
}

/// What a dead client gets.
async fn never<T>() -> T {
    std::future::pending().await
}

/// A stream of events that comes late and breaks off, but never loses an event in its middle: TCP does not either.
fn troubled(
    events: impl Stream<Item = Bytes> + Send + Unpin + 'static,
    faults: Faults,
) -> impl Stream<Item = Bytes> {
    stream::unfold(Some((events, faults)), |place| async move {
        let (mut events, faults) = place?;
        let line = events.next().await?;
        match faults.for_line() {
            Line::Cut => None,
            Line::Late(delay) => {
                sleep(delay).await;
                if faults.is_dead() { None } else { Some((line, Some((events, faults)))) }
            }
        }
    })
}

impl tower::Service<Request<kube::client::Body>> for Wire {
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<kube::client::Body>) -> Self::Future {
        Box::pin(self.clone().carry(request))
    }
}
