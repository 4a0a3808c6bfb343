//! Asynchronous events of a device: its port went down or came up, or the device or one of its objects
//! failed. The control thread takes them and notifies the domains, which break the affected queue pairs.

use crate::domain_waiter::DomainWaiter;
use crate::sys;
use dunlin_fabric_control::{Flag, LinkEvents, lock};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// The object of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Object {
    /// By its number on the device.
    QueuePair(u32),
    /// By its address in the library.
    CompletionQueue(usize),
    /// By its address in the library.
    SharedReceiveQueue(usize),
}

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// The port is down.
    PortDown(u8),
    /// The port is up again.
    PortUp(u8),
    /// The device, and every object of it, is unusable.
    DeviceFailed,
    /// This object is unusable.
    Broken(Object, &'static str),
    /// An event that needs no action; the value is its kind.
    Other(u32),
}

impl Event {
    /// Decodes an event of the library.
    ///
    /// # Safety
    /// The library must have returned the event, and it must not be acknowledged yet, so that its element is
    /// alive.
    pub(crate) unsafe fn read(raw: &sys::AsyncEvent) -> Self {
        let element = raw.element;
        // SAFETY: events of these kinds have a queue pair as their element, which is alive until they are
        // acknowledged.
        let queue_pair = || Object::QueuePair(unsafe { (*element.cast::<sys::QueuePair>()).number });
        // For events of ports, the C union holds an `int` here.
        let port = (element as usize & 0xff) as u8;
        match raw.kind {
            sys::EVENT_COMPLETION_QUEUE_ERROR => Event::Broken(
                Object::CompletionQueue(element as usize),
                "a completion queue overflowed or failed",
            ),
            sys::EVENT_QUEUE_PAIR_FATAL => Event::Broken(queue_pair(), "a queue pair failed"),
            sys::EVENT_QUEUE_PAIR_REQUEST_ERROR => {
                Event::Broken(queue_pair(), "the peer sent what its queue pair may not send")
            }
            sys::EVENT_QUEUE_PAIR_ACCESS_ERROR => {
                Event::Broken(queue_pair(), "the peer touched memory that it may not touch")
            }
            sys::EVENT_SHARED_RECEIVE_ERROR => {
                Event::Broken(Object::SharedReceiveQueue(element as usize), "a shared receive queue failed")
            }
            sys::EVENT_DEVICE_FATAL => Event::DeviceFailed,
            sys::EVENT_PORT_ACTIVE => Event::PortUp(port),
            sys::EVENT_PORT_ERROR => Event::PortDown(port),
            kind => Event::Other(kind),
        }
    }
}

#[derive(Debug)]
struct Watched {
    broken: Weak<Flag>,
    attention: Weak<DomainWaiter>,
}

/// The health of a device, and the subscribers to the failure of its objects.
#[derive(Debug, Default)]
pub(crate) struct Health {
    failed: AtomicBool,
    port_down: AtomicBool,
    watched: Mutex<BTreeMap<Object, Watched>>,
}

impl Health {
    /// Returns whether the device has failed for good.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// Returns whether its port is down.
    pub(crate) fn is_port_down(&self) -> bool {
        self.port_down.load(Ordering::Acquire)
    }

    /// Records the state of the port.
    pub(crate) fn set_port_down(&self, down: bool) {
        self.port_down.store(down, Ordering::Release);
    }

    /// Subscribes: when the object breaks, the flag is raised and the domain notified, until
    /// [`forget`](Health::forget).
    pub(crate) fn watch(&self, object: Object, broken: &Arc<Flag>, attention: &Arc<DomainWaiter>) {
        let watched = Watched { broken: Arc::downgrade(broken), attention: Arc::downgrade(attention) };
        lock(&self.watched).insert(object, watched);
    }

    /// Removes a subscription.
    pub(crate) fn forget(&self, object: Object) {
        lock(&self.watched).remove(&object);
    }

    /// Reports that an object is broken.
    pub(crate) fn break_one(&self, object: Object) {
        if let Some(watched) = lock(&self.watched).get(&object) {
            watched.tell();
        }
    }

    /// Reports that the device, and thus every object, has failed.
    pub(crate) fn fail(&self) {
        self.failed.store(true, Ordering::Release);
        lock(&self.watched).values().for_each(Watched::tell);
    }
}

impl Watched {
    fn tell(&self) {
        if let Some(broken) = self.broken.upgrade() {
            broken.raise();
        }
        if let Some(attention) = self.attention.upgrade() {
            attention.tell_news();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read_as_the_library_gives_them() {
        let mut queue_pair = sys::QueuePair::of_number(77);
        let event = |kind, element| {
            // SAFETY: the elements are queue pairs where the kind says so.
            unsafe { Event::read(&sys::AsyncEvent { element, kind }) }
        };
        let pair = (&raw mut queue_pair).cast();
        for kind in [
            sys::EVENT_QUEUE_PAIR_FATAL,
            sys::EVENT_QUEUE_PAIR_REQUEST_ERROR,
            sys::EVENT_QUEUE_PAIR_ACCESS_ERROR,
        ] {
            assert!(matches!(event(kind, pair), Event::Broken(Object::QueuePair(77), _)));
        }
        let queue = std::ptr::without_provenance_mut(0x1234_5678);
        assert!(matches!(
            event(sys::EVENT_COMPLETION_QUEUE_ERROR, queue),
            Event::Broken(Object::CompletionQueue(0x1234_5678), _)
        ));
        assert!(matches!(
            event(sys::EVENT_SHARED_RECEIVE_ERROR, queue),
            Event::Broken(Object::SharedReceiveQueue(0x1234_5678), _)
        ));
        // The bytes above the `int` of the union are arbitrary.
        let port = std::ptr::without_provenance_mut(0xdead_0000_0002);
        assert_eq!(event(sys::EVENT_PORT_ERROR, port), Event::PortDown(2));
        assert_eq!(event(sys::EVENT_PORT_ACTIVE, port), Event::PortUp(2));
        assert_eq!(event(sys::EVENT_DEVICE_FATAL, port), Event::DeviceFailed);
        assert_eq!(event(18, port), Event::Other(18));
    }

    #[test]
    fn what_breaks_is_flagged_until_it_is_forgotten() {
        let health = Health::default();
        let flags: Vec<Arc<Flag>> = (0..3).map(|_| Arc::default()).collect();
        let objects = [Object::QueuePair(1), Object::CompletionQueue(1), Object::SharedReceiveQueue(1)];
        for (object, flag) in objects.iter().zip(&flags) {
            let watched = Watched { broken: Arc::downgrade(flag), attention: Weak::new() };
            lock(&health.watched).insert(*object, watched);
        }
        health.break_one(Object::QueuePair(2));
        health.break_one(objects[1]);
        assert_eq!([false, true, false], [0, 1, 2].map(|at| flags[at].is_raised()));
        health.forget(objects[2]);
        health.fail();
        assert_eq!([true, true, false], [0, 1, 2].map(|at| flags[at].is_raised()));
        assert!(health.has_failed() && !health.is_port_down());
    }
}
