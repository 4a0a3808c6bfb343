//! Upper bound of the simulator's speed: the same closed-loop clients without Dunlin's engine, fabric or
//! faults.
//!
//! One coroutine per client and worker, a heap of events, and stages with a next-free time. A call takes four
//! events and two resumptions, and copies 32 bytes each way. The cost of a switch or a cache miss differs
//! between machines by a factor of three, so the simulator's share of this speed is a portable measure.

use crate::stacks::{SlabStack, Stacks};
use corosensei::{Coroutine, CoroutineResult, Yielder};
use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io;
use std::rc::Rc;

/// Bytes of a request and of an answer.
const PAYLOAD: usize = 32;
/// Clients per host (and NIC), and workers of the server, as in the simulator's own benchmark.
const CLIENTS_PER_HOST: usize = 40;
const WORKERS: usize = 4;
/// Bytes of a coroutine's stack.
const STACK: usize = 16 * 1024;
/// Service times in picoseconds: NIC per message, wire per message, worker and client per call.
const NIC: u64 = 20_000;
const WIRE: u64 = 600_000;
const HANDLER: u64 = 80_000;
const CLIENT: u64 = 50_000;

/// Counters of one run of the prototype.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bare {
    /// Answered calls.
    pub calls: u64,
    /// Events popped from the heap.
    pub events: u64,
    /// Coroutine resumptions.
    pub switches: u64,
    /// Virtual time of the last answer, in picoseconds.
    pub ended: u64,
}

/// A server that handles one item at a time.
#[derive(Clone, Copy, Default)]
struct Stage {
    free: u64,
}

impl Stage {
    fn serve(&mut self, at: u64, takes: u64) -> u64 {
        self.free = self.free.max(at) + takes;
        self.free
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// A request has reached the server's NIC.
    RequestArrives,
    /// A request is visible in the server's memory.
    RequestThere,
    /// An answer has reached the client's NIC.
    AnswerArrives,
    /// An answer is visible in the client's memory.
    AnswerThere,
}

/// Time, tie-breaking number, kind, client.
type Event = Reverse<(u64, u64, Kind, u32)>;
type Mailboxes = Rc<RefCell<Vec<[u8; PAYLOAD]>>>;
/// Resumed with the client's number; yields the number of the client whose message is to be sent.
type Task = Coroutine<u32, u32, (), SlabStack>;

/// Runs a closed loop with one call in flight per client until `calls` calls are answered. The result is a
/// pure function of `clients` and `calls`. Calls `began` once the set-up is complete.
///
/// # Errors
///
/// Returns the system's error if it cannot map memory for the stacks.
pub fn run(clients: usize, calls: u64, began: impl FnOnce()) -> io::Result<Bare> {
    let clients = clients.max(1);
    let stacks = Stacks::new(STACK, clients + WORKERS)?;
    let (requests, answers) = (mailboxes(clients), mailboxes(clients));
    let mut callers: Vec<Task> = (0..clients)
        .map(|number| Ok(caller(stacks.take()?, number, requests.clone(), answers.clone())))
        .collect::<io::Result<_>>()?;
    let mut workers: Vec<Task> = (0..WORKERS)
        .map(|_| Ok(worker(stacks.take()?, requests.clone(), answers.clone())))
        .collect::<io::Result<_>>()?;
    let mut nics = vec![Stage::default(); clients.div_ceil(CLIENTS_PER_HOST)];
    let (mut server, mut cores) = (Stage::default(), [Stage::default(); WORKERS]);
    let mut heap: BinaryHeap<Event> = BinaryHeap::with_capacity(clients * 2);
    let mut queues: Vec<VecDeque<u32>> = vec![VecDeque::new(); WORKERS];
    let mut bare = Bare { calls: 0, events: 0, switches: 0, ended: 0 };
    let mut number = 0;
    let mut push = |heap: &mut BinaryHeap<Event>, at: u64, kind: Kind, client: u32| {
        number += 1;
        heap.push(Reverse((at, number, kind, client)));
    };
    began();
    for client in 0..clients as u32 {
        resume(&mut callers[client as usize], client);
        bare.switches += 1;
        let sent = nics[client as usize / CLIENTS_PER_HOST].serve(0, NIC);
        push(&mut heap, sent + WIRE, Kind::RequestArrives, client);
    }
    while let Some(Reverse((now, _, kind, client))) = heap.pop() {
        bare.events += 1;
        let nic = client as usize / CLIENTS_PER_HOST;
        let at = client as usize % WORKERS;
        match kind {
            Kind::RequestArrives => push(&mut heap, server.serve(now, NIC), Kind::RequestThere, client),
            Kind::RequestThere => {
                queues[at].push_back(client);
                while let Some(next) = queues[at].pop_front() {
                    let whose = resume(&mut workers[at], next);
                    bare.switches += 1;
                    let done = cores[at].serve(now, HANDLER);
                    push(&mut heap, server.serve(done, NIC) + WIRE, Kind::AnswerArrives, whose);
                }
            }
            Kind::AnswerArrives => push(&mut heap, nics[nic].serve(now, NIC), Kind::AnswerThere, client),
            Kind::AnswerThere => {
                resume(&mut callers[client as usize], client);
                bare.switches += 1;
                bare.calls += 1;
                bare.ended = now;
                if bare.calls + clients as u64 <= calls {
                    push(&mut heap, nics[nic].serve(now + CLIENT, NIC) + WIRE, Kind::RequestArrives, client);
                }
            }
        }
    }
    Ok(bare)
}

fn mailboxes(clients: usize) -> Mailboxes {
    Rc::new(RefCell::new(vec![[0; PAYLOAD]; clients]))
}

/// Creates a client: it writes requests and checks that each answer matches the last request.
fn caller(stack: SlabStack, number: usize, requests: Mailboxes, answers: Mailboxes) -> Task {
    Coroutine::with_stack(stack, move |yielder: &Yielder<u32, u32>, _| {
        for call in 1u64.. {
            let mut request = [0; PAYLOAD];
            request[..8].copy_from_slice(&call.to_le_bytes());
            requests.borrow_mut()[number] = request;
            yielder.suspend(number as u32);
            let answer = answers.borrow()[number];
            assert_eq!(answer, request, "the answer is to the request");
        }
    })
}

/// Creates a worker that echoes requests.
fn worker(stack: SlabStack, requests: Mailboxes, answers: Mailboxes) -> Task {
    Coroutine::with_stack(stack, move |yielder: &Yielder<u32, u32>, first| {
        let mut client = first;
        loop {
            let request = requests.borrow()[client as usize];
            answers.borrow_mut()[client as usize] = request;
            client = yielder.suspend(client);
        }
    })
}

fn resume(task: &mut Task, value: u32) -> u32 {
    match task.resume(value) {
        CoroutineResult::Yield(answer) => answer,
        CoroutineResult::Return(()) => unreachable!("neither clients nor workers end"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_events_and_two_switches_a_call() {
        let bare = run(80, 10_000, || ()).expect("stacks");
        assert_eq!((bare.calls, bare.events), (10_000, 40_000));
        // Each client is resumed once before its first call and once after each answer.
        assert_eq!(bare.switches, 20_080);
        assert_eq!(run(80, 10_000, || ()).expect("stacks"), bare);
    }
}
