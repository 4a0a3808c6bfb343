//! The lock of the hub that asynchronous clients share. Its holder may use control connections, and so may
//! have to wait. A thread that finds the lock taken waits on the host's signal, not in the operating system:
//! in virtual time all tasks run on one system thread, which must not block.

use dunlin_fabric::{Fabric, Host, Nanos, Signal};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

type SignalOf<F> = <<F as Fabric>::Host as Host>::Signal;

/// A value with a lock around it.
#[derive(Debug)]
pub(crate) struct HubLock<F: Fabric, T> {
    value: Mutex<T>,
    /// The number of threads that found the lock taken.
    waiting: AtomicUsize,
    freed: SignalOf<F>,
}

/// Grants access to the value; releases the lock when dropped.
#[derive(Debug)]
pub(crate) struct HubGuard<'a, F: Fabric, T> {
    /// Dropped before `_freeing`, so that the lock is free when waiters are notified.
    held: MutexGuard<'a, T>,
    _freeing: Freeing<'a, F, T>,
}

/// Notifies the waiting threads when dropped.
#[derive(Debug)]
struct Freeing<'a, F: Fabric, T>(&'a HubLock<F, T>);

impl<F: Fabric, T> HubLock<F, T> {
    pub(crate) fn new(fabric: &F, value: T) -> Self {
        HubLock { value: Mutex::new(value), waiting: AtomicUsize::new(0), freed: fabric.host().signal() }
    }

    /// Takes the lock if it is free.
    #[inline]
    pub(crate) fn try_lock(&self) -> Option<HubGuard<'_, F, T>> {
        let held = match self.value.try_lock() {
            Ok(held) => held,
            Err(TryLockError::Poisoned(poisoned)) => PoisonError::into_inner(poisoned),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(HubGuard { held, _freeing: Freeing(self) })
    }

    /// Blocks until the lock is free, and takes it.
    pub(crate) fn lock(&self) -> HubGuard<'_, F, T> {
        self.try_lock().unwrap_or_else(|| self.lock_slowly())
    }

    #[cold]
    fn lock_slowly(&self) -> HubGuard<'_, F, T> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        loop {
            let seen = self.freed.seen();
            // The fences guarantee that this thread finds the lock free, or that its holder sees `waiting`.
            fence(Ordering::SeqCst);
            if let Some(guard) = self.try_lock() {
                self.waiting.fetch_sub(1, Ordering::Relaxed);
                return guard;
            }
            self.freed.wait(seen, Nanos::MAX);
        }
    }
}

impl<F: Fabric, T> Drop for Freeing<'_, F, T> {
    fn drop(&mut self) {
        fence(Ordering::SeqCst);
        if self.0.waiting.load(Ordering::Relaxed) > 0 {
            self.0.freed.raise();
        }
    }
}

impl<F: Fabric, T> Deref for HubGuard<'_, F, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.held
    }
}

impl<F: Fabric, T> DerefMut for HubGuard<'_, F, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.held
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dunlin_fabric_sim::Sim;
    use std::sync::Arc;

    /// The holder sleeps while other tasks wait, all on one system thread.
    #[test]
    fn in_virtual_time_a_holder_may_wait() {
        for seed in 0..20 {
            Sim::run(seed, |fabric| {
                let host = fabric.host().clone();
                let lock = Arc::new(HubLock::new(&fabric, 0u64));
                let tasks: Vec<_> = (0..5)
                    .map(|number| {
                        let (lock, own) = (Arc::clone(&lock), host.clone());
                        let body = move || {
                            for _ in 0..20 {
                                let mut value = lock.lock();
                                let before = *value;
                                own.sleep(own.now() + own.random() % 1000);
                                *value = before + 1;
                                drop(value);
                                own.sleep(own.now() + own.random() % 1000);
                            }
                        };
                        host.spawn(&format!("user-{number}"), Box::new(body)).unwrap()
                    })
                    .collect();
                tasks.into_iter().for_each(dunlin_fabric::Task::join);
                assert_eq!(*lock.lock(), 100);
            })
            .unwrap();
        }
    }
}
