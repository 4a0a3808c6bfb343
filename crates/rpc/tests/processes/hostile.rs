//! Bytes that a hostile or broken client can write into a server in another process. Whatever they are, the
//! server keeps serving all other clients, and this one is answered or its lane closed.

#![allow(missing_docs, clippy::disallowed_methods, clippy::disallowed_types)]

use crate::common::process::{EXECUTED, SIZED, ServerProcess};
use crate::common::raw::{LONGEST, RING, RawClient, call};
use crate::common::*;
use dunlin_fabric::{Access, Arena, Fabric, Link, ThreadDomain};
use dunlin_fabric_shm::{ShmFabric, ShmMemory};
use dunlin_rpc::*;
use dunlin_wire::{BatchBuilder, Descriptor, EntryMeta, Flags, Header, Kind, LINE, TAG_OFFSET};

tests!(
    garbage_in_a_mailbox_is_no_message,
    garbage_with_a_right_tag_closes_the_lane,
    a_forged_tag_is_no_message,
    an_old_line_copied_again_is_no_message,
    a_lying_length_closes_the_lane,
    a_lying_count_closes_the_lane,
    a_lying_head_closes_the_lane,
    a_message_of_the_wrong_kind_closes_the_lane,
    an_entry_may_change_while_the_server_reads_it,
    a_call_id_used_twice_is_executed_once,
    a_call_outside_of_the_window_closes_the_lane,
    an_unknown_function_is_refused,
    a_descriptor_over_the_limit_is_refused,
    a_descriptor_of_memory_that_was_not_granted_closes_the_lane,
    parts_of_payloads_that_were_not_announced_close_the_lane,
    a_lie_about_where_to_write_closes_the_lane,
    a_lie_about_how_much_is_filled_closes_the_lane,
    what_is_never_filled_keeps_nobody_else,
    a_payload_that_is_changed_when_it_was_written_is_served_as_it_was,
    who_never_reads_stops_nobody_else,
    many_who_never_read_stop_nobody_else,
    lanes_that_end_with_messages_unread_cost_the_others_nothing,
    half_a_message_holds_up_nobody,
    a_mode_word_that_is_anything_is_borne,
);

/// One plan for each request half, with servers that poll and servers that sleep.
fn raw_plans() -> [Plan; 4] {
    let sleeping = |plan: Plan| plan.completion(CompletionMode::Busy, CompletionMode::Event);
    [
        Plan::new(RequestHalf::Write, ResponseHalf::Write),
        sleeping(Plan::new(RequestHalf::WriteImm, ResponseHalf::WriteImm)),
        sleeping(Plan::new(RequestHalf::WriteSend, ResponseHalf::WriteSend)),
        sleeping(Plan::new(RequestHalf::Send, ResponseHalf::Send)),
    ]
}

/// Runs a test with a raw client of each plan. Afterwards the server must serve other clients.
fn each_plan(settings: &str, test: impl Fn(&ServerProcess, &mut RawClient)) {
    let fabric = fabric();
    let server = ServerProcess::start(settings);
    for plan in raw_plans() {
        println!("  {:?}", plan.request);
        let mut raw = RawClient::connect(&fabric, &server.address, plan);
        test(&server, &mut raw);
        server.assert_serves(&fabric);
    }
}

/// As [`each_plan`], for the plans whose requests are written into a ring.
fn each_ring(test: impl Fn(&ServerProcess, &mut RawClient)) {
    let fabric = fabric();
    let server = ServerProcess::start("");
    for plan in &raw_plans()[..3] {
        println!("  {:?}", plan.request);
        let mut raw = RawClient::connect(&fabric, &server.address, *plan);
        test(&server, &mut raw);
        server.assert_serves(&fabric);
    }
}

/// Returns lines of random bytes.
fn noise(lines: usize, mut state: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..lines * LINE / 8 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes
}

fn request(call: u32) -> Header {
    Header { code: ECHO, call, ..Header::new(Kind::Request) }
}

fn with_tag(mut bytes: Vec<u8>, tag: u64) -> Vec<u8> {
    bytes[TAG_OFFSET..LINE].copy_from_slice(&tag.to_le_bytes());
    bytes
}

fn garbage_in_a_mailbox_is_no_message() {
    each_ring(|_, raw| {
        for seed in 1..20 {
            for at in (0..RING as usize).step_by(4096) {
                raw.put_told(at, &noise(64, seed * 31 + at as u64));
            }
        }
        assert!(!raw.is_closed());
        raw.assert_goes_on(call(0, 1));
    });
    // A SEND claims to be a message.
    let (fabric, server) = (fabric(), ServerProcess::start(""));
    for bytes in [vec![], vec![7; 3], noise(1, 5), noise(2, 6), noise(LONGEST / LINE, 7)] {
        let mut raw = RawClient::connect(&fabric, &server.address, raw_plans()[3]);
        raw.send(&bytes);
        raw.expect_closed();
    }
    server.assert_serves(&fabric);
}

fn garbage_with_a_right_tag_closes_the_lane() {
    let (fabric, server) = (fabric(), ServerProcess::start(""));
    for plan in raw_plans() {
        for seed in 1..8 {
            let mut raw = RawClient::connect(&fabric, &server.address, plan);
            let tag = raw.tags.first(0, 0);
            raw.deliver(&with_tag(noise(1, seed), tag));
            raw.expect_closed();
        }
    }
    server.assert_serves(&fabric);
}

fn a_forged_tag_is_no_message() {
    each_ring(|server, raw| {
        let before = server.executed(&raw.fabric);
        let right = raw.tags.first(0, 0);
        let bytes = raw.message(&request(call(0, 1)), b"forged");
        for forged in [right ^ 2, right.swap_bytes(), 0, u64::MAX, raw.tags.first(0, 1), raw.tags.first(1, 0)]
        {
            raw.put_told(0, &with_tag(bytes.clone(), forged));
        }
        raw.assert_goes_on(call(0, 2));
        assert_eq!(server.executed(&raw.fabric), before + 1);
    });
}

fn an_old_line_copied_again_is_no_message() {
    each_ring(|server, raw| {
        let before = server.executed(&raw.fabric);
        let old = raw.message(&request(call(0, 1)), b"once");
        raw.deliver(&old);
        assert_eq!(raw.answer().1, b"once");
        // At the place of the next message, at the place of an old one, and everywhere else.
        for at in (0..RING as usize).step_by(LINE) {
            let put = if at < 8 * LINE { RawClient::put_told } else { RawClient::put };
            put(raw, at, &old);
        }
        raw.assert_goes_on(call(1, 1));
        assert_eq!(server.executed(&raw.fabric), before + 2);
    });
}

fn a_lying_length_closes_the_lane() {
    for length in [33u32, 4096, LONGEST as u32, 1 << 20, u32::MAX] {
        each_plan("", |_, raw| {
            let mut bytes = raw.message(&request(call(0, 1)), b"short");
            bytes[4..8].copy_from_slice(&length.to_le_bytes());
            raw.deliver(&bytes);
            let fits = length as usize + 72 <= LONGEST;
            if fits && raw.plan.request != RequestHalf::Send {
                // The rest of such a message may still come: the server waits for it as for any message, and
                // serves other clients in the meantime.
                assert!(!raw.is_closed());
            } else {
                raw.expect_closed();
            }
        });
    }
}

fn a_lying_count_closes_the_lane() {
    for count in [0u16, 1, 3, u16::MAX] {
        each_plan("", |server, raw| {
            let before = server.executed(&raw.fabric);
            let mut buffer = vec![0; LONGEST];
            let mut batch = BatchBuilder::new(&mut buffer);
            for slot in 0..2 {
                let meta =
                    EntryMeta { function_or_status: ECHO, call: call(slot, 1), ..EntryMeta::default() };
                batch.push(&meta, b"entry").unwrap();
            }
            let total = batch.finish(&Header::new(Kind::RequestBatch), raw.tags.tags(0, 0)).unwrap();
            buffer[2..4].copy_from_slice(&count.to_le_bytes());
            raw.deliver(&buffer[..total]);
            raw.expect_closed();
            assert_eq!(server.executed(&raw.fabric), before, "nothing of it was executed");
        });
    }
}

fn a_lying_head_closes_the_lane() {
    // A lane without a ring of answers has no head to forge.
    for plan in &raw_plans()[..3] {
        for head in [1u32, 256, 1 << 30] {
            let (fabric, server) = (fabric(), ServerProcess::start(""));
            let mut raw = RawClient::connect(&fabric, &server.address, *plan);
            let bytes = raw.message(&Header { head, ..request(call(0, 1)) }, b"x");
            raw.deliver(&bytes);
            raw.expect_closed();
            server.assert_serves(&fabric);
        }
    }
}

fn a_message_of_the_wrong_kind_closes_the_lane() {
    each_plan("", |_, raw| {
        let bytes = raw.message(&Header { call: call(0, 1), ..Header::new(Kind::Response) }, b"mine?");
        raw.deliver(&bytes);
        raw.expect_closed();
    });
}

fn an_entry_may_change_while_the_server_reads_it() {
    let (fabric, server) = (fabric(), ServerProcess::start(""));
    for plan in &raw_plans()[..3] {
        let (mut answered, mut closed) = (0, 0);
        let mut raw = RawClient::connect(&fabric, &server.address, *plan);
        for round in 1..400u32 {
            if raw.position + 2048 > RING as usize || raw.is_closed() {
                raw = RawClient::connect(&fabric, &server.address, *plan);
            }
            let payload = pattern(if round % 2 == 0 { 20 } else { 1500 }, round.into());
            let bytes = raw.message(&request(call(0, round)), &payload);
            let at = raw.position;
            raw.deliver(&bytes);
            for flip in 0..round % 40 {
                // First the payload; then also header fields: length, count, call and kind.
                let (offset, mut word) = match (flip % 4, round % 5) {
                    (0, 0) => (4, (flip * 512).to_le_bytes()),
                    (1, 0) => (16, call(flip, round + flip).to_le_bytes()),
                    (2, 1) => (0, [flip as u8, 0, 1, 0]),
                    (offset, _) if bytes.len() == LINE => (24 + 4 * offset as usize, round.to_le_bytes()),
                    (offset, _) => (LINE + 64 * offset as usize, round.to_le_bytes()),
                };
                word[3] ^= flip as u8;
                let put = if flip == 0 { RawClient::put_told } else { RawClient::put };
                put(&mut raw, at + offset, &word);
            }
            match raw.half.domain.state(raw.half.queue_pair) {
                Some(dunlin_fabric::QueuePairState::Ready) if round % 5 > 1 => {
                    // Only the payload was changed: the message is valid, whatever the payload says.
                    let (header, body) = raw.answer();
                    assert_eq!((header.call, header.code, body.len()), (call(0, round), 0, payload.len()));
                    answered += 1;
                }
                _ => {
                    // Whatever became of the message, its effect ends with the lane.
                    raw.half.link_close();
                    closed += 1;
                }
            }
        }
        assert!(answered > 100 && closed > 50, "{answered} {closed}");
        server.assert_serves(&fabric);
    }
}

fn a_call_id_used_twice_is_executed_once() {
    each_plan("", |server, raw| {
        let before = server.executed(&raw.fabric);
        raw.request(ECHO, call(3, 5), b"first");
        assert_eq!(raw.status(call(3, 5)), Status::Ok);
        for again in [call(3, 5), call(3, 4), call(3, 0)] {
            raw.request(ECHO, again, b"again");
            assert_eq!(raw.status(again), Status::DuplicateCall);
        }
        // Also within one batch, and while the first is still being executed.
        raw.request(process_slow(), call(4, 1), &[20]);
        raw.request(process_slow(), call(4, 1), &[20]);
        let (first, second) = (raw.answer().0, raw.answer().0);
        assert_eq!((first.call, second.call), (call(4, 1), call(4, 1)));
        let statuses = [first.code, second.code];
        assert!(statuses.contains(&0) && statuses.contains(&Status::DuplicateCall.to_wire()), "{statuses:?}");
        assert_eq!(server.executed(&raw.fabric), before + 2);
    });
}

fn process_slow() -> u16 {
    crate::common::process::SLOW
}

fn a_call_outside_of_the_window_closes_the_lane() {
    for slot in [64, 4095] {
        each_plan("", |_, raw| {
            assert_eq!(raw.ready.window, 64);
            raw.request(ECHO, call(63, 1), b"the last");
            assert_eq!(raw.status(call(63, 1)), Status::Ok);
            raw.request(ECHO, call(slot, 1), b"beyond");
            raw.expect_closed();
        });
    }
}

fn an_unknown_function_is_refused() {
    each_plan("", |server, raw| {
        for (slot, function) in [0, 77, 4095, u16::MAX].into_iter().enumerate() {
            raw.request(function, call(slot as u32, 1), b"?");
            assert_eq!(raw.status(call(slot as u32, 1)), Status::UnknownFunction);
        }
        raw.assert_goes_on(call(9, 1));
        let mut client = server.client(&raw.fabric, raw.plan);
        let refused = client.call(77, b"?").unwrap_err();
        assert_eq!(refused, CallError::NotExecuted(Cause::Refused(Status::UnknownFunction)));
        let refused = client.call(77, &[0; 10_000]).unwrap_err();
        assert_eq!(refused, CallError::NotExecuted(Cause::Refused(Status::UnknownFunction)));
    });
}

fn descriptor(key: u64, offset: u64, length: u64) -> [u8; 24] {
    Descriptor { key, offset, length }.encode()
}

fn a_descriptor_over_the_limit_is_refused() {
    each_plan("max_payload=10000", |server, raw| {
        let mut client = server.client(&raw.fabric, raw.plan);
        assert_eq!(client.call(ECHO, &[1; 10_000]).unwrap().len(), 10_000);
        let refused = client.call(ECHO, &[1; 10_001]).unwrap_err();
        assert_eq!(refused, CallError::NotExecuted(Cause::TooLarge { length: 10_001, limit: 10_000 }));
        let before = server.executed(&raw.fabric);
        let key = raw.half.open.region_keys[0];
        for (slot, length) in [10_001, 1 << 40, u64::MAX].into_iter().enumerate() {
            let header = Header { flags: Flags::RENDEZVOUS, ..request(call(slot as u32, 1)) };
            let bytes = raw.message(&header, &descriptor(key, 0, length));
            raw.deliver(&bytes);
            assert_eq!(raw.status(call(slot as u32, 1)), Status::TooLarge);
        }
        raw.assert_goes_on(call(9, 1));
        assert_eq!(server.executed(&raw.fabric), before + 1);
    });
}

fn a_descriptor_of_memory_that_was_not_granted_closes_the_lane() {
    let (fabric, server) = (fabric(), ServerProcess::start(""));
    let before = server.executed(&fabric);
    for plan in raw_plans() {
        for case in 0..5 {
            let mut raw = RawClient::connect(&fabric, &server.address, plan);
            let granted = raw.half.open.region_keys[0];
            let (key, offset, length) = match case {
                0 => (u64::MAX, 0, 5000),
                1 => (granted + 1, 0, 5000),
                // A region of the client's own that is granted for writing only.
                2 => (granted, 0, 5000),
                3 => (granted, u64::MAX - 5000, 5000),
                _ => (granted, 1 << 30, 5000),
            };
            let header = Header { flags: Flags::RENDEZVOUS, ..request(call(0, 1)) };
            let bytes = raw.message(&header, &descriptor(key, offset, length));
            raw.deliver(&bytes);
            raw.expect_closed();
        }
    }
    assert_eq!(server.executed(&fabric), before);
    server.assert_serves(&fabric);
}

/// Plans whose large payloads are written, and sent in fragments.
fn transfers() -> [Plan; 3] {
    let [write, .., send] = raw_plans();
    let large = LargePayload::Write;
    [write.large(large, SMALL_LIMIT), send.large(large, 0), send.large(LargePayload::Eager, SMALL_LIMIT)]
}

/// Sends the next message to the server.
fn say(raw: &mut RawClient, header: Header, payload: &[u8]) {
    let bytes = raw.message(&header, payload);
    raw.deliver(&bytes);
}

/// Announces a large request.
fn announce(raw: &mut RawClient, call: u32, length: u64) {
    let header = Header { flags: Flags::RENDEZVOUS, ..request(call) };
    say(raw, header, &Descriptor::announcement(length).encode());
}

fn about(kind: Kind, call: u32) -> Header {
    Header { call, ..Header::new(kind) }
}

fn parts_of_payloads_that_were_not_announced_close_the_lane() {
    let (fabric, server) = (fabric(), ServerProcess::start(""));
    let before = server.executed(&fabric);
    let here = [0; Descriptor::BYTES];
    for plan in transfers().into_iter().chain(raw_plans()) {
        for case in 0..6 {
            let mut raw = RawClient::connect(&fabric, &server.address, plan);
            let one = call(0, 1);
            match case {
                0 => say(&mut raw, about(Kind::Written, one), &[]),
                1 => say(&mut raw, about(Kind::Fragment, one), b"of what?"),
                2 => say(&mut raw, about(Kind::ClearToSend, one), &here),
                // After an announcement: the message of the other method, one byte too many, and a second
                // announcement.
                3 | 4 if plan.large == LargePayload::Read => continue,
                3 => {
                    announce(&mut raw, one, 5000);
                    let eager = plan.large == LargePayload::Eager;
                    let (kind, payload) =
                        if eager { (Kind::Written, &b""[..]) } else { (Kind::Fragment, &b"?"[..]) };
                    say(&mut raw, about(kind, one), payload);
                }
                4 if plan.large == LargePayload::Eager => {
                    announce(&mut raw, one, 5000);
                    say(&mut raw, about(Kind::Fragment, one), &[1; 4096]);
                    say(&mut raw, about(Kind::Fragment, one), &[1; 905]);
                }
                _ if plan.large == LargePayload::Eager => announce(&mut raw, one, 0),
                _ => say(&mut raw, about(Kind::Written, call(63, 9)), &[]),
            }
            raw.expect_closed();
        }
    }
    assert_eq!(server.executed(&fabric), before);
    server.assert_serves(&fabric);
}

fn a_lie_about_where_to_write_closes_the_lane() {
    let (fabric, server) = (fabric(), ServerProcess::start(""));
    for plan in transfers().into_iter().filter(|plan| plan.large == LargePayload::Write) {
        for case in 0..4 {
            let mut raw = RawClient::connect(&fabric, &server.address, plan);
            let one = call(0, 1);
            raw.request(SIZED, one, &20_000u32.to_le_bytes());
            let (header, announced) = raw.answer();
            assert!(header.flags.contains(Flags::RENDEZVOUS) && header.call == one);
            assert_eq!(Descriptor::decode(&announced, 20_000).unwrap(), Descriptor::announcement(20_000));
            let ours = raw.half.open.region_keys[0];
            let place = match case {
                0 => descriptor(u64::MAX, 0, 20_000),
                1 => descriptor(ours, 0, 19_999),
                2 => descriptor(ours, u64::MAX - 20_000, 20_000),
                _ => descriptor(ours, 1 << 30, 20_000),
            };
            say(&mut raw, about(Kind::ClearToSend, one), &place);
            raw.expect_closed();
        }
    }
    server.assert_serves(&fabric);
}

/// Returns a client whose large payloads travel in pieces, memory that the server may READ, and its encoded
/// descriptor.
fn in_pieces(
    fabric: &ShmFabric,
    server: &ServerProcess,
    length: u64,
) -> (RawClient, Arena<ShmMemory>, [u8; 24]) {
    let plan = raw_plans()[0].large(LargePayload::Pipelined, SMALL_LIMIT);
    let raw = RawClient::connect(fabric, &server.address, plan);
    let arena = Arena::new(fabric.register(length, Access::READ).unwrap()).unwrap();
    let key = raw.half.link.grant(arena.memory(), Access::READ).unwrap();
    (raw, arena, descriptor(key.0, 0, length))
}

fn filled(call: u32, bytes: u64) -> Header {
    Header { time: bytes as u32, ..about(Kind::Filled, call) }
}

fn a_lie_about_how_much_is_filled_closes_the_lane() {
    const LENGTH: u64 = 4 * PIECE as u64;
    let (fabric, server) = (fabric(), ServerProcess::start(""));
    let before = server.executed(&fabric);
    let piece = PIECE as u64;
    let one = call(0, 1);
    let lies: [&[u64]; 6] = [
        &[LENGTH + 1],
        &[u64::from(u32::MAX)],
        &[1],
        &[piece],
        &[2 * piece, 2 * piece],
        &[2 * piece, piece + 1],
    ];
    for lie in lies {
        let (mut raw, _arena, payload) = in_pieces(&fabric, &server, LENGTH);
        say(&mut raw, Header { flags: Flags::RENDEZVOUS, ..request(one) }, &payload);
        lie.iter().for_each(|bytes| say(&mut raw, filled(one, *bytes), &[]));
        raw.expect_closed();
    }
    // A range of which only the last piece lies outside the granted memory.
    let (mut raw, _arena, payload) = in_pieces(&fabric, &server, LENGTH);
    let granted = Descriptor::decode(&payload, LENGTH).unwrap();
    say(
        &mut raw,
        Header { flags: Flags::RENDEZVOUS, ..request(one) },
        &descriptor(granted.key, piece, LENGTH),
    );
    say(&mut raw, filled(one, LENGTH), &[]);
    raw.expect_closed();
    assert_eq!(server.executed(&fabric), before);
    // A plan whose payloads are READ as a whole has no such message.
    let mut raw = RawClient::connect(&fabric, &server.address, raw_plans()[0]);
    say(&mut raw, filled(one, 1), &[]);
    raw.expect_closed();
    server.assert_serves(&fabric);
}

fn what_is_never_filled_keeps_nobody_else() {
    const LENGTH: u64 = 4 * PIECE as u64;
    let (fabric, server) = (fabric(), ServerProcess::start(""));
    let (mut raw, _arena, payload) = in_pieces(&fabric, &server, LENGTH);
    let before = server.executed(&fabric);
    for slot in 0..8 {
        say(&mut raw, Header { flags: Flags::RENDEZVOUS, ..request(call(slot, 1)) }, &payload);
    }
    // Calls that do not exist, or were refused, are ignored.
    say(&mut raw, filled(call(20, 7), 1), &[]);
    say(&mut raw, filled(call(21, 7), 0), &[]);
    raw.assert_goes_on(call(30, 1));
    // A call that is given up ends: one after the other, and in the middle of a transfer.
    for slot in 0..4 {
        say(&mut raw, filled(call(slot, 1), 0), &[]);
        assert_eq!(raw.status(call(slot, 1)), Status::Malformed);
    }
    say(&mut raw, filled(call(4, 1), 3 * PIECE as u64), &[]);
    say(&mut raw, filled(call(4, 1), 0), &[]);
    assert_eq!(raw.status(call(4, 1)), Status::Malformed);
    say(&mut raw, filled(call(0, 1), 2 * PIECE as u64), &[]);
    raw.assert_goes_on(call(31, 1));
    assert_eq!(server.executed(&fabric), before + 2);
    // A client that disconnects in the middle ends its calls.
    drop(raw);
    server.assert_serves(&fabric);
}

/// The server uses a payload only after it has copied it, so later writes have no effect.
fn a_payload_that_is_changed_when_it_was_written_is_served_as_it_was() {
    let (fabric, server) = (fabric(), ServerProcess::start(""));
    let [write, ..] = transfers();
    let mut raw = RawClient::connect(&fabric, &server.address, write);
    for round in 1..30 {
        let one = call(0, round);
        announce(&mut raw, one, 5000);
        let (header, place) = raw.answer();
        assert_eq!((header.kind, header.call), (Kind::ClearToSend, one));
        let place = Descriptor::decode(&place, 5000).unwrap();
        assert_eq!(place.length, 5000);
        let put = |raw: &mut RawClient, byte: u8| {
            let bytes: &'static [u8] = vec![byte; 5000].leak();
            let parts: &'static [&'static [u8]] = vec![bytes].leak();
            let key = dunlin_fabric::RegionKey(place.key);
            let write = || dunlin_fabric::Operation::Write {
                data: dunlin_fabric::Data::Inline(parts),
                key,
                offset: place.offset,
                immediate: None,
            };
            raw.post(write).unwrap();
        };
        put(&mut raw, round as u8);
        say(&mut raw, about(Kind::Written, one), &[]);
        let (header, announced) = raw.answer();
        put(&mut raw, 99);
        assert_eq!((header.call, header.flags), (one, Flags::RENDEZVOUS));
        let echoed = Descriptor::decode(&announced, 5000).unwrap();
        // The answer is written into the client's own ring, beyond the used part of it.
        let ours = descriptor(raw.half.open.region_keys[0], 8192, echoed.length);
        say(&mut raw, about(Kind::ClearToSend, one), &ours);
        let (header, _) = raw.answer();
        assert_eq!((header.kind, header.call), (Kind::Written, one));
        let mut got = vec![0; 5000];
        raw.half.region.copy_out(8192, &mut got);
        assert!(got.iter().all(|byte| *byte == round as u8), "round {round}");
    }
}

/// Returns a process's resident memory in KiB.
fn resident(server: &ServerProcess) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.process.child.id())).unwrap();
    let line = status.lines().find(|l| l.starts_with("VmRSS")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn who_never_reads_stops_nobody_else() {
    let (fabric, server) = (fabric(), ServerProcess::start(""));
    server.assert_serves(&fabric);
    let before = resident(&server);
    let mut stalled: Vec<RawClient> = Vec::new();
    for plan in raw_plans() {
        for kind in 0..4 {
            let mut raw = RawClient::connect_deaf(&fabric, &server.address, plan);
            // A window of calls, and another window that a correct client would not make.
            for number in 0..128u32 {
                let id = call(number % 64, number / 64 + 1);
                match kind {
                    0 => raw.request(SIZED, id, &4096u32.to_le_bytes()),
                    1 => raw.request(SIZED, id, &100_000u32.to_le_bytes()),
                    2 => raw.request(EXECUTED, id, &[]),
                    _ => raw.request(crate::common::process::SLOW, id, &[0; 32]),
                }
            }
            stalled.push(raw);
        }
    }
    for _ in 0..3 {
        server.assert_serves(&fabric);
    }
    // The bound covers some answers of 100 KB for each lane, in arenas that double, and the memory for the
    // honest clients.
    let grown = resident(&server).saturating_sub(before);
    assert!(grown < 256 * 1024, "the server grew by {grown} KiB");
    drop(stalled);
    server.assert_serves(&fabric);
}

/// Connects a client that sends more than it may and receives no answer.
fn stalled(fabric: &dunlin_fabric_shm::ShmFabric, server: &ServerProcess, plan: Plan) -> RawClient {
    let mut raw = RawClient::connect_deaf(fabric, &server.address, plan);
    for number in 0..400 {
        raw.request(SIZED, call(number % 64, number / 64 + 1), &4096u32.to_le_bytes());
    }
    raw
}

fn lanes_that_end_with_messages_unread_cost_the_others_nothing() {
    let (fabric, server) = (fabric(), ServerProcess::start(""));
    for plan in raw_plans() {
        for _ in 0..24 {
            let mut raw = stalled(&fabric, &server, plan);
            // Once the server has served another client, it has processed as much of this one as it can.
            let mut client = server.client(&fabric, any_plan());
            assert_eq!(*client.call(ECHO, b"between").unwrap(), *b"between");
            raw.poll();
        }
    }
    server.assert_serves(&fabric);
}

fn many_who_never_read_stop_nobody_else() {
    let (fabric, server) = (fabric(), ServerProcess::start(""));
    for plan in raw_plans() {
        let all: Vec<RawClient> = (0..20).map(|_| stalled(&fabric, &server, plan)).collect();
        server.assert_serves(&fabric);
        drop(all);
        server.assert_serves(&fabric);
    }
}

fn half_a_message_holds_up_nobody() {
    each_ring(|server, raw| {
        let before = server.executed(&raw.fabric);
        let payload = pattern(3000, 1);
        let bytes = raw.message(&request(call(0, 1)), &payload);
        raw.put_told(0, &bytes[..LINE]);
        server.assert_serves(&raw.fabric);
        let others = server.executed(&raw.fabric) - before;
        assert!(!raw.is_closed());
        // The other half arrives after all.
        raw.put_told(LINE, &bytes[LINE..]);
        let (header, body) = raw.answer();
        assert_eq!((header.call, &body), (call(0, 1), &payload));
        assert_eq!(server.executed(&raw.fabric), before + others + 1);
    });
}

/// A client may write any value into its mode word at any time. The word decides only which of its own rings
/// its answers go to.
fn a_mode_word_that_is_anything_is_borne() {
    let (fabric, server) = (fabric(), ServerProcess::start(""));
    let plan = Plan::new(RequestHalf::Write, ResponseHalf::FetchOrWrite);
    let before = server.executed(&fabric);
    let mut made = 0;
    for words in [&[0, u64::MAX][..], &[u64::MAX], &[0], &[1, 1 << 63, 3, u64::MAX - 1]] {
        let mut raw = RawClient::connect(&fabric, &server.address, plan);
        for number in 1..60u32 {
            raw.request(ECHO, call(0, number), b"either way");
            for flip in 0..number as usize % 7 {
                raw.put_mode_word(words[flip % words.len()]);
            }
            made += 1;
        }
        // A request with write-back is answered after all earlier written answers. Each of those was
        // requested, and came once.
        let header = Header { flags: Flags::MODE, ..request(call(1, 1)) };
        let bytes = raw.message(&header, b"written");
        raw.deliver(&bytes);
        made += 1;
        let mut last = 0;
        loop {
            let (header, body) = raw.answer();
            if header.call == call(1, 1) {
                assert_eq!(body, b"written");
                break;
            }
            assert_eq!((header.code, &*body), (0, &b"either way"[..]));
            assert!(header.call > last, "{} after {last}", header.call);
            last = header.call;
        }
        server.assert_serves(&fabric);
    }
    // The calls of the honest clients, and each call of this one once.
    assert!(server.executed(&fabric) >= before + made);
}
