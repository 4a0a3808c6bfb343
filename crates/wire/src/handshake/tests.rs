//! Golden bytes and refusals of each record.

use super::*;

fn hello() -> Hello {
    Hello {
        min_version: 1,
        max_version: 2,
        capabilities: 0x0102,
        process_id: 7,
        service: "kv".into(),
        token: Token(b"t0k".to_vec()),
        extensions: Extensions::default(),
    }
}

fn open_lane() -> OpenLane {
    OpenLane {
        lane: 3,
        worker: OpenLane::ANY_WORKER,
        request_half: 1,
        response_half: 2,
        client_completion: 3,
        server_completion: 4,
        window: 64,
        ring_bytes: 0x1000,
        rendezvous_above: 0x0102,
        large: 5,
        sharing: 6,
        lease: 7,
        endpoint: vec![9, 8],
        unreliable_endpoint: vec![6],
        datagram_endpoint: vec![],
        region_keys: vec![0x0a, 0x0b],
        extensions: Extensions::default(),
    }
}

fn lane_ready() -> LaneReady {
    LaneReady {
        lane: 3,
        worker: 1,
        window: 32,
        max_batch_entries: 16,
        ring_bytes: 0x800,
        max_message_bytes: 0x400,
        secret: Secret([0x55; 16]),
        endpoint: vec![7],
        unreliable_endpoint: vec![],
        datagram_endpoint: vec![5, 4],
        place: 0x0c0d,
        region_keys: vec![],
        extensions: Extensions::default(),
    }
}

fn hello_reply() -> HelloReply {
    HelloReply {
        version: 1,
        capabilities: 2,
        workers: 3,
        functions: 4,
        max_payload: 5,
        session: 6,
        extensions: Extensions::default(),
    }
}

fn frame(record_type: u16, body: &[u8]) -> Vec<u8> {
    let mut frame = b"DNLN\x01\x00".to_vec();
    frame.extend_from_slice(&record_type.to_le_bytes());
    frame.extend_from_slice(&(body.len() as u32).to_le_bytes());
    frame.extend_from_slice(body);
    frame
}

#[test]
fn golden_bytes_of_every_record() {
    let mut ready_body = vec![3, 0, 1, 0, 32, 0, 16, 0, 0, 8, 0, 0, 0, 4, 0, 0];
    ready_body.extend_from_slice(&[0x55; 16]);
    ready_body.extend_from_slice(&[1, 0, 7, 0, 0, 2, 0, 5, 4, 0x0d, 0x0c, 0, 0]);
    let cases: [(Record, u16, &[u8]); 12] = [
        (
            Record::Hello(hello()),
            1,
            &[1, 0, 2, 0, 2, 1, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 2, 0, b'k', b'v', 3, 0, b't', b'0', b'k'],
        ),
        (
            Record::HelloReply(hello_reply()),
            2,
            &[1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 4, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0],
        ),
        (
            Record::Refused(Refused { code: RefusalCode::VERSION, text: "no".into() }),
            3,
            &[1, 0, 2, 0, b'n', b'o'],
        ),
        (
            Record::OpenLane(open_lane()),
            4,
            &[
                3, 0, 0xff, 0xff, 1, 2, 3, 4, 64, 0, 0, 0x10, 0, 0, 2, 1, 0, 0, 5, 6, 7, 2, 0, 9, 8, 1, 0, 6,
                0, 0, 2, 0, 0x0a, 0, 0, 0, 0, 0, 0, 0, 0x0b, 0, 0, 0, 0, 0, 0, 0,
            ],
        ),
        (Record::LaneReady(lane_ready()), 5, &ready_body),
        (
            Record::LaneRefused(LaneRefused { lane: 3, code: RefusalCode::NO_MEMORY, text: String::new() }),
            6,
            &[3, 0, 6, 0, 0, 0],
        ),
        (
            Record::Grant(Grant { key: 1, length: 2, purpose: 3 }),
            7,
            &[1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3],
        ),
        (Record::Drain, 8, &[]),
        (Record::Drained(Drained { lane: 3, taken: 9 }), 9, &[3, 0, 9, 0, 0, 0, 0, 0, 0, 0]),
        (Record::CloseLane { lane: 3 }, 10, &[3, 0]),
        (Record::Goodbye, 11, &[]),
        (Record::Attach(Attach { name: "a/b".to_owned() }), 12, &[3, 0, b'a', b'/', b'b']),
    ];
    for (record, number, body) in cases {
        let (bytes, record_type) = (record.encode().unwrap(), record.record_type());
        assert_eq!(bytes, frame(number, body), "{record:?}");
        assert_eq!(Record::decode(&bytes), Ok(record));
        for cut in 0..bytes.len() {
            assert!(matches!(Record::decode(&bytes[..cut]), Err(HandshakeError::Truncated { .. })));
        }
        // Append one byte after the frame, and one inside it.
        let mut longer = bytes.clone();
        longer.push(0);
        assert_eq!(Record::decode(&longer), Err(HandshakeError::TrailingBytes { count: 1 }));
        let longer = frame(number, &[body, &[0]].concat());
        let beyond = match record_type {
            RecordType::Hello | RecordType::HelloReply | RecordType::OpenLane | RecordType::LaneReady => {
                HandshakeError::Truncated { field: "extension" }
            }
            _ => HandshakeError::TrailingBytes { count: 1 },
        };
        assert_eq!(Record::decode(&longer), Err(beyond));
        // Truncate the body, with a matching length in the frame.
        for cut in 0..body.len() {
            assert!(matches!(
                Record::decode(&frame(number, &body[..cut])),
                Err(HandshakeError::Truncated { .. })
            ));
        }
    }
}

#[test]
fn strangers_are_told_apart() {
    let good = Record::Goodbye.encode().unwrap();
    let with = |place: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[place] = value;
        Record::decode(&bytes).unwrap_err()
    };
    assert_eq!(Record::decode(b"GET / HTTP/1.1"), Err(HandshakeError::Magic(u32::from_le_bytes(*b"GET "))));
    let error = with(4, 9);
    assert_eq!(error, HandshakeError::FrameVersion { theirs: 9, ours: 1 });
    assert!(error.to_string().contains("version 9") && error.to_string().contains("version 1"));
    assert_eq!(with(6, 13), HandshakeError::UnknownRecord(13));
    assert_eq!(with(6, 0), HandshakeError::UnknownRecord(0));
    assert_eq!(with(9, 8), HandshakeError::Truncated { field: "frame body" });
    assert_eq!(with(10, 1), HandshakeError::BodyTooLong { length: 1 << 16, limit: 4096 });
}

#[test]
fn versions_are_negotiated_by_name() {
    assert_eq!(negotiate((1, 3), (2, 5)), Ok(3));
    assert_eq!(negotiate((2, 5), (1, 3)), Ok(3));
    assert_eq!(negotiate((4, 4), (4, 4)), Ok(4));
    let error = negotiate((1, 2), (3, 4)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the peer speaks versions 1 to 2, this build 3 to 4: upgrade the older one"
    );
    let empty = Record::Hello(Hello { min_version: 3, ..hello() });
    assert_eq!(empty.encode(), Err(HandshakeError::VersionRange { lowest: 3, highest: 2 }));
    let mut bytes = Record::Hello(hello()).encode().unwrap();
    bytes[FRAME_HEADER_BYTES] = 3;
    assert_eq!(Record::decode(&bytes), Err(HandshakeError::VersionRange { lowest: 3, highest: 2 }));
}

#[test]
fn fields_at_their_limits_pass_and_beyond_them_do_not() {
    let passes = |record: Record| {
        let bytes = record.encode().unwrap();
        assert!(bytes.len() - FRAME_HEADER_BYTES <= MAX_BODY_BYTES as usize);
        assert_eq!(Record::decode(&bytes), Ok(record));
    };
    let fails = |record: Record, name: &str| match record.encode() {
        Err(HandshakeError::FieldTooLong { field, .. }) => assert_eq!(field, name),
        other => panic!("{other:?}"),
    };
    passes(Record::Hello(Hello { service: "s".repeat(255), token: Token(vec![1; 255]), ..hello() }));
    fails(Record::Hello(Hello { service: "s".repeat(256), ..hello() }), "service");
    fails(Record::Hello(Hello { token: Token(vec![1; 256]), ..hello() }), "token");
    passes(Record::OpenLane(OpenLane {
        endpoint: vec![1; 1024],
        region_keys: vec![u64::MAX; 8],
        ..open_lane()
    }));
    fails(Record::OpenLane(OpenLane { endpoint: vec![1; 1025], ..open_lane() }), "endpoint");
    fails(Record::OpenLane(OpenLane { region_keys: vec![1; 9], ..open_lane() }), "region_keys");
    passes(Record::LaneReady(LaneReady { endpoint: vec![1; 1024], region_keys: vec![1; 8], ..lane_ready() }));
    fails(Record::LaneReady(LaneReady { region_keys: vec![1; 70_000], ..lane_ready() }), "region_keys");
    passes(Record::Refused(Refused { code: RefusalCode(65535), text: "é".repeat(256) }));
    fails(Record::Refused(Refused { code: RefusalCode(1), text: "x".repeat(513) }), "text");
}

#[test]
fn a_peer_that_exceeds_a_limit_by_one_is_refused() {
    /// Record type, bytes before the field, name of the field, its limit, bytes per item, bytes after the
    /// field.
    type Case = (u16, &'static [u8], &'static str, usize, usize, usize);
    let cases: [Case; 12] = [
        (1, &[0; 16], "service", 255, 1, 2),
        (1, &[0; 18], "token", 255, 1, 0),
        (3, &[0; 2], "text", 512, 1, 0),
        (4, &[0; 21], "endpoint", 1024, 1, 6),
        (4, &[0; 23], "unreliable_endpoint", 1024, 1, 4),
        (4, &[0; 25], "datagram_endpoint", 1024, 1, 2),
        (4, &[0; 27], "region_keys", 8, 8, 0),
        (5, &[0; 32], "endpoint", 1024, 1, 8),
        (5, &[0; 34], "unreliable_endpoint", 1024, 1, 6),
        (5, &[0; 36], "datagram_endpoint", 1024, 1, 4),
        (5, &[0; 40], "region_keys", 8, 8, 0),
        (6, &[0; 4], "text", 512, 1, 0),
    ];
    for (record_type, before, name, limit, item, after) in cases {
        let body = |count: usize| {
            let mut body = before.to_vec();
            body.extend_from_slice(&(count as u16).to_le_bytes());
            body.resize(body.len() + count * item + after, 0);
            body
        };
        assert!(Record::decode(&frame(record_type, &body(limit))).is_ok(), "{name} of {record_type}");
        let error = HandshakeError::FieldTooLong { field: name, length: limit + 1, limit };
        assert_eq!(Record::decode(&frame(record_type, &body(limit + 1))), Err(error));
    }
}

#[test]
fn lengths_that_lie_and_text_that_is_none() {
    let bytes = Record::Refused(Refused { code: RefusalCode(1), text: "ab".into() }).encode().unwrap();
    let with = |place: usize, value: u8| {
        let mut bytes = bytes.clone();
        bytes[FRAME_HEADER_BYTES + place] = value;
        Record::decode(&bytes).unwrap_err()
    };
    assert_eq!(with(2, 3), HandshakeError::Truncated { field: "text" });
    assert_eq!(with(2, 1), HandshakeError::TrailingBytes { count: 1 });
    assert_eq!(with(3, 3), HandshakeError::FieldTooLong { field: "text", length: 0x302, limit: 512 });
    assert_eq!(with(4, 0xff), HandshakeError::NotUtf8 { field: "text" });
}

#[test]
fn rings_are_whole_lines() {
    let odd = Record::OpenLane(OpenLane { ring_bytes: 100, ..open_lane() });
    assert_eq!(odd.encode(), Err(HandshakeError::RingBytes(100)));
    let mut bytes = Record::LaneReady(lane_ready()).encode().unwrap();
    bytes[FRAME_HEADER_BYTES + 8] = 1;
    assert_eq!(Record::decode(&bytes), Err(HandshakeError::RingBytes(0x801)));
}

#[test]
fn secrets_are_not_printed_and_tokens_are_compared_whole() {
    assert_eq!(format!("{:?}", Secret([1; 16])), "Secret(..)");
    assert_eq!(format!("{:?}", hello().token), "Token(3 bytes)");
    let token = Token(b"abc".to_vec());
    assert!(token.matches(b"abc"));
    for other in [&b"abd"[..], b"ab", b"abcd", b""] {
        assert!(!token.matches(other));
    }
    assert!(Token::default().matches(b""));
}

/// The extensions that all tests below add to a Hello.
fn named() -> Extensions {
    [
        Extension::Client(0x0807_0605_0403_0201),
        Extension::Program("kv".into()),
        Extension::Skipped { number: 0xffff, value: vec![9] },
    ]
    .into()
}

/// The bytes of [`named`].
const NAMED: [&[u8]; 3] =
    [&[1, 0x80, 8, 0, 1, 2, 3, 4, 5, 6, 7, 8], &[2, 0x80, 2, 0, b'k', b'v'], &[0xff, 0xff, 1, 0, 9]];

#[test]
fn golden_bytes_of_extensions() {
    let record = Record::Hello(Hello { extensions: named(), ..hello() });
    let plain = Record::Hello(hello()).encode().unwrap();
    let body = [&plain[FRAME_HEADER_BYTES..], &NAMED.concat()].concat();
    let bytes = record.encode().unwrap();
    assert_eq!(bytes, frame(1, &body));
    assert_eq!(Record::decode(&bytes), Ok(record));
    assert_eq!((named().client(), named().program()), (Some(0x0807_0605_0403_0201), Some("kv")));
    assert_eq!((hello().extensions.client(), hello().extensions.program()), (None, None));
    // A record may end between two extensions, and nowhere else.
    let begins = body.len() - NAMED.concat().len();
    let ends = [begins, begins + NAMED[0].len(), begins + NAMED[0].len() + NAMED[1].len()];
    for cut in begins..body.len() {
        let decoded = Record::decode(&frame(1, &body[..cut]));
        if ends.contains(&cut) {
            assert!(decoded.is_ok(), "{cut}");
        } else {
            assert_eq!(decoded, Err(HandshakeError::Truncated { field: "extension" }), "{cut}");
        }
    }
}

#[test]
fn golden_bytes_of_the_number_of_active_queue_pairs() {
    let extensions: Extensions = [Extension::ActiveQueuePairs(0x0403_0201)].into();
    let record = Record::HelloReply(HelloReply { extensions: extensions.clone(), ..hello_reply() });
    let told: &[u8] = &[5, 0x80, 4, 0, 1, 2, 3, 4];
    assert_eq!(extended(&Record::HelloReply(hello_reply()), &[told]), Ok(record.clone()));
    assert_eq!(Record::decode(&record.encode().unwrap()), Ok(record));
    assert_eq!(extensions.active_queue_pairs(), Some(0x0403_0201));
    assert_eq!(hello_reply().extensions.active_queue_pairs(), None);
    let wrong = HandshakeError::ExtensionLength { number: 0x8005, length: 3 };
    let short: &[u8] = &[5, 0x80, 3, 0, 1, 2, 3];
    assert_eq!(extended(&Record::HelloReply(hello_reply()), &[short]), Err(wrong));
    let misplaced = HandshakeError::MisplacedExtension { number: 0x8005, record: RecordType::Hello };
    assert_eq!(extended(&Record::Hello(hello()), &[told]), Err(misplaced));
}

#[test]
fn golden_bytes_of_the_number_of_connections() {
    let extensions: Extensions = [Extension::Connections(0x0403_0201)].into();
    let record = Record::HelloReply(HelloReply { extensions: extensions.clone(), ..hello_reply() });
    let told: &[u8] = &[8, 0x80, 4, 0, 1, 2, 3, 4];
    assert_eq!(extended(&Record::HelloReply(hello_reply()), &[told]), Ok(record.clone()));
    assert_eq!(Record::decode(&record.encode().unwrap()), Ok(record));
    assert_eq!(extensions.connections(), Some(0x0403_0201));
    assert_eq!(hello_reply().extensions.connections(), None);
    for (length, value) in [(0, &[][..]), (3, &[1; 3]), (5, &[1; 5])] {
        let wrong = HandshakeError::ExtensionLength { number: 0x8008, length };
        let told = [&[8, 0x80, length as u8, 0], value].concat();
        assert_eq!(extended(&Record::HelloReply(hello_reply()), &[&told]), Err(wrong));
    }
    let misplaced = HandshakeError::MisplacedExtension { number: 0x8008, record: RecordType::Hello };
    assert_eq!(extended(&Record::Hello(hello()), &[told]), Err(misplaced));
}

#[test]
fn golden_bytes_of_the_occupancy() {
    let extensions: Extensions = [Extension::Occupancy { clients: 0x0403_0201, cores: 0x0807_0605 }].into();
    let record = Record::HelloReply(HelloReply { extensions: extensions.clone(), ..hello_reply() });
    let told: &[u8] = &[6, 0x80, 8, 0, 1, 2, 3, 4, 5, 6, 7, 8];
    assert_eq!(extended(&Record::HelloReply(hello_reply()), &[told]), Ok(record.clone()));
    assert_eq!(Record::decode(&record.encode().unwrap()), Ok(record));
    assert_eq!(extensions.occupancy(), Some((0x0403_0201, 0x0807_0605)));
    assert_eq!(hello_reply().extensions.occupancy(), None);
    for length in [4, 9] {
        let mut wrong = vec![6, 0x80, length, 0];
        wrong.resize(4 + usize::from(length), 1);
        let refused = HandshakeError::ExtensionLength { number: 0x8006, length: length.into() };
        assert_eq!(extended(&Record::HelloReply(hello_reply()), &[&wrong]), Err(refused));
    }
    let misplaced = HandshakeError::MisplacedExtension { number: 0x8006, record: RecordType::OpenLane };
    assert_eq!(extended(&Record::OpenLane(open_lane()), &[told]), Err(misplaced));
}

/// Appends extensions, as bytes, to a record without any.
fn extended(record: &Record, extensions: &[&[u8]]) -> Result<Record, HandshakeError> {
    let plain = record.encode().unwrap();
    let body = [&plain[FRAME_HEADER_BYTES..], &extensions.concat()].concat();
    Record::decode(&frame(record.record_type() as u16, &body))
}

#[test]
fn a_peer_skips_or_refuses_an_extension_that_it_does_not_know() {
    let records: [Record; 4] = [
        Record::Hello(hello()),
        Record::HelloReply(hello_reply()),
        Record::OpenLane(open_lane()),
        Record::LaneReady(lane_ready()),
    ];
    for record in &records {
        let kind = record.record_type();
        let skipped = extended(record, &[&[7, 0x80, 2, 0, 1, 2], &[10, 0x80, 0, 0]]).unwrap();
        assert_ne!(skipped, *record);
        let again = Record::decode(&skipped.encode().unwrap());
        assert_eq!(again, Ok(skipped));
        let lane = (kind == RecordType::OpenLane).then_some(3);
        let unknown = HandshakeError::UnknownExtension { number: 10, record: kind, lane };
        assert!(unknown.to_string().contains(&format!("extension 0x000a of {kind:?}")), "{unknown}");
        assert_eq!(extended(record, &[&[10, 0, 0, 0]]), Err(unknown));
    }
    // Records without a place for extensions have none to skip.
    let more = extended(&Record::CloseLane { lane: 3 }, &[&[7, 0x80, 0, 0]]);
    assert_eq!(more, Err(HandshakeError::TrailingBytes { count: 4 }));
}

#[test]
fn an_extension_is_refused_twice_elsewhere_or_with_another_length() {
    let (hello, open) = (Record::Hello(hello()), Record::OpenLane(open_lane()));
    let refused = |record: &Record, extensions: &[&[u8]]| extended(record, extensions).unwrap_err();
    let repeated = HandshakeError::RepeatedExtension { number: 0x8001 };
    assert_eq!(refused(&hello, &[NAMED[0], NAMED[1], NAMED[0]]), repeated);
    let repeated = HandshakeError::RepeatedExtension { number: 0xffff };
    assert_eq!(refused(&hello, &[NAMED[2], NAMED[2]]), repeated);
    for (number, extension) in [(0x8001, NAMED[0]), (0x8002, NAMED[1])] {
        let misplaced = HandshakeError::MisplacedExtension { number, record: RecordType::OpenLane };
        assert_eq!(refused(&open, &[extension]), misplaced);
    }
    for length in [0, 7, 9, 96] {
        let mut extension = vec![1, 0x80, length as u8, 0];
        extension.resize(4 + length, 0);
        let wrong = HandshakeError::ExtensionLength { number: 0x8001, length };
        assert_eq!(refused(&hello, &[&extension]), wrong);
    }
    let longer = HandshakeError::Truncated { field: "extension" };
    assert_eq!(refused(&hello, &[&[1, 0x80, 9, 0, 1, 2, 3, 4, 5, 6, 7, 8]]), longer);
    assert_eq!(refused(&hello, &[&[2, 0x80, 1, 0, 0xff]]), HandshakeError::NotUtf8 { field: "program" });
}

#[test]
fn extensions_are_bounded_in_number_and_length() {
    let skipped = |number: u16, length: usize| Extension::Skipped { number, value: vec![1; length] };
    let of = |extensions: Vec<Extension>| {
        Record::OpenLane(OpenLane {
            endpoint: vec![1; 1024],
            unreliable_endpoint: vec![1; 1024],
            datagram_endpoint: vec![1; 1024],
            region_keys: vec![1; 8],
            extensions: Extensions(extensions),
            ..open_lane()
        })
    };
    // The longest record fits its frame.
    let most: Vec<_> = (0x8100..0x8108).map(|number| skipped(number, MAX_EXTENSION_BYTES)).collect();
    let bytes = of(most.clone()).encode().unwrap();
    assert_eq!(Record::decode(&bytes), Ok(of(most.clone())));
    let too_many = HandshakeError::FieldTooLong { field: "extensions", length: 9, limit: 8 };
    let more = [most, vec![skipped(0x8200, 0)]].concat();
    assert_eq!(of(more).encode(), Err(too_many.clone()));
    let nine: Vec<_> = (0..9).map(|number| [number, 0x81, 0, 0]).collect();
    let nine: Vec<&[u8]> = nine.iter().map(|bytes| &bytes[..]).collect();
    assert_eq!(extended(&Record::Hello(hello()), &nine), Err(too_many));

    let too_long = HandshakeError::FieldTooLong { field: "extension", length: 97, limit: 96 };
    assert_eq!(of(vec![skipped(0x8100, 97)]).encode(), Err(too_long.clone()));
    let bytes = [&[0, 0x81, 97, 0][..], &[0; 97]].concat();
    assert_eq!(extended(&Record::Hello(hello()), &[&bytes]), Err(too_long));
    let long_name =
        Record::Hello(Hello { extensions: [Extension::Program("p".repeat(65))].into(), ..hello() });
    let too_long = HandshakeError::FieldTooLong { field: "program", length: 65, limit: 64 };
    assert_eq!(long_name.encode(), Err(too_long.clone()));
    let bytes = [&[2, 0x80, 65, 0][..], &[b'p'; 65]].concat();
    assert_eq!(extended(&Record::Hello(hello()), &[&bytes]), Err(too_long));
}

#[test]
fn an_encoder_refuses_extensions_that_a_peer_would_refuse() {
    let of = |extensions: Extensions| Record::OpenLane(OpenLane { extensions, ..open_lane() }).encode();
    let misplaced = HandshakeError::MisplacedExtension { number: 0x8001, record: RecordType::OpenLane };
    assert_eq!(of([Extension::Client(1)].into()), Err(misplaced));
    let skipped = |number| Extension::Skipped { number, value: vec![] };
    let twice = HandshakeError::RepeatedExtension { number: 0x8111 };
    assert_eq!(of([skipped(0x8111), skipped(0x8111)].into()), Err(twice));
    let required = HandshakeError::UnknownExtension { number: 10, record: RecordType::OpenLane, lane: None };
    assert_eq!(of([skipped(10)].into()), Err(required));
    // A known number is not an unknown extension.
    let known = Hello { extensions: [skipped(0x8001)].into(), ..hello() };
    let misplaced = HandshakeError::MisplacedExtension { number: 0x8001, record: RecordType::Hello };
    assert_eq!(Record::Hello(known).encode(), Err(misplaced));
}

#[test]
fn golden_bytes_of_the_request_ring() {
    let extensions: Extensions =
        [Extension::RequestRing { offset: 0x0807_0605_0403_0201, block: 4096 }].into();
    let record = Record::LaneReady(LaneReady { extensions: extensions.clone(), ..lane_ready() });
    let told: &[u8] = &[7, 0, 12, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 16, 0, 0];
    assert_eq!(extended(&Record::LaneReady(lane_ready()), &[told]), Ok(record.clone()));
    assert_eq!(Record::decode(&record.encode().unwrap()), Ok(record));
    assert_eq!(extensions.request_ring(), Some((0x0807_0605_0403_0201, 4096)));
    assert_eq!(lane_ready().extensions.request_ring(), None);
    for length in [8, 13] {
        let mut wrong = vec![7, 0, length, 0];
        wrong.resize(4 + usize::from(length), 1);
        let refused = HandshakeError::ExtensionLength { number: 7, length: length.into() };
        assert_eq!(extended(&Record::LaneReady(lane_ready()), &[&wrong]), Err(refused));
    }
    let misplaced = HandshakeError::MisplacedExtension { number: 7, record: RecordType::HelloReply };
    assert_eq!(extended(&Record::HelloReply(hello_reply()), &[told]), Err(misplaced));
}

#[test]
fn golden_bytes_of_the_control_line() {
    let extensions: Extensions = [Extension::ControlLine(0x0807_0605_0403_0201)].into();
    let record = Record::LaneReady(LaneReady { extensions: extensions.clone(), ..lane_ready() });
    let told: &[u8] = &[9, 0, 8, 0, 1, 2, 3, 4, 5, 6, 7, 8];
    assert_eq!(extended(&Record::LaneReady(lane_ready()), &[told]), Ok(record.clone()));
    assert_eq!(Record::decode(&record.encode().unwrap()), Ok(record));
    assert_eq!(extensions.control_line(), Some(0x0807_0605_0403_0201));
    assert_eq!(lane_ready().extensions.control_line(), None);
    for length in [7, 9] {
        let mut wrong = vec![9, 0, length, 0];
        wrong.resize(4 + usize::from(length), 1);
        let refused = HandshakeError::ExtensionLength { number: 9, length: length.into() };
        assert_eq!(extended(&Record::LaneReady(lane_ready()), &[&wrong]), Err(refused));
    }
    let misplaced = HandshakeError::MisplacedExtension { number: 9, record: RecordType::HelloReply };
    assert_eq!(extended(&Record::HelloReply(hello_reply()), &[told]), Err(misplaced));
}

#[test]
fn golden_bytes_of_credits_and_how_they_are_renewed() {
    let extensions: Extensions = [Extension::Credits(0x21), Extension::RenewedApart].into();
    let record = Record::OpenLane(OpenLane { extensions: extensions.clone(), ..open_lane() });
    let (credits, apart): (&[u8], &[u8]) = (&[3, 0, 1, 0, 0x21], &[4, 0, 0, 0]);
    assert_eq!(extended(&Record::OpenLane(open_lane()), &[credits, apart]), Ok(record.clone()));
    assert_eq!(Record::decode(&record.encode().unwrap()), Ok(record));
    assert_eq!((extensions.credits(), extensions.is_renewed_apart()), (Some(0x21), true));
    let plain = open_lane().extensions;
    assert_eq!((plain.credits(), plain.is_renewed_apart()), (None, false));
    for (number, wrong) in [(3, &[3, 0, 0, 0][..]), (3, &[3, 0, 2, 0, 1, 1]), (4, &[4, 0, 1, 0, 0])] {
        let refused = HandshakeError::ExtensionLength { number, length: wrong.len() - 4 };
        assert_eq!(extended(&Record::OpenLane(open_lane()), &[wrong]), Err(refused));
    }
    for (number, told) in [(3, credits), (4, apart)] {
        let misplaced = HandshakeError::MisplacedExtension { number, record: RecordType::LaneReady };
        assert_eq!(extended(&Record::LaneReady(lane_ready()), &[told]), Err(misplaced));
    }
}
