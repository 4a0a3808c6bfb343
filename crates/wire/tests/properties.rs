//! Properties for arbitrary values and arbitrary bytes, through the public interface only.

use dunlin_wire::handshake::{
    Attach, Drained, Extension, Extensions, FRAME_HEADER_BYTES, Grant, Hello, HelloReply, LaneReady,
    LaneRefused, OpenLane, Record, RecordType, RefusalCode, Refused, Secret, Token, negotiate,
};
use dunlin_wire::message::verify_tags;
use dunlin_wire::{
    ApplicationCode, BatchBuilder, BatchState, BuildError, Descriptor, Direction, EntryMeta, Flags,
    HEADER_BYTES, Header, Kind, LINE, Message, Reject, SingleLayout, Status, TagKey, Tags, encode_line,
    message_bytes, message_lines, parse_line,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

fn tags() -> impl Strategy<Value = Tags> {
    (any::<[u8; 16]>(), any::<u16>(), any::<u32>(), any::<u64>()).prop_map(
        |(secret, lane, epoch, sequence)| {
            TagKey::derive(&secret, lane, Direction::ToServer).tags(epoch, sequence)
        },
    )
}

fn plain_flags() -> impl Strategy<Value = Flags> {
    (0..32_u8).prop_map(|bits| Flags::from_bits(bits).unwrap_or_default().without(Flags::RENDEZVOUS))
}

fn status() -> impl Strategy<Value = Status> {
    let named = (0..10_u16).prop_filter_map("named", Status::from_wire);
    let application = (0..=ApplicationCode::MAX).prop_filter_map("in range", ApplicationCode::new);
    prop_oneof![named, application.prop_map(Status::Application)]
}

/// Generates a header of a single message that a peer may send, with a valid code.
fn single() -> impl Strategy<Value = Header> {
    let kind_and_code = prop_oneof![
        any::<u16>().prop_map(|function| (Kind::Request, function)),
        status().prop_map(|status| (Kind::Response, status.to_wire())),
    ];
    let numbers = (any::<u32>(), any::<u8>(), any::<u8>(), any::<u16>(), any::<u32>(), any::<u32>());
    (kind_and_code, plain_flags(), numbers).prop_map(
        |((kind, code), flags, (head, credits, epoch, thread, call, time))| Header {
            kind,
            flags,
            code,
            length: 0,
            head,
            credits,
            epoch,
            thread,
            call,
            time,
        },
    )
}

type OwnedEntry = (EntryMeta, Vec<u8>);

fn entry() -> impl Strategy<Value = OwnedEntry> {
    let meta = (status(), any::<u16>(), any::<u32>(), plain_flags());
    let payload = prop_oneof![vec(any::<u8>(), 0..40), vec(any::<u8>(), 0..600)];
    let descriptor = option::weighted(0.2, any::<[u8; 24]>());
    (meta, payload, descriptor).prop_map(|((status, thread, call, flags), payload, descriptor)| {
        let meta = EntryMeta { function_or_status: status.to_wire(), thread, call, flags, time: 0 };
        match descriptor {
            Some(descriptor) => (EntryMeta { flags: flags | Flags::RENDEZVOUS, ..meta }, descriptor.to_vec()),
            None => (meta, payload),
        }
    })
}

fn build(kind: Kind, entries: &[OwnedEntry], tags: Tags) -> Vec<u8> {
    let mut buffer = vec![0xee; 64 * 1024];
    let mut builder = BatchBuilder::new(&mut buffer);
    for (meta, payload) in entries {
        builder.push(meta, payload).expect("there is room");
    }
    let total = builder.finish(&Header::new(kind), tags).expect("there are entries");
    buffer.truncate(total);
    buffer
}

/// Generates extensions that may stand in any record, and those of a record in which only they may stand.
fn extensions(record: RecordType) -> impl Strategy<Value = Extensions> {
    let skipped = (0x8100..=u16::MAX, vec(any::<u8>(), 0..=96))
        .prop_map(|(number, value)| Extension::Skipped { number, value });
    let client = (option::of(any::<u64>()), option::of("[ -~é漢]{0,20}"));
    let lane = (option::of(any::<u8>()), any::<bool>());
    let of_server = (option::of(any::<u32>()), option::of(any::<u32>()));
    let server = (
        of_server,
        option::of(any::<(u32, u32)>()),
        option::of(any::<(u64, u32)>()),
        option::of(any::<u64>()),
    );
    (vec(skipped, 0..=5), client, lane, server).prop_map(
        move |(
            mut all,
            (client, program),
            (credits, is_apart),
            ((active, connections), threads, ring, line),
        )| {
            all.sort_by_key(Extension::number);
            all.dedup_by_key(|extension| extension.number());
            if record == RecordType::Hello {
                all.extend(client.map(Extension::Client));
                all.extend(program.map(Extension::Program));
            }
            if record == RecordType::HelloReply {
                all.extend(active.map(Extension::ActiveQueuePairs));
                all.extend(connections.map(Extension::Connections));
                all.extend(threads.map(|(clients, cores)| Extension::Occupancy { clients, cores }));
            }
            if record == RecordType::OpenLane {
                all.extend(credits.map(Extension::Credits));
                all.extend(is_apart.then_some(Extension::RenewedApart));
            }
            if record == RecordType::LaneReady {
                all.extend(ring.map(|(offset, block)| Extension::RequestRing { offset, block }));
                all.extend(line.map(Extension::ControlLine));
            }
            Extensions(all)
        },
    )
}

fn extensions_of(record: &Record) -> &[Extension] {
    match record {
        Record::Hello(record) => &record.extensions.0,
        Record::HelloReply(record) => &record.extensions.0,
        Record::OpenLane(record) => &record.extensions.0,
        Record::LaneReady(record) => &record.extensions.0,
        _ => &[],
    }
}

fn record() -> impl Strategy<Value = Record> {
    let text =
        |most: usize| "[ -~é漢]{0,120}".prop_filter("within the limit", move |text| text.len() <= most);
    let numbers = any::<(u16, u16, u64, u32)>();
    let hello = (numbers, text(255), vec(any::<u8>(), 0..=255), extensions(RecordType::Hello)).prop_map(
        |((a, b, capabilities, process_id), service, token, extensions)| {
            let (min_version, max_version) = (a.min(b), a.max(b));
            Record::Hello(Hello {
                min_version,
                max_version,
                capabilities,
                process_id,
                service,
                token: Token(token),
                extensions,
            })
        },
    );
    let reply = (any::<(u16, u64, u16, u32, u64, u64)>(), extensions(RecordType::HelloReply)).prop_map(
        |((version, capabilities, workers, functions, max_payload, session), extensions)| {
            Record::HelloReply(HelloReply {
                version,
                capabilities,
                workers,
                functions,
                max_payload,
                session,
                extensions,
            })
        },
    );
    let refused = (any::<u16>(), text(512))
        .prop_map(|(c, text)| Record::Refused(Refused { code: RefusalCode(c), text }));
    let endpoints = || [(); 3].map(|()| vec(any::<u8>(), 0..=1024));
    let region_keys = |record| (vec(any::<u64>(), 0..=8), extensions(record));
    let lines = || (0..=u32::MAX / 64).prop_map(|lines| lines * 64);
    let open =
        (any::<(u16, u16, [u8; 7], u16, u32)>(), lines(), endpoints(), region_keys(RecordType::OpenLane))
            .prop_map(
                |(
                    (lane, worker, bytes, window, rendezvous_above),
                    ring_bytes,
                    endpoints,
                    (region_keys, extensions),
                )| {
                    let [endpoint, unreliable_endpoint, datagram_endpoint] = endpoints;
                    let [
                        request_half,
                        response_half,
                        client_completion,
                        server_completion,
                        large,
                        sharing,
                        lease,
                    ] = bytes;
                    Record::OpenLane(OpenLane {
                        lane,
                        worker,
                        request_half,
                        response_half,
                        client_completion,
                        server_completion,
                        window,
                        ring_bytes,
                        rendezvous_above,
                        large,
                        sharing,
                        lease,
                        endpoint,
                        unreliable_endpoint,
                        datagram_endpoint,
                        region_keys,
                        extensions,
                    })
                },
            );
    let ready = (
        any::<(u16, u16, u16, u16, u32, [u8; 16], u16)>(),
        lines(),
        endpoints(),
        region_keys(RecordType::LaneReady),
    )
        .prop_map(
            |(
                (lane, worker, window, max_batch_entries, max_message_bytes, secret, place),
                ring_bytes,
                endpoints,
                (region_keys, extensions),
            )| {
                let [endpoint, unreliable_endpoint, datagram_endpoint] = endpoints;
                Record::LaneReady(LaneReady {
                    lane,
                    worker,
                    window,
                    max_batch_entries,
                    ring_bytes,
                    max_message_bytes,
                    secret: Secret(secret),
                    endpoint,
                    unreliable_endpoint,
                    datagram_endpoint,
                    place,
                    region_keys,
                    extensions,
                })
            },
        );
    let lane_refused = (any::<u16>(), any::<u16>(), text(512)).prop_map(|(lane, code, text)| {
        Record::LaneRefused(LaneRefused { lane, code: RefusalCode(code), text })
    });
    prop_oneof![
        hello,
        reply,
        refused,
        open,
        ready,
        lane_refused,
        any::<(u64, u64, u8)>().prop_map(|(key, length, purpose)| Record::Grant(Grant {
            key,
            length,
            purpose
        })),
        Just(Record::Drain),
        any::<(u16, u64)>().prop_map(|(lane, taken)| Record::Drained(Drained { lane, taken })),
        any::<u16>().prop_map(|lane| Record::CloseLane { lane }),
        Just(Record::Goodbye),
        text(255).prop_map(|name| Record::Attach(Attach { name })),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1024, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn headers_come_back_or_are_rejected(bytes in any::<[u8; HEADER_BYTES]>(), kind in 0..13_u8, flags in 0..40_u8) {
        let mut bytes = bytes;
        (bytes[0], bytes[1]) = (kind, flags);
        if let Ok(header) = Header::decode(&bytes) {
            prop_assert_eq!(header.encode(), bytes);
        }
    }

    #[test]
    fn singles_come_back(header in single(), payload in vec(any::<u8>(), 0..700), tags in tags()) {
        let length = payload.len() as u32;
        let mut buffer = vec![0xee; 1024];
        buffer[LINE..LINE + payload.len()].copy_from_slice(&payload);
        let layout = SingleLayout::new(length, buffer.len()).expect("there is room");
        let total = layout.seal(&mut buffer, &header, tags).expect("there is room");
        prop_assert_eq!(Some(total), message_bytes(length, 1024));
        prop_assert_eq!(message_lines(length, 16), Some((total / LINE) as u32));
        let bytes = &buffer[..total];
        prop_assert_eq!(verify_tags(bytes, tags), Ok(()));
        let first = parse_line(bytes.first_chunk().expect("a line"), 1024).expect("valid");
        prop_assert_eq!(first.total(), total);
        let message = first.complete(bytes).expect("valid");
        prop_assert_eq!(*message.header(), Header { length, ..header });
        let entries: Vec<_> = message.entries().collect();
        prop_assert_eq!(entries.len(), 1);
        prop_assert_eq!(entries[0].payload, &payload[..]);
        prop_assert_eq!((entries[0].call, entries[0].thread), (header.call, header.thread));
        if payload.len() <= 32 {
            let line = encode_line(&header, &payload, tags.first).expect("fits").0;
            prop_assert_eq!(&line[..], bytes);
        }
    }

    #[test]
    fn batches_come_back(entries in vec(entry(), 1..30), tags in tags(), response in any::<bool>()) {
        let kind = if response { Kind::ResponseBatch } else { Kind::RequestBatch };
        let bytes = build(kind, &entries, tags);
        prop_assert_eq!(verify_tags(&bytes, tags), Ok(()));
        let message = Message::parse(&bytes, bytes.len()).expect("valid");
        prop_assert_eq!(message.entries().len(), entries.len());
        for (entry, (meta, payload)) in message.entries().zip(&entries) {
            prop_assert_eq!(entry.payload, &payload[..]);
            let EntryMeta { function_or_status, thread, call, flags, .. } = *meta;
            prop_assert_eq!(
                (entry.function_or_status, entry.thread, entry.call, entry.flags),
                (function_or_status, thread, call, flags)
            );
            prop_assert!(entry.status().is_some());
        }
        let short = Message::parse(&bytes, bytes.len() - 1);
        prop_assert_eq!(short, Err(Reject::TooLong { total: bytes.len() as u64, limit: bytes.len() - 1 }));
    }

    #[test]
    fn a_batch_takes_what_fits_and_nothing_else(lengths in vec(0..300_usize, 1..40), room in 0..2000_usize) {
        let mut buffer = vec![0; room];
        let mut state = BatchState::new();
        for length in lengths {
            let before = state;
            let fits = state.fits(length, room);
            match state.push(&mut buffer, &EntryMeta::default(), &vec![1; length]) {
                Ok(()) => prop_assert!(fits && state.total() <= room as u64),
                Err(BuildError::Full { needed, available }) => {
                    prop_assert!(!fits && needed > available as u64);
                    prop_assert_eq!(state, before);
                }
                Err(other) => prop_assert!(false, "{}", other),
            }
        }
        if !state.is_empty() {
            let expected = state.total() as usize;
            let tags = Tags { first: 1, trailing: 2 };
            let total = state.finish(&mut buffer, &Header::new(Kind::RequestBatch), tags);
            prop_assert_eq!(total, Ok(expected));
            let message = Message::parse(&buffer[..expected], room).expect("valid");
            prop_assert_eq!(message.entries().count(), usize::from(state.count()));
        }
    }

    #[test]
    fn a_lone_entry_says_the_same_in_both_forms(entry in entry(), tags in tags()) {
        let (meta, payload) = &entry;
        let mut buffer = vec![0xee; 1024];
        let mut state = BatchState::new();
        state.push(&mut buffer, meta, payload).expect("there is room");
        let header = Header { head: 9, ..Header::new(Kind::ResponseBatch) };
        let total = state.finish_compact(&mut buffer, &header, tags).expect("valid");
        prop_assert_eq!(total == LINE, payload.len() <= 32);
        let compact = Message::parse(&buffer[..total], total).expect("valid");
        let plain = build(Kind::ResponseBatch, std::slice::from_ref(&entry), tags);
        let plain = Message::parse(&plain, plain.len()).expect("valid");
        prop_assert!(compact.entries().eq(plain.entries()));
        prop_assert_eq!(compact.header().head, 9);
    }

    #[test]
    fn any_bytes_get_an_answer(bytes in vec(any::<u8>(), 0..400), limit in 0..500_usize) {
        if let Ok(message) = Message::parse(&bytes, limit) {
            prop_assert!(bytes.len() <= limit);
            prop_assert!(message.entries().map(|entry| entry.payload.len()).sum::<usize>() <= bytes.len());
        }
        prop_assert!(Descriptor::decode(&bytes, 1 << 20).is_err() || bytes.len() == 24);
        if let Ok(record) = Record::decode(&bytes) {
            prop_assert_eq!(record.encode(), Ok(bytes));
        }
    }

    #[test]
    fn one_changed_byte_is_noticed_or_means_something_else(
        entries in vec(entry(), 1..6),
        tags in tags(),
        place in any::<prop::sample::Index>(),
        change in 1..=u8::MAX,
    ) {
        let good = build(Kind::ResponseBatch, &entries, tags);
        let mut bad = good.clone();
        let place = place.index(bad.len());
        bad[place] ^= change;
        let in_tag = (56..64).contains(&place) || place >= bad.len() - 8;
        prop_assert_eq!(verify_tags(&bad, tags).is_err(), in_tag);
        if let (Ok(before), Ok(after)) = (Message::parse(&good, 1 << 20), Message::parse(&bad, 1 << 20)) {
            // Every byte outside the tags has a meaning.
            let same = before.header() == after.header() && before.entries().eq(after.entries());
            prop_assert_eq!(same, in_tag);
        }
    }

    #[test]
    fn descriptors_come_back(key in any::<u64>(), offset in any::<u64>(), length in any::<u64>(), limit in any::<u64>()) {
        let descriptor = Descriptor { key, offset, length };
        match Descriptor::decode(&descriptor.encode(), limit) {
            Ok(again) => {
                prop_assert_eq!(again, descriptor);
                prop_assert!(length <= limit && offset.checked_add(length).is_some());
            }
            Err(_) => prop_assert!(length > limit || offset.checked_add(length).is_none()),
        }
    }

    #[test]
    fn records_come_back(record in record()) {
        let bytes = record.encode().expect("within the limits");
        prop_assert_eq!(Record::decode(&bytes), Ok(record));
    }

    #[test]
    fn a_changed_record_is_refused_or_encoded_the_same(
        record in record(),
        place in any::<prop::sample::Index>(),
        byte in any::<u8>(),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = record.encode().expect("within the limits");
        prop_assert!(Record::decode(&bytes[..cut.index(bytes.len())]).is_err());
        // A body that ends early is refused too, or ends before an extension.
        let short = cut.index(bytes.len() - FRAME_HEADER_BYTES + 1);
        let cut_body = Record::decode_body(record.record_type(), &bytes[FRAME_HEADER_BYTES..][..short]);
        if let Ok(shorter) = cut_body {
            prop_assert!(extensions_of(&record).starts_with(extensions_of(&shorter)));
        }
        let place = place.index(bytes.len());
        bytes[place] = byte;
        if let Ok(record) = Record::decode(&bytes) {
            prop_assert_eq!(record.encode(), Ok(bytes));
        }
    }

    #[test]
    fn a_negotiated_version_is_spoken_by_both(theirs in any::<(u16, u16)>(), ours in any::<(u16, u16)>()) {
        let speaks = |range: (u16, u16), version| (range.0..=range.1).contains(&version);
        match negotiate(theirs, ours) {
            Ok(version) => prop_assert!(speaks(theirs, version) && speaks(ours, version)),
            Err(_) => prop_assert!(!speaks(theirs, ours.0) && !speaks(ours, theirs.0) || ours.0 > ours.1 || theirs.0 > theirs.1),
        }
    }
}
