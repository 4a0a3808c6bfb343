use super::*;
use crate::access::AccessError;
use crate::handles::TableError;
use crate::membership::MemberState;
use crate::message::Refusal;
use crate::place::{LmrId, NodeId};
use crate::record::{Listed, RecordError};
use crate::rights::Principal;
use proptest::prelude::*;

fn name() -> impl Strategy<Value = Name> {
    prop::collection::vec(any::<u8>(), 1..=255).prop_map(|bytes| Name::new(bytes).unwrap())
}

fn rights() -> impl Strategy<Value = Rights> {
    (0u8..8).prop_map(|bits| Rights::from_bits(bits).unwrap())
}

fn grantee() -> impl Strategy<Value = Grantee> {
    let principal = "[a-z]{1,64}".prop_map(|text| Grantee::Principal(Principal::new(&text).unwrap()));
    prop_oneof![Just(Grantee::Anyone), principal]
}

/// Either priority, drawn with a number.
fn priority(number: u64) -> Priority {
    if number.is_multiple_of(2) { Priority::Low } else { Priority::High }
}

/// A request; its bytes are of a constant, so that it owns nothing.
fn request() -> impl Strategy<Value = ProcessRequest<'static>> {
    const BYTES: &[u8] = &[7; 300];
    let place = (any::<u64>(), any::<u64>()).boxed();
    let grants = prop::collection::vec((grantee(), rights()), 0..=MAX_GRANTS).boxed();
    let nodes = prop::collection::vec("[a-z0-9-]{0,40}", 0..=MAX_STORES).boxed();
    prop_oneof![
        (any::<Option<Secret>>(), any::<Option<u64>>())
            .prop_map(|(secret, number)| ProcessRequest::Attach { secret, priority: number.map(priority) }),
        (place.clone(), any::<u32>()).prop_map(|((handle, offset), length)| ProcessRequest::Read {
            priority: priority(handle),
            handle,
            offset,
            length
        }),
        (place.clone(), 0..BYTES.len()).prop_map(|((handle, offset), length)| ProcessRequest::Write {
            priority: priority(handle),
            handle,
            offset,
            bytes: &BYTES[..length]
        }),
        (place.clone(), any::<[u64; 2]>(), 0..BYTES.len()).prop_map(
            |((handle, offset), [word_offset, value], length)| {
                let (bytes, priority) = (&BYTES[..length], priority(handle));
                ProcessRequest::WriteNotify { priority, handle, offset, word_offset, value, bytes }
            }
        ),
        (place.clone(), any::<u64>()).prop_map(|((handle, offset), add)| ProcessRequest::FetchAdd {
            priority: priority(handle),
            handle,
            offset,
            add
        }),
        (place.clone(), any::<[u64; 2]>()).prop_map(|((handle, offset), [expected, swap])| {
            ProcessRequest::CompareSwap { priority: priority(handle), handle, offset, expected, swap }
        }),
        (place.clone(), any::<u32>(), any::<u8>()).prop_map(|((handle, offset), length, value)| {
            ProcessRequest::Set { handle, offset, length, value }
        }),
        (place.clone(), any::<u32>(), place.clone()).prop_map(|((handle, offset), length, (buffer, at))| {
            let priority = priority(offset);
            match handle % 2 {
                0 => ProcessRequest::ReadInto { priority, handle, offset, length, buffer, at },
                _ => ProcessRequest::WriteFrom { priority, handle, offset, length, buffer, at },
            }
        }),
        (place.clone(), any::<u32>(), place).prop_map(|((handle, offset), length, (to, target))| {
            ProcessRequest::Copy { handle, offset, length, to, target }
        }),
        (any::<u64>(), nodes.clone(), prop::option::of(name()), grants.clone()).prop_map(
            |(length, nodes, name, grants)| {
                let is_direct = length % 2 == 1;
                let lease = length.is_multiple_of(3).then_some(length);
                ProcessRequest::Malloc { length, nodes, name, grants, lease, is_direct }
            }
        ),
        (any::<u64>(), nodes, name(), grants).prop_map(|(handle, nodes, name, grants)| {
            let lease = handle.is_multiple_of(3).then_some(handle);
            ProcessRequest::Publish { handle, nodes, name, grants, lease }
        }),
        (name(), rights()).prop_map(|(name, rights)| ProcessRequest::Map { name, rights }),
        any::<u64>().prop_map(|handle| ProcessRequest::Unmap { handle }),
        any::<u64>().prop_map(|length| ProcessRequest::Buffer { length }),
        any::<u64>().prop_map(|handle| ProcessRequest::Free { handle }),
        (any::<u64>(), "[a-z]{0,255}").prop_map(|(handle, node)| ProcessRequest::Move { handle, node }),
        (any::<u64>(), grantee(), rights()).prop_map(|(handle, to, rights)| ProcessRequest::Grant {
            handle,
            to,
            rights
        }),
        (any::<u64>(), grantee(), rights()).prop_map(|(handle, from, rights)| ProcessRequest::Revoke {
            handle,
            from,
            rights
        }),
        (any::<u64>(), any::<Option<u64>>())
            .prop_map(|(handle, length)| ProcessRequest::Lease { handle, length }),
        Just(ProcessRequest::Status),
        operator().prop_map(ProcessRequest::Operate),
        ("[a-z]{0,255}", any::<u32>()).prop_map(|(node, from)| ProcessRequest::List { node, from }),
    ]
}

fn lmr_id() -> impl Strategy<Value = LmrId> {
    (any::<u16>(), any::<u32>(), any::<u64>()).prop_map(|(node, slot, generation)| LmrId {
        node: NodeId(node),
        slot,
        generation,
    })
}

fn operator() -> impl Strategy<Value = OperatorRequest> {
    prop_oneof![
        any::<bool>().prop_map(|force| OperatorRequest::Leave { force }),
        name().prop_map(|name| OperatorRequest::FreeNamed { name }),
        Just(OperatorRequest::Held),
        "[a-z]{0,255}".prop_map(|to| OperatorRequest::HandOver { to }),
        prop::option::of(lmr_id()).prop_map(|after| OperatorRequest::Lent { after }),
        (lmr_id(), "[a-z]{0,255}").prop_map(|(id, to)| OperatorRequest::MoveAway { id, to }),
    ]
}

fn problem() -> impl Strategy<Value = Problem> {
    let in_list = (any::<u16>(), plain_problem())
        .prop_map(|(place, problem)| Problem::InList { place, problem: Box::new(problem) });
    prop_oneof![9 => plain_problem(), 1 => in_list]
}

fn plain_problem() -> impl Strategy<Value = Problem> {
    let access = prop_oneof![
        Just(AccessError::NoHandle),
        Just(AccessError::Gone),
        Just(AccessError::Moved),
        Just(AccessError::Revoked),
        (rights(), rights()).prop_map(|(needs, has)| AccessError::Denied { needs, has }),
        any::<[u64; 3]>().prop_map(|[offset, length, size]| AccessError::OutOfBounds {
            offset,
            length,
            size
        }),
        any::<u64>().prop_map(AccessError::Misaligned),
        Just(AccessError::TooManyOperations),
    ];
    let table = prop_oneof![
        Just(TableError::Full),
        Just(TableError::TooManyPending),
        Just(TableError::Freed),
        Just(TableError::Interrupted)
    ];
    let refusal = prop_oneof![
        Just(Refusal::Record(RecordError::NoSuch)),
        any::<u64>().prop_map(|wanted| Refusal::OutOfMemory { wanted })
    ];
    prop_oneof![
        access.prop_map(Problem::Access),
        table.prop_map(Problem::Table),
        any::<u32>().prop_map(Problem::Handles),
        any::<u16>().prop_map(Problem::Operations),
        any::<u16>().prop_map(Problem::Connections),
        Just(Problem::NotAttached),
        Just(Problem::Unknown),
        (any::<u64>(), any::<u32>()).prop_map(|(length, limit)| Problem::TooLong { length, limit }),
        Just(Problem::Malformed),
        ("[a-z]{1,255}", refusal).prop_map(|(node, refusal)| Problem::Refused { node, refusal }),
        "[a-z]{1,255}".prop_map(Problem::NoNode),
        any::<u64>().prop_map(Problem::Length),
        Just(Problem::Busy),
        "[a-z]{1,255}".prop_map(Problem::Unanswered),
        ("[a-z]{0,255}", any::<bool>())
            .prop_map(|(node, may_have_executed)| Problem::Deadline { node, may_have_executed }),
        "[a-z]{1,255}".prop_map(Problem::Skipped),
        Just(Problem::NotOperator),
        "[a-z]{0,255}".prop_map(Problem::MadeAt),
        "[a-z]{0,255}".prop_map(Problem::Priority),
        ("[a-z]{0,255}", any::<bool>(), any::<[u64; 2]>()).prop_map(
            |(principal, bytes, [limit, retry_after])| {
                let measure =
                    if bytes { crate::qos::Measure::Bytes } else { crate::qos::Measure::Operations };
                Problem::OverLimit { principal, measure, limit, retry_after }
            }
        ),
        ("[a-z]{1,255}", any::<u64>(), any::<bool>()).prop_map(|(node, epoch, may_have_executed)| {
            Problem::Dead { node, epoch, may_have_executed }
        }),
        prop::collection::vec(any::<u8>(), 1..=255)
            .prop_map(|service| Problem::Registered(Name::new(service).unwrap())),
        any::<u16>().prop_map(Problem::Services),
        Just(Problem::NotRegistered),
        "[a-z]{0,255}".prop_map(Problem::LockDeadline),
        "[a-z]{0,255}".prop_map(Problem::LockBusy),
        ("[a-z]{0,255}", any::<u16>()).prop_map(|(node, present)| {
            let refusal = crate::lock::message::LockRefusal::Members { wanted: 3, present };
            Problem::LockRefused { node, refusal }
        }),
        any::<u32>().prop_map(Problem::Locks),
        any::<u16>().prop_map(Problem::Buffers),
        any::<u64>().prop_map(Problem::BufferBytes),
        any::<u16>().prop_map(Problem::BufferExtents),
        Just(Problem::NotHeld),
        ("[a-z ]{0,255}", any::<bool>())
            .prop_map(|(text, may_have_executed)| Problem::Other { text, may_have_executed }),
    ]
}

fn status() -> impl Strategy<Value = NodeStatus> {
    let counted = (any::<[u64; 4]>(), any::<[u32; 5]>(), any::<[u16; 2]>());
    let process = ("[a-z0-9-]{1,64}", counted).prop_map(
        |(principal, ([number, operations, bytes, calls], few, [connections, services]))| {
            let [process, handles, under_way, queued, locks] = few;
            let direct = handles / 2;
            ProcessStatus {
                number,
                process,
                principal,
                priority: priority(number),
                handles,
                connections,
                direct,
                operations,
                bytes,
                calls,
                under_way,
                queued,
                services,
                locks,
            }
        },
    );
    let one = (any::<[u64; 3]>(), any::<[u32; 2]>());
    let one = one.prop_map(|([operations, bytes, calls], [under_way, waiting])| PriorityStatus {
        operations,
        bytes,
        calls,
        under_way,
        waiting,
    });
    let used = (any::<[u64; 4]>(), any::<u16>(), any::<u32>(), [one.clone(), one]);
    let nodes = prop::collection::vec("[a-z]{1,20}", 0..5);
    let states = prop_oneof![Just(MemberState::Alive), Just(MemberState::Dead), Just(MemberState::Left)];
    let member = ("[a-z]{1,20}", "[a-z:0-9]{1,20}", any::<u64>(), states)
        .prop_map(|(name, address, incarnation, state)| MemberStatus { name, address, incarnation, state });
    let members = (prop::collection::vec(member, 0..4), ".{0,40}");
    let pages = any::<[u64; 4]>().prop_map(|[small, transparent, huge_2m, huge_1g]| Pages {
        small,
        transparent,
        huge_2m,
        huge_1g,
    });
    let memory = (any::<[u64; 6]>(), any::<u16>(), prop::option::of(pages));
    (memory, used, nodes, members, prop::collection::vec(process, 0..5)).prop_map(
        |((numbers, extents, pages), used, nodes, (members, trouble), processes)| {
            let ([at_once, later, pool, regions], paths, calls, priorities) = used;
            let [memory, free, dirty, answered, refused, epoch] = numbers;
            NodeStatus {
                epoch,
                members,
                trouble,
                node: "node".to_owned(),
                memory,
                free,
                dirty,
                extents,
                registrations: extents / 2,
                pages,
                is_kept: epoch % 2 == 0,
                answered,
                refused,
                ran: Ran { at_once, later, pool },
                regions,
                paths,
                paths_reason: format!("there are {paths}"),
                queue_pairs: calls / 2,
                call_connections: calls / 3,
                calls,
                priorities,
                nodes,
                processes,
            }
        },
    )
}

fn listing() -> impl Strategy<Value = Listing> {
    let listed =
        (name(), any::<u64>(), rights()).prop_map(|(name, length, rights)| Listed { name, length, rights });
    (prop::collection::vec(listed, 0..5), any::<Option<u32>>())
        .prop_map(|(regions, next)| Listing { regions, next })
}

fn encoded(request: &ProcessRequest<'_>) -> Vec<u8> {
    let mut bytes = vec![1, 2, 3];
    request.encode_into(&mut bytes);
    bytes
}

proptest! {
    #[test]
    fn messages_come_back_whole(
        request in request(), problem in problem(), status in status(), listing in listing(),
        secret in any::<Secret>(), numbers in any::<[u64; 3]>(), operations in any::<u16>(),
    ) {
        let bytes = encoded(&request);
        prop_assert_eq!(ProcessRequest::parse(request.function(), &bytes), Ok(request));
        prop_assert_eq!(Problem::parse(&problem.encode()), Ok(problem));
        prop_assert_eq!(NodeStatus::parse(&status.encode()), Ok(status));
        let names = listing.regions.iter().map(|one| one.name.clone()).collect();
        let holdings = Holdings { leaves: numbers[0] % 2 == 0, names, named: numbers[1], bytes: numbers[2] };
        prop_assert_eq!(Holdings::parse(&holdings.encode()), Ok(holdings));
        let lent = Lent {
            more: numbers[0] % 3 == 0,
            regions: (0..numbers[1] % 5).map(|at| LentRegion {
                id: LmrId { node: NodeId(at as u16), slot: 7, generation: numbers[2] },
                bytes: numbers[1],
                node: "n".repeat(at as usize),
            }).collect(),
        };
        prop_assert_eq!(Lent::parse(&lent.encode()), Ok(lent));
        prop_assert_eq!(parse_listing(&encode_listing(&listing)), Ok(listing));
        let opened = Opened { handle: numbers[0], length: numbers[1], region: numbers[2] };
        prop_assert_eq!(Opened::parse(&opened.encode()), Ok(opened));
        let attached =
            Attached {
                secret, operations, node: "node-1".to_owned(), principal: "user-7".to_owned(), is_kept: true,
                highest: priority(numbers[0]),
            };
        prop_assert_eq!(Attached::parse(&attached.encode()), Ok(attached));
    }

    /// Shortened, lengthened and random messages are refused or understood, and never cause a panic.
    #[test]
    fn any_bytes_are_survived(
        function in 0u16..33, bytes in prop::collection::vec(any::<u8>(), 0..300), request in request(),
        problem in problem(), status in status(), listing in listing(), cut in any::<prop::sample::Index>(),
    ) {
        let _ = (Holdings::parse(&bytes), Lent::parse(&bytes));
        let _ = (ProcessRequest::parse(function, &bytes), Problem::parse(&bytes), NodeStatus::parse(&bytes));
        let _ = (Attached::parse(&bytes), Opened::parse(&bytes), parse_listing(&bytes));
        let good = encoded(&request);
        // The bytes to write end with the message, whatever their number.
        if ![WRITE, WRITE_NOTIFY].contains(&request.function()) && !good.is_empty() {
            let long = [&good[..], &[1]].concat();
            prop_assert!(ProcessRequest::parse(request.function(), &good[..cut.index(good.len())]).is_err());
            prop_assert!(ProcessRequest::parse(request.function(), &long).is_err());
        }
        let _ = ProcessRequest::parse(function, &good);
        for good in [problem.encode(), status.encode(), encode_listing(&listing)] {
            let short = &good[..cut.index(good.len())];
            prop_assert!(
                Problem::parse(short).is_err() || NodeStatus::parse(short).is_err() || parse_listing(short).is_err()
            );
        }
    }
}

#[test]
fn a_long_text_is_cut_between_characters() {
    let problem = Problem::Other { text: "\u{fc}".repeat(200), may_have_executed: true };
    let Ok(Problem::Other { text, .. }) = Problem::parse(&problem.encode()) else { panic!("not understood") };
    assert_eq!(text, "\u{fc}".repeat(127));
}

#[test]
fn problems_in_lists_do_not_nest() {
    let problem = Problem::InList { place: 1, problem: Box::new(Problem::Busy) };
    let nested = Problem::InList { place: 2, problem: Box::new(problem) };
    assert_eq!(Problem::parse(&nested.encode()), Err(Malformed));
}

#[test]
fn counts_without_values_are_refused() {
    let mut bytes = Vec::new();
    let (nodes, name, grants, lease) = Default::default();
    ProcessRequest::Malloc { length: 1, nodes, name, grants, lease, is_direct: false }
        .encode_into(&mut bytes);
    bytes[8] = 255;
    assert_eq!(ProcessRequest::parse(MALLOC, &bytes), Err(Malformed));
    assert_eq!(parse_listing(&[0, 0, 0, 0, 0, 255, 255]), Err(Malformed));
}

#[test]
fn a_priority_that_is_none_is_refused() {
    for request in [
        ProcessRequest::Read { priority: Priority::Low, handle: 1, offset: 0, length: 8 },
        ProcessRequest::Write { priority: Priority::Low, handle: 1, offset: 0, bytes: b"bytes" },
        ProcessRequest::WriteNotify {
            priority: Priority::Low,
            handle: 1,
            offset: 0,
            word_offset: 8,
            value: 1,
            bytes: b"bytes",
        },
        ProcessRequest::FetchAdd { priority: Priority::Low, handle: 1, offset: 0, add: 1 },
        ProcessRequest::CompareSwap { priority: Priority::Low, handle: 1, offset: 0, expected: 1, swap: 1 },
        ProcessRequest::Run { priority: Priority::Low, operations: Vec::new() },
    ] {
        let mut bytes = encoded(&request);
        assert!(ProcessRequest::parse(request.function(), &bytes).is_ok());
        for wrong in 2..=u8::MAX {
            bytes[0] = wrong;
            assert_eq!(ProcessRequest::parse(request.function(), &bytes), Err(Malformed), "{request:?}");
        }
    }
    let bytes = encoded(&ProcessRequest::Attach { secret: None, priority: Some(Priority::High) });
    let parse =
        |last: &[u8]| ProcessRequest::parse(ATTACH, &[&bytes[..bytes.len() - 2], last].concat()).map(drop);
    assert_eq!([parse(&[1, 1]), parse(&[1, 0]), parse(&[0])], [Ok(()); 3]);
    for wrong in [&[1, 2][..], &[2, 0], &[0, 0], &[1], &[]] {
        assert_eq!(parse(wrong), Err(Malformed), "{wrong:?}");
    }
}
