//! Which plans are legal, for all halves, completion modes and large-payload methods.

use super::*;
use dunlin_fabric::TransportSet;
use std::fmt::Write as _;

const MODES: [CompletionMode; 3] = [CompletionMode::Busy, CompletionMode::Event, CompletionMode::Adaptive];

#[test]
fn every_protocol_runs_busy_and_knows_its_name() {
    for protocol in PROTOCOLS {
        let plan = protocol.plan(CompletionMode::Busy);
        assert_eq!(plan.check(&Capabilities::EVERYTHING), Ok(()), "{}", protocol.name);
        assert_eq!(plan.protocol(), Some(protocol));
        assert_eq!(Protocol::by_name(&protocol.name.to_uppercase().replace('-', "_")), Some(protocol));
    }
    assert_eq!(Protocol::by_name("carrier-pigeon"), None);
    assert_eq!(Plan::default().check(&Capabilities::EVERYTHING), Ok(()));
}

#[test]
fn who_polls_memory_cannot_sleep() {
    for mode in [CompletionMode::Event, CompletionMode::Adaptive] {
        let plan = Plan::new(RequestHalf::Write, ResponseHalf::Send);
        assert_eq!(
            plan.completion(CompletionMode::Busy, mode).check(&Capabilities::EVERYTHING),
            Err(PlanError::SleepsOnMemory { side: "server", mode })
        );
        assert_eq!(plan.completion(mode, CompletionMode::Busy).check(&Capabilities::EVERYTHING), Ok(()));
        let plan = Plan::new(RequestHalf::Send, ResponseHalf::Write);
        assert_eq!(
            plan.completion(mode, CompletionMode::Busy).check(&Capabilities::EVERYTHING),
            Err(PlanError::SleepsOnMemory { side: "client", mode })
        );
        let plan = Plan::new(RequestHalf::WriteImm, ResponseHalf::Fetch);
        assert_eq!(
            plan.completion(mode, mode).check(&Capabilities::EVERYTHING),
            Err(PlanError::SleepsOnFetch(mode))
        );
        assert_eq!(plan.completion(CompletionMode::Busy, mode).check(&Capabilities::EVERYTHING), Ok(()));
    }
}

/// Checks every combination of halves and completion modes against the rules in DESIGN about which side may
/// sleep.
#[test]
fn every_half_says_who_may_sleep() {
    let server_may = |half: RequestHalf| !half.facts().is_polled();
    let client_may = |half: ResponseHalf| !half.facts().is_polled();
    let lossy = |request, response| Plan::new(request, response).is_lossy();
    let hybrid = |half: ResponseHalf| half.facts().is_hybrid();
    let fetched = |half: ResponseHalf| half.facts().is_fetched();
    for request in RequestHalf::ALL {
        assert_eq!(RequestHalf::from_wire(request as u8), Some(request));
        for response in ResponseHalf::ALL {
            assert_eq!(ResponseHalf::from_wire(response as u8), Some(response));
            for (client, server) in MODES.into_iter().flat_map(|c| MODES.map(|s| (c, s))) {
                let plan = Plan::new(request, response).completion(client, server);
                for large in LargePayload::ALL {
                    let past = (matches!(large, LargePayload::Write | LargePayload::Pipelined)
                        && fetched(response))
                        || (large != LargePayload::Read && hybrid(response))
                        || (large != LargePayload::Read && lossy(request, response));
                    let checked = plan.large(large, 0).check(&Capabilities::EVERYTHING);
                    assert_eq!(checked.is_ok(), plan.check(&Capabilities::EVERYTHING).is_ok() && !past);
                    assert_eq!(LargePayload::from_wire(large as u8), Some(large));
                }
                let legal = !(hybrid(response) && lossy(request, response))
                    && (client == CompletionMode::Busy || client_may(response))
                    && (server == CompletionMode::Busy || server_may(request));
                assert_eq!(plan.check(&Capabilities::EVERYTHING).is_ok(), legal, "{plan:?}");
                // A side that may not sleep polls memory for whole messages.
                let unordered = Capabilities { in_order_write: false, ..Capabilities::EVERYTHING };
                let told = client_may(response) && server_may(request) && !fetched(response);
                assert_eq!(plan.check(&unordered).is_ok(), legal && told, "{plan:?}");
            }
        }
    }
    assert_eq!(RequestHalf::from_wire(0), None);
    assert_eq!(ResponseHalf::from_wire(u8::MAX), None);
}

/// On shared memory a plain WRITE wakes its receiver, so whoever polls memory may sleep. A client that READs its
/// results still may not.
#[test]
fn where_writes_wake_who_polls_memory_may_sleep() {
    let wakes = Capabilities { write_wakes: true, ..Capabilities::EVERYTHING };
    for mode in MODES {
        for protocol in ["Server-reply", "RF-RPC"] {
            assert_eq!(Protocol::by_name(protocol).unwrap().plan(mode).check(&wakes), Ok(()), "{protocol}");
        }
        for protocol in ["Remote-fetch", "FaRM", "Pilaf"] {
            let plan = Protocol::by_name(protocol).unwrap().plan(CompletionMode::Busy);
            assert_eq!(plan.completion(CompletionMode::Busy, mode).check(&wakes), Ok(()), "{protocol}");
            let fetches = plan.completion(mode, CompletionMode::Busy).check(&wakes);
            let expected =
                if mode == CompletionMode::Busy { Ok(()) } else { Err(PlanError::SleepsOnFetch(mode)) };
            assert_eq!(fetches, expected, "{protocol}");
        }
    }
}

/// The rules on iWARP: a sleeping side is notified by SENDs, and eager fragments must not outnumber the
/// RECVs.
#[test]
fn where_sends_do_not_wait() {
    let iwarp = &Capabilities::IWARP;
    assert_eq!(Plan::default_for(iwarp).check(iwarp), Ok(()));
    assert_eq!(Plan::default_for(&Capabilities::EVERYTHING), Plan::default());
    let usual = Plan::default_for(&Capabilities::OFI);
    assert_eq!((usual.request, usual.check(&Capabilities::OFI)), (RequestHalf::Send, Ok(())));
    for mode in MODES {
        let plans = PROTOCOLS.iter().map(|row| row.plan(mode));
        let legal: Vec<_> = plans.filter(|plan| plan.check(iwarp).is_ok()).collect();
        assert!(!legal.is_empty(), "{mode}");
        for plan in legal {
            // iWARP has no immediate data, no datagrams, and wakes nobody by a WRITE.
            let (request, response) = (plan.request.facts(), plan.response.facts());
            assert!(!request.has_immediate() && !response.has_immediate() && !plan.is_lossy(), "{plan:?}");
            assert!(mode == CompletionMode::Busy || (request.is_sent() && response.is_sent()), "{plan:?}");
        }
    }
    for (request, response, refused) in [
        (RequestHalf::Write, ResponseHalf::Write, false),
        (RequestHalf::Send, ResponseHalf::Write, true),
        (RequestHalf::Write, ResponseHalf::WriteSend, true),
        (RequestHalf::WriteSendChained, ResponseHalf::Fetch, true),
    ] {
        for large in [LargePayload::Eager, LargePayload::Pipelined] {
            let plan = Plan::new(request, response).large(large, SMALL_LIMIT);
            if large == LargePayload::Pipelined && response == ResponseHalf::Fetch {
                assert_eq!(plan.check(iwarp), Err(PlanError::LargePastHybrid(large)));
                continue;
            }
            assert_eq!(plan.check(iwarp).err(), refused.then_some(PlanError::EagerPastReceives(large)));
            assert_eq!(plan.check(&Capabilities { acknowledged: true, ..iwarp.clone() }), Ok(()));
        }
    }
}

#[test]
fn what_a_fabric_lacks_is_named() {
    let write = Plan::new(RequestHalf::Write, ResponseHalf::Write);
    assert_eq!(
        write.check(&Capabilities { in_order_write: false, ..Capabilities::EVERYTHING }),
        Err(PlanError::NoOrder)
    );
    let lacks = [
        (Transport::UnreliableConnection, "unreliable connections (UC)"),
        (Transport::UnreliableDatagram, "datagrams (UD)"),
    ];
    let plans = PROTOCOLS.iter().map(|row| row.plan(CompletionMode::Busy));
    let uses = |plan: &Plan, transport| {
        plan.request.facts().transport == transport || plan.response.facts().transport == transport
    };
    for (plan, (transport, name)) in plans.flat_map(|plan| lacks.map(|lack| (plan, lack))) {
        if !uses(&plan, transport) {
            continue;
        }
        let others =
            [Transport::ReliableConnection, Transport::UnreliableConnection, Transport::UnreliableDatagram];
        let transports = others
            .into_iter()
            .filter(|other| *other != transport)
            .fold(TransportSet::NONE, TransportSet::with);
        let checked = plan.check(&Capabilities { transports, ..Capabilities::EVERYTHING });
        assert_eq!(checked, Err(PlanError::Lacks(name)));
        // A smaller MTU carries a smaller payload.
        let checked = plan.check(&Capabilities { max_datagram: 1024, ..Capabilities::EVERYTHING });
        assert_eq!(checked, Err(PlanError::OverDatagram { above: 4008, limit: 936 }));
        let less = plan.large(LargePayload::Read, 936);
        assert_eq!(less.check(&Capabilities { max_datagram: 1024, ..Capabilities::EVERYTHING }), Ok(()));
        let write = plan.large(LargePayload::Write, 936).check(&Capabilities::EVERYTHING);
        assert_eq!(write, Err(PlanError::LargeOverLossy(LargePayload::Write)));
    }
    let datagrams = Plan::new(RequestHalf::Datagram, ResponseHalf::Send);
    assert_eq!(
        datagrams.check(&Capabilities { immediate: false, ..Capabilities::EVERYTHING }),
        Err(PlanError::Lacks("immediate data"))
    );
    let immediate = Plan::new(RequestHalf::WriteImm, ResponseHalf::Send);
    assert_eq!(
        immediate.check(&Capabilities { immediate: false, ..Capabilities::EVERYTHING }),
        Err(PlanError::Lacks("immediate data"))
    );
    // A sleeping side that fills a ring of its peer has to be notified of room in it.
    for (half, client, server) in [
        (Plan::new(RequestHalf::Send, ResponseHalf::Fetch), CompletionMode::Busy, CompletionMode::Event),
        (Plan::new(RequestHalf::Write, ResponseHalf::Send), CompletionMode::Adaptive, CompletionMode::Busy),
    ] {
        let plain = Capabilities { immediate: false, ..Capabilities::EVERYTHING };
        assert_eq!(half.check(&plain), Ok(()));
        assert_eq!(half.completion(client, server).check(&plain), Err(PlanError::Lacks("immediate data")));
        assert_eq!(half.completion(client, server).check(&Capabilities::EVERYTHING), Ok(()));
    }
    for mode in MODES {
        let plan = Plan::new(RequestHalf::Send, ResponseHalf::Send).completion(mode, mode);
        let checked = plan.check(&Capabilities { events: false, ..Capabilities::EVERYTHING });
        assert_eq!(checked.is_ok(), mode == CompletionMode::Busy);
    }
    let plan = Plan { rendezvous_above: SMALL_LIMIT + 1, ..write };
    assert_eq!(plan.check(&Capabilities::EVERYTHING), Err(PlanError::RendezvousAbove(SMALL_LIMIT + 1)));
}

#[test]
fn every_policy_is_legal_with_every_protocol_and_a_slice_with_writes() {
    for plan in PROTOCOLS.iter().map(|protocol| protocol.plan(CompletionMode::Busy)) {
        for sharing in Sharing::ALL {
            let plan = plan.shared(sharing, Lease::Forever);
            assert_eq!(plan.check(&Capabilities::EVERYTHING), Ok(()));
            assert_eq!(
                plan.protocol().map(|protocol| protocol.plan(CompletionMode::Busy).request),
                Some(plan.request)
            );
            let sliced = plan.shared(sharing, Lease::Slice).check(&Capabilities::EVERYTHING);
            let is_legal = |name| plan.protocol() == Protocol::by_name(name);
            assert_eq!(sliced.is_ok(), is_legal("Server-reply") || is_legal("Direct-WriteIMM"), "{plan:?}");
        }
    }
    let plan = Plan::new(RequestHalf::Write, ResponseHalf::Write).shared(Sharing::Dedicated, Lease::Slice);
    let needs = |plan: Plan| plan.check(&Capabilities::EVERYTHING).unwrap_err().to_string();
    let text = needs(Plan { request: RequestHalf::Send, ..plan });
    let asked =
        "a lease of a slice needs requests by write or write_imm: change the plan, or use the lease forever";
    assert_eq!(text, asked);
    assert!(needs(Plan { response: ResponseHalf::Send, ..plan }).contains("answers that are written"));
    assert!(needs(plan.large(LargePayload::Write, 0)).contains("large payloads that are read"));
    let no_order = Capabilities { in_order_write: false, ..Capabilities::EVERYTHING };
    for request in [RequestHalf::Write, RequestHalf::WriteImm] {
        let error = Plan { request, ..plan }.check(&no_order).unwrap_err();
        assert!(error.to_string().contains("in the order in which they are posted"), "{error}");
    }
    // A server that sleeps is woken by immediate data, on fabrics whose WRITEs wake nobody.
    let no_wake = Capabilities { write_wakes: false, ..Capabilities::EVERYTHING };
    let asleep = |request| Plan { request, ..plan }.completion(CompletionMode::Busy, CompletionMode::Event);
    assert!(asleep(RequestHalf::Write).check(&no_wake).is_err());
    assert_eq!(asleep(RequestHalf::WriteImm).check(&no_wake), Ok(()));
}

#[test]
fn policies_and_leases_have_one_number_and_one_name() {
    for number in 0..=u8::MAX {
        let sharing: Vec<_> = Sharing::ALL.into_iter().filter(|policy| *policy as u8 == number).collect();
        assert_eq!(sharing, Vec::from_iter(Sharing::from_wire(number)));
        let leases: Vec<_> = Lease::ALL.into_iter().filter(|lease| *lease as u8 == number).collect();
        assert_eq!(leases, Vec::from_iter(Lease::from_wire(number)));
    }
    for policy in Sharing::ALL {
        let of_name: Vec<_> =
            Sharing::ALL.into_iter().filter(|other| other.name() == policy.name()).collect();
        assert_eq!(of_name, [policy]);
    }
    let numbers =
        (Sharing::Dedicated as u8, Sharing::Combined as u8, Lease::Forever as u8, Lease::Slice as u8);
    assert_eq!(numbers, (1, 3, 1, 2), "numbers on the wire stay");
    assert_eq!((Lease::Forever.name(), Lease::Slice.name()), ("forever", "slice"));
    let plan = Plan::default();
    assert_eq!((plan.sharing, plan.lease), (Sharing::Dedicated, Lease::Forever));
}

/// Every plan on fabrics that lack any of the properties which the rules ask for: for each pair of halves the number of
/// legal ones, and a digest of all verdicts. A change of a rule changes the digests of the pairs that it concerns.
#[test]
fn the_verdicts_on_every_plan_are_those_of_record() {
    let mut fabrics = Vec::new();
    for bits in 0..128_u32 {
        let has = |bit: u32| bits & 1 << bit != 0;
        let transports = [
            (true, Transport::ReliableConnection),
            (has(5), Transport::UnreliableConnection),
            (has(6), Transport::UnreliableDatagram),
        ];
        let transports = transports
            .iter()
            .filter(|(has, _)| *has)
            .fold(TransportSet::NONE, |set, (_, one)| set.with(*one));
        fabrics.push(Capabilities {
            write_wakes: has(0),
            in_order_write: has(1),
            immediate: has(2),
            acknowledged: has(3),
            events: has(4),
            transports,
            max_datagram: if has(0) { 1024 } else { 4096 },
            ..Capabilities::EVERYTHING
        });
    }
    let mut found = String::new();
    let mut pairs: Vec<_> = RequestHalf::ALL
        .into_iter()
        .flat_map(|request| ResponseHalf::ALL.map(|response| (request, response)))
        .collect();
    pairs.sort_unstable();
    for (request, response) in pairs {
        let (mut legal, mut digest) = (0, 0xcbf2_9ce4_8422_2325_u64);
        for large in LargePayload::ALL {
            for (client, server) in MODES.into_iter().flat_map(|c| MODES.map(|s| (c, s))) {
                for (lease, above) in
                    Lease::ALL.into_iter().flat_map(|l| [0, 936, 4096, 4097].map(|a| (l, a)))
                {
                    let plan = Plan::new(request, response).large(large, above);
                    let plan = plan.completion(client, server).shared(Sharing::Dedicated, lease);
                    for fabric in &fabrics {
                        let verdict = plan.check(fabric);
                        legal += u32::from(verdict.is_ok());
                        for byte in verdict.map_or_else(|error| error.to_string(), |()| String::new()).bytes()
                        {
                            digest = (digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
                        }
                    }
                }
            }
        }
        writeln!(found, "{} {}: {legal} legal, {digest:016x}", request.name(), response.name()).unwrap();
    }
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/src/plan/verdicts.txt");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(file, &found).unwrap();
    }
    assert!(found == std::fs::read_to_string(file).unwrap(), "UPDATE=1 writes {file}:\n{found}");
}
