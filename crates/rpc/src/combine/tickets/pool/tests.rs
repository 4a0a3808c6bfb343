use super::*;
use crate::combine::tickets::Delivery;
use proptest::prelude::*;
use std::collections::BTreeMap;

#[test]
fn slabs_are_opened_one_after_the_other() {
    let pool = Pool::<()>::new(2);
    let ids: Vec<_> = (0..128).map(|_| pool.prepare(1, &[], |()| ()).unwrap()).collect();
    assert_eq!(pool.prepare(1, &[], |()| ()), Err(PrepareError::Full));
    let mut indices: Vec<_> = ids.iter().map(|id| id.index).collect();
    indices.dedup();
    assert_eq!(indices, (0..128).collect::<Vec<_>>());
    assert_eq!(pool.withdraw(ids[70]), Withdrawal::NotExecuted);
    assert_eq!(pool.withdraw(ids[70]), Withdrawal::Gone, "of another use");
    assert_eq!(pool.prepare(1, &[], |()| ()).unwrap().index, 70);
}

#[test]
fn a_long_result_returns_its_memory() {
    let pool = Pool::<()>::new(1);
    let mut leader = pool.leader().unwrap();
    assert!(pool.leader().is_none(), "once");
    let mut memory = None;
    for round in 0..3 {
        let id = pool.prepare(1, &[7; 500], |()| ()).unwrap();
        assert_eq!(id.index, 0);
        assert!(pool.is_returned(id) && pool.push(id) && pool.is_waiting(id) && !pool.push(id));
        leader.collect();
        assert_eq!(leader.begin(None), Some(id));
        assert_eq!(leader.finish(id, Ok(&[round; 400])), Delivery::Delivered);
        let (result, _) = pool.take(id, |()| ()).unwrap();
        let mut bytes = result.unwrap();
        assert!(bytes.is_lent() && bytes.get() == [round; 400] && pool.take(id, |()| ()).is_none());
        assert_eq!(*memory.get_or_insert(bytes.get().as_ptr()), bytes.get().as_ptr());
        // The ticket waits for its memory.
        let other = pool.prepare(1, &[], |()| ()).unwrap();
        assert_eq!(other.index, 1);
        pool.withdraw(other);
        pool.put_back(&mut bytes);
        pool.put_back(&mut bytes);
    }
}

#[derive(Clone, Copy, Debug)]
enum Do {
    Prepare(u8),
    Push(usize),
    Withdraw(usize),
    Take(usize),
    Collect,
    Begin,
    Finish(usize),
    Return(usize),
    PutBack,
}

fn steps() -> impl Strategy<Value = Vec<Do>> {
    let step = prop_oneof![
        3 => any::<u8>().prop_map(Do::Prepare),
        3 => (0..8usize).prop_map(Do::Push),
        1 => (0..8usize).prop_map(Do::Withdraw),
        2 => (0..8usize).prop_map(Do::Take),
        2 => Just(Do::Collect),
        3 => Just(Do::Begin),
        3 => (0..8usize).prop_map(Do::Finish),
        1 => (0..8usize).prop_map(Do::Return),
        1 => Just(Do::PutBack),
    ];
    prop::collection::vec(step, 0..200)
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    Owned,
    Ready,
    Taken,
    Done,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// All operations, also with old ids, against a sequential model.
    #[test]
    fn a_pool_is_as_its_model(steps in steps()) {
        let pool = Pool::<()>::with_memory(1, 4);
        let mut leader = pool.leader().unwrap();
        // All ids so far, and the calls that live, with their payload's first byte.
        let (mut ids, mut live) = (Vec::new(), BTreeMap::new());
        let (mut list, mut queue, mut lent) = (Vec::new(), Vec::new(), Vec::new());
        for step in steps {
            let pick = |at: usize, ids: &[TicketId]| ids.len().checked_sub(1 + at).map(|at| ids[at]);
            match step {
                Do::Prepare(byte) => {
                    let payload = vec![byte; 1 + usize::from(byte)];
                    if let Ok(id) = pool.prepare(3, &payload, |()| ()) {
                        prop_assert!(live.keys().all(|known: &u64| TicketId::from_bits(*known).index != id.index));
                        ids.push(id);
                        live.insert(id.bits(), (Phase::Owned, byte));
                    } else {
                        prop_assert!(live.len() + lent.len() + list.len() + queue.len() > 0);
                    }
                }
                Do::Push(at) => if let Some(id) = pick(at, &ids) {
                    let call = live.get_mut(&id.bits()).filter(|call| call.0 == Phase::Owned);
                    prop_assert_eq!(pool.push(id), call.is_some());
                    if let Some(call) = call {
                        call.0 = Phase::Ready;
                        list.push(id);
                    }
                },
                Do::Withdraw(at) => if let Some(id) = pick(at, &ids) {
                    let expected = match live.get(&id.bits()).map(|call| call.0) {
                        Some(Phase::Owned | Phase::Ready) => Withdrawal::NotExecuted,
                        Some(Phase::Taken) => Withdrawal::MaybeExecuted,
                        Some(Phase::Done) => Withdrawal::Done,
                        None => Withdrawal::Gone,
                    };
                    prop_assert_eq!(pool.withdraw(id), expected);
                    if expected != Withdrawal::Done {
                        live.remove(&id.bits());
                    }
                },
                Do::Take(at) => if let Some(id) = pick(at, &ids) {
                    let call = live.get(&id.bits()).filter(|call| call.0 == Phase::Done).copied();
                    let taken = pool.take(id, |()| ());
                    prop_assert_eq!(taken.is_some(), call.is_some());
                    if let (Some((result, _)), Some((_, byte))) = (taken, call) {
                        let bytes = result.unwrap();
                        prop_assert_eq!(bytes.get(), &vec![byte; 2 + usize::from(byte)]);
                        live.remove(&id.bits());
                        lent.push(bytes);
                    }
                },
                Do::Collect => {
                    leader.collect();
                    queue.append(&mut list);
                }
                Do::Begin => {
                    queue.retain(|id: &TicketId| live.contains_key(&id.bits()));
                    let expected = (!queue.is_empty()).then(|| queue.remove(0));
                    prop_assert_eq!(leader.begin(None), expected);
                    if let Some(id) = expected {
                        live.insert(id.bits(), (Phase::Taken, live[&id.bits()].1));
                    }
                }
                Do::Finish(at) => if let Some(id) = pick(at, &ids) {
                    let call = live.get_mut(&id.bits()).filter(|call| call.0 == Phase::Taken);
                    let byte = call.as_ref().map_or(0, |call| call.1);
                    let delivery = leader.finish(id, Ok(&vec![byte; 2 + usize::from(byte)]));
                    prop_assert_eq!(delivery == Delivery::Delivered, call.is_some());
                    if let Some(call) = call {
                        call.0 = Phase::Done;
                    }
                },
                Do::Return(at) => if let Some(id) = pick(at, &ids) {
                    let call = live.get_mut(&id.bits()).filter(|call| call.0 == Phase::Taken);
                    prop_assert_eq!(leader.return_begun(id), call.is_some());
                    if let Some(call) = call {
                        call.0 = Phase::Owned;
                        prop_assert!(pool.is_returned(id));
                    }
                },
                Do::PutBack => lent.drain(..).for_each(|mut bytes| pool.put_back(&mut bytes)),
            }
        }
    }
}
