use super::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const LIMITS: ExchangeLimits = ExchangeLimits { waiting: 3, bytes: 40, taken: 2, receivers: 2 };

fn exchange() -> Exchange<u32, u32> {
    Exchange::new(LIMITS, 7)
}

fn never(_: &u32) -> bool {
    false
}

#[test]
fn a_call_waits_for_a_receiver_and_a_receiver_for_a_call() {
    let mut exchange = exchange();
    assert_eq!(exchange.offer(vec![1], 10, never), []);
    let acts = exchange.receive(1, 8, true, never);
    let [Act::Hand { receiver: 1, number, request }] = &acts[..] else { panic!("{acts:?}") };
    assert_eq!(request, &[1]);
    assert_eq!(exchange.answer(*number), Some(10));
    assert_eq!(exchange.answer(*number), None, "an answer counts once");
    assert_eq!(exchange.receive(2, 8, true, never), []);
    let acts = exchange.offer(vec![2, 3], 11, never);
    assert!(matches!(&acts[..], [Act::Hand { receiver: 2, .. }]), "{acts:?}");
    assert_eq!(exchange.counts(), (0, 1, 0));
}

#[test]
fn a_receiver_that_does_not_wait_gets_nothing_and_leaves_others_in_place() {
    let mut exchange = exchange();
    assert_eq!(exchange.receive(1, 8, true, never), []);
    assert_eq!(exchange.receive(2, 8, false, never), [Act::Nothing(2)]);
    assert!(matches!(&exchange.offer(vec![1], 10, never)[..], [Act::Hand { receiver: 1, .. }]));
    assert_eq!(exchange.receive(3, 8, false, never), [Act::Nothing(3)]);
    exchange.offer(vec![1], 11, never);
    assert!(matches!(&exchange.receive(4, 8, false, never)[..], [Act::Hand { receiver: 4, .. }]));
}

#[test]
fn a_request_that_is_too_long_for_a_buffer_stays_the_next_one() {
    let mut exchange = exchange();
    exchange.offer(vec![0; 9], 10, never);
    exchange.offer(vec![0; 1], 11, never);
    assert_eq!(exchange.receive(1, 8, true, never), [Act::TooLong { receiver: 1, length: 9 }]);
    let acts = exchange.receive(2, 9, true, never);
    assert!(matches!(&acts[..], [Act::Hand { receiver: 2, request, .. }] if request.len() == 9), "{acts:?}");
}

#[test]
fn a_full_exchange_refuses_and_lets_one_long_request_wait() {
    let mut exchange = exchange();
    assert_eq!(exchange.offer(vec![0; 100], 10, never), [], "one call may wait in any case");
    assert_eq!(exchange.offer(vec![0; 1], 11, never), [Act::Overloaded(11)]);
    // The time of the first is over: it makes room.
    assert_eq!(exchange.offer(vec![0; 1], 12, |call| *call == 10), [Act::Expired(10)]);
    assert_eq!(exchange.offer(vec![0; 1], 13, never), []);
    assert_eq!(exchange.offer(vec![0; 1], 14, never), []);
    assert_eq!(exchange.offer(vec![0; 1], 15, never), [Act::Overloaded(15)]);
}

#[test]
fn a_receiver_that_never_answers_is_handed_no_more_than_its_share() {
    let mut exchange = exchange();
    for call in 0..3 {
        exchange.offer(vec![], call, never);
    }
    assert!(matches!(exchange.receive(1, 8, true, never)[..], [Act::Hand { .. }]));
    assert!(matches!(exchange.receive(1, 8, true, never)[..], [Act::Hand { .. }]));
    assert_eq!(exchange.receive(1, 8, true, never), [Act::Overloaded(2)]);
    // The receiver still waits. When the time of call 0 is over, its place goes to the next call.
    let acts = exchange.offer(vec![], 3, |call| *call == 0);
    assert!(matches!(&acts[..], [Act::Forgotten(0), Act::Hand { receiver: 1, .. }]), "{acts:?}");
}

#[test]
fn receivers_of_a_connection_that_ended_leave() {
    let mut exchange = exchange();
    exchange.receive(1, 8, true, never);
    exchange.receive(2, 8, true, never);
    assert_eq!(exchange.receive(3, 8, true, never), [Act::Nothing(3)], "two at most");
    assert_eq!(exchange.leave(|receiver| *receiver == 1), [1]);
    assert!(matches!(&exchange.offer(vec![], 0, never)[..], [Act::Hand { receiver: 2, .. }]));
}

#[test]
fn an_ended_exchange_takes_nothing() {
    let mut exchange = exchange();
    exchange.offer(vec![], 0, never);
    exchange.receive(1, 8, true, never);
    exchange.offer(vec![], 1, never);
    let Remains { waiting, taken, receivers } = exchange.end();
    assert_eq!((waiting, taken, receivers), (vec![1], vec![0], vec![]));
    assert_eq!(exchange.offer(vec![], 2, never), [Act::Overloaded(2)]);
    assert_eq!(exchange.receive(2, 8, true, never), [Act::Nothing(2)]);
}

proptest! {
    /// Each call ends once, in one way; calls are handed out in their order; the limits hold.
    #[test]
    fn each_call_ends_once_and_in_order(
        draw in any::<u32>(), steps in prop::collection::vec((0u8..5, 0usize..30, any::<prop::sample::Index>()), 0..80),
    ) {
        let mut exchange = Exchange::<u32, u32>::new(LIMITS, draw);
        let (mut lengths, mut over) = (BTreeMap::new(), BTreeSet::new());
        let (mut open, mut handed): (Vec<(u64, u32)>, Vec<u32>) = (Vec::new(), Vec::new());
        let mut ended: Vec<u32> = Vec::new();
        let (mut next_call, mut next_receiver, mut waiting_receivers) = (0u32, 0u32, BTreeSet::new());
        for (step, size, pick) in steps {
            let acts = match step {
                0 | 1 => {
                    next_call += 1;
                    lengths.insert(next_call, size);
                    let request = [&next_call.to_le_bytes()[..], &vec![0; size]].concat();
                    exchange.offer(request, next_call, |call| over.contains(call))
                }
                2 => {
                    next_receiver += 1;
                    waiting_receivers.insert(next_receiver);
                    exchange.receive(next_receiver, 20 + size, size % 2 == 0, |call| over.contains(call))
                }
                3 => {
                    if !open.is_empty() {
                        let (number, call) = open.swap_remove(pick.index(open.len()));
                        let answered = exchange.answer(number);
                        prop_assert_eq!(answered, Some(call).filter(|call| !ended.contains(call)));
                        ended.extend(answered);
                    }
                    prop_assert_eq!(exchange.answer(u64::from(draw) << 1), None, "a forged number");
                    Vec::new()
                }
                _ => {
                    over.insert(pick.index(next_call as usize + 1) as u32);
                    Vec::new()
                }
            };
            for act in acts {
                match act {
                    Act::Hand { receiver, number, request } => {
                        prop_assert!(waiting_receivers.remove(&receiver));
                        let call = u32::from_le_bytes(request[..4].try_into().unwrap());
                        prop_assert!(!over.contains(&call) && !ended.contains(&call));
                        prop_assert!(handed.last().is_none_or(|last| *last < call));
                        handed.push(call);
                        open.push((number, call));
                    }
                    Act::TooLong { receiver, length } => {
                        prop_assert!(waiting_receivers.remove(&receiver) && length > 20);
                    }
                    Act::Nothing(receiver) => prop_assert!(waiting_receivers.remove(&receiver)),
                    Act::Expired(call) | Act::Forgotten(call) => {
                        prop_assert!(over.contains(&call) && !ended.contains(&call));
                        ended.push(call);
                    }
                    Act::Overloaded(call) => {
                        prop_assert!(!ended.contains(&call));
                        ended.push(call);
                    }
                }
            }
            let (waiting, taken, receivers) = exchange.counts();
            prop_assert!(waiting <= LIMITS.waiting && taken <= LIMITS.taken as usize);
            prop_assert!(receivers <= LIMITS.receivers && receivers == waiting_receivers.len());
            prop_assert!(waiting == 0 || receivers == 0);
        }
        let Remains { waiting, taken, receivers } = exchange.end();
        ended.extend(waiting.into_iter().chain(taken));
        ended.sort_unstable();
        prop_assert_eq!(ended, (1..=next_call).collect::<Vec<_>>());
        prop_assert_eq!(receivers.into_iter().collect::<BTreeSet<_>>(), waiting_receivers);
    }
}
