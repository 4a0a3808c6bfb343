//! A thread that makes its calls with an asynchronous client, which all threads share.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Instant;

use dunlin_fabric_shm::ShmFabric;
use dunlin_report::statistics::Latency;
use dunlin_rpc::{AsyncClient, Call};

use super::super::flow::{difference, stamp};
use super::super::peer::ECHO;

/// Unparks the thread that waits for a future.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}

/// A thread with some futures, which waits for the oldest.
pub(super) struct FuturesUser {
    client: AsyncClient<ShmFabric>,
    in_flight: usize,
    payload: Vec<u8>,
    sent: u64,
    open: VecDeque<(u64, Instant, Call<ShmFabric>)>,
    pub(super) latency: Latency,
    /// Nonzero once a response was wrong.
    pub(super) wrong: u64,
}

impl FuturesUser {
    pub(super) fn new(client: AsyncClient<ShmFabric>, in_flight: usize, size: usize) -> Self {
        let (payload, latency) = (vec![0; size], Latency::new());
        FuturesUser { client, in_flight, payload, sent: 0, open: VecDeque::new(), latency, wrong: 0 }
    }

    /// Makes calls until `over`, and returns the number of answers.
    pub(super) fn run(&mut self, over: &AtomicBool) -> Result<u64, String> {
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        let mut calls = 0;
        while !over.load(Ordering::Relaxed) {
            while self.open.len() < self.in_flight {
                stamp(&mut self.payload, self.sent);
                let start = Instant::now();
                self.open.push_back((self.sent, start, self.client.call_on(0, ECHO, &self.payload)));
                self.sent += 1;
            }
            calls += self.take(&waker)?;
        }
        while !self.open.is_empty() {
            calls += self.take(&waker)?;
        }
        Ok(calls)
    }

    fn take(&mut self, waker: &Waker) -> Result<u64, String> {
        let Some((sequence, start, mut call)) = self.open.pop_front() else { return Ok(0) };
        let answer = loop {
            match Pin::new(&mut call).poll(&mut Context::from_waker(waker)) {
                Poll::Ready(answer) => break answer.map_err(|error| error.to_string())?,
                Poll::Pending => std::thread::park(),
            }
        };
        self.latency.record(start.elapsed().as_nanos() as u64);
        self.wrong |= difference(&answer, self.payload.len(), sequence);
        Ok(1)
    }
}
