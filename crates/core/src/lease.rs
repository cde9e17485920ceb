//! Who leads. Time is the local monotonic clock, as a duration since any fixed moment: nobody's wall clock is trusted.

use std::time::Duration;

/// Nobody is waited for longer, whatever the lease says.
const MAX_LEASE_DURATION: Duration = Duration::from_mins(2);

/// How long a lease lasts, and how it is renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Others wait so long after they saw the last renewal.
    pub lease_duration: Duration,
    /// The leader stops writing so long after it *sent* the last renewal that succeeded. The difference to `lease` is
    /// for writes under way and for clocks that run at different speeds.
    pub renew_deadline: Duration,
    /// The pause between tries.
    pub retry_period: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self { lease_duration: seconds(15), renew_deadline: seconds(10), retry_period: seconds(2) }
    }
}

/// A Lease object, as far as anything here is decided by it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaseState {
    /// Who holds it; nobody if empty.
    pub holder_identity: String,
    /// As it stands there. Only whether it changes matters.
    pub renew_time: String,
    /// How long the holder asks others to wait.
    pub lease_duration: Duration,
}

/// What to do about the lease now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseAction {
    /// Make it: there is none.
    Create,
    /// Take it: it is nobody's, or its holder is silent for too long.
    Acquire,
    /// Renew it: it is ours.
    Renew,
    /// Leave it to its holder_identity.
    Wait,
}

/// One candidate.
#[derive(Clone, Debug)]
pub struct Candidate {
    identity: String,
    timing: Timing,
    /// What was seen last, and when it was first seen so.
    seen: Option<(LeaseState, Duration)>,
    /// When the last renewal that succeeded was sent.
    renewed: Option<Duration>,
}

impl Candidate {
    /// A candidate that has seen nothing. An identity must never be used twice: a restarted process is another.
    #[must_use]
    pub fn new(identity: String, timing: Timing) -> Self {
        Self { identity, timing, seen: None, renewed: None }
    }

    /// Its name in the lease.
    #[must_use]
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// Its timing.
    #[must_use]
    pub fn timing(&self) -> Timing {
        self.timing
    }

    /// Says what to do about the lease as it was just read.
    pub fn observe(&mut self, lease: Option<&LeaseState>, now: Duration) -> LeaseAction {
        let Some(lease) = lease else { return self.observe_missing(now) };
        if self.seen.as_ref().is_none_or(|(seen, _)| seen != lease) {
            self.seen = Some((lease.clone(), now));
        }
        if lease.holder_identity == self.identity {
            return LeaseAction::Renew;
        }
        let since = self.seen.as_ref().map_or(now, |(_, since)| *since);
        let expiry = self.expiry(lease);
        if lease.holder_identity.is_empty() || now.saturating_sub(since) >= expiry {
            LeaseAction::Acquire
        } else {
            LeaseAction::Wait
        }
    }

    /// Somebody deleted the lease, or there never was one. Its holder may not know yet, and still write.
    fn observe_missing(&self, now: Duration) -> LeaseAction {
        match &self.seen {
            Some((held, since))
                if !held.holder_identity.is_empty()
                    && held.holder_identity != self.identity
                    && now.saturating_sub(*since) < self.expiry(held) =>
            {
                LeaseAction::Wait
            }
            _ => LeaseAction::Create,
        }
    }

    /// When the lease of another holder that was seen last expires, if it is not renewed before.
    #[must_use]
    pub fn expires_at(&self) -> Option<Duration> {
        let (lease, since) = self.seen.as_ref()?;
        let is_foreign = !lease.holder_identity.is_empty() && lease.holder_identity != self.identity;
        is_foreign.then(|| *since + self.expiry(lease))
    }

    /// As long as its holder asked for, or as long as ours: a holder that asks for nothing is not ended at once, and one
    /// that asks for a year is not waited for.
    fn expiry(&self, lease: &LeaseState) -> Duration {
        lease
            .lease_duration
            .clamp(self.timing.lease_duration, self.timing.lease_duration.max(MAX_LEASE_DURATION))
    }

    /// A write of the lease that was sent at this time succeeded.
    pub fn record_renewal(&mut self, sent: Duration) {
        self.renewed = Some(sent);
    }

    /// Somebody else has it, or we gave it back.
    pub fn record_loss(&mut self) {
        self.renewed = None;
    }

    /// Until when this candidate may begin to write.
    #[must_use]
    pub fn write_deadline(&self) -> Option<Duration> {
        self.renewed.map(|sent| sent + self.timing.renew_deadline)
    }

    /// Whether this candidate may begin a write now.
    #[must_use]
    pub fn may_write(&self, now: Duration) -> bool {
        self.write_deadline().is_some_and(|until| now < until)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn held(holder_identity: &str, renewed: &str) -> LeaseState {
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
    fn a_lease_is_made_taken_renewed_or_left() {
        let mut us = candidate();
        assert_eq!(us.observe(None, at(0)), LeaseAction::Create);
        assert_eq!(us.observe(Some(&held("", "1")), at(0)), LeaseAction::Acquire);
        assert_eq!(us.observe(Some(&held("us", "2")), at(0)), LeaseAction::Renew);
        assert_eq!(us.observe(Some(&held("them", "3")), at(0)), LeaseAction::Wait);
    }

    #[test]
    fn a_silent_holder_is_waited_for_from_when_we_saw_it_last_alive() {
        let mut us = candidate();
        assert_eq!(us.observe(Some(&held("them", "1")), at(100)), LeaseAction::Wait);
        assert_eq!(us.observe(Some(&held("them", "2")), at(114)), LeaseAction::Wait);
        assert_eq!(us.observe(Some(&held("them", "2")), at(128)), LeaseAction::Wait);
        assert_eq!(us.expires_at(), Some(at(129)));
        assert_eq!(us.observe(Some(&held("them", "2")), at(129)), LeaseAction::Acquire);
    }

    #[test]
    fn a_lease_that_vanished_is_not_made_again_while_its_holder_may_write() {
        let mut us = candidate();
        assert_eq!(us.observe(Some(&held("them", "1")), at(100)), LeaseAction::Wait);
        assert_eq!(us.observe(None, at(110)), LeaseAction::Wait);
        assert_eq!(us.observe(None, at(116)), LeaseAction::Create);
    }

    #[test]
    fn a_lease_for_a_year_is_not_waited_for() {
        let mut us = candidate();
        let year = LeaseState { lease_duration: at(31_536_000), ..held("them", "1") };
        assert_eq!(us.observe(Some(&year), at(0)), LeaseAction::Wait);
        assert_eq!(us.observe(Some(&year), at(121)), LeaseAction::Acquire);
    }

    #[test]
    fn nobody_writes_without_a_renewal_that_is_young_enough() {
        let mut us = candidate();
        assert!(!us.may_write(at(0)));
        us.record_renewal(at(5));
        assert!(us.may_write(at(14)) && !us.may_write(at(15)));
        us.record_loss();
        assert!(!us.may_write(at(6)));
    }

    proptest! {
        /// One holds the lease and loses touch with it; the other watches. Their clocks begin anywhere and run at speeds
        /// that differ by up to a twentieth. A write that the first begins, and that takes its four seconds, is over
        /// when the other may take the lease.
        #[test]
        fn two_never_write_at_once(
            sent in 0_u64..100_000,
            reached_after in 0_u64..4_000,
            seen_after in 0_u64..5_000,
            speed in 0.95_f64..1.05,
        ) {
            let mut first = Candidate::new("first".into(), Timing::default());
            first.record_renewal(Duration::from_millis(sent));
            // In real time, with the first's clock as its measure.
            let last_begin = first.write_deadline().expect("it leads").as_secs_f64();
            let last_end = last_begin + 4.0;
            let seen = Duration::from_millis(sent + reached_after + seen_after).as_secs_f64();
            let mut other = Candidate::new("other".into(), Timing::default());
            let lease = held("first", "1");
            let local = |real: f64| Duration::from_secs_f64(real * speed);
            prop_assert_eq!(other.observe(Some(&lease), local(seen)), LeaseAction::Wait);
            prop_assert_eq!(other.observe(Some(&lease), local(last_end)), LeaseAction::Wait);
        }

        /// Whatever three candidates do and whatever becomes of their writes: none may write later than the lease lasts
        /// by its own clock, less what clocks and writes under way need; and none before the last write of another,
        /// with its four seconds, is over.
        #[test]
        fn nobody_writes_past_the_end_of_its_lease(
            clocks in prop::array::uniform3((0.0_f64..1e6, 0.975_f64..1.025)),
            moves in prop::collection::vec(a_move(), 1..200),
        ) {
            let mut world = Model::new(clocks);
            for one in moves {
                world.play(one)?;
            }
        }
    }

    /// What may happen.
    #[derive(Clone, Copy, Debug)]
    enum Move {
        /// Somebody reads the lease and makes, takes or renews it. The write lands after so many seconds; whether its
        /// answer arrives, if it is still waited for then.
        Try { who: usize, lands_after: f64, answered: bool },
        /// Somebody is told that it lost the lease.
        Lose(usize),
        /// Time goes on.
        Advance(f64),
    }

    fn a_move() -> impl Strategy<Value = Move> {
        let quick = (0_usize..3, 0.0_f64..1.0, prop::bool::weighted(0.9));
        let slow = (0_usize..3, 0.0_f64..40.0, any::<bool>());
        let attempt = |(who, lands_after, answered)| Move::Try { who, lands_after, answered };
        prop_oneof![
            8 => quick.prop_map(attempt),
            2 => slow.prop_map(attempt),
            1 => (0_usize..3).prop_map(Move::Lose),
            8 => (0.0_f64..3.0).prop_map(Move::Advance),
            1 => (10.0_f64..20.0).prop_map(Move::Advance),
        ]
    }

    /// A write of the lease on its way.
    struct Sent {
        lands_at: f64,
        who: usize,
        /// By the clock of who sent it; none if no answer arrives.
        answered: Option<Duration>,
        /// The version that it was made from: it lands on no other.
        over: usize,
    }

    /// A lease, its candidates, and time as it really is, in seconds.
    struct Model {
        now: f64,
        candidates: Vec<Candidate>,
        clocks: [(f64, f64); 3],
        /// Its holder after each write.
        lease: Vec<usize>,
        under_way: Vec<Sent>,
        /// When each sent its last renewal that succeeded, by its own clock.
        renewed: [Option<Duration>; 3],
        /// When each may last have begun a write.
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
                under_way: Vec::new(),
                renewed: [None; 3],
                began: [None; 3],
            }
        }

        fn local(&self, who: usize) -> Duration {
            let (offset, speed) = self.clocks[who];
            Duration::from_secs_f64(offset + self.now * speed)
        }

        fn play(&mut self, one: Move) -> Result<(), TestCaseError> {
            match one {
                Move::Try { who, lands_after, answered } => self.attempt(who, lands_after, answered),
                Move::Lose(who) => {
                    self.candidates[who].record_loss();
                    self.renewed[who] = None;
                }
                Move::Advance(seconds) => return self.advance(self.now + seconds),
            }
            self.check()
        }

        fn attempt(&mut self, who: usize, lands_after: f64, answered: bool) {
            let now = self.local(who);
            let held =
                self.lease.last().map(|holder| held(&holder.to_string(), &self.lease.len().to_string()));
            if self.candidates[who].observe(held.as_ref(), now) == LeaseAction::Wait {
                self.candidates[who].record_loss();
                self.renewed[who] = None;
                return;
            }
            // Nobody waits longer for an answer.
            let answered = (answered && lands_after < 4.0).then_some(now);
            let (lands_at, over) = (self.now + lands_after, self.lease.len());
            self.under_way.push(Sent { lands_at, who, answered, over });
        }

        fn advance(&mut self, to: f64) -> Result<(), TestCaseError> {
            self.under_way.sort_by(|a, b| a.lands_at.total_cmp(&b.lands_at));
            while self.under_way.first().is_some_and(|next| next.lands_at <= to) {
                let Sent { lands_at, who, answered, over } = self.under_way.remove(0);
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
