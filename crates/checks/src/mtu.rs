//! `mtu`: full-size packets reach the API server.
//!
//! A bulk transfer runs in full-size packets. If there is no response, it runs over another connection in small packets:
//! if those are answered, full-size packets are lost.

use std::pin::pin;

use futures::future::{Either, select};
use nodekeeper_core::report::{Outcome, reason};
use tokio::time::{Instant, sleep_until};

use crate::net::{Net, NetError, Packets, answer_by};
use crate::run::Finding;

pub(crate) async fn check(net: &impl Net, bytes: usize, end: Instant) -> Finding {
    let send = |packets: Packets| answer_by(end, net.bulk(packets, bytes));
    let start = Instant::now();
    let full = pin!(send(Packets::Full));
    let small = pin!(async {
        // Not needed if the first transfer succeeds.
        sleep_until(start + end.saturating_duration_since(start) / 4).await;
        send(Packets::Small).await
    });
    match select(full, small).await {
        Either::Left((Ok(()), _)) => Finding::passed(format!("{bytes} bytes")),
        Either::Left((Err(error), small)) => judge(bytes, &error, &small.await),
        Either::Right((small, full)) => match full.await {
            Ok(()) => Finding::passed(format!("{bytes} bytes")),
            Err(error) => judge(bytes, &error, &small),
        },
    }
}

fn judge(bytes: usize, full: &NetError, small: &Result<(), NetError>) -> Finding {
    match (full, small) {
        (NetError::Timeout, Ok(())) => Finding::new(
            Outcome::Failed,
            reason::MTU_BLACK_HOLE,
            format!("small packets pass, {bytes} bytes in full-size packets do not: MTU black hole?"),
        ),
        (error, Ok(())) => Finding::from_error(error).inconclusive(),
        (_, Err(error)) => {
            let message = format!("small packets are not answered either: {error}");
            Finding::new(Outcome::Inconclusive, error.reason(), message)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::fake::{Fake, Reply};
    use std::time::Duration;

    async fn run(bulk: fn(Packets) -> Reply<()>) -> (Outcome, &'static str) {
        let end = Instant::now() + Duration::from_secs(10);
        let finding = check(&Fake::new().on_bulk(bulk), 32_768, end).await;
        (finding.outcome, finding.reason)
    }

    #[tokio::test(start_paused = true)]
    async fn f23_only_lost_large_packets_are_a_black_hole() {
        assert_eq!(run(|_| Some(Ok(()))).await, (Outcome::Passed, ""));
        let hole = |packets| (packets == Packets::Small).then_some(Ok(()));
        assert_eq!(run(hole).await, (Outcome::Failed, reason::MTU_BLACK_HOLE));
        assert_eq!(run(|_| None).await, (Outcome::Inconclusive, reason::TIMEOUT));
        assert_eq!(run(|_| Some(Err(NetError::Refused))).await, (Outcome::Inconclusive, reason::REFUSED));
    }

    #[tokio::test(start_paused = true)]
    async fn a_healthy_path_needs_one_transfer() {
        let only_full = |packets| {
            assert_eq!(packets, Packets::Full);
            Some(Ok(()))
        };
        assert_eq!(run(only_full).await.0, Outcome::Passed);
    }
}
