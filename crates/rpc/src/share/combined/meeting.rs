//! Golden counts of threads that meet at a queue pair: the work requests and doorbells of a round in which the leader
//! finds the calls and operations of all.
//!
//! The test holds the lead while the threads' clients leave their tickets. The counts are therefore exact, whatever
//! the time says.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use crate::client::CallId;
use crate::client::config::ClientConfig;
use crate::plan::{CompletionMode, Plan, Protocol, Sharing};
use crate::server::ServerBuilder;
use crate::service::{FunctionMode, Reply, Request};
use crate::share::{Client, Policy};
use dunlin_fabric::interpose::CountSnapshot;
use dunlin_fabric::{Access, Address, Count, Fabric, Region, Scheme};
use dunlin_fabric_sim::Sim;
use std::time::Duration;

type Counted = Count<Sim>;

const ECHO: u16 = 1;
const ALL: Access = Access::READ.with(Access::WRITE).with(Access::ATOMIC);
const THREADS: u64 = 6;

/// The submission of one thread, by its number.
type Submit = fn(&mut Client<Counted>, &crate::RemoteRegion, u64) -> CallId;

fn write(client: &mut Client<Counted>, region: &crate::RemoteRegion, thread: u64) -> CallId {
    client.submit_write(region, 64 * thread, &(thread + 1).to_le_bytes()).unwrap()
}

/// A WRITE that is too long to go inline.
fn long_write(client: &mut Client<Counted>, region: &crate::RemoteRegion, thread: u64) -> CallId {
    client.submit_write(region, 4096 * (thread + 1), &[thread as u8 + 1; 1000]).unwrap()
}

fn read(client: &mut Client<Counted>, region: &crate::RemoteRegion, thread: u64) -> CallId {
    client.submit_read(region, 64 * thread, 8).unwrap()
}

fn call(client: &mut Client<Counted>, _: &crate::RemoteRegion, thread: u64) -> CallId {
    client.submit_on(0, ECHO, &thread.to_le_bytes()).unwrap()
}

/// Operations of three kinds, and calls.
fn any(client: &mut Client<Counted>, region: &crate::RemoteRegion, thread: u64) -> CallId {
    [write, read, call][thread as usize % 3](client, region, thread)
}

/// Returns the counts of a round of each submission, which each thread makes `times` times.
fn rounds(plan: Plan, rounds: &'static [Submit], times: usize) -> Vec<CountSnapshot> {
    let counts = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let results = std::sync::Arc::clone(&counts);
    Sim::run(1, move |fabric| {
        let address = Address::new(Scheme::Sim, "meeting").unwrap();
        let memory = Region::new(fabric.register(1 << 16, ALL).unwrap());
        let server = ServerBuilder::new(&fabric)
            .function(ECHO, FunctionMode::Worker)
            .expose("all", memory.clone(), ALL)
            .serve(&address, |_| {
                Box::new(|request: &Request<'_>, reply: &mut Reply<'_>| Ok(reply.write(request.payload)?))
            })
            .unwrap();
        let fabric = Count::new(fabric);
        let config = ClientConfig { max_queue_pairs: 1, ..ClientConfig::with_plan(plan) };
        let mut first = Client::connect(&fabric, &address, config).unwrap();
        let region = first.attach("all").unwrap();
        let mut clients: Vec<_> = (0..THREADS).map(|_| first.another().unwrap()).collect();
        for submit in rounds {
            // Whatever is done once for a connection is done before.
            first.call_on(0, ECHO, b"before").unwrap();
            let Policy::Combined(seat) = &first.policy else { unreachable!("the plan combines") };
            let before = fabric.counts();
            let calls: Vec<_> = {
                let _lead = seat.strand().lead();
                let each = |(client, thread)| -> Vec<_> {
                    let client: &mut Client<Counted> = client;
                    (0..times).map(|_| submit(client, &region, thread)).collect()
                };
                clients.iter_mut().zip(0..).map(each).collect()
            };
            results.lock().unwrap().push(fabric.counts() - before);
            for (client, calls) in clients.iter_mut().zip(calls) {
                calls.into_iter().for_each(|id| drop(client.wait(id).unwrap()));
            }
        }
        drop((clients, first));
        server.shutdown(Duration::from_secs(1));
    })
    .unwrap();
    std::mem::take(&mut *counts.lock().unwrap())
}

/// WRITEs, WRITE_WITH_IMMs, SENDs, READs, doorbells.
fn posts(counts: CountSnapshot) -> [u64; 5] {
    let CountSnapshot { posted_write, posted_write_immediate, posted_send, posted_read, doorbells, .. } =
        counts;
    [posted_write, posted_write_immediate, posted_send, posted_read, doorbells]
}

#[test]
fn a_round_of_a_leader_rings_once() {
    let expected: [(&str, [[u64; 5]; 5]); 4] = [
        // Calls; WRITEs; long WRITEs; READs; two WRITEs, two READs and two calls.
        (
            "Server-reply",
            [[1, 0, 0, 0, 1], [6, 0, 0, 0, 1], [6, 0, 0, 0, 1], [0, 0, 0, 6, 1], [3, 0, 0, 2, 1]],
        ),
        (
            "Direct-WriteIMM",
            [[0, 1, 0, 0, 1], [6, 0, 0, 0, 1], [6, 0, 0, 0, 1], [0, 0, 0, 6, 1], [2, 1, 0, 2, 1]],
        ),
        (
            "Eager-SendRecv",
            [[0, 0, 1, 0, 1], [6, 0, 0, 0, 1], [6, 0, 0, 0, 1], [0, 0, 0, 6, 1], [2, 0, 1, 2, 1]],
        ),
        // A message is a WRITE and a SEND.
        (
            "Chained-Write-Send",
            [[1, 0, 1, 0, 1], [6, 0, 0, 0, 1], [6, 0, 0, 0, 1], [0, 0, 0, 6, 1], [3, 0, 1, 2, 1]],
        ),
    ];
    for (protocol, expected) in expected {
        let plan = Protocol::by_name(protocol).unwrap().plan(CompletionMode::Busy);
        let plan = Plan { sharing: Sharing::Combined, ..plan };
        let found = rounds(plan, &[call, write, long_write, read, any], 1);
        let found: Vec<_> = found.into_iter().map(posts).collect();
        assert_eq!(found, expected, "{protocol}");
    }
}

/// A list has 30 places. The lane's window has 64 calls; the others wait for answers.
#[test]
fn more_operations_than_a_list_has_places_ring_for_each_list() {
    let plan = Protocol::by_name("Server-reply").unwrap().plan(CompletionMode::Busy);
    let plan = Plan { sharing: Sharing::Combined, ..plan };
    let found: Vec<_> = rounds(plan, &[write, read], 20).into_iter().map(posts).collect();
    assert_eq!(found, [[64, 0, 0, 0, 3], [0, 0, 0, 64, 3]]);
}
