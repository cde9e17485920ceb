//! A network that remembers what the API server said about Services, for a process that runs the checks again and again:
//! a run then sends one request to the API server, that of the check `api`.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::Value;
use tokio::time::Instant;
use url::Url;

use super::{Answer, Environment, Net, NetError, Packets, Server};

/// Answers of the API server about Services and their endpoints.
#[derive(Debug)]
pub struct Answers {
    valid_for: Duration,
    by_path: Mutex<BTreeMap<String, (Instant, Answer)>>,
    used: AtomicBool,
}

impl Answers {
    /// Answers are used again for so long.
    #[must_use]
    pub fn new(valid_for: Duration) -> Self {
        Self { valid_for, by_path: Mutex::default(), used: AtomicBool::new(false) }
    }

    /// Forgets all answers.
    pub(crate) fn clear(&self) {
        self.by_path.lock().clear();
    }

    /// Whether an answer was used again since the last call.
    pub(crate) fn take_used(&self) -> bool {
        self.used.swap(false, Relaxed)
    }

    fn get(&self, path: &str) -> Option<Answer> {
        let mut by_path = self.by_path.lock();
        by_path.retain(|_, (at, _)| at.elapsed() < self.valid_for);
        let (_, answer) = by_path.get(path)?;
        self.used.store(true, Relaxed);
        Some(answer.clone())
    }
}

/// A network that uses answers again.
pub(crate) struct Remembered<'a, N> {
    pub(crate) net: &'a N,
    pub(crate) answers: &'a Answers,
}

impl<N: Net> Net for Remembered<'_, N> {
    fn environment(&self) -> Environment {
        self.net.environment()
    }

    fn clock(&self) -> Duration {
        self.net.clock()
    }

    async fn resolve(&self, name: &str) -> Result<Vec<IpAddr>, NetError> {
        self.net.resolve(name).await
    }

    async fn resolve_at(&self, server: Server, name: &str) -> Result<Vec<IpAddr>, NetError> {
        self.net.resolve_at(server, name).await
    }

    async fn connect(&self, host: &str, port: u16) -> Result<(), NetError> {
        self.net.connect(host, port).await
    }

    async fn connect_pod(&self, pod: SocketAddr) -> Result<(), NetError> {
        self.net.connect_pod(pod).await
    }

    async fn api(&self, path: &str, body: Option<&Value>) -> Result<Answer, NetError> {
        if body.is_some() {
            return self.net.api(path, body).await;
        }
        if let Some(answer) = self.answers.get(path) {
            return Ok(answer);
        }
        let answer = self.net.api(path, None).await?;
        if answer.status == 200 {
            self.answers.by_path.lock().insert(path.to_owned(), (Instant::now(), answer.clone()));
        }
        Ok(answer)
    }

    async fn bulk(&self, packets: Packets, bytes: usize) -> Result<(), NetError> {
        self.net.bulk(packets, bytes).await
    }

    async fn get(&self, url: &Url, ca_file: Option<&str>) -> Result<u16, NetError> {
        self.net.get(url, ca_file).await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use nodekeeper_core::checks::Assignment;
    use nodekeeper_core::report::Verdict;

    use super::*;
    use crate::net::fake::{Fake, answer};
    use crate::run_again;

    const TEN_MINUTES: Duration = Duration::from_mins(10);

    #[tokio::test(start_paused = true)]
    async fn a_run_that_follows_another_sends_one_request() {
        let (asked, posted) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let net = Fake::new().on_api(|_, body| {
            (if body.is_some() { &posted } else { &asked }).fetch_add(1, Relaxed);
            (200, answer(&[("10.0.0.1", "n1", "a"), ("10.0.0.2", "n2", "b")]))
        });
        let answers = Answers::new(TEN_MINUTES);
        let run = async || run_again(&net, &Assignment::default(), &answers, &|_| {}).await.verdict;
        let counts = || (asked.load(Relaxed), posted.load(Relaxed));
        assert_eq!(run().await, Verdict::Passed);
        let (first, _) = counts();
        assert!(first > 0);
        assert_eq!((run().await, counts()), (Verdict::Passed, (first, 2)));
        tokio::time::advance(TEN_MINUTES).await;
        assert_eq!(
            (run().await, counts()),
            (Verdict::Passed, (first * 2, 3)),
            "answers do not hold for ever"
        );
    }

    /// Pods move: what is remembered of them must never fail a node.
    #[tokio::test(start_paused = true)]
    async fn a_run_that_fails_on_remembered_answers_asks_again() {
        let moved = AtomicBool::new(false);
        let net = Fake::new()
            .on_api(|_, _| {
                let pod = if moved.load(Relaxed) { "10.0.0.9" } else { "10.0.0.1" };
                (200, answer(&[(pod, "n1", "a")]))
            })
            .on_pods(|pod| {
                let lives = (pod.ip().to_string() == "10.0.0.9") == moved.load(Relaxed);
                Some(if lives { Ok(()) } else { Err(NetError::Refused) })
            });
        let answers = Answers::new(TEN_MINUTES);
        let run = async || run_again(&net, &Assignment::default(), &answers, &|_| {}).await.verdict;
        assert_eq!(run().await, Verdict::Passed);
        moved.store(true, Relaxed);
        assert_eq!(run().await, Verdict::Passed, "the pods are elsewhere, and answer");
        moved.store(false, Relaxed);
        assert_eq!(run().await, Verdict::Passed);
    }
}
