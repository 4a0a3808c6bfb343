//! An executor for futures in virtual time: one task, one signal.

use dunlin_fabric::{Host, Nanos, Signal};
use dunlin_fabric_sim::{SimHost, SimSignal};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

struct Raise(SimSignal);

impl Wake for Raise {
    fn wake(self: Arc<Self>) {
        self.0.raise();
    }
}

/// Runs a future to its end on the calling task; `None` if it is not done at `until`.
pub(super) fn block_on<T>(host: &SimHost, until: Nanos, future: impl Future<Output = T>) -> Option<T> {
    let signal = host.signal();
    let waker = Waker::from(Arc::new(Raise(signal.clone())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        let seen = signal.seen();
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return Some(value);
        }
        if host.now() >= until {
            return None;
        }
        // A future that wakes itself polls; let time pass between two polls.
        if signal.seen() == seen {
            signal.wait(seen, until);
        } else {
            host.sleep(host.now() + 100);
        }
    }
}
