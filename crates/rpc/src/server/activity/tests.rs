use super::*;
use proptest::prelude::*;

fn shares(senders: &[Sender], max_active: u32) -> Vec<u32> {
    let mut shares = Vec::new();
    share(senders, max_active, &mut Vec::new(), &mut shares);
    shares
}

const fn sender(utilisation: u64, strands: u32) -> Sender {
    Sender { utilisation, strands, width: 1, is_new: false }
}

const fn newcomer(utilisation: u64, strands: u32) -> Sender {
    Sender { is_new: true, ..sender(utilisation, strands) }
}

const fn wide(utilisation: u64, strands: u32, width: u32) -> Sender {
    Sender { width, ..sender(utilisation, strands) }
}

#[test]
fn queue_pairs_are_divided_by_equation_1() {
    // The paper's 23 clients with 16 threads: 368 threads on 256 queue pairs.
    let all = shares(&[sender(500, 16); 23], 256);
    assert_eq!((all.iter().sum::<u32>(), all[0], all[22]), (256, 12, 11));
    // With 8 threads there are 184 queue pairs, and all are active, whatever the utilisation.
    let uneven: Vec<_> = (0..23).map(|n| sender(1 + n * n, 8)).collect();
    assert_eq!(shares(&uneven, 256), [8; 23]);
    assert_eq!(shares(&[sender(300, 99), sender(100, 99)], 40), [30, 10]);
    // Dormant clients keep one each, on top.
    assert_eq!(shares(&[sender(300, 99), sender(0, 99), sender(100, 99)], 40), [30, 1, 10]);
    // Nobody gets less than one.
    assert_eq!(shares(&[sender(1_000_000, 99), sender(1, 99)], 40), [39, 1]);
    assert_eq!(shares(&[sender(5, 9); 6], 4), [1; 6]);
    assert_eq!(shares(&[sender(5, 9), sender(5, 0)], 4), [4, 0]);
    // Where there are enough for all, also a dormant client keeps its own.
    assert_eq!(shares(&[sender(5, 9), sender(0, 3)], 12), [9, 3]);
    // A client with few queue pairs leaves its part to the others.
    assert_eq!(shares(&[sender(200, 2), sender(30, 99), sender(10, 99)], 42), [2, 30, 10]);
    // A new client gets the average of those that function.
    assert_eq!(
        shares(&[sender(300, 99), newcomer(0, 99), sender(100, 99), sender(0, 9)], 60),
        [30, 20, 10, 1]
    );
    assert_eq!(shares(&[newcomer(0, 99), newcomer(0, 3), sender(0, 99)], 60), [57, 3, 1]);
    assert_eq!(shares(&[], 60), []);
    assert_eq!(shares(&[sender(u64::MAX, u32::MAX); 3], u32::MAX), [u32::MAX / 3; 3]);
}

#[test]
fn wide_strands_count_all_their_queue_pairs() {
    // 8 queue pairs: 4 strands to 2 workers each.
    assert_eq!(shares(&[wide(5, 4, 2)], 8), [4]);
    assert_eq!(shares(&[wide(5, 5, 2)], 8), [4]);
    assert_eq!(shares(&[wide(5, 4, 2); 3], 8), [2, 1, 1]);
    // Equal use by one worker and by all four: half of the queue pairs each.
    assert_eq!(shares(&[wide(5, 99, 1), wide(5, 99, 4)], 16), [8, 2]);
    assert_eq!(shares(&[wide(5, 99, 1), wide(5, 99, 4)], 18), [10, 2], "a wide strand does not fit");
    assert_eq!(shares(&[wide(5, 99, 1), wide(0, 99, 4)], 18), [18, 1]);
    assert_eq!(shares(&[wide(5, 9, u32::MAX), wide(5, 9, 1)], 4), [1, 2], "one strand at least");
}

/// A strand to all workers and one to a single worker count what they have.
#[test]
fn queue_pairs_are_counted_by_workers() {
    let activity = activity(8, 0);
    let strand = |sender: u64, width: usize| -> Vec<Arc<QueuePair>> {
        let first = activity.open(sender);
        let mut all = vec![first];
        while all.len() < width {
            let Some(other) = activity.widen(sender, &Arc::downgrade(&all[0])) else { break };
            all.push(other);
        }
        all
    };
    // To one of four workers.
    let single: Vec<_> = (0..9).map(|_| strand(1, 1)).collect();
    assert_eq!(single.iter().filter(|strand| strand[0].is_active()).count(), 8);
    drop(single);
    // To all of them.
    let all: Vec<_> = (0..3).map(|_| strand(1, 4)).collect();
    assert_eq!(all.iter().map(|strand| strand[0].is_active()).collect::<Vec<_>>(), [true, true, false]);
    assert_eq!(all[0].len() + all[1].len(), 8);
    // A client without a queue pair gets a strand to all workers in any case, and its second one within its share.
    let second = [strand(2, 4), strand(2, 4), strand(2, 4)];
    assert_eq!(second.iter().map(|strand| strand[0].is_active()).collect::<Vec<_>>(), [true, true, false]);
    activity.look(0);
    assert!(
        [&all[..], &second]
            .iter()
            .all(|strands| { strands.iter().filter(|strand| strand[0].is_active()).count() == 1 })
    );
    // A strand cannot be made wider than the others once nothing is left.
    drop((all, second));
    let full: Vec<_> = (0..8).map(|_| strand(3, 1)).collect();
    assert!(activity.widen(3, &Arc::downgrade(&full[0][0])).is_none());
}

/// The properties that hold for all shares.
fn check(senders: &[Sender], max_active: u32) -> Result<(), TestCaseError> {
    let shares = shares(senders, max_active);
    prop_assert_eq!(shares.len(), senders.len());
    let open: u64 = senders.iter().map(|sender| u64::from(sender.strands)).sum();
    let fits_all = open <= u64::from(max_active);
    if fits_all {
        prop_assert!(senders.iter().zip(&shares).all(|(sender, share)| sender.strands == *share));
    }
    for (sender, share) in senders.iter().zip(&shares) {
        prop_assert!(*share <= sender.strands && *share >= sender.strands.min(1), "{:?}", shares);
        if sender.utilisation == 0 && !sender.is_new && !fits_all {
            prop_assert!(*share <= 1);
        }
    }
    let functioning: Vec<_> = senders
        .iter()
        .zip(&shares)
        .filter(|(sender, _)| (sender.utilisation > 0 || sender.is_new) && sender.strands > 0)
        .collect();
    let (mut sum, mut most, mut ones) = (0u64, 0u64, 0u64);
    for (sender, share) in &functioning {
        sum += u64::from(**share);
        most += u64::from(sender.strands);
        ones += u64::from(**share == 1);
    }
    let max_active = u64::from(max_active.max(1));
    prop_assert!(sum <= max_active + ones, "{:?}", shares);
    prop_assert!(sum >= max_active.min(most), "queue pairs are left over: {:?}", shares);
    for (a, a_share) in &functioning {
        for (b, b_share) in &functioning {
            if a.is_new || b.is_new || a.strands < b.strands {
                continue;
            }
            let differs = u32::from(a.utilisation == b.utilisation);
            if a.utilisation >= b.utilisation {
                prop_assert!(**a_share + differs >= **b_share, "{:?}", shares);
            }
        }
    }
    // The equation itself, where no limit of a client matters.
    let total: u128 = functioning.iter().map(|(sender, _)| u128::from(sender.utilisation)).sum();
    let parts = |sender: &Sender| u128::from(max_active) * u128::from(sender.utilisation);
    let fits = |sender: &Sender| {
        let part = parts(sender);
        !sender.is_new && part >= total && part <= u128::from(sender.strands) * total
    };
    if functioning.iter().all(|(sender, _)| fits(sender)) {
        for (sender, share) in &functioning {
            let (share, part) = (u128::from(**share) * total, parts(sender));
            prop_assert!(share.abs_diff(part) < total, "{:?}", shares);
        }
        prop_assert!(functioning.is_empty() || sum == max_active);
    }
    Ok(())
}

#[test]
fn all_small_cases_keep_the_rules() {
    let one: Vec<Sender> = (0..4)
        .flat_map(|used| (0..4).flat_map(move |has| [sender(used, has), newcomer(used, has)]))
        .collect();
    for max_active in 0..6 {
        for a in &one {
            check(&[*a], max_active).unwrap();
            for b in &one {
                check(&[*a, *b], max_active).unwrap();
                for c in &one {
                    check(&[*a, *b, *c], max_active).unwrap();
                }
            }
        }
    }
}

const INTERVAL: Nanos = 1000;

fn activity(max_active: u32, rest: u32) -> Activity {
    Activity::of(&ServerConfig {
        max_active_queue_pairs: max_active,
        activity_interval: std::time::Duration::from_nanos(INTERVAL),
        activity_rest: rest,
        ..ServerConfig::default()
    })
}

fn open(activity: &Activity, sender: u64, count: usize) -> Vec<Arc<QueuePair>> {
    (0..count).map(|_| activity.open(sender)).collect()
}

fn active(queue_pairs: &[Arc<QueuePair>]) -> Vec<usize> {
    (0..queue_pairs.len()).filter(|at| queue_pairs[*at].is_active()).collect()
}

#[test]
fn a_busy_client_gets_the_queue_pairs_of_an_idle_one_and_they_come_back() {
    let activity = activity(8, 1);
    let first = open(&activity, 1, 8);
    assert_eq!(active(&first).len(), 8, "the only client");
    let second = open(&activity, 2, 8);
    assert_eq!(active(&second).len(), 8, "the average");
    activity.look(0);
    assert_eq!((active(&first).len(), active(&second).len()), (4, 4), "both are new");

    // The first reports nothing; the second uses its third queue pair most.
    let report = || second.iter().take(4).zip([1, 1, 9, 1]).for_each(|(pair, degree)| pair.renewed(degree));
    report();
    activity.look(INTERVAL - 1);
    assert_eq!(active(&first).len(), 4, "the interval is not over");
    let before = activity.activations();
    activity.look(INTERVAL);
    assert_eq!(active(&first), [0], "a dormant client keeps one");
    assert_eq!(active(&second), [0, 1, 2, 3], "the others rest");
    assert_eq!(activity.activations(), before);
    report();
    activity.look(2 * INTERVAL);
    assert_eq!(active(&second), [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(activity.activations(), before + 1);

    // Both are busy again, so the second keeps the one that it uses most.
    first[0].renewed(100);
    second[2].renewed(9);
    activity.look(3 * INTERVAL);
    assert_eq!(active(&second), [2]);
    assert_eq!(active(&first).len(), 7);
}

#[test]
fn a_queue_pair_rests_before_it_is_active_again() {
    for rest in 0..4 {
        let activity = activity(4, rest);
        let (first, second) = (open(&activity, 1, 4), open(&activity, 2, 4));
        activity.look(0);
        assert_eq!(active(&first), [0, 1]);
        let mut now = 0;
        let mut intervals = 0;
        while active(&first).len() < 4 {
            (now, intervals) = (now + INTERVAL, intervals + 1);
            first[0].renewed(5);
            activity.look(now);
        }
        assert_eq!(intervals, rest + 1);
        assert_eq!(active(&second), [0]);
    }
}

#[test]
fn closed_queue_pairs_and_clients_leave_the_table() {
    let activity = activity(4, 5);
    let mut first = open(&activity, 1, 4);
    let second = open(&activity, 2, 4);
    activity.look(0);
    assert_eq!((active(&first), active(&second)), (vec![0, 1], vec![0, 1]));
    first.drain(..2);
    assert!(active(&first).is_empty());
    first[1].renewed(7);
    activity.look(INTERVAL);
    assert_eq!(active(&first).len(), 1, "no client is without an active queue pair, whatever the rest");
    drop(first);
    second[0].renewed(7);
    activity.look(2 * INTERVAL);
    let third = activity.open(3);
    assert!(third.is_active());
    assert_eq!(activity.table.lock().unwrap().clients.len(), 2);
}

#[test]
fn workers_share_the_table() {
    let activity = activity(16, 0);
    let pairs: Vec<_> = (0..4).map(|sender| open(&activity, sender, 8)).collect();
    activity.look(0);
    let activity = &activity;
    std::thread::scope(|scope| {
        for pairs in &pairs {
            scope.spawn(move || {
                for now in 1..2000 {
                    pairs.iter().for_each(|pair| pair.renewed(2));
                    activity.look(now * 10);
                }
            });
        }
    });
    // One more interval, in which one client only sends.
    activity.look(1 << 30);
    pairs[3][0].renewed(1);
    activity.look(1 << 31);
    let counts: Vec<_> = pairs.iter().map(|pairs| active(pairs).len()).collect();
    assert_eq!(counts, [1, 1, 1, 8]);
    let used: u64 = pairs.iter().flatten().map(|pair| pair.used.load(Ordering::Relaxed)).sum();
    assert_eq!(used, 4 * 8 * 1999 * 2 + 1, "no count is lost");
}

#[derive(Clone, Debug)]
enum Step {
    Open { sender: u64 },
    Close { at: usize },
    Renew { at: usize, degree: u16 },
    Look { intervals: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0u64..5).prop_map(|sender| Step::Open { sender }),
        1 => any::<usize>().prop_map(|at| Step::Close { at }),
        6 => (any::<usize>(), 1u16..33).prop_map(|(at, degree)| Step::Renew { at, degree }),
        3 => (0u64..3).prop_map(|intervals| Step::Look { intervals }),
    ]
}

proptest! {
    /// With strands of any width, no more queue pairs are used than the maximum and a strand for each client.
    #[test]
    fn strands_of_any_width_keep_the_sum(
        senders in prop::collection::vec((0u64..20, 0u32..9, 1u32..6), 0..12), max_active in 1u32..60,
    ) {
        let senders: Vec<_> = senders.into_iter().map(|(used, strands, width)| wide(used, strands, width)).collect();
        let shares = shares(&senders, max_active);
        let mut above = 0;
        for (sender, share) in senders.iter().zip(&shares) {
            prop_assert!(*share <= sender.strands && *share >= sender.strands.min(1), "{:?}", shares);
            above += (*share).saturating_sub(1) * sender.width;
        }
        prop_assert!(above <= max_active, "{:?}", shares);
        // Nothing that fits is left over.
        let functioning = || senders.iter().zip(&shares).filter(|(sender, _)| sender.utilisation > 0);
        let used: u32 = functioning().map(|(sender, share)| share * sender.width).sum();
        for (sender, share) in functioning() {
            prop_assert!(*share == sender.strands || used + sender.width > max_active, "{:?}", shares);
        }
    }

    #[test]
    fn all_cases_keep_the_rules(
        senders in prop::collection::vec((prop_oneof![Just(0u64), 1u64..100, any::<u64>()], 0u32..40, any::<bool>()), 0..30),
        max_active in 1u32..300,
    ) {
        let senders: Vec<_> = senders
            .into_iter()
            .map(|(utilisation, strands, is_new)| Sender { utilisation, strands, width: 1, is_new })
            .collect();
        check(&senders, max_active)?;
    }

    /// After each redistribution no client is without an active queue pair, and no more are active than the
    /// maximum and one for each client.
    #[test]
    fn no_client_starves_and_the_sum_is_bounded(
        steps in prop::collection::vec(step(), 0..120), max_active in 1u32..12, rest in 0u32..3,
    ) {
        let activity = activity(max_active, rest);
        let mut pairs: Vec<(u64, Arc<QueuePair>)> = Vec::new();
        let mut now = 0;
        for step in steps {
            match step {
                Step::Open { sender } => pairs.push((sender, activity.open(sender))),
                Step::Close { at } if !pairs.is_empty() => drop(pairs.swap_remove(at % pairs.len())),
                Step::Renew { at, degree } if !pairs.is_empty() => pairs[at % pairs.len()].1.renewed(degree),
                Step::Close { .. } | Step::Renew { .. } => {}
                Step::Look { intervals } => {
                    now += intervals * INTERVAL;
                    let is_due = now >= activity.next_look.load(Ordering::Relaxed);
                    activity.look(now);
                    if !is_due {
                        continue;
                    }
                    let mut counts = BTreeMap::new();
                    for (sender, pair) in &pairs {
                        *counts.entry(*sender).or_insert(0) += u32::from(pair.is_active());
                    }
                    prop_assert!(counts.values().all(|count| *count > 0), "{:?}", counts);
                    prop_assert!(counts.values().sum::<u32>() <= max_active + counts.len() as u32, "{:?}", counts);
                }
            }
        }
        // A client that alone reports gets all that it can use, once all have rested.
        let Some((sender, _)) = pairs.first().cloned() else { return Ok(()) };
        for _ in 0..rest + 2 {
            now += INTERVAL;
            pairs.iter().filter(|(of, _)| *of == sender).for_each(|(_, pair)| pair.renewed(1));
            activity.look(now);
        }
        let own: Vec<_> = pairs.iter().filter(|(of, _)| *of == sender).collect();
        let active = own.iter().filter(|(_, pair)| pair.is_active()).count();
        prop_assert_eq!(active, own.len().min(max_active as usize));
    }
}

#[test]
fn the_use_of_queue_pairs_is_told_by_client() {
    let activity = activity(3, 0);
    let pairs = [7, 7, 9].map(|client| activity.open(client));
    let used = |client, granted, utilisation| QueuePairUse { client, granted, utilisation };
    assert_eq!(activity.uses(), [used(7, 2, 0), used(9, 1, 0)]);
    pairs.iter().for_each(|pair| pair.renewed(5));
    assert_eq!(activity.uses(), [used(7, 2, 0), used(9, 1, 0)], "as of the last redistribution");
    activity.look(INTERVAL);
    pairs[2].renewed(20);
    let third = activity.open(9);
    assert!(!third.is_active());
    activity.look(2 * INTERVAL);
    // Reports on a queue pair that is closed later stay counted.
    assert_eq!(activity.uses(), [used(7, 1, 10), used(9, 2, 25)]);
    drop((pairs, third));
    assert_eq!(activity.uses(), []);
}
