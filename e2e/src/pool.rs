//! A pool of resources that the tests of one process share; each test uses one exclusively.

use std::ops::Deref;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Semaphore, SemaphorePermit};

/// At most `most` resources, each created when a test needs one and all others are in use.
///
/// Tests on a real clock mostly wait, so three at once take hardly longer than one. They need as many test threads,
/// see `xtask/src/tiers.rs`.
pub struct Pool<T> {
    slots: Semaphore,
    idle: Mutex<Vec<Arc<T>>>,
}

impl<T> Pool<T> {
    #[must_use]
    pub const fn of(most: usize) -> Self {
        Self { slots: Semaphore::const_new(most), idle: Mutex::new(Vec::new()) }
    }

    /// Waits for a free slot, and takes an idle resource or creates one.
    pub async fn take(&self, make: impl AsyncFnOnce() -> anyhow::Result<T>) -> anyhow::Result<Taken<'_, T>> {
        let slot = self.slots.acquire().await?;
        let idle = self.idle().pop();
        let one = match idle {
            Some(one) => one,
            None => Arc::new(make().await?),
        };
        Ok(Taken { one, pool: self, _slot: slot })
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Arc<T>>> {
        self.idle.lock()
    }
}

/// A resource for one test. Dropping it returns it to the pool before the slot is freed.
pub struct Taken<'a, T> {
    one: Arc<T>,
    pool: &'a Pool<T>,
    _slot: SemaphorePermit<'a>,
}

impl<T> Drop for Taken<'_, T> {
    fn drop(&mut self) {
        self.pool.idle().push(self.one.clone());
    }
}

impl<T> Deref for Taken<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.one
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures::future::try_join_all;
    use tokio::task::yield_now;

    use super::*;

    #[tokio::test]
    async fn no_more_are_made_than_there_is_room_for_and_each_serves_one() {
        let (pool, made) = (Pool::of(2), AtomicUsize::new(0));
        let test = async || {
            let make = async || {
                yield_now().await;
                made.fetch_add(1, Ordering::SeqCst);
                Ok(AtomicUsize::new(0))
            };
            let taken = pool.take(make).await?;
            let others = taken.fetch_add(1, Ordering::SeqCst);
            yield_now().await;
            taken.fetch_sub(1, Ordering::SeqCst);
            anyhow::Ok(others)
        };
        let others = try_join_all((0..9).map(|_| test())).await.expect("all got one");
        assert_eq!((others, made.load(Ordering::SeqCst)), (vec![0; 9], 2));
    }

    #[tokio::test]
    async fn what_could_not_be_made_is_tried_again() {
        let pool = Pool::of(1);
        assert!(pool.take(async || anyhow::bail!("no")).await.is_err());
        assert_eq!(*pool.take(async || Ok(7)).await.expect("it is made"), 7);
    }
}
