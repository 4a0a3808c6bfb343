use super::*;
use dunlin_fabric::memory::HeapMemory;
use proptest::prelude::*;

type Table = Slots<HeapMemory>;

/// Takes a call for the message `sequence`; [`Slots::sent`] marks that as sent.
fn take(slots: &mut Table, timeout: Nanos, sequence: u64) -> Option<u32> {
    let call = slots.next_call()?;
    slots.take(call, timeout, sequence);
    Some(call)
}

#[test]
fn a_window_is_a_window() {
    let mut slots = Table::new(2);
    let (_, b) = (take(&mut slots, 0, 0).unwrap(), take(&mut slots, 0, 1).unwrap());
    assert_eq!((slots.next_call(), slots.in_flight()), (None, 2));
    slots.sent(1);
    assert!(matches!(slots.answer(b, b"two", None), Some(Answered::Wanted)));
    assert!(slots.answer(b, b"again", None).is_none(), "answered twice");
    assert_eq!(slots.next_done(), Some(b));
    assert_eq!(slots.outcome(b).unwrap(), b"two");
    slots.forget(b);
    let again = take(&mut slots, 0, 2).unwrap();
    assert_eq!(split_call(again).0, split_call(b).0, "the same slot");
    assert_ne!(again, b, "another id");
    assert!(slots.answer(b, b"late", None).is_none());
}

#[test]
fn an_answer_has_to_name_the_thread_of_its_call() {
    let mut slots = Table::new(2);
    let (one, other) = (take(&mut slots, 0, 0).unwrap(), take(&mut slots, 0, 1).unwrap());
    slots.set_thread(one, 255);
    assert!(slots.is_of_thread(one, 255) && slots.is_of_thread(other, 0));
    assert!(
        !slots.is_of_thread(one, 0) && !slots.is_of_thread(one, 255 + 256) && !slots.is_of_thread(other, 1)
    );
    assert!(slots.is_of_thread(one + 4096, 7), "not a call: refused for that");
}

#[test]
fn a_call_given_up_keeps_its_slot_until_the_late_answer() {
    let mut slots = Table::new(1);
    let call = take(&mut slots, 0, 0).unwrap();
    slots.sent(0);
    slots.forget(call);
    assert_eq!(slots.next_call(), None);
    assert!(matches!(slots.answer(call, b"late", None), Some(Answered::Unwanted)));
    assert!(slots.next_call().is_some());
}

#[test]
fn calls_given_up_count_for_their_thread() {
    let mut slots = Table::new(4);
    let calls: Vec<u32> = (0..3).map(|at| take(&mut slots, [5, 0, 5][at], at as u64).unwrap()).collect();
    for (call, thread) in calls.iter().zip([7, 7, 9]) {
        slots.set_thread(*call, thread);
    }
    slots.sent(2);
    assert!(slots.has_room_for(7, 2), "the thread counts its calls itself");
    assert_eq!((slots.expire(1), slots.expire(6)), (6, u64::MAX));
    assert!(!slots.has_room_for(7, 2) && slots.has_room_for(7, 3));
    assert!(!slots.has_room_for(9, 1) && slots.has_room_for(9, 2) && slots.has_room_for(8, 1));
    // Its caller takes the outcome, and later the answer comes.
    slots.forget(calls[0]);
    assert!(!slots.has_room_for(7, 2));
    slots.answer(calls[0], b"late", None);
    assert!(slots.has_room_for(7, 2));
    slots.answer(calls[2], b"late", None);
    assert_eq!(slots.given_up, 0);
}

#[test]
fn deadlines_end_calls_but_not_their_slots() {
    let mut slots = Table::new(1);
    let call = take(&mut slots, 10, 0).unwrap();
    slots.sent(0);
    assert_eq!(slots.expire(100), 110, "the deadline starts with the first look at the clock");
    assert_eq!(slots.is_done(call), Some(false));
    assert_eq!(slots.expire(110), u64::MAX);
    assert_eq!(slots.outcome(call), Err(CallError::MaybeExecuted(Cause::DeadlineExceeded)));
    slots.forget(call);
    assert_eq!(slots.next_call(), None, "the server may still answer");
    assert!(matches!(slots.answer(call, b"late", None), Some(Answered::Unwanted)));
    assert!(slots.next_call().is_some());
}

#[test]
fn a_lost_lane_says_what_may_have_happened() {
    let mut slots = Table::new(3);
    let calls: Vec<u32> = (0..3).map(|message| take(&mut slots, 0, message).unwrap()).collect();
    slots.sent(1);
    slots.fail(Cause::ConnectionLost, Some(1));
    assert_eq!(slots.outcome(calls[0]), Err(CallError::MaybeExecuted(Cause::ConnectionLost)));
    assert_eq!(
        slots.outcome(calls[1]),
        Err(CallError::NotExecuted(Cause::ConnectionLost)),
        "beyond the mark"
    );
    assert_eq!(slots.outcome(calls[2]), Err(CallError::NotExecuted(Cause::ConnectionLost)), "never sent");
}

#[test]
fn an_announced_result_says_that_the_call_was_executed() {
    let mut slots = Table::new(2);
    let calls = [0, 1].map(|message| take(&mut slots, 10 + 1000 * message, message).unwrap());
    slots.sent(1);
    calls.into_iter().for_each(|call| slots.announced(call));
    slots.expire(100);
    slots.expire(110);
    assert_eq!(slots.outcome(calls[0]), Err(CallError::Executed(Cause::DeadlineExceeded)));
    slots.fail(Cause::ConnectionLost, Some(1));
    assert_eq!(slots.outcome(calls[1]), Err(CallError::Executed(Cause::ConnectionLost)));
    for call in calls {
        slots.forget(call);
    }
    // The slot's next call has no announced result.
    let call = take(&mut slots, 0, 2).unwrap();
    slots.sent(2);
    slots.fail(Cause::ConnectionLost, None);
    assert_eq!(slots.outcome(call), Err(CallError::MaybeExecuted(Cause::ConnectionLost)));
    slots.forget(call);
    assert_eq!(slots.outcome(call), Err(CallError::MaybeExecuted(Cause::Closed)), "nothing is known of it");
}

#[test]
fn a_call_that_was_not_sent_awaits_no_answer() {
    let mut slots = Table::new(2);
    let call = take(&mut slots, 10, 0).unwrap();
    slots.expire(1);
    slots.expire(100);
    assert_eq!(slots.outcome(call), Err(CallError::NotExecuted(Cause::DeadlineExceeded)));
    slots.forget(call);
    // Its batch may still be sent.
    assert!(slots.has_started_unsent());
    assert_eq!(slots.entry_time(call, 100), Some(TIME_OVER));
    assert!(!slots.expects(call) && slots.answer(call, b"forged", None).is_none());
    slots.renumber(0, 3);
    slots.sent(2);
    assert!(!slots.expects(call), "another message went out before it");
    slots.sent(3);
    assert!(matches!(slots.answer(call, b"late", None), Some(Answered::Unwanted)));
}

#[test]
fn requests_carry_whole_microseconds() {
    let week = 7 * 24 * 3600 * 1_000_000_000;
    let all = [0, 1, 999, 1_000, 2_999, 1_000_000_000, week, Nanos::MAX];
    assert_eq!(all.map(micros), [0, 1, 1, 1, 2, 1_000_000, 0, 0]);
    assert_eq!(micros(u64::from(TIME_OVER) * 1000), 0);
    let mut slots = Table::new(2);
    let call = take(&mut slots, 50_000, 0).unwrap();
    assert_eq!((slots.time_left(call, 1), slots.entry_time(call, 1)), (50, None));
    slots.start(call, 1_000);
    let left = [1_000, 41_000, 50_999, 51_000].map(|now| slots.entry_time(call, now));
    assert_eq!(left, [Some(50), Some(10), Some(1), Some(TIME_OVER)]);
    assert!(slots.has_started_unsent());
    slots.sent(0);
    assert!(!slots.has_started_unsent());
}

#[test]
fn a_sink_gets_results_that_nobody_else_waits_for() {
    struct Take(Vec<u32>);
    impl Sink for Take {
        fn offer(&mut self, lane: u16, call: u32, payload: &[u8]) -> bool {
            assert_eq!((lane, payload), (7, b"result".as_slice()));
            self.0.push(call);
            true
        }
    }
    let mut slots = Table::new(2);
    let (plain, awaited) = (take(&mut slots, 0, 0).unwrap(), take(&mut slots, 0, 0).unwrap());
    slots.announced(awaited);
    let mut sink = Take(Vec::new());
    assert!(slots.result(7, plain, b"result", &mut sink).is_none(), "not sent yet");
    slots.sent(0);
    for call in [plain, awaited] {
        assert!(matches!(slots.result(7, call, b"result", &mut sink), Some(Answered::Wanted)));
        assert!(slots.result(7, call, b"result", &mut sink).is_none(), "answered twice");
    }
    assert_eq!(sink.0, [plain]);
    assert_eq!((slots.room(), slots.next_done(), slots.next_done()), (1, Some(awaited), None));
    assert_eq!(slots.outcome(awaited).unwrap(), b"result");
}

proptest! {
    /// In any order of operations, no slot is lost or given out twice.
    #[test]
    fn slots_are_conserved(steps in prop::collection::vec((0u8..7, 0usize..8), 1..400)) {
        let mut slots = Table::new(4);
        let mut live: Vec<u32> = Vec::new();
        let (mut now, mut message) = (1, 0);
        for (what, which) in steps {
            now += 5;
            let chosen = live.get(which % live.len().max(1)).copied();
            match (what, chosen) {
                (0, _) => {
                    if let Some(call) = take(&mut slots, if which % 2 == 0 { 0 } else { 7 }, message) {
                        prop_assert!(!live.iter().any(|c| split_call(*c).0 == split_call(call).0));
                        live.push(call);
                    }
                }
                (1, _) => {
                    slots.sent(message);
                    message += 1;
                }
                (2, Some(call)) if slots.expects(call) => { slots.answer(call, b"x", None); }
                (3, Some(call)) => {
                    slots.forget(call);
                    if slots.get(call).is_none() {
                        live.retain(|c| *c != call);
                    }
                }
                (4, _) => { slots.expire(now); }
                (5, _) => { slots.next_done(); }
                (6, _) if which == 0 => slots.fail(Cause::ConnectionLost, None),
                _ => {}
            }
            live.retain(|c| slots.get(*c).is_some());
            prop_assert_eq!(slots.room() + live.len(), 4);
            let is_given_up = |slot: &&Slot| matches!(slot.state, State::Expired | State::Zombie);
            prop_assert_eq!(slots.slots.iter().filter(is_given_up).count(), usize::from(slots.given_up));
        }
        slots.fail(Cause::Closed, None);
        for call in live {
            slots.forget(call);
        }
        prop_assert_eq!((slots.room(), slots.in_flight()), (4, 0));
    }
}
