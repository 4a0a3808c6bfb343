//! The mechanisms of the model: one test for each direction of an effect on rate or latency.

use dunlin_rnic_model::driver::{Connection, Outcome, Pick, Places, Signaling, Test, TestError, Thread, run};
use dunlin_rnic_model::{
    Cluster, Linked, Network, Opcode, Pages, Parameter, Profile, Request, Touch, Transport,
};

fn profile(name: &str) -> Profile {
    Profile::built_in(name).expect("built in")
}

/// The posting side.
#[derive(Clone, Copy)]
enum From {
    Server,
    Clients,
}

/// Creates a test between host 0 and `hosts` others with `connections` connections over `threads` threads.
fn test(profile: &Profile, from: From, hosts: u32, connections: u32, threads: u32) -> Test<'_> {
    let threads = (0..threads.min(connections)).map(|thread| {
        let mine = (0..connections).filter(|number| number % threads == thread);
        let connections = mine.map(|number| Connection {
            queue_pair: number,
            peer: match from {
                From::Server => 1 + number % hosts,
                From::Clients => 0,
            },
            peer_queue_pair: number,
        });
        Thread {
            host: match from {
                From::Server => 0,
                From::Clients => 1 + thread % hosts,
            },
            connections: connections.collect(),
            region: 1 << 20,
            remote: Places::Anywhere { first: 0, regions: 1, bytes: 1 << 16 },
        }
    });
    Test {
        cluster: Cluster::uniform(profile, hosts as usize + 1),
        threads: threads.collect(),
        opcode: Opcode::Write,
        transport: Transport::ReliableConnection,
        bytes: 32,
        inline: true,
        window: 16,
        signaling: Signaling::All,
        pick: Pick::Random,
        warm_up: 20_000,
        measured: 20_000,
    }
}

fn outcome(test: &Test<'_>) -> Outcome {
    run(test).expect("it can be run")
}

fn rate(test: &Test<'_>) -> f64 {
    outcome(test).rate
}

#[test]
fn queue_pairs_beyond_the_cache_slow_out_bound_writes() {
    let profile = profile("scalerpc");
    let few = rate(&test(&profile, From::Server, 11, 40, 10));
    let many = rate(&test(&profile, From::Server, 11, 400, 10));
    assert!(many < few / 3.0, "{few} to {many}");
}

#[test]
fn queue_pairs_beyond_that_cache_do_not_slow_in_bound_writes() {
    let profile = profile("scalerpc");
    let few = rate(&test(&profile, From::Clients, 11, 40, 264));
    let many = rate(&test(&profile, From::Clients, 11, 400, 264));
    assert!(many > few * 0.95, "{few} to {many}");
}

#[test]
fn datagrams_need_one_queue_pair_for_many_peers() {
    let profile = profile("scalerpc");
    let datagrams = |peers| {
        let mut test = test(&profile, From::Server, 11, peers, 10);
        for (number, thread) in test.threads.iter_mut().enumerate() {
            for connection in &mut thread.connections {
                connection.queue_pair = number as u32;
            }
        }
        rate(&Test { opcode: Opcode::Send, transport: Transport::UnreliableDatagram, ..test })
    };
    let (few, many) = (datagrams(40), datagrams(400));
    assert!(many > few * 0.95, "{few} to {many}");
}

#[test]
fn more_overlapping_fetches_soften_the_fall() {
    let serial = profile("scalerpc");
    let overlapping = serial.with(Parameter::InitiatorMissParallel, 8.0);
    let many = |profile| rate(&test(profile, From::Server, 11, 400, 10));
    assert!(many(&overlapping) > many(&serial) * 2.0);
}

#[test]
fn serving_more_queue_pairs_than_are_held_slows_reads() {
    let profile = profile("flock");
    let reads = |pairs| {
        let test = test(&profile, From::Clients, 22, pairs, pairs);
        rate(&Test { opcode: Opcode::Read, inline: false, window: 1, ..test })
    };
    assert!(reads(2816) < reads(704) * 0.7);
}

#[test]
fn more_reads_outstanding_than_are_held_fetch_their_work_requests_again() {
    let profile = profile("connect-ib");
    let reads = |window: u32| {
        let mut test = test(&profile, From::Server, 5, 28, 28);
        (test.opcode, test.inline, test.window) = (Opcode::Read, false, window);
        // Each thread READs into its own memory.
        (0..).zip(&mut test.threads).for_each(|(number, thread)| thread.region = number);
        let outcome = outcome(&test);
        (outcome.rate, outcome.counters[0].request_misses)
    };
    let (held, none) = reads(8);
    let (beyond, again) = reads(64);
    assert_eq!(none, 0, "224 of them are held");
    assert!(again > 10_000, "{again} of 20 000");
    assert!(beyond < held, "{held} to {beyond}");
}

#[test]
fn one_at_a_time_is_slower_than_many() {
    let profile = profile("scalerpc");
    let many = test(&profile, From::Server, 11, 40, 10);
    let single = Test { window: 1, ..many.clone() };
    assert!(rate(&many) > rate(&single) * 1.5);
}

#[test]
fn inline_saves_a_read_across_pcie_and_pushing_another() {
    let pushing = profile("rf-rpc");
    let fetching = pushing.with(Parameter::PushLimit, 0.0);
    let inline = Test { window: 1, ..test(&pushing, From::Server, 1, 1, 1) };
    let read = pushing.number(Parameter::DmaRead);
    let one_way = |test: &Test<'_>, reads: u64| {
        let outcome = outcome(test);
        let found = outcome.counters[0].dma_reads as f64 / outcome.counters[0].requests_out as f64;
        assert!((found - reads as f64).abs() < 0.01, "{found} reads a request");
        outcome.one_way_ns
    };
    let fastest = one_way(&inline, 0);
    for (test, reads) in [
        (Test { inline: false, ..inline.clone() }, 1),
        (Test { cluster: Cluster::uniform(&fetching, 2), ..inline.clone() }, 1),
        (Test { cluster: Cluster::uniform(&fetching, 2), inline: false, ..inline.clone() }, 2),
    ] {
        let more = one_way(&test, reads) - fastest;
        assert!((more - reads as f64 * read).abs() < 60.0, "{reads} reads take {more}");
    }
}

#[test]
fn unsignaled_work_costs_less_of_the_nic() {
    let profile = profile("connect-ib");
    // Small enough that PCIe is not the bottleneck.
    let all = Test { bytes: 16, ..test(&profile, From::Server, 5, 80, 16) };
    let few = Test { signaling: Signaling::OneIn(16), ..all.clone() };
    assert!(rate(&few) > rate(&all));
}

#[test]
fn unreliable_writes_cost_no_acknowledgements() {
    let profile = profile("connect-ib");
    let test = test(&profile, From::Server, 5, 80, 16);
    let reliable = Test { bytes: 16, signaling: Signaling::OneIn(16), ..test };
    let unreliable = Test { transport: Transport::UnreliableConnection, ..reliable.clone() };
    assert!(rate(&unreliable) > rate(&reliable) * 1.1);
}

#[test]
fn large_payloads_take_the_bandwidth_of_the_narrower_of_link_and_pcie() {
    let profile = profile("rf-rpc");
    let test = test(&profile, From::Server, 7, 28, 8);
    let bytes = 1 << 16;
    let outcome = outcome(&Test { bytes, inline: false, window: 4, measured: 4_000, ..test });
    let gbit = outcome.rate * f64::from(bytes) * 8.0 / 1e9;
    let link = profile.number(Parameter::LinkRate);
    assert!(gbit < link && gbit > link * 0.9, "{gbit} of {link}");
}

#[test]
fn a_large_message_is_not_stored_at_every_hop() {
    let profile = profile("rf-rpc");
    let bytes: u32 = 1 << 20;
    let test = test(&profile, From::Server, 1, 1, 1);
    let outcome = outcome(&Test { bytes, inline: false, window: 1, warm_up: 10, measured: 200, ..test });
    let wire_ns = f64::from(bytes) * 8.0 / profile.number(Parameter::LinkRate);
    assert!(outcome.one_way_ns > wire_ns && outcome.one_way_ns < wire_ns * 1.1, "{}", outcome.one_way_ns);
}

#[test]
fn strided_message_blocks_conflict_in_the_last_level_cache() {
    let profile = profile("scalerpc");
    let blocks = |block_bytes: u64| {
        let mut test = test(&profile, From::Clients, 11, 400, 264);
        let mut first = 0;
        for thread in &mut test.threads {
            thread.remote =
                Places::Blocks { region: 0, offset: first * 20 * block_bytes, each: 20, block_bytes };
            first += thread.connections.len() as u64;
        }
        outcome(&Test { pick: Pick::InTurn, warm_up: 40_000, ..test })
    };
    let (near, far) = (blocks(2048), blocks(8192));
    assert!(near.counters[0].line_misses * 100 < near.counters[0].line_hits, "8 000 lines are few");
    assert!(far.counters[0].line_misses > far.counters[0].line_hits, "but not if they fall into few sets");
    assert!(far.rate < near.rate / 3.0, "{} to {}", near.rate, far.rate);
}

#[test]
fn without_ddio_strides_do_not_matter() {
    let profile = profile("scalerpc").with(Parameter::CacheIoWays, 0.0);
    let mut test = test(&profile, From::Clients, 11, 40, 40);
    for (number, thread) in test.threads.iter_mut().enumerate() {
        let offset = number as u64 * 20 * 8192;
        thread.remote = Places::Blocks { region: 0, offset, each: 20, block_bytes: 8192 };
    }
    let outcome = outcome(&test);
    assert_eq!(outcome.counters[0].line_misses + outcome.counters[0].line_hits, 0);
}

#[test]
fn many_regions_and_large_regions_miss_translations() {
    let profile = profile("lite");
    let regions = |count, bytes| {
        let mut test = test(&profile, From::Server, 1, 1, 1);
        test.threads[0].remote = Places::Regions { count, bytes };
        outcome(&Test { window: 1, inline: false, bytes: 64, ..test })
    };
    let (one, many, large) = (regions(1, 4096), regions(1000, 4096), regions(1, 64 << 20));
    assert_eq!(one.counters[1].protection_misses, 0);
    assert!(many.counters[1].protection_misses > 15_000 && large.counters[1].protection_misses == 0);
    assert!(large.counters[1].translation_misses > 15_000);
    assert!(many.latency_ns > one.latency_ns + 300.0 && large.latency_ns > one.latency_ns + 300.0);
}

#[test]
fn the_pages_of_a_region_decide_how_many_translations_it_has() {
    let profile = profile("lite");
    let misses = |pages| {
        let mut network = Network::new(&Cluster::uniform(&profile, 2)).expect("a cluster");
        network.register(1, 0, pages);
        let mut at = 1_000;
        for round in 0..2 {
            for page in 0..2048 {
                let remote = Touch { region: 0, offset: page * 4096 };
                let request = Request { remote, ..write(Linked::Alone) };
                at = network.post(at, 0, 0, &request).arrives;
                at = network.arrive(at, 1, 0, &request).answer.expect("an answer") + round;
            }
        }
        network.counters(1, 0).translation_misses
    };
    // 8 MiB: 2048 pages of 4 KiB do not fit 1024 places.
    assert!(misses(Pages::Profile) > 2048);
    assert_eq!(misses(Pages::Bytes(4096)), misses(Pages::Profile));
    assert_eq!(misses(Pages::Bytes(2 << 20)), 4);
    assert_eq!(misses(Pages::Physical), 0);
}

fn write(linked: Linked) -> Request {
    Request {
        initiator: 1,
        target: 1,
        opcode: Opcode::Write,
        transport: Transport::ReliableConnection,
        bytes: 32,
        inline: true,
        signaled: true,
        linked,
        local: Touch::default(),
        remote: Touch::default(),
    }
}

#[test]
fn linked_requests_share_a_doorbell() {
    let profile = profile("rf-rpc");
    let mut network = Network::new(&Cluster::uniform(&profile, 2)).expect("a cluster");
    let first = network.post(0, 0, 0, &write(Linked::First));
    let next = network.post(0, 0, 0, &write(Linked::Next));
    assert!(next.processor < first.processor);
    assert_eq!(network.counters(0, 0).dma_reads, 2, "the list is fetched at once; and the context");
}

#[test]
fn only_reliable_requests_are_answered_and_only_receives_complete_at_the_target() {
    let profile = profile("rf-rpc");
    let mut network = Network::new(&Cluster::uniform(&profile, 2)).expect("a cluster");
    let mut go = |opcode, transport| {
        let request = Request { opcode, transport, ..write(Linked::Alone) };
        let posted = network.post(1_000, 0, 0, &request);
        let arrived = network.arrive(posted.arrives, 1, 0, &request);
        assert!(posted.arrives > 1_000 && arrived.visible > posted.arrives);
        assert_eq!(posted.sent.is_none(), arrived.answer.is_some());
        assert_eq!(arrived.receive.is_some(), opcode.takes_receive());
        if let Some(receive) = arrived.receive {
            assert!(receive > arrived.visible, "no completion before its data");
        }
        if let Some(answer) = arrived.answer {
            assert!(network.complete(answer, 0, 0, &request) > answer);
        }
    };
    go(Opcode::Write, Transport::ReliableConnection);
    go(Opcode::WriteImmediate, Transport::ReliableConnection);
    go(Opcode::Send, Transport::ReliableConnection);
    go(Opcode::Read, Transport::ReliableConnection);
    go(Opcode::Atomic, Transport::ReliableConnection);
    go(Opcode::Write, Transport::UnreliableConnection);
    go(Opcode::Send, Transport::UnreliableDatagram);
}

#[test]
fn the_same_test_gives_the_same_bits() {
    let profile = profile("connect-ib");
    let outcome = || {
        let outcome = outcome(&test(&profile, From::Server, 5, 300, 14));
        (outcome.rate.to_bits(), outcome.latency_ns.to_bits(), outcome.counters)
    };
    assert_eq!(outcome(), outcome());
}

#[test]
fn what_cannot_be_run_is_refused() {
    let profile = profile("rf-rpc");
    let good = test(&profile, From::Server, 2, 2, 2);
    let refused = |test: Test<'_>| run(&test).expect_err("it makes no sense");
    assert!(matches!(
        refused(Test { opcode: Opcode::Read, transport: Transport::UnreliableConnection, ..good.clone() }),
        TestError::Transport { .. }
    ));
    assert!(matches!(refused(Test { window: 0, ..good.clone() }), TestError::Nothing { .. }));
    assert!(matches!(refused(Test { signaling: Signaling::OneIn(1), ..good.clone() }), TestError::Signaling));
    assert!(matches!(
        refused(Test { cluster: Cluster::uniform(&profile, 2), ..good.clone() }),
        TestError::NoSuchHost { .. }
    ));
    assert!(matches!(
        refused(Test { cluster: Cluster::uniform(&profile, 0), threads: Vec::new(), ..good }),
        TestError::Nothing { .. }
    ));
    assert!(Network::new(&Cluster::uniform(&profile, 0)).is_err());
}
