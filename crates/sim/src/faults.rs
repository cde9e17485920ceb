//! Faults between a client and the API server, all from one seed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::value::Value;
use bytes::Bytes;
use http::{Method, Request};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use crate::api::Query;
use crate::api::status::ApiError;
use crate::resource::Resource;
use crate::store::Store;

/// The fault of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    None,
    Conflict,
    TooMany,
    /// 500, and the request is not applied.
    Internal,
    /// The request is lost.
    LostRequest,
    /// The request is applied and its response is lost.
    LostAnswer,
    /// A write is applied long after its client timed out, possibly under another leader.
    Delayed,
    /// Admission or RBAC refuses this kind of write for minutes, with this status code.
    Refused(u16),
    /// The client crashes before the request is applied.
    CrashBefore,
    /// The client crashes after the request was applied.
    CrashAfter,
}

impl Fault {
    /// The name in the trace and the report; empty for no fault.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Conflict => "409",
            Self::TooMany => "429",
            Self::Internal => "500",
            Self::LostRequest => "timeout, not applied",
            Self::LostAnswer => "timeout, applied",
            Self::Delayed => "write delayed",
            Self::Refused(409) => "write refused for minutes with 409",
            Self::Refused(_) => "write refused for minutes",
            Self::CrashBefore => "crash before a write",
            Self::CrashAfter => "crash after a write",
        }
    }
}

/// The fault of one event of a watch.
#[derive(Clone, Copy, Debug)]
pub enum WatchFault {
    Delay(Duration),
    /// The watch ends before the event.
    Cut,
}

/// The rates of faults, out of 10,000.
#[derive(Clone, Copy, Debug)]
pub struct Rates {
    /// 409, 429 and 500 each, of all requests.
    pub refused: u32,
    /// Lost requests and lost responses each.
    pub lost: u32,
    /// Delayed writes, of all writes.
    pub delayed: u32,
    /// Crashes before and after a write each, of all writes.
    pub crash: u32,
    /// Watches that end early, of all events.
    pub cut: u32,
    /// Events and requests that are seconds late, not milliseconds.
    pub late: u32,
    /// Reads with `resourceVersion=0` that are served from a stale watch cache.
    pub stale: u32,
}

impl Rates {
    /// High enough that every run of ten minutes meets every fault.
    pub const CHAOS: Self =
        Self { refused: 150, lost: 100, delayed: 50, crash: 200, cut: 300, late: 800, stale: 5_000 };
    pub const NONE: Self = Self { refused: 0, lost: 0, delayed: 0, crash: 0, cut: 0, late: 0, stale: 0 };
}

/// What the clients of a run, or all runs of a sweep, have met.
#[derive(Clone, Debug, Default)]
pub struct Coverage {
    pub faults: BTreeMap<String, u64>,
    pub write_points: BTreeSet<String>,
    pub crashed_points: BTreeSet<String>,
    pub checks: BTreeMap<&'static str, u64>,
    /// How often each observation that the scenario counts was made.
    pub observations: BTreeMap<&'static str, u64>,
}

impl Coverage {
    pub fn count(&mut self, fault: &str) {
        *self.faults.entry(fault.to_owned()).or_default() += 1;
    }

    pub fn add(&mut self, other: Self) {
        for (fault, n) in other.faults {
            *self.faults.entry(fault).or_default() += n;
        }
        for (check, n) in other.checks {
            *self.checks.entry(check).or_default() += n;
        }
        for (name, n) in other.observations {
            *self.observations.entry(name).or_default() += n;
        }
        self.write_points.extend(other.write_points);
        self.crashed_points.extend(other.crashed_points);
    }
}

/// What admission or RBAC refuses to all clients for a while. Clones share it.
#[derive(Clone, Default)]
pub struct Admission(Arc<Mutex<Option<(String, u16)>>>);

impl Admission {
    /// Refuses writes of this kind, one of [`Coverage::write_points`], with this status code.
    pub fn refuse(&self, write_point: &str, code: u16) {
        *self.0.lock() = Some((write_point.to_owned(), code));
    }

    pub fn lift(&self) {
        *self.0.lock() = None;
    }

    fn refusal(&self, write_point: &str) -> Option<u16> {
        self.0.lock().as_ref().filter(|(refused, _)| refused == write_point).map(|(_, code)| *code)
    }
}

struct Inner {
    random: fastrand::Rng,
    admission: Admission,
    rates: Rates,
    dead: bool,
    died: Arc<Notify>,
    requests: u64,
    sent: Arc<Notify>,
    coverage: Arc<Mutex<Coverage>>,
    watches: u64,
    /// The resources that the client has watched.
    watched: BTreeSet<String>,
    /// Stalled watches: the plural of their resource, and the number of the first watch that is not stalled.
    stalled: BTreeMap<String, u64>,
    stalls_changed: Arc<Notify>,
}

#[derive(Clone, Debug)]
pub(crate) struct OpenWatch {
    resource: String,
    number: u64,
}

/// The faults of one client until it crashes. Clones share them.
#[derive(Clone)]
pub struct Faults(Arc<Mutex<Inner>>);

impl Faults {
    #[must_use]
    pub fn new(seed: u64, rates: Rates, coverage: Arc<Mutex<Coverage>>) -> Self {
        let random = fastrand::Rng::with_seed(seed);
        Self(Arc::new(Mutex::new(Inner {
            random,
            admission: Admission::default(),
            rates,
            dead: false,
            died: Arc::default(),
            requests: 0,
            sent: Arc::default(),
            coverage,
            watches: 0,
            watched: BTreeSet::new(),
            stalled: BTreeMap::new(),
            stalls_changed: Arc::default(),
        })))
    }

    /// Also refuses what this admission refuses.
    #[must_use]
    pub fn with_admission(self, admission: &Admission) -> Self {
        self.lock().admission = admission.clone();
        self
    }

    pub fn set_rates(&self, rates: Rates) {
        self.lock().rates = rates;
    }

    /// Whether the client has crashed. Then it sends and receives nothing any more.
    #[must_use]
    pub fn has_crashed(&self) -> bool {
        self.lock().dead
    }

    pub fn crash(&self) {
        let mut inner = self.lock();
        inner.dead = true;
        inner.died.notify_one();
    }

    pub async fn crashed(&self) {
        let died = self.lock().died.clone();
        if !self.has_crashed() {
            died.notified().await;
        }
    }

    #[must_use]
    pub fn requests(&self) -> u64 {
        self.lock().requests
    }

    /// Waits until the client has sent this many requests.
    pub async fn wait_for_requests(&self, count: u64) {
        let sent = self.lock().sent.clone();
        loop {
            let mut more = Box::pin(sent.notified());
            more.as_mut().enable();
            if self.requests() >= count {
                return;
            }
            more.await;
        }
    }

    pub fn for_request(&self, request: &Request<Bytes>) -> (Duration, Fault) {
        let mut guard = self.lock();
        let inner = &mut *guard;
        inner.requests += 1;
        inner.sent.notify_waiters();
        let late = inner.happens(inner.rates.late);
        let mut delay = inner.random.u64(if late { 500..3_000 } else { 0..20 });
        if late {
            inner.count("late request");
        }
        let is_write = request.method() != Method::GET;
        let mut fault = inner.choose(is_write);
        let point = is_write.then(|| write_point(request));
        let refused = point.as_ref().and_then(|point| inner.admission.refusal(point));
        if let (Some(code), Fault::None) = (refused, fault) {
            fault = Fault::Refused(code);
        }
        if fault == Fault::Delayed {
            delay = inner.random.u64(5_000..40_000);
        }
        if fault != Fault::None {
            inner.count(fault.name());
        }
        if let Some(point) = point {
            let mut coverage = inner.coverage.lock();
            if matches!(fault, Fault::CrashBefore | Fault::CrashAfter) {
                coverage.crashed_points.insert(format!("{} {point}", fault.name().replace(" a write", "")));
            }
            coverage.write_points.insert(point);
        }
        (Duration::from_millis(delay), fault)
    }

    #[must_use]
    pub fn for_watch_event(&self) -> WatchFault {
        let mut guard = self.lock();
        let inner = &mut *guard;
        if inner.happens(inner.rates.cut) {
            inner.count("watch cut");
            return WatchFault::Cut;
        }
        let late = inner.happens(inner.rates.late);
        if late {
            inner.count("late event");
        }
        WatchFault::Delay(Duration::from_millis(inner.random.u64(if late { 200..4_000 } else { 0..10 })))
    }

    /// The resources that the client has watched.
    #[must_use]
    pub fn watched(&self) -> Vec<String> {
        self.lock().watched.iter().cloned().collect()
    }

    /// Stalls the watches of a resource (`nodes`, `leases`) that the client has open now: they stay open and deliver
    /// neither events nor bookmarks, nor their end. Watches that it opens later are not stalled.
    pub fn stall_watches(&self, resource: &str) {
        let mut inner = self.lock();
        let next = inner.watches;
        inner.stalled.insert(resource.to_owned(), next);
    }

    /// Lets the stalled watches of a resource deliver what they held back.
    pub fn resume_watches(&self, resource: &str) {
        let mut inner = self.lock();
        inner.stalled.remove(resource);
        inner.stalls_changed.notify_waiters();
    }

    pub(crate) fn open_watch(&self, request: &Request<Bytes>) -> OpenWatch {
        let resource = resource_path(request).first().map(ToString::to_string).unwrap_or_default();
        let mut inner = self.lock();
        inner.watches += 1;
        inner.watched.insert(resource.clone());
        OpenWatch { resource, number: inner.watches - 1 }
    }

    /// Returns once a watch is not stalled.
    pub(crate) async fn resumed(&self, watch: &OpenWatch) {
        let changed = self.lock().stalls_changed.clone();
        loop {
            let mut resumed = Box::pin(changed.notified());
            resumed.as_mut().enable();
            let is_stalled =
                self.lock().stalled.get(&watch.resource).is_some_and(|next| watch.number < *next);
            if !is_stalled {
                return;
            }
            resumed.await;
        }
    }

    /// Counts an outcome of a fault.
    pub fn count(&self, name: &str) {
        self.lock().count(name);
    }

    /// The revision of a stale watch cache that serves a read; none if the read is consistent.
    #[must_use]
    pub fn stale_revision(&self, request: &Request<Bytes>, store: &Store) -> Option<u64> {
        let query = Query::parse(request.uri().query().unwrap_or_default());
        let may_be_old = request.method() == Method::GET && query.text("resourceVersion") == "0";
        let mut guard = self.lock();
        let inner = &mut *guard;
        if !may_be_old || query.flag("watch") || !inner.happens(inner.rates.stale) {
            return None;
        }
        inner.count("stale read");
        let behind = inner.random.u64(1..200);
        Some(store.revision().saturating_sub(behind).max(store.compacted()))
    }

    /// How long a client waits for a lost response.
    #[must_use]
    pub fn client_timeout(&self) -> Duration {
        Duration::from_millis(self.lock().random.u64(1_000..10_000))
    }

    /// The refusal of a validating admission policy, of RBAC, or of a webhook that cannot be called.
    #[must_use]
    pub fn refusal(&self, code: u16, request: &Request<Bytes>) -> ApiError {
        let name = request.uri().path().rsplit('/').next().unwrap_or_default();
        let resource = Resource::new("", "v1", write_point(request), "");
        match code {
            403 => ApiError::forbidden(&resource, name, "policy 'frozen' denied request"),
            409 => ApiError::modified(&Resource::new("", "v1", "resourcequotas", ""), "few"),
            422 => ApiError::invalid(&resource, name, &[]),
            _ => ApiError::internal("failed calling webhook \"frozen.example.com\": connection refused"),
        }
    }

    /// A conflict although the object has not changed.
    #[must_use]
    pub fn spurious_conflict(&self, request: &Request<Bytes>) -> ApiError {
        let name = request.uri().path().rsplit('/').next().unwrap_or_default();
        ApiError::modified(&Resource::new("", "v1", write_point(request), ""), name)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock()
    }
}

impl Inner {
    fn happens(&mut self, rate: u32) -> bool {
        rate > 0 && self.random.u32(0..10_000) < rate
    }

    fn choose(&mut self, is_write: bool) -> Fault {
        let Rates { refused, lost, delayed, crash, .. } = self.rates;
        let mut faults =
            vec![(Fault::TooMany, refused), (Fault::Internal, refused), (Fault::LostRequest, lost)];
        if is_write {
            faults.extend([
                (Fault::Conflict, refused),
                (Fault::LostAnswer, lost),
                (Fault::Delayed, delayed),
                (Fault::CrashBefore, crash),
                (Fault::CrashAfter, crash),
            ]);
        }
        let mut dice = self.random.u32(0..10_000);
        for (fault, rate) in faults {
            if dice < rate {
                return fault;
            }
            dice -= rate;
        }
        Fault::None
    }

    fn count(&self, fault: &str) {
        self.coverage.lock().count(fault);
    }
}

/// The segments of a path from the resource on: `pods`, a name, a subresource.
fn resource_path(request: &Request<Bytes>) -> Vec<&str> {
    let parts: Vec<&str> = request.uri().path().trim_matches('/').split('/').collect();
    let rest = match parts.as_slice() {
        ["api", _, rest @ ..] | ["apis", _, _, rest @ ..] => rest,
        _ => &[],
    };
    let in_namespace = rest.len() > 2 && rest[0] == "namespaces";
    if in_namespace { rest[2..].to_vec() } else { rest.to_vec() }
}

/// The method and resource of a write, without names.
fn write_point(request: &Request<Bytes>) -> String {
    match resource_path(request).as_slice() {
        [resource, _, part] => format!("{} {resource}/{part}", request.method()),
        [resource, ..] => format!("{} {resource}{}", request.method(), removals(request)),
        [] => request.method().to_string(),
    }
}

/// Distinguishes patches that remove something.
fn removals(request: &Request<Bytes>) -> &'static str {
    let operations: Vec<Value> = match *request.method() {
        Method::PATCH => serde_json::from_slice(request.body()).unwrap_or_default(),
        _ => Vec::new(),
    };
    if operations.iter().any(|operation| operation["op"] == "remove") { " (removal)" } else { "" }
}
