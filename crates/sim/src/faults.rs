//! What goes wrong between a client and the server, all of it from one seed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request};
use serde_json::Value;
use tokio::sync::Notify;

use crate::api::Query;
use crate::api::status::ApiError;
use crate::resource::Resource;
use crate::store::Store;

/// What happens to one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    None,
    /// 409, though nothing changed.
    Conflict,
    /// 429 with a Retry-After.
    TooMany,
    /// 500, not applied.
    Internal,
    /// It never arrives.
    LostRequest,
    /// It arrives, its answer does not.
    LostAnswer,
    /// It arrives long after its client gave up, and whoever leads by then.
    Delayed,
    /// The client dies before it arrives.
    CrashBefore,
    /// The client dies after it arrived.
    CrashAfter,
}

impl Fault {
    /// For the trace and the report; empty where nothing happens.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Conflict => "409",
            Self::TooMany => "429",
            Self::Internal => "500",
            Self::LostRequest => "timeout, not landed",
            Self::LostAnswer => "timeout, landed",
            Self::Delayed => "write held back",
            Self::CrashBefore => "crash before a write",
            Self::CrashAfter => "crash after a write",
        }
    }
}

/// What happens to one line of a watch.
#[derive(Clone, Copy, Debug)]
pub enum WatchFault {
    /// It comes, this much later.
    Delay(Duration),
    /// The watch ends before it.
    Cut,
}

/// How often things go wrong, out of 10,000.
#[derive(Clone, Copy, Debug)]
pub struct Rates {
    /// 409, 429 and 500 each, of all requests.
    pub refused: u32,
    /// Requests and answers lost, each.
    pub lost: u32,
    /// Writes that are held back until their client's lease may be over, of all writes.
    pub delayed: u32,
    /// Crashes before and after a write, each, of all writes.
    pub crash: u32,
    /// Watches cut, of all their lines.
    pub cut: u32,
    /// Lines and requests that are seconds late instead of milliseconds.
    pub late: u32,
    /// Reads that allow it and are answered from a cache that is behind.
    pub stale: u32,
}

impl Rates {
    /// Enough for every run of ten minutes to meet every fault that its requests allow.
    pub const CHAOS: Self =
        Self { refused: 150, lost: 100, delayed: 50, crash: 200, cut: 300, late: 800, stale: 5_000 };
    /// Nothing goes wrong.
    pub const NONE: Self = Self { refused: 0, lost: 0, delayed: 0, crash: 0, cut: 0, late: 0, stale: 0 };
}

/// What was met so far, over all clients of a run and over all runs of a sweep.
#[derive(Clone, Debug, Default)]
pub struct Coverage {
    /// How often each fault observations.
    pub faults: BTreeMap<String, u64>,
    /// The registry of writes that were made.
    pub write_points: BTreeSet<String>,
    /// The registry of writes around which a client crashed.
    pub crashed_points: BTreeSet<String>,
    /// How often each invariant was checked.
    pub checks: BTreeMap<&'static str, u64>,
    /// How often name the scenario finds worth counting came about.
    pub observations: BTreeMap<&'static str, u64>,
}

impl Coverage {
    /// Counts a fault.
    pub fn count(&mut self, fault: &str) {
        *self.faults.entry(fault.to_owned()).or_default() += 1;
    }

    /// Adds name another run met.
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

struct Inner {
    random: fastrand::Rng,
    rates: Rates,
    dead: bool,
    died: Arc<Notify>,
    requests: u64,
    sent: Arc<Notify>,
    coverage: Arc<Mutex<Coverage>>,
    watches: u64,
    /// Stalled watches: the plural of their resource, and the number of the first watch that is not stalled.
    stalled: BTreeMap<String, u64>,
    stalls_changed: Arc<Notify>,
}

/// An open watch of a client.
#[derive(Clone, Debug)]
pub(crate) struct OpenWatch {
    resource: String,
    number: u64,
}

/// The faults of one client, from its birth to its crash. Clones share them.
#[derive(Clone)]
pub struct Faults(Arc<Mutex<Inner>>);

impl Faults {
    /// Faults at these rates, from a seed.
    #[must_use]
    pub fn new(seed: u64, rates: Rates, coverage: Arc<Mutex<Coverage>>) -> Self {
        let random = fastrand::Rng::with_seed(seed);
        Self(Arc::new(Mutex::new(Inner {
            random,
            rates,
            dead: false,
            died: Arc::default(),
            requests: 0,
            sent: Arc::default(),
            coverage,
            watches: 0,
            stalled: BTreeMap::new(),
            stalls_changed: Arc::default(),
        })))
    }

    /// From now on things go wrong at other rates.
    pub fn set_rates(&self, rates: Rates) {
        self.lock().rates = rates;
    }

    /// Whether the client crashed: then nothing of it comes through any more.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.lock().dead
    }

    /// Kills the client.
    pub fn crash(&self) {
        let mut inner = self.lock();
        inner.dead = true;
        inner.died.notify_one();
    }

    /// Waits for the crash.
    pub async fn crashed(&self) {
        let died = self.lock().died.clone();
        if !self.is_dead() {
            died.notified().await;
        }
    }

    /// How many requests the client sent.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.lock().requests
    }

    /// Waits until the client sent so many.
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

    /// The delay and the fault of the next request.
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
        let fault = inner.choose(is_write);
        if fault == Fault::Delayed {
            delay = inner.random.u64(5_000..40_000);
        }
        if fault != Fault::None {
            inner.count(fault.name());
        }
        if is_write {
            let point = write_point(request);
            let mut coverage = inner.coverage.lock().unwrap_or_else(PoisonError::into_inner);
            if matches!(fault, Fault::CrashBefore | Fault::CrashAfter) {
                coverage.crashed_points.insert(format!("{} {point}", fault.name().replace(" a write", "")));
            }
            coverage.write_points.insert(point);
        }
        (Duration::from_millis(delay), fault)
    }

    /// What happens to the next line of a watch.
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

    /// Counts what became of something that observations to a request.
    pub fn count(&self, name: &str) {
        self.lock().count(name);
    }

    /// How far the cache has come that answers a read which may be old, if it is behind.
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

    /// How long a client waits for an answer that does not come.
    #[must_use]
    pub fn client_timeout(&self) -> Duration {
        Duration::from_millis(self.lock().random.u64(1_000..10_000))
    }

    /// The answer to a write that lost against nobody.
    #[must_use]
    pub fn spurious_conflict(&self, request: &Request<Bytes>) -> ApiError {
        let name = request.uri().path().rsplit('/').next().unwrap_or_default();
        ApiError::modified(&Resource::new("", "v1", write_point(request), ""), name)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
        self.coverage.lock().unwrap_or_else(PoisonError::into_inner).count(fault);
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

/// The kind of a write: method and resource, without names.
fn write_point(request: &Request<Bytes>) -> String {
    match resource_path(request).as_slice() {
        [resource, _, part] => format!("{} {resource}/{part}", request.method()),
        [resource, ..] => format!("{} {resource}{}", request.method(), removals(request)),
        [] => request.method().to_string(),
    }
}

/// Tells a patch that takes something away from one that does not: they are different writes.
fn removals(request: &Request<Bytes>) -> &'static str {
    let operations: Vec<Value> = match *request.method() {
        Method::PATCH => serde_json::from_slice(request.body()).unwrap_or_default(),
        _ => Vec::new(),
    };
    if operations.iter().any(|operation| operation["op"] == "remove") { " (removal)" } else { "" }
}
