use super::*;
use crate::error::Cause;
use proptest::prelude::*;
use std::collections::VecDeque;

fn table(seats: u16, window: u16) -> Arc<Tickets> {
    Tickets::new(Capacity { seats, window, lists: 2, longest: 1000 })
}

fn taken(seat: &mut Seat, id: TicketId) -> Option<Result<Vec<u8>, CallError>> {
    seat.take_result(id, |result| result.map(<[u8]>::to_vec))
}

#[test]
fn a_call_comes_to_the_leader_and_its_result_to_the_owner() {
    let tickets = table(2, 4);
    let (mut seat, mut leader) = (tickets.seat().unwrap(), tickets.leader(1).unwrap());
    for length in [0, 1, 8, 39, 40, 41, 1000] {
        let request: Vec<u8> = (0..length).map(|at| at as u8).collect();
        let result: Vec<u8> = request.iter().rev().copied().collect();
        let id = seat.prepare(7, 5_000_000_000, &request).unwrap();
        assert_eq!(seat.progress(id), Progress::Held);
        assert!(seat.push(id, 1));
        assert!(!seat.push(id, 1), "pushed once only");
        assert!(!tickets.is_empty(1) && tickets.is_empty(0));
        assert_eq!((leader.collect(), leader.waiting()), (1, 1));
        assert_eq!(leader.begin(None), Some(id));
        assert_eq!(seat.progress(id), Progress::Taken);
        let entry =
            leader.read(id, |entry| (entry.function, entry.thread, entry.time, entry.payload.to_vec()));
        assert_eq!(entry, Some((7, 0, 5_000_000_000, request)));
        assert_eq!(taken(&mut seat, id), None);
        assert_eq!(leader.finish(id, Ok(&result)), Delivery::Delivered);
        assert_eq!(leader.finish(id, Ok(b"late")), Delivery::Stale);
        assert_eq!(seat.progress(id), Progress::Done);
        assert_eq!(taken(&mut seat, id), Some(Ok(result)));
        assert_eq!((taken(&mut seat, id), seat.progress(id)), (None, Progress::Gone));
        assert_eq!(leader.finish(id, Ok(b"late")), Delivery::Stale);
    }
}

#[test]
fn errors_come_as_they_are() {
    let tickets = table(1, 1);
    let (mut seat, mut leader) = (tickets.seat().unwrap(), tickets.leader(0).unwrap());
    let error = CallError::Application { code: 3, payload: vec![1, 2] };
    for result in [Err(error), Ok(vec![9; 100]), Err(CallError::MaybeExecuted(Cause::ConnectionLost))] {
        let id = seat.prepare(0, 1, &[0; 50]).unwrap();
        seat.push(id, 0);
        leader.collect();
        assert_eq!(leader.begin(None), Some(id));
        let borrowed = result.as_ref().map(Vec::as_slice).map_err(CallError::clone);
        assert_eq!(leader.finish(id, borrowed), Delivery::Delivered);
        assert_eq!(taken(&mut seat, id), Some(result));
    }
}

#[test]
fn limits_are_kept() {
    let tickets = table(2, 3);
    let mut first = tickets.seat().unwrap();
    let second = tickets.seat().unwrap();
    assert_eq!((first.number(), second.number()), (0, 1));
    assert!(tickets.seat().is_none());
    assert!(tickets.leader(2).is_none(), "there are two lists");
    let leader = tickets.leader(0).unwrap();
    assert!(tickets.leader(0).is_none(), "one leader a list");
    drop(leader);
    assert!(tickets.leader(0).is_some());
    let too_long = PrepareError::TooLong { length: 1001, limit: 1000 };
    assert_eq!(first.prepare(0, 0, &[0; 1001]), Err(too_long));
    let ids: Vec<_> = (0..3).map(|_| first.prepare(0, 0, &[]).unwrap()).collect();
    assert_eq!(first.prepare(0, 0, &[]), Err(PrepareError::Full));
    assert_eq!(first.in_use(), 3);
    assert!(!first.push(ids[0], 2));
    assert_eq!(first.withdraw(ids[0]), Withdrawal::NotExecuted);
    assert_eq!(first.in_use(), 2);
    first.prepare(0, 0, &[]).unwrap();
    drop(second);
    assert_eq!(tickets.seat().unwrap().number(), 1);
}

#[test]
fn a_tickets_memory_is_used_again() {
    let tickets = table(1, 1);
    let (mut seat, mut leader) = (tickets.seat().unwrap(), tickets.leader(0).unwrap());
    let mut at = None;
    for _ in 0..3 {
        let id = seat.prepare(0, 0, &[5; 900]).unwrap();
        seat.push(id, 0);
        leader.collect();
        leader.begin(None);
        let now = leader.read(id, |entry| entry.payload.as_ptr() as usize);
        assert!(at.is_none() || at == now);
        at = now;
        leader.finish(id, Ok(&[6; 900]));
        assert_eq!(seat.take_result(id, |result| result.unwrap().as_ptr() as usize), at);
    }
}

#[test]
fn a_seat_that_leaves_gives_its_calls_up() {
    let tickets = table(1, 5);
    let (mut seat, mut leader) = (tickets.seat().unwrap(), tickets.leader(0).unwrap());
    let ids: Vec<_> = (0..5).map(|_| seat.prepare(0, 0, b"old").unwrap()).collect();
    ids[..4].iter().for_each(|id| assert!(seat.push(*id, 0)));
    leader.collect();
    assert_eq!([leader.begin(None), leader.begin(None)], [Some(ids[0]), Some(ids[1])]);
    leader.finish(ids[0], Ok(b"nobody takes it"));
    drop(seat);
    // One was done, one only prepared: free. One is taken, two are on the list.
    let mut seat = tickets.seat().unwrap();
    assert_eq!(seat.in_use(), 0);
    let again = [seat.prepare(0, 0, b"new").unwrap(), seat.prepare(0, 0, b"new").unwrap()];
    assert_eq!(seat.prepare(0, 0, b"new"), Err(PrepareError::Full));
    again.iter().for_each(|id| assert!(!ids.contains(id)));
    assert_eq!(ids.iter().map(|id| seat.withdraw(*id)).collect::<Vec<_>>(), [Withdrawal::Gone; 5]);
    assert_eq!(leader.finish(ids[1], Ok(b"nobody")), Delivery::Abandoned);
    assert_eq!(leader.begin(None), None);
    (0..3).for_each(|_| assert!(seat.prepare(0, 0, b"new").is_ok()));
}

#[test]
fn a_leader_that_leaves_fails_the_calls_that_wait_and_its_successor_ends_the_others() {
    let tickets = table(1, 3);
    let (mut seat, mut leader) = (tickets.seat().unwrap(), tickets.leader(0).unwrap());
    let ids: Vec<_> = (0..3).map(|_| seat.prepare(0, 0, b"call").unwrap()).collect();
    seat.push(ids[0], 0);
    seat.push(ids[1], 0);
    leader.collect();
    leader.begin(None);
    seat.push(ids[2], 0);
    drop(leader);
    let closed = Some(Err(CallError::NotExecuted(Cause::Closed)));
    assert_eq!([taken(&mut seat, ids[1]), taken(&mut seat, ids[2])], [closed.clone(), closed]);
    assert_eq!(tickets.leader(1).unwrap().finish(ids[0], Ok(b"of another list")), Delivery::Stale);
    assert_eq!(tickets.leader(0).unwrap().finish(ids[0], Ok(b"result")), Delivery::Delivered);
    assert_eq!(taken(&mut seat, ids[0]), Some(Ok(b"result".to_vec())));
}

#[test]
fn a_panic_over_a_result_costs_no_ticket() {
    let tickets = table(1, 1);
    let (mut seat, mut leader) = (tickets.seat().unwrap(), tickets.leader(0).unwrap());
    for result in [&[1; 10][..], &[1; 100]] {
        let id = seat.prepare(0, 0, &[]).unwrap();
        seat.push(id, 0);
        leader.collect();
        leader.begin(None);
        leader.finish(id, Ok(result));
        let panics = || seat.take_result(id, |_| panic!("the application's"));
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics)).is_err());
    }
    assert!(seat.prepare(0, 0, &[2; 100]).is_ok());
}

const SEATS: usize = 3;
const WINDOW: usize = 2;
const LISTS: usize = 2;
const WORKERS: usize = 2;

/// An operation on the tickets. Calls are named by their age modulo the number of calls so far, so that
/// operations on old ids come up as well.
#[derive(Clone, Debug)]
enum Op {
    Prepare { seat: usize, length: usize },
    Push { call: usize, list: usize },
    PushToOwn { call: usize, list: usize },
    Withdraw { seat: usize, call: usize },
    Take { seat: usize, call: usize },
    Collect { list: usize },
    Begin { list: usize, queue: Option<usize> },
    Read { list: usize, call: usize },
    PutBack { list: usize, call: usize },
    Hold { list: usize, call: usize, worker: usize, side: Side },
    Finish { list: usize, call: usize, length: usize, fails: bool },
    Return { list: usize },
    BeginOwn { seat: usize, list: usize, undone: bool },
    Leave { seat: usize },
}

fn op() -> impl Strategy<Value = Op> {
    let (seat, list, call, length) = (0..SEATS, 0..LISTS, 0..6usize, 0..90usize);
    let queue = prop::option::weighted(0.3, 0..WORKERS);
    let side = prop::sample::select(vec![Side::Front, Side::Back]);
    prop_oneof![
        4 => (seat.clone(), length.clone()).prop_map(|(seat, length)| Op::Prepare { seat, length }),
        4 => (call.clone(), list.clone()).prop_map(|(call, list)| Op::Push { call, list }),
        1 => (call.clone(), list.clone()).prop_map(|(call, list)| Op::PushToOwn { call, list }),
        1 => (seat.clone(), call.clone()).prop_map(|(seat, call)| Op::Withdraw { seat, call }),
        3 => (seat.clone(), call.clone()).prop_map(|(seat, call)| Op::Take { seat, call }),
        2 => list.clone().prop_map(|list| Op::Collect { list }),
        4 => (list.clone(), queue).prop_map(|(list, queue)| Op::Begin { list, queue }),
        1 => (list.clone(), call.clone()).prop_map(|(list, call)| Op::Read { list, call }),
        1 => (list.clone(), call.clone()).prop_map(|(list, call)| Op::PutBack { list, call }),
        2 => (list.clone(), call.clone(), 0..WORKERS, side)
            .prop_map(|(list, call, worker, side)| Op::Hold { list, call, worker, side }),
        4 => (list, call, length, prop::bool::weighted(0.1))
            .prop_map(|(list, call, length, fails)| Op::Finish { list, call, length, fails }),
        1 => (0..LISTS).prop_map(|list| Op::Return { list }),
        2 => (0..SEATS, 0..LISTS, any::<bool>()).prop_map(|(seat, list, undone)| Op::BeginOwn { seat, list, undone }),
        1 => seat.prop_map(|seat| Op::Leave { seat }),
    ]
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Free,
    Held,
    Returned,
    Ready,
    Taken,
    Done,
    Withdrawn,
    Abandoned,
}

/// A call in the sequential model.
#[derive(Debug)]
struct Call {
    id: TicketId,
    seat: usize,
    list: usize,
    stage: Stage,
    request: Vec<u8>,
    result: Result<Vec<u8>, CallError>,
}

/// The sequential model: what each call is, and the order of those that wait.
#[derive(Debug, Default)]
struct Model {
    calls: Vec<Call>,
    pushed: [Vec<usize>; LISTS],
    /// The calls that are held, by worker, and those that are not.
    queues: [[VecDeque<usize>; WORKERS + 1]; LISTS],
}

impl Model {
    fn age(&self, call: usize) -> Option<usize> {
        self.calls.len().checked_sub(1 + call)
    }

    fn collect(&mut self, list: usize) -> usize {
        let count = self.pushed[list].len();
        self.queues[list][WORKERS].extend(self.pushed[list].drain(..));
        count
    }

    fn begun(&self, call: usize, list: usize) -> bool {
        let call = &self.calls[call];
        call.list == list && matches!(call.stage, Stage::Taken | Stage::Abandoned)
    }

    fn in_use(&self, seat: usize) -> usize {
        self.calls.iter().filter(|call| call.seat == seat && call.stage != Stage::Free).count()
    }
}

fn bytes(length: usize, seed: usize) -> Vec<u8> {
    (0..length).map(|at| (at + seed) as u8).collect()
}

/// Executes operations on the tickets and on the model, and compares all answers.
fn compare(ops: Vec<Op>) -> Result<(), TestCaseError> {
    let tickets = table(SEATS as u16, WINDOW as u16);
    let mut seats: Vec<Seat> = (0..SEATS).map(|_| tickets.seat().unwrap()).collect();
    let mut leaders: Vec<Leader> = (0..LISTS as u16).map(|list| tickets.leader(list).unwrap()).collect();
    let mut model = Model::default();
    for (number, op) in ops.into_iter().enumerate() {
        match op {
            Op::Prepare { seat, length } => {
                let request = bytes(length, number);
                let prepared = seats[seat].prepare(number as u16, number as u64, &request);
                let has_room = model.in_use(seat) < WINDOW;
                prop_assert_eq!(prepared.is_ok(), has_room, "{:?}", prepared);
                if let Ok(id) = prepared {
                    prop_assert!(model.calls.iter().all(|call| call.id != id));
                    let (stage, result) = (Stage::Held, Ok(Vec::new()));
                    model.calls.push(Call { id, seat, list: 0, stage, request, result });
                }
            }
            Op::Push { call, list } | Op::PushToOwn { call, list } => {
                let Some(at) = model.age(call) else { continue };
                let (id, seat) = (model.calls[at].id, model.calls[at].seat);
                let own = matches!(op, Op::PushToOwn { .. });
                let pushed = match own {
                    true => seats[seat].push_to_own(id, &mut leaders[list]),
                    false => seats[seat].push(id, list as u16),
                };
                if own {
                    model.collect(list);
                }
                prop_assert_eq!(pushed, matches!(model.calls[at].stage, Stage::Held | Stage::Returned));
                if pushed {
                    (model.calls[at].stage, model.calls[at].list) = (Stage::Ready, list);
                    match own {
                        true => model.queues[list][WORKERS].push_back(at),
                        false => model.pushed[list].push(at),
                    }
                }
            }
            Op::Withdraw { seat, call } => {
                let Some(at) = model.age(call) else { continue };
                let call = &mut model.calls[at];
                let (expected, stage) = match call.stage {
                    _ if call.seat != seat => (Withdrawal::Gone, call.stage),
                    Stage::Held | Stage::Returned => (Withdrawal::NotExecuted, Stage::Free),
                    Stage::Ready => (Withdrawal::NotExecuted, Stage::Withdrawn),
                    Stage::Taken => (Withdrawal::MaybeExecuted, Stage::Abandoned),
                    Stage::Done => (Withdrawal::Done, Stage::Done),
                    stage => (Withdrawal::Gone, stage),
                };
                prop_assert_eq!(seats[seat].withdraw(call.id), expected);
                call.stage = stage;
            }
            Op::Take { seat, call } => {
                let Some(at) = model.age(call) else { continue };
                let call = &mut model.calls[at];
                let is_there = call.seat == seat && call.stage == Stage::Done;
                let expected = is_there.then(|| call.result.clone());
                prop_assert_eq!(taken(&mut seats[seat], call.id), expected);
                if is_there {
                    call.stage = Stage::Free;
                }
            }
            Op::Collect { list } => {
                let count = model.collect(list);
                prop_assert_eq!(leaders[list].collect() as usize, count);
            }
            Op::Begin { list, queue } => {
                let mut expected = None;
                while let Some(at) = model.queues[list][queue.unwrap_or(WORKERS)].pop_front() {
                    let call = &mut model.calls[at];
                    if call.stage == Stage::Ready {
                        call.stage = Stage::Taken;
                        expected = Some(call.id);
                        break;
                    }
                    call.stage = Stage::Free;
                }
                prop_assert_eq!(leaders[list].begin(queue), expected);
            }
            Op::Read { list, call } => {
                let Some(at) = model.age(call) else { continue };
                let read = leaders[list]
                    .read(model.calls[at].id, |entry| (usize::from(entry.thread), entry.payload.to_vec()));
                let expected = (seats[model.calls[at].seat].number().into(), model.calls[at].request.clone());
                prop_assert_eq!(read, model.begun(at, list).then_some(expected));
            }
            Op::PutBack { list, call } | Op::Hold { list, call, .. } => {
                let Some(at) = model.age(call) else { continue };
                let begun = model.begun(at, list);
                let call = &mut model.calls[at];
                let waits = begun && call.stage == Stage::Taken;
                let (queue, side) = match op {
                    Op::Hold { worker, side, .. } => (worker, side),
                    _ => (WORKERS, Side::Front),
                };
                let kept = match queue {
                    WORKERS => leaders[list].put_back(call.id),
                    worker => leaders[list].hold(call.id, worker, side),
                };
                prop_assert_eq!(kept, waits);
                if waits {
                    call.stage = Stage::Ready;
                    match side {
                        Side::Front => model.queues[list][queue].push_front(at),
                        Side::Back => model.queues[list][queue].push_back(at),
                    }
                } else if begun {
                    call.stage = Stage::Free;
                }
            }
            Op::Finish { list, call, length, fails } => {
                let Some(at) = model.age(call) else { continue };
                let begun = model.begun(at, list);
                let call = &mut model.calls[at];
                let result = match fails {
                    true => Err(CallError::MaybeExecuted(Cause::ConnectionLost)),
                    false => Ok(bytes(length, number)),
                };
                let borrowed = result.as_ref().map(Vec::as_slice).map_err(CallError::clone);
                let (expected, stage) = match call.stage {
                    stage if !begun => (Delivery::Stale, stage),
                    Stage::Taken => (Delivery::Delivered, Stage::Done),
                    _ => (Delivery::Abandoned, Stage::Free),
                };
                prop_assert_eq!(leaders[list].finish(call.id, borrowed), expected);
                call.stage = stage;
                if expected == Delivery::Delivered {
                    call.result = result;
                }
            }
            Op::Return { list } => {
                model.collect(list);
                let (mut expected, mut returned) = (Vec::new(), Vec::new());
                while let Some(at) = model.queues[list].iter_mut().find_map(VecDeque::pop_front) {
                    let call = &mut model.calls[at];
                    call.stage = match call.stage {
                        Stage::Ready => {
                            expected.push(call.id);
                            Stage::Returned
                        }
                        _ => Stage::Free,
                    };
                }
                leaders[list].return_waiting(|id| returned.push(id));
                prop_assert_eq!(returned, expected);
            }
            Op::BeginOwn { seat, list, undone } => {
                let begun = seats[seat].begin(&leaders[list]);
                prop_assert_eq!(begun.is_some(), model.in_use(seat) < WINDOW);
                let Some(id) = begun else { continue };
                prop_assert!(model.calls.iter().all(|call| call.id != id));
                let stage = if undone { Stage::Free } else { Stage::Taken };
                model.calls.push(Call { id, seat, list, stage, request: Vec::new(), result: Ok(Vec::new()) });
                if undone {
                    seats[seat].undo(id);
                }
            }
            Op::Leave { seat } => {
                let number = seats[seat].number();
                // The other seats are taken, so the new thread gets this one.
                seats.remove(seat);
                seats.insert(seat, tickets.seat().unwrap());
                prop_assert_eq!(seats[seat].number(), number);
                for call in model.calls.iter_mut().filter(|call| call.seat == seat) {
                    call.stage = match call.stage {
                        Stage::Held | Stage::Returned | Stage::Done => Stage::Free,
                        Stage::Ready => Stage::Withdrawn,
                        Stage::Taken => Stage::Abandoned,
                        stage => stage,
                    };
                }
            }
        }
        for call in &model.calls {
            let expected = match call.stage {
                Stage::Held | Stage::Returned => Progress::Held,
                Stage::Ready => Progress::Ready,
                Stage::Taken => Progress::Taken,
                Stage::Done => Progress::Done,
                Stage::Free | Stage::Withdrawn | Stage::Abandoned => Progress::Gone,
            };
            prop_assert_eq!(seats[call.seat].progress(call.id), expected);
            prop_assert_eq!(seats[call.seat].is_returned(call.id), call.stage == Stage::Returned);
        }
        for (list, leader) in leaders.iter().enumerate() {
            prop_assert_eq!(tickets.is_empty(list as u16), model.pushed[list].is_empty());
            prop_assert_eq!(
                leader.waiting() as usize,
                model.queues[list].iter().map(VecDeque::len).sum::<usize>()
            );
            for worker in 0..WORKERS {
                let holds = !model.queues[list][worker].is_empty();
                prop_assert_eq!(leader.holds(worker), holds);
                prop_assert_eq!(leader.is_next(worker), !holds && model.queues[list][WORKERS].is_empty());
            }
        }
    }
    Ok(())
}

proptest! {
    /// Every operation, also with old ids, other seats and other lists, does what the sequential model does.
    #[test]
    fn tickets_behave_as_the_sequential_model(ops in prop::collection::vec(op(), 0..200)) {
        compare(ops)?;
    }

    /// Any number is safe as an id.
    #[test]
    fn any_number_is_safe_as_an_id(bits in any::<u64>(), small in 0u64..8) {
        let tickets = table(1, 1);
        let (mut seat, mut leader) = (tickets.seat().unwrap(), tickets.leader(0).unwrap());
        let id = seat.prepare(0, 0, b"call").unwrap();
        seat.push(id, 0);
        leader.collect();
        leader.begin(None);
        for bits in [bits, small, small << 32] {
            let other = TicketId::from_bits(bits);
            prop_assert_eq!(other.bits(), bits);
            if other != id {
                prop_assert_eq!(leader.finish(other, Ok(b"")), Delivery::Stale);
                prop_assert!(!leader.put_back(other));
                prop_assert_eq!(seat.withdraw(other), Withdrawal::Gone);
                prop_assert!(!seat.push(other, 0));
            }
        }
        prop_assert_eq!(seat.progress(id), Progress::Taken);
    }
}
