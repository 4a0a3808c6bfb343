//! Connections without sockets: the same bytes get the same answers, however they are split.

use super::service::{Answer, Toy, call, message};
use crate::answer::Service;
use crate::head::{CALL, EXCEPTION, Head, ONEWAY, REPLY};
use crate::outgoing::Outgoing;
use crate::session::{Session, Then};
use crate::split::{Next, Splitter};
use dunlin_thrift_core::codec::{BinaryInput, CompactInput, Encoding};
use dunlin_thrift_core::{Transport, Wire};
use pilota::Bytes;
use pilota::thrift::{ApplicationException, ApplicationExceptionKind, Message};
use proptest::prelude::*;
use std::sync::Arc;

const LIMIT: usize = 1 << 20;

/// The result of processing a stream.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    answers: Vec<u8>,
    broken: Option<String>,
    executed: usize,
}

/// Passes the bytes to a session in pieces, as a connection does.
fn play(bytes: &[u8], pieces: &[usize], output_limit: usize) -> Outcome {
    let toy = Toy::new();
    // Mutated bytes may call `hold`.
    toy.release();
    let service = Service::new(Arc::clone(&toy), LIMIT, "127.0.0.1:9".into());
    let mut session = Session::new(1 << 63);
    let (mut waiting, mut answers, mut broken) = (Vec::new(), Vec::new(), None);
    let (mut come, mut pieces) = (0, pieces.iter());
    while come < bytes.len() && broken.is_none() {
        let end = pieces.next().map_or(bytes.len(), |piece| (come + piece).min(bytes.len()));
        waiting.extend_from_slice(&bytes[come..end]);
        come = end;
        loop {
            let mut output = Outgoing::default();
            let taken = session.take(&service, &waiting, None, &mut output, output_limit);
            waiting.drain(..taken.bytes);
            answers.extend_from_slice(&output.to_vec());
            match taken.then {
                Then::OutputFull => assert!(taken.messages > 0, "it gets on"),
                Then::Wanted(wanted) => {
                    assert!(wanted > 0);
                    break;
                }
                Then::Broken(why) => {
                    broken = Some(why.to_string());
                    break;
                }
            }
        }
    }
    Outcome { answers, broken, executed: toy.executed() }
}

/// Parses a stream of answers: message type, name, sequence number and content.
fn answers(wire: Wire, mut bytes: &[u8]) -> Vec<(u8, String, i32, Result<Answer, ApplicationException>)> {
    let mut splitter = Splitter::new(wire, LIMIT);
    let mut answers = Vec::new();
    while !bytes.is_empty() {
        let Next::Message(range) = splitter.next(bytes).unwrap() else { panic!("half an answer") };
        let message = &bytes[range.clone()];
        bytes = &bytes[range.end..];
        let (head, length) = Head::read(wire.encoding, message).unwrap().unwrap();
        let body = &message[length..];
        fn read<M: Message>(encoding: Encoding, body: &[u8]) -> M {
            match encoding {
                Encoding::Binary => M::decode(&mut BinaryInput::new(body)).unwrap(),
                Encoding::Compact => M::decode(&mut CompactInput::new(body)).unwrap(),
            }
        }
        let content = match head.kind {
            REPLY => Ok(read(wire.encoding, body)),
            EXCEPTION => Err(read(wire.encoding, body)),
            other => panic!("an answer of type {other}"),
        };
        answers.push((head.kind, String::from_utf8(head.name.to_vec()).unwrap(), head.sequence, content));
    }
    answers
}

/// One message of each kind that a client may send. The last whole message is valid.
fn conversation(wire: Wire) -> Vec<u8> {
    let head =
        |name: &'static str, kind, sequence| Head { name: name.as_bytes(), kind, sequence, old: false };
    [
        call(wire, "echo", 1, b"hello"),
        call(wire, "refuse", -2, b"no"),
        call(wire, "nothing", 3, b""),
        message(wire, head("tell", ONEWAY, 4), b"12345"),
        // As old clients do.
        message(wire, head("tell", CALL, 5), b"67"),
        // A oneway call of a normal function expects no answer.
        message(wire, head("echo", ONEWAY, 6), b"unheard"),
        message(wire, head("nothing", ONEWAY, 7), b""),
        message(wire, head("echo", REPLY, 8), b""),
        message(wire, head("echo", 7, 9), b""),
        call(wire, "panic", 10, b""),
        call(wire, "told", i32::MAX, b""),
        call(wire, "many", i32::MIN, b"300"),
    ]
    .concat()
}

/// A handler shares the message's memory if it is given, and copies otherwise.
#[test]
fn large_arguments_are_shared() {
    let toy = Toy::new();
    let service = Service::new(Arc::clone(&toy), LIMIT, "127.0.0.1:9".into());
    let mut session = Session::new(1 << 63);
    let memory = Bytes::from(call(Wire::FRAMED_BINARY, "echo", 1, &[7; 70_000]));
    for given in [Some(&memory), None] {
        let taken = session.take(&service, &memory, given, &mut Outgoing::default(), LIMIT);
        assert_eq!((taken.bytes, taken.messages), (memory.len(), 1));
        assert!(session.is_one_frame(&memory) && !session.is_one_frame(&memory[..70_000]));
        let kept = toy.kept.lock().unwrap().pop().unwrap();
        assert_eq!(kept, [7; 70_000][..]);
        assert_eq!(memory.as_ptr_range().contains(&kept.as_ptr()), given.is_some());
    }
}

#[test]
fn a_conversation_goes_as_it_should_on_every_wire() {
    for wire in Wire::ALL {
        let outcome = play(&conversation(wire), &[], LIMIT);
        assert_eq!(outcome.broken, None, "{wire:?}");
        let said = answers(wire, &outcome.answers);
        let heads: Vec<_> =
            said.iter().map(|(kind, name, sequence, _)| (*kind, name.as_str(), *sequence)).collect();
        let expected = [
            (REPLY, "echo", 1),
            (REPLY, "refuse", -2),
            (EXCEPTION, "nothing", 3),
            (EXCEPTION, "echo", 8),
            (EXCEPTION, "echo", 9),
            (EXCEPTION, "panic", 10),
            (REPLY, "told", i32::MAX),
            (REPLY, "many", i32::MIN),
        ];
        assert_eq!(heads, expected, "{wire:?}");
        let contents: Vec<_> =
            said.into_iter().map(|(_, _, _, content)| content.map_err(|e| e.kind())).collect();
        let value = |bytes: &[u8]| Ok(Answer::Value(bytes.to_vec()));
        let expected = [
            value(b"hello"),
            Ok(Answer::Refused(b"no".to_vec())),
            Err(ApplicationExceptionKind::UNKNOWN_METHOD),
            Err(ApplicationExceptionKind::INVALID_MESSAGE_TYPE),
            Err(ApplicationExceptionKind::INVALID_MESSAGE_TYPE),
            Err(ApplicationExceptionKind::INTERNAL_ERROR),
            value(b"7"),
            value(&[7; 300]),
        ];
        assert_eq!(contents, expected, "{wire:?}");
    }
}

#[test]
fn every_split_of_a_conversation_gives_the_same_answers() {
    for wire in Wire::ALL {
        let bytes = conversation(wire);
        let whole = play(&bytes, &[], LIMIT);
        for split in 1..bytes.len() {
            assert_eq!(play(&bytes, &[split], LIMIT), whole, "{wire:?} split at {split}");
        }
        assert_eq!(play(&bytes, &vec![1; bytes.len()], LIMIT), whole, "{wire:?} byte by byte");
        // With a tiny output limit, answers are produced one by one.
        assert_eq!(play(&bytes, &[], 1), whole, "{wire:?} answer by answer");
    }
}

#[test]
fn the_old_binary_form_is_answered_in_kind_and_may_change_with_the_new() {
    for wire in [Wire::FRAMED_BINARY, Wire::UNFRAMED_BINARY] {
        let old = |name: &'static str, sequence| {
            message(wire, Head { name: name.as_bytes(), kind: CALL, sequence, old: true }, b"x")
        };
        let bytes = [old("echo", 1), call(wire, "echo", 2, b"y"), old("nothing", 3)].concat();
        let outcome = play(&bytes, &[], LIMIT);
        assert_eq!(outcome.broken, None);
        let skip = if wire.transport == Transport::Framed { 4 } else { 0 };
        assert_eq!(&outcome.answers[skip..skip + 9], b"\x00\x00\x00\x04echo\x02", "{wire:?}");
        let said = answers(wire, &outcome.answers);
        assert_eq!(said.iter().map(|answer| answer.2).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(play(&bytes, &vec![1; bytes.len()], LIMIT), outcome);
    }
}

/// A call of `echo` with these argument bytes.
fn raw(wire: Wire, arguments: &[u8]) -> Vec<u8> {
    let mut bytes = match wire.encoding {
        Encoding::Binary => b"\x80\x01\x00\x01\x00\x00\x00\x04echo\x00\x00\x00\x09".to_vec(),
        Encoding::Compact => b"\x82\x21\x09\x04echo".to_vec(),
    };
    bytes.extend_from_slice(arguments);
    match wire.transport {
        Transport::Framed => [&(bytes.len() as u32).to_be_bytes(), bytes.as_slice()].concat(),
        Transport::Unframed => bytes,
    }
}

#[test]
fn arguments_that_cannot_be_read_are_refused_and_the_connection_kept_where_their_end_is_known() {
    let lying: [(Encoding, &[u8]); 2] = [
        // A list of 2^30 numbers in twenty bytes.
        (Encoding::Binary, &[15, 0, 2, 10, 0x40, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0]),
        (
            Encoding::Compact,
            &[0x29, 0xf6, 0x80, 0x80, 0x80, 0x80, 0x04, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0],
        ),
    ];
    let missing: &[u8] = &[0];
    for wire in Wire::ALL {
        let good = call(wire, "echo", 10, b"still here");
        let (_, lie) = lying.iter().find(|(encoding, _)| *encoding == wire.encoding).unwrap();
        let outcome = play(&[raw(wire, lie), good.clone()].concat(), &[], LIMIT);
        let said = answers(wire, &outcome.answers);
        assert_eq!((said[0].0, said[0].2), (EXCEPTION, 9), "{wire:?}");
        assert_eq!(said[0].3.as_ref().unwrap_err().kind(), ApplicationExceptionKind::PROTOCOL_ERROR);
        let kept = wire.transport == Transport::Framed;
        assert_eq!((outcome.broken.is_none(), said.len()), (kept, if kept { 2 } else { 1 }), "{wire:?}");

        // An older client omits the argument. The end of the message is known on every wire.
        let outcome = play(&[raw(wire, missing), good].concat(), &[], LIMIT);
        let said = answers(wire, &outcome.answers);
        assert_eq!(said[0].3.as_ref().unwrap_err().kind(), ApplicationExceptionKind::PROTOCOL_ERROR);
        assert_eq!((outcome.broken, said.len(), outcome.executed), (None, 2, 1), "{wire:?}");
    }
}

#[test]
fn arguments_that_the_service_does_not_know_are_skipped() {
    let newer: [(Encoding, &[u8]); 2] = [
        (Encoding::Binary, b"\x0b\x00\x01\x00\x00\x00\x02hi\x0c\x00\x09\x08\x00\x01\x00\x00\x00\x05\x00\x00"),
        (Encoding::Compact, b"\x18\x02hi\x8c\x15\x0a\x00\x00"),
    ];
    for wire in Wire::ALL {
        let (_, newer) = newer.iter().find(|(encoding, _)| *encoding == wire.encoding).unwrap();
        let outcome = play(&raw(wire, newer), &[], LIMIT);
        assert_eq!(answers(wire, &outcome.answers)[0].3, Ok(Answer::Value(b"hi".to_vec())), "{wire:?}");
    }
}

#[test]
fn what_has_no_readable_head_ends_the_connection() {
    let long = call(Wire::UNFRAMED_BINARY, &"n".repeat(5000), 1, b"");
    let cases: [&[u8]; 7] = [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x80\x01\x00\x01\xff\xff\xff\xff",
        b"\x82\x22\x00",
        b"\x00\x00\x00\x03\x80\x01\x00",
        b"\x00\x20\x00\x00\x80\x01\x00\x01",
        b"\x82\x21\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
        &long,
    ];
    for bytes in cases {
        let outcome = play(bytes, &[], LIMIT);
        // A web client gets an answer that it understands.
        let refused = bytes.starts_with(b"GET ") && outcome.answers.starts_with(b"HTTP/1.1 400 ");
        assert!(outcome.broken.is_some(), "{bytes:02x?}: {outcome:?}");
        assert!(outcome.answers.is_empty() || refused, "{bytes:02x?}: {outcome:?}");
        assert_eq!(play(bytes, &vec![1; bytes.len()], LIMIT), outcome);
    }
}

#[test]
fn an_answer_over_the_limit_is_an_error_for_its_caller() {
    for wire in Wire::ALL {
        let bytes = [call(wire, "many", 1, b"2000000"), call(wire, "echo", 2, b"")].concat();
        let said = answers(wire, &play(&bytes, &[], LIMIT).answers);
        let error = said[0].3.as_ref().unwrap_err();
        assert_eq!(error.kind(), ApplicationExceptionKind::INTERNAL_ERROR);
        assert!(error.message().contains("message_limit"), "{error}");
        assert_eq!(said[1].3, Ok(Answer::Value(Vec::new())));
    }
}

/// A conversation with some bytes changed and some removed.
fn hostile() -> impl Strategy<Value = Vec<u8>> {
    let wire = prop::sample::select(Wire::ALL.to_vec());
    let changes = proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6);
    let cut = proptest::option::of(any::<prop::sample::Index>());
    (wire, changes, cut).prop_map(|(wire, changes, cut)| {
        let mut bytes = conversation(wire);
        for (place, byte) in changes {
            *place.get_mut(&mut bytes) = byte;
        }
        if let Some(cut) = cut {
            bytes.remove(cut.index(bytes.len()));
        }
        bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn hostile_bytes_give_the_same_in_any_pieces(
        bytes in prop_oneof![5 => hostile(), 1 => proptest::collection::vec(any::<u8>(), 0..200)],
        pieces in proptest::collection::vec(1usize..100, 0..60),
        output_limit in 1usize..2000,
    ) {
        let whole = play(&bytes, &[], LIMIT);
        prop_assert_eq!(&play(&bytes, &pieces, output_limit), &whole);
    }
}
