//! One client of a load: what it calls, when, and what it records.

use super::{Board, FIRST_FUNCTION, Load, LoadError, OPEN_WINDOW, Pace};
use crate::random_values::Skew;
use dunlin_fabric::{Address, Fabric, Host, Nanos, Signal};
use dunlin_fabric_sim::{Random, Sim};
use dunlin_rpc::{CallError, CallId, Cause, Client, ClientConfig};
use std::collections::VecDeque;
use std::sync::atomic::Ordering;

/// One client.
pub(super) struct Player {
    pub(super) sim: Sim,
    pub(super) random: Random,
    pub(super) load: Load,
    pub(super) board: Board,
    /// Which worker a call goes to, if not always to the one.
    pub(super) calls_to: Option<Skew>,
    /// Calls to make.
    pub(super) left: u64,
}

/// A call to be made.
#[derive(Clone, Copy)]
struct Next {
    worker: usize,
    /// The place of its function in the load.
    function: usize,
    bytes: usize,
}

impl Next {
    fn id(self) -> u16 {
        FIRST_FUNCTION + self.function as u16
    }
}

/// A call in flight: of which function, and since when.
type Open = (CallId, usize, Nanos);

impl Player {
    pub(super) fn play<S: Signal>(
        mut self,
        address: &Address,
        worker: Option<u16>,
        start: &S,
        news: &S,
        stop: &S,
    ) {
        let window = match self.load.pace {
            Pace::Closed { window, .. } => window.max(1),
            Pace::Open { .. } => OPEN_WINDOW,
        };
        let config = ClientConfig {
            window,
            ring_bytes: self.load.ring_bytes,
            timeout: 0,
            connect_timeout: Nanos::MAX / 8,
            max_response: self.load.largest(|function| function.results),
            large_memory: self.load.large_memory(),
            worker,
            functions: self.load.plans(),
            ..ClientConfig::with_plan(self.load.functions[0].plan)
        };
        let client = Client::connect(&self.sim, address, config);
        self.board.connected.fetch_add(1, Ordering::Relaxed);
        news.raise();
        match client {
            Ok(mut client) => {
                start.wait(0, Nanos::MAX);
                if let Err(error) = self.call_all(&mut client) {
                    self.board.fail(LoadError::Call(error));
                }
                self.board.done.fetch_add(1, Ordering::Relaxed);
                news.raise();
                stop.wait(0, Nanos::MAX);
            }
            Err(error) => {
                self.board.fail(error.into());
                self.board.done.fetch_add(1, Ordering::Relaxed);
                news.raise();
            }
        }
    }

    fn answered(&self, function: usize, since: Nanos) {
        if self.board.counting.load(Ordering::Relaxed) {
            self.board.latencies[function].record(self.sim.time().saturating_sub(since));
        }
    }

    /// Whether there is another call to make.
    fn wants(&self) -> bool {
        self.left > 0 && !self.board.over.load(Ordering::Relaxed)
    }

    /// The next call, which is made.
    fn next(&mut self) -> Next {
        self.left -= 1;
        let worker = match &self.calls_to {
            Some(skew) => skew.next(&mut self.random) as usize,
            None => 0,
        };
        let function = self.load.choose(&mut self.random);
        let bytes = self.load.functions[function].requests.next(&mut self.random) as usize;
        Next { worker, function, bytes }
    }

    fn call_all(&mut self, client: &mut Client<Sim>) -> Result<(), CallError> {
        let payload = vec![7u8; self.load.largest(|function| function.requests) as usize];
        let host = self.sim.host().clone();
        match self.load.pace {
            Pace::Closed { window: 0 | 1, think } => {
                while self.wants() {
                    let next = self.next();
                    let since = self.sim.time();
                    drop(client.call_on(next.worker, next.id(), &payload[..next.bytes])?);
                    self.answered(next.function, since);
                    let think = think.next(&mut self.random);
                    if think > 0 {
                        host.sleep(host.now() + think);
                    }
                }
            }
            Pace::Closed { window, .. } => {
                let mut open: VecDeque<Open> = VecDeque::new();
                let mut refused = None;
                while refused.is_some() || self.wants() || !open.is_empty() {
                    let next = match refused.take() {
                        None if self.wants() && open.len() < usize::from(window) => Some(self.next()),
                        other => other,
                    };
                    if let Some(call) = next {
                        match client.submit_on(call.worker, call.id(), &payload[..call.bytes]) {
                            Ok(id) => {
                                open.push_back((id, call.function, self.sim.time()));
                                continue;
                            }
                            Err(CallError::NotExecuted(Cause::WindowFull)) if !open.is_empty() => {
                                refused = next;
                            }
                            Err(error) => return Err(error),
                        }
                    }
                    if let Some((id, function, since)) = open.pop_front() {
                        drop(client.wait(id)?);
                        self.answered(function, since);
                    }
                }
            }
            Pace::Open { gaps } => {
                let mut due = self.sim.time();
                let mut open: VecDeque<Open> = VecDeque::new();
                while self.wants() {
                    due += gaps.next(&mut self.random);
                    // Until then answers are taken; a sleep of the whole gap would leave them lying.
                    while self.sim.time() < due {
                        client.progress();
                        self.take_done(client, &mut open)?;
                        let left = due.saturating_sub(self.sim.time());
                        host.sleep(host.now() + left.min(1_000));
                    }
                    let next = self.next();
                    loop {
                        match client.submit_on(next.worker, next.id(), &payload[..next.bytes]) {
                            Ok(id) => break open.push_back((id, next.function, due)),
                            Err(CallError::NotExecuted(Cause::WindowFull)) => {
                                let Some((id, function, since)) = open.pop_front() else { continue };
                                drop(client.wait(id)?);
                                self.answered(function, since);
                            }
                            Err(error) => return Err(error),
                        }
                    }
                }
                while let Some((id, function, since)) = open.pop_front() {
                    drop(client.wait(id)?);
                    self.answered(function, since);
                }
            }
        }
        Ok(())
    }

    fn take_done(&self, client: &mut Client<Sim>, open: &mut VecDeque<Open>) -> Result<(), CallError> {
        while let Some(&(id, function, since)) = open.front() {
            if !client.is_done(id) {
                break;
            }
            open.pop_front();
            drop(client.wait(id)?);
            self.answered(function, since);
        }
        Ok(())
    }
}
