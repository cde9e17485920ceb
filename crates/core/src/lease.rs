//! Leader election. Times are durations on the local monotonic clock: no wall clock is trusted.

use std::time::Duration;

/// The longest lease duration of another holder that is respected.
const MAX_LEASE_DURATION: Duration = Duration::from_mins(2);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Other candidates wait so long after they observed the last renewal.
    pub lease_duration: Duration,
    /// The leader starts no write later than this after it *sent* the last successful renewal. The difference to
    /// `lease_duration` covers writes in flight and clock drift.
    pub renew_deadline: Duration,
    /// The time between two attempts to acquire or renew.
    pub retry_period: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self { lease_duration: seconds(15), renew_deadline: seconds(10), retry_period: seconds(2) }
    }
}

/// A trimmed view of a Lease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaseState {
    /// Empty if the lease was released.
    pub holder_identity: String,
    /// Opaque: only whether it changes matters.
    pub renew_time: String,
    pub lease_duration: Duration,
}

/// What to do with the lease now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseAction {
    /// There is no lease.
    Create,
    /// The lease was released or has expired.
    Acquire,
    /// This candidate holds the lease.
    Renew,
    /// Another candidate holds the lease.
    Wait,
}

/// One participant in the leader election.
#[derive(Clone, Debug)]
pub struct Candidate {
    identity: String,
    timing: Timing,
    /// The last observed lease, and when it was first observed in this form.
    observed: Option<(LeaseState, Duration)>,
    /// When the last successful renewal was sent.
    renewed: Option<Duration>,
}

impl Candidate {
    /// The identity must never be used twice: a restarted process needs another one.
    #[must_use]
    pub fn new(identity: String, timing: Timing) -> Self {
        Self { identity, timing, observed: None, renewed: None }
    }

    #[must_use]
    pub fn identity(&self) -> &str {
        &self.identity
    }

    #[must_use]
    pub fn timing(&self) -> Timing {
        self.timing
    }

    /// Decides about the lease as it was just read.
    pub fn observe(&mut self, lease: Option<&LeaseState>, now: Duration) -> LeaseAction {
        let Some(lease) = lease else { return self.observe_missing(now) };
        if self.observed.as_ref().is_none_or(|(observed, _)| observed != lease) {
            self.observed = Some((lease.clone(), now));
        }
        if lease.holder_identity == self.identity {
            return LeaseAction::Renew;
        }
        let since = self.observed.as_ref().map_or(now, |(_, since)| *since);
        let expiry = self.expiry(lease);
        if lease.holder_identity.is_empty() || now.saturating_sub(since) >= expiry {
            LeaseAction::Acquire
        } else {
            LeaseAction::Wait
        }
    }

    /// The lease was deleted, or never existed. A holder of a deleted lease may not know yet, and still write.
    fn observe_missing(&self, now: Duration) -> LeaseAction {
        match &self.observed {
            Some((lease, since))
                if !lease.holder_identity.is_empty()
                    && lease.holder_identity != self.identity
                    && now.saturating_sub(*since) < self.expiry(lease) =>
            {
                LeaseAction::Wait
            }
            _ => LeaseAction::Create,
        }
    }

    /// When the observed lease of another holder expires, if it is not renewed before.
    #[must_use]
    pub fn expires_at(&self) -> Option<Duration> {
        let (lease, since) = self.observed.as_ref()?;
        let is_foreign = !lease.holder_identity.is_empty() && lease.holder_identity != self.identity;
        is_foreign.then(|| *since + self.expiry(lease))
    }

    /// The time after which the lease expires: the holder's duration, but at least this candidate's own, and at most
    /// [`MAX_LEASE_DURATION`].
    fn expiry(&self, lease: &LeaseState) -> Duration {
        lease
            .lease_duration
            .clamp(self.timing.lease_duration, self.timing.lease_duration.max(MAX_LEASE_DURATION))
    }

    /// Records that a write of the lease succeeded that was sent at this time.
    pub fn record_renewal(&mut self, sent: Duration) {
        self.renewed = Some(sent);
    }

    /// Records that another candidate holds the lease, or that this one released it.
    pub fn record_loss(&mut self) {
        self.renewed = None;
    }

    /// The time before which this candidate may start a write; none if it does not lead.
    #[must_use]
    pub fn write_deadline(&self) -> Option<Duration> {
        self.renewed.map(|sent| sent + self.timing.renew_deadline)
    }

    /// Whether this candidate may start a write now.
    #[must_use]
    pub fn may_write(&self, now: Duration) -> bool {
        self.write_deadline().is_some_and(|deadline| now < deadline)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn lease_of(holder_identity: &str, renewed: &str) -> LeaseState {
        LeaseState {
            holder_identity: holder_identity.into(),
            renew_time: renewed.into(),
            lease_duration: at(15),
        }
    }

    fn candidate() -> Candidate {
        Candidate::new("us".into(), Timing::default())
    }

    #[test]
    fn a_lease_is_created_acquired_renewed_or_left() {
        let mut us = candidate();
        assert_eq!(us.observe(None, at(0)), LeaseAction::Create);
        assert_eq!(us.observe(Some(&lease_of("", "1")), at(0)), LeaseAction::Acquire);
        assert_eq!(us.observe(Some(&lease_of("us", "2")), at(0)), LeaseAction::Renew);
        assert_eq!(us.observe(Some(&lease_of("them", "3")), at(0)), LeaseAction::Wait);
    }

    #[test]
    fn a_lease_expires_after_its_last_observed_renewal() {
        let mut us = candidate();
        assert_eq!(us.observe(Some(&lease_of("them", "1")), at(100)), LeaseAction::Wait);
        assert_eq!(us.observe(Some(&lease_of("them", "2")), at(114)), LeaseAction::Wait);
        assert_eq!(us.observe(Some(&lease_of("them", "2")), at(128)), LeaseAction::Wait);
        assert_eq!(us.expires_at(), Some(at(129)));
        assert_eq!(us.observe(Some(&lease_of("them", "2")), at(129)), LeaseAction::Acquire);
    }

    #[test]
    fn a_deleted_lease_is_not_recreated_while_its_holder_may_write() {
        let mut us = candidate();
        assert_eq!(us.observe(Some(&lease_of("them", "1")), at(100)), LeaseAction::Wait);
        assert_eq!(us.observe(None, at(110)), LeaseAction::Wait);
        assert_eq!(us.observe(None, at(116)), LeaseAction::Create);
    }

    #[test]
    fn an_excessive_lease_duration_is_capped() {
        let mut us = candidate();
        let year = LeaseState { lease_duration: at(31_536_000), ..lease_of("them", "1") };
        assert_eq!(us.observe(Some(&year), at(0)), LeaseAction::Wait);
        assert_eq!(us.observe(Some(&year), at(121)), LeaseAction::Acquire);
    }

    #[test]
    fn writes_need_a_recent_renewal() {
        let mut us = candidate();
        assert!(!us.may_write(at(0)));
        us.record_renewal(at(5));
        assert!(us.may_write(at(14)) && !us.may_write(at(15)));
        us.record_loss();
        assert!(!us.may_write(at(6)));
    }

    proptest! {
        /// The leader loses its connection; another candidate observes the lease. Their clocks have any offset and drift
        /// by up to 5 %. A write of 4 s that the leader starts in time has ended when the other acquires the lease.
        #[test]
        fn two_leaders_never_write_at_once(
            sent in 0_u64..100_000,
            reached_after in 0_u64..4_000,
            observed_after in 0_u64..5_000,
            speed in 0.95_f64..1.05,
        ) {
            let mut first = Candidate::new("first".into(), Timing::default());
            first.record_renewal(Duration::from_millis(sent));
            // The first candidate's clock is real time.
            let last_begin = first.write_deadline().expect("it leads").as_secs_f64();
            let last_end = last_begin + 4.0;
            let observed = Duration::from_millis(sent + reached_after + observed_after).as_secs_f64();
            let mut other = Candidate::new("other".into(), Timing::default());
            let lease = lease_of("first", "1");
            let local = |real: f64| Duration::from_secs_f64(real * speed);
            prop_assert_eq!(other.observe(Some(&lease), local(observed)), LeaseAction::Wait);
            prop_assert_eq!(other.observe(Some(&lease), local(last_end)), LeaseAction::Wait);
        }

        /// Three candidates act at random, and their writes are delayed or lost. None may write after its own renew
        /// deadline, and none before the last write of another candidate (4 s) has ended.
        #[test]
        fn no_candidate_writes_after_its_renew_deadline(
            clocks in prop::array::uniform3((0.0_f64..1e6, 0.975_f64..1.025)),
            actions in prop::collection::vec(any_action(), 1..200),
        ) {
            let mut model = Model::new(clocks);
            for action in actions {
                model.apply(action)?;
            }
        }
    }

    #[derive(Clone, Copy, Debug)]
    enum Action {
        /// A candidate reads the lease and creates, acquires or renews it. The API server applies the write after
        /// `lands_after` seconds. `answered`: the response arrives, if it is within the timeout.
        Try {
            who: usize,
            lands_after: f64,
            answered: bool,
        },
        Lose(usize),
        /// Seconds.
        Advance(f64),
    }

    fn any_action() -> impl Strategy<Value = Action> {
        let quick = (0_usize..3, 0.0_f64..1.0, prop::bool::weighted(0.9));
        let slow = (0_usize..3, 0.0_f64..40.0, any::<bool>());
        let attempt = |(who, lands_after, answered)| Action::Try { who, lands_after, answered };
        prop_oneof![
            8 => quick.prop_map(attempt),
            2 => slow.prop_map(attempt),
            1 => (0_usize..3).prop_map(Action::Lose),
            8 => (0.0_f64..3.0).prop_map(Action::Advance),
            1 => (10.0_f64..20.0).prop_map(Action::Advance),
        ]
    }

    /// A write of the lease in flight.
    struct Sent {
        lands_at: f64,
        who: usize,
        /// When it was sent, on the sender's clock; none if no response arrives.
        answered: Option<Duration>,
        /// The version that the write is conditional on.
        over: usize,
    }

    /// A lease and its candidates. `now` is real time, in seconds.
    struct Model {
        now: f64,
        candidates: Vec<Candidate>,
        clocks: [(f64, f64); 3],
        /// The holder after each write.
        lease: Vec<usize>,
        in_flight: Vec<Sent>,
        /// When each candidate sent its last successful renewal, on its own clock.
        renewed: [Option<Duration>; 3],
        /// The latest time at which each candidate may have started a write.
        began: [Option<f64>; 3],
    }

    impl Model {
        fn new(clocks: [(f64, f64); 3]) -> Self {
            let candidate = |n: usize| Candidate::new(n.to_string(), Timing::default());
            Self {
                now: 0.0,
                candidates: (0..3).map(candidate).collect(),
                clocks,
                lease: Vec::new(),
                in_flight: Vec::new(),
                renewed: [None; 3],
                began: [None; 3],
            }
        }

        fn local(&self, who: usize) -> Duration {
            let (offset, speed) = self.clocks[who];
            Duration::from_secs_f64(offset + self.now * speed)
        }

        fn apply(&mut self, action: Action) -> Result<(), TestCaseError> {
            match action {
                Action::Try { who, lands_after, answered } => self.attempt(who, lands_after, answered),
                Action::Lose(who) => {
                    self.candidates[who].record_loss();
                    self.renewed[who] = None;
                }
                Action::Advance(seconds) => return self.advance(self.now + seconds),
            }
            self.check()
        }

        fn attempt(&mut self, who: usize, lands_after: f64, answered: bool) {
            let now = self.local(who);
            let lease =
                self.lease.last().map(|holder| lease_of(&holder.to_string(), &self.lease.len().to_string()));
            if self.candidates[who].observe(lease.as_ref(), now) == LeaseAction::Wait {
                self.candidates[who].record_loss();
                self.renewed[who] = None;
                return;
            }
            // Requests time out after 4 s.
            let answered = (answered && lands_after < 4.0).then_some(now);
            let (lands_at, over) = (self.now + lands_after, self.lease.len());
            self.in_flight.push(Sent { lands_at, who, answered, over });
        }

        fn advance(&mut self, to: f64) -> Result<(), TestCaseError> {
            self.in_flight.sort_by(|a, b| a.lands_at.total_cmp(&b.lands_at));
            while self.in_flight.first().is_some_and(|next| next.lands_at <= to) {
                let Sent { lands_at, who, answered, over } = self.in_flight.remove(0);
                self.now = lands_at;
                self.check()?;
                if over == self.lease.len() {
                    self.lease.push(who);
                    if let Some(sent) = answered {
                        self.candidates[who].record_renewal(sent);
                        self.renewed[who] = Some(sent);
                    }
                }
                self.check()?;
            }
            self.now = to;
            self.check()
        }

        fn check(&mut self) -> Result<(), TestCaseError> {
            for (who, (offset, speed)) in self.clocks.into_iter().enumerate() {
                if let Some(until) = self.candidates[who].write_deadline() {
                    let until = (until.as_secs_f64() - offset) / speed;
                    self.began[who] = Some(until.min(self.now).max(self.began[who].unwrap_or_default()));
                }
            }
            let Timing { lease_duration, renew_deadline, .. } = Timing::default();
            let skew = lease_duration.saturating_sub(renew_deadline);
            for who in (0..3).filter(|who| self.candidates[*who].may_write(self.local(*who))) {
                let (now, sent) = (self.local(who), self.renewed[who]);
                let in_time = sent.is_some_and(|sent| now < (sent + lease_duration).saturating_sub(skew));
                prop_assert!(in_time, "{who} may write at {now:?}, and sent its last renewal at {sent:?}");
                for other in (0..3).filter(|other| *other != who) {
                    let over = self.began[other].is_none_or(|began| began + 4.0 <= self.now);
                    prop_assert!(over, "{who} may write at {}, {other} at {:?}", self.now, self.began[other]);
                }
            }
            Ok(())
        }
    }
}
