//! Wake-ups of a domain by another domain, which may belong to another fabric
//! ([`ThreadDomain::arm_other`](crate::ThreadDomain::arm_other)).

use crate::Waker;
use std::any::Any;
use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

trait Wakes: Any + Debug + Send + Sync {
    fn wake(&self);
}

impl<W: Waker> Wakes for W {
    fn wake(&self) {
        Waker::wake(self);
    }
}

/// The waker of a domain, for code that does not know the domain's fabric.
#[derive(Clone, Debug)]
pub struct AnyWaker(Arc<dyn Wakes>);

impl AnyWaker {
    /// Hides the type of a waker.
    pub fn new(waker: impl Waker) -> Self {
        AnyWaker(Arc::new(waker))
    }

    /// Makes the domain's current or next wait return. Does not block.
    pub fn wake(&self) {
        self.0.wake();
    }

    /// Returns the waker, if its type is `W`.
    pub fn of<W: Waker>(&self) -> Option<&W> {
        let any: &dyn Any = &*self.0;
        any.downcast_ref()
    }

    fn is_same(&self, other: &AnyWaker) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// The domain whose thread the next event of this domain wakes, for back-ends whose events come from several threads.
/// Costs an event one fence and one load while no domain is armed.
#[derive(Debug, Default)]
pub struct OtherDomain {
    is_armed: AtomicBool,
    waker: Mutex<Option<AnyWaker>>,
}

impl OtherDomain {
    fn waker(&self) -> MutexGuard<'_, Option<AnyWaker>> {
        self.waker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Arms: the next event wakes `other`. Returns whether that is new. Look for events afterwards.
    pub fn arm(&self, other: &AnyWaker) -> bool {
        let mut waker = self.waker();
        let is_new = !waker.as_ref().is_some_and(|waker| waker.is_same(other));
        if is_new {
            *waker = Some(other.clone());
        }
        self.is_armed.store(true, Ordering::Release);
        // Before the caller looks for events: a thread whose event it misses sees the flag.
        fence(Ordering::SeqCst);
        is_new
    }

    /// Disarms.
    pub fn disarm(&self) {
        drop(self.take());
    }

    /// Disarms, and returns the waker that was armed.
    pub fn take(&self) -> Option<AnyWaker> {
        fence(Ordering::SeqCst);
        if !self.is_armed.load(Ordering::Acquire) {
            return None;
        }
        let mut waker = self.waker();
        self.is_armed.store(false, Ordering::Release);
        waker.take()
    }

    /// Wakes the other domain's thread, if one is armed, once.
    pub fn wake(&self) {
        if let Some(waker) = self.take() {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Armed, Nanos, Wake};
    use std::sync::atomic::AtomicU32;

    #[derive(Clone, Debug, Default)]
    struct Counting(Arc<AtomicU32>);

    impl Waker for Counting {
        fn wake(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
        fn wait(&self, _: Armed, _: Nanos) -> Wake {
            Wake::Arrived
        }
    }

    #[test]
    fn an_event_wakes_the_armed_waker_once() {
        let (first, second) = (Counting::default(), Counting::default());
        let [one, two] = [&first, &second].map(|waker| AnyWaker::new(waker.clone()));
        let other = OtherDomain::default();
        other.wake();
        assert!(other.arm(&one));
        assert!(!other.arm(&one.clone()));
        other.wake();
        other.wake();
        assert!(other.arm(&one), "an event has disarmed it");
        assert!(other.arm(&two), "another waker replaces it");
        other.wake();
        other.arm(&two);
        other.disarm();
        other.wake();
        assert_eq!([&first, &second].map(|waker| waker.0.load(Ordering::Relaxed)), [1, 1]);
        assert!(one.of::<Counting>().is_some());
    }
}
