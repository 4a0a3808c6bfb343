//! Which thread uses which queue pair: FLOCK's sender-side thread scheduling (section 5.2, algorithm 1), as
//! pure functions.
//!
//! Threads are sorted by the median size of their requests, then by the number of requests, and dealt to the
//! active queue pairs in that order; a queue pair is full when it has its share of all bytes. So threads with
//! small requests are together, where combining pays, and no small request waits behind a large one more often
//! than needed.
//!
//! | case | the paper | here |
//! |---|---|---|
//! | share of bytes | total bytes by queue pairs | compared without division, so that nothing is rounded |
//! | a thread with more bytes than the share has left | fills the queue pair | starts the next one, if that is nearer to the share |
//! | queue pairs used up before the last thread | not stated; threads without bytes can be left | the last queue pair takes them |
//! | a thread without requests in the interval | a new one is placed at random and moved if its queue pair ends | the same rule for each such thread |
//! | equal threads | not stated | the lower thread number first |
//! | no active queue pair | cannot happen, a sender keeps one | nothing changes |
//!
//! Medians come from histograms of powers of two: sizes of one power count as equal, then the number of
//! requests decides.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// One bucket for zero bytes, and one for each number of significant bits; the last has all sizes from 1 GiB.
const BUCKETS: usize = 32;

/// Stands for the queue pair of a thread before its first assignment.
#[cfg(test)]
pub(crate) const UNASSIGNED: u16 = u16::MAX;

const fn bucket(bytes: u32) -> usize {
    let bits = (u32::BITS - bytes.leading_zeros()) as usize;
    if bits < BUCKETS { bits } else { BUCKETS - 1 }
}

/// The requests of one thread, counted by the thread itself or by the leader that sends them: one writer at a
/// time. Counts wrap.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct SizeCounts {
    bytes: AtomicU64,
    buckets: [AtomicU32; BUCKETS],
}

impl SizeCounts {
    /// Counts a request. Costs two plain stores.
    #[inline]
    pub(crate) fn count(&self, bytes: u32) {
        self.bytes
            .store(self.bytes.load(Ordering::Relaxed).wrapping_add(u64::from(bytes)), Ordering::Relaxed);
        let bucket = &self.buckets[bucket(bytes)];
        bucket.store(bucket.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// Returns the counts since `last`, and sets `last` to the present ones. May run while the thread counts:
    /// a request can then be in one sum and not yet in the other.
    pub(crate) fn since(&self, last: &mut Sizes) -> Sizes {
        let mut now = Sizes { bytes: self.bytes.load(Ordering::Relaxed), ..Sizes::default() };
        for (now, count) in now.buckets.iter_mut().zip(&self.buckets) {
            *now = count.load(Ordering::Relaxed);
        }
        let mut since = Sizes { bytes: now.bytes.wrapping_sub(last.bytes), ..Sizes::default() };
        for (since, (now, last)) in since.buckets.iter_mut().zip(now.buckets.iter().zip(&last.buckets)) {
            *since = now.wrapping_sub(*last);
        }
        *last = now;
        since
    }
}

/// Sizes of requests, or a state of their counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sizes {
    bytes: u64,
    buckets: [u32; BUCKETS],
}

impl Sizes {
    /// Sums the requests up for the scheduler.
    pub(crate) fn load(&self) -> Load {
        let requests = self.buckets.iter().map(|count| u64::from(*count)).sum();
        Load { median: self.median(requests), requests, bytes: self.bytes }
    }

    /// The smallest size of the bucket with the lower median; 0 without requests.
    fn median(&self, requests: u64) -> u32 {
        let half = requests.div_ceil(2);
        let mut below = 0;
        for (bits, count) in self.buckets.iter().enumerate() {
            below += u64::from(*count);
            if below >= half && requests > 0 {
                return if bits == 0 { 0 } else { 1 << (bits - 1) };
            }
        }
        0
    }
}

/// The requests of a thread since the last scheduling.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Load {
    /// Median size of a request, in bytes.
    pub(crate) median: u32,
    /// Number of requests.
    pub(crate) requests: u64,
    /// Sum of their sizes, in bytes.
    pub(crate) bytes: u64,
}

/// The scheduler of one connection's threads. Owns the memory that a scheduling needs, and nothing else.
#[derive(Debug)]
pub(crate) struct ThreadScheduler {
    order: Vec<u16>,
}

impl ThreadScheduler {
    /// Creates a scheduler for at most `threads` threads.
    pub(crate) fn new(threads: u16) -> Self {
        ThreadScheduler { order: Vec::with_capacity(threads.into()) }
    }

    /// Assigns each thread one of the active queue pairs. `loads` and `assigned` are indexed by thread;
    /// `assigned` holds the previous queue pairs and gets the new ones. Queue pairs are named by any numbers,
    /// in an order that the caller keeps from one scheduling to the next. Returns the number of threads whose
    /// queue pair changed.
    ///
    /// `random` places threads without requests; the result depends on the arguments only.
    pub(crate) fn assign(
        &mut self,
        loads: &[Load],
        active: &[u16],
        assigned: &mut [u16],
        random: u64,
    ) -> usize {
        if active.is_empty() {
            return 0;
        }
        let threads = loads.len().min(assigned.len()).min(usize::from(u16::MAX));
        let mut changed = 0;
        let mut place = |thread: usize, queue_pair: u16| {
            changed += usize::from(assigned[thread] != queue_pair);
            assigned[thread] = queue_pair;
        };
        self.order.clear();
        for (thread, load) in (0u16..).zip(&loads[..threads]) {
            if load.requests > 0 {
                self.order.push(thread);
            }
        }
        // The thread's number makes all keys different, so an unstable sort has one result.
        self.order.sort_unstable_by_key(|thread| {
            let load = &loads[usize::from(*thread)];
            (load.median, load.requests, *thread)
        });
        let total: u128 = self.order.iter().map(|thread| u128::from(loads[usize::from(*thread)].bytes)).sum();
        let (mut next, mut load) = (0, 0u128);
        for thread in &self.order {
            let thread = usize::from(*thread);
            let queue_pairs = active.len() as u128;
            let before = load * queue_pairs;
            let after = before + u128::from(loads[thread].bytes) * queue_pairs;
            if load > 0
                && next + 1 < active.len()
                && after.saturating_sub(total) > total.saturating_sub(before)
            {
                (next, load) = (next + 1, 0);
            }
            load += u128::from(loads[thread].bytes);
            place(thread, active[next]);
            if load * queue_pairs >= total && next + 1 < active.len() {
                (next, load) = (next + 1, 0);
            }
        }
        let rest = loads.iter().zip(assigned.iter_mut()).enumerate().take(threads);
        for (thread, (_, assigned)) in rest.filter(|(_, (load, _))| load.requests == 0) {
            if !active.contains(assigned) {
                *assigned = at_random(active, random, thread);
                changed += 1;
            }
        }
        changed
    }
}

/// Returns the cost of an assignment: on each queue pair, every request waits for the bytes of all. A scheduling that
/// saves little is not worth the moves of threads.
pub(crate) fn cost(loads: &[Load], assigned: &[u16], active: &[u16]) -> u128 {
    let of = |queue_pair: &u16| {
        let on = loads.iter().zip(assigned).filter(|(_, assigned)| *assigned == queue_pair);
        let (requests, bytes) = on.fold((0u128, 0u128), |(requests, bytes), (load, _)| {
            (requests + u128::from(load.requests), bytes + u128::from(load.bytes))
        });
        requests * bytes
    };
    active.iter().map(of).sum()
}

/// Picks a queue pair for a thread without requests.
fn at_random(active: &[u16], random: u64, thread: usize) -> u16 {
    // The finaliser of SplitMix64, so that neighbouring threads are placed independently.
    let mut mixed = random.wrapping_add((thread as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    active[((mixed ^ mixed >> 31) % active.len() as u64) as usize]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn load(median: u32, requests: u64) -> Load {
        Load { median, requests, bytes: u64::from(median) * requests }
    }

    fn assign(loads: &[Load], active: &[u16]) -> Vec<u16> {
        let mut assigned = vec![UNASSIGNED; loads.len()];
        ThreadScheduler::new(4).assign(loads, active, &mut assigned, 7);
        assigned
    }

    #[test]
    fn threads_with_large_requests_are_apart() {
        // Figure 11: one thread in ten is large, and two threads share a queue pair.
        let loads: Vec<_> =
            (0..20).map(|n| if n % 10 == 3 { load(2048, 100) } else { load(64, 100) }).collect();
        let active: Vec<u16> = (0..10).collect();
        let assigned = assign(&loads, &active);
        let large = [assigned[3], assigned[13]];
        assert_ne!(large[0], large[1]);
        let alone = large.map(|of| assigned.iter().filter(|queue_pair| **queue_pair == of).count());
        assert_eq!(alone, [1, 1]);
    }

    #[test]
    fn the_cost_tells_whether_a_scheduling_is_worth_it() {
        let even = [load(64, 100); 4];
        assert_eq!(cost(&even, &[0, 1, 0, 1], &[0, 1]), cost(&even, &[1, 1, 0, 0], &[0, 1]));
        assert_eq!(cost(&even, &[0, 0, 0, 0], &[0, 1]), 2 * cost(&even, &[0, 1, 0, 1], &[0, 1]));
        let mixed = [load(4096, 100), load(64, 100), load(64, 100), load(64, 100)];
        assert!(cost(&mixed, &[0, 0, 1, 1], &[0, 1]) * 4 > cost(&mixed, &[0, 1, 1, 1], &[0, 1]) * 5);
    }

    #[test]
    fn equal_threads_are_dealt_evenly() {
        let active: Vec<u16> = (0..4).collect();
        assert_eq!(assign(&[load(64, 10); 8], &active), [0, 0, 1, 1, 2, 2, 3, 3]);
        assert_eq!(assign(&[load(64, 10); 3], &active), [0, 1, 2]);
        // Seven threads on four: a queue pair is full at 1.75 threads.
        assert_eq!(assign(&[load(64, 10); 7], &active), [0, 0, 1, 1, 2, 2, 3]);
    }

    #[test]
    fn sizes_come_before_counts_and_counts_before_numbers() {
        let loads = [load(4096, 1), load(64, 64), load(64, 64), load(64, 32)];
        assert_eq!(assign(&loads, &[10, 11, 12, 13]), [13, 11, 12, 10]);
        assert_eq!(assign(&loads, &[10, 11]), [11, 10, 11, 10]);
    }

    #[test]
    fn corner_cases_of_the_algorithm() {
        assert_eq!(assign(&[], &[5]), []);
        assert_eq!(assign(&[load(64, 1)], &[]), [UNASSIGNED]);
        assert_eq!(assign(&[load(64, 1), load(1 << 20, 1 << 20)], &[5]), [5, 5]);
        // One thread sends nearly everything: it does not share a queue pair with the small ones.
        assert_eq!(assign(&[load(1 << 20, 1000), load(1, 1), load(2, 1)], &[5, 6, 7]), [6, 5, 5]);
        // Requests without bytes: the quota is nothing, so each thread fills a queue pair, and the last one
        // takes the remaining threads.
        assert_eq!(assign(&[load(0, 1); 5], &[5, 6, 7]), [5, 6, 7, 7, 7]);
        // Threads without bytes come after all bytes are dealt.
        let last = Load { median: 1, requests: 9, bytes: 0 };
        assert_eq!(assign(&[load(1, 1), load(1, 2), last], &[5, 6]), [5, 6, 6]);
        let huge = Load { median: u32::MAX, requests: u64::MAX, bytes: u64::MAX };
        assert_eq!(assign(&[huge; 4], &[5, 6]), [5, 5, 6, 6]);
    }

    #[test]
    fn idle_threads_stay_until_their_queue_pair_ends() {
        let mut scheduler = ThreadScheduler::new(8);
        let active: Vec<u16> = (0..8).collect();
        let mut assigned = vec![UNASSIGNED; 64];
        let loads = vec![Load::default(); 64];
        assert_eq!(scheduler.assign(&loads, &active, &mut assigned, 1), 64);
        let used: std::collections::BTreeSet<_> = assigned.iter().collect();
        assert!(used.len() >= 6, "placed at random: {assigned:?}");
        let before = assigned.clone();
        assert_eq!(scheduler.assign(&loads, &active, &mut assigned, 2), 0);
        let moved = scheduler.assign(&loads, &active[1..], &mut assigned, 3);
        assert_eq!(moved, before.iter().filter(|queue_pair| **queue_pair == 0).count());
        for (before, after) in before.iter().zip(&assigned) {
            assert!(if *before == 0 { active[1..].contains(after) } else { before == after });
        }
    }

    #[test]
    fn a_scheduling_allocates_nothing_after_the_first() {
        let mut scheduler = ThreadScheduler::new(64);
        let memory = (scheduler.order.as_ptr(), scheduler.order.capacity());
        let mut assigned = [UNASSIGNED; 64];
        scheduler.assign(&[load(64, 3); 64], &[1, 2, 3], &mut assigned, 0);
        assert_eq!((scheduler.order.as_ptr(), scheduler.order.capacity()), memory);
    }

    #[test]
    fn sizes_are_counted_between_two_looks() {
        let counts = SizeCounts::default();
        let mut last = Sizes::default();
        [64, 64, 100, 5000].iter().for_each(|bytes| counts.count(*bytes));
        assert_eq!(counts.since(&mut last).load(), Load { median: 64, requests: 4, bytes: 5228 });
        assert_eq!(counts.since(&mut last).load(), Load::default());
        counts.count(0);
        counts.count(u32::MAX);
        let bytes = u64::from(u32::MAX);
        assert_eq!(counts.since(&mut last).load(), Load { median: 0, requests: 2, bytes });
        counts.count(u32::MAX);
        assert_eq!(counts.since(&mut last).load(), Load { median: 1 << 30, requests: 1, bytes });
    }

    fn any_load() -> impl Strategy<Value = Load> {
        let size = prop_oneof![Just(0u32), Just(64), 1u32..5000, any::<u32>()];
        (size, prop_oneof![Just(0u64), 1u64..4, 0u64..1000], any::<bool>()).prop_map(
            |(median, requests, even)| {
                let bytes = u64::from(median) * requests;
                Load { median, requests, bytes: if even { bytes } else { bytes / 3 } }
            },
        )
    }

    proptest! {
        /// Every thread has an active queue pair; no queue pair has a share of bytes or more before its last
        /// thread; all but the last one in use have a share, or would be further from it with the next thread;
        /// sizes grow from one queue pair to the next; and the same loads give the same queue pairs.
        #[test]
        fn each_assignment_is_one_of_the_algorithm(
            loads in prop::collection::vec(any_load(), 0..40), count in 1u16..12, random in any::<u64>(),
            previous in prop::collection::vec(prop_oneof![Just(UNASSIGNED), 100u16..120], 40),
        ) {
            let active: Vec<u16> = (100..100 + count).collect();
            let mut assigned = previous[..loads.len()].to_vec();
            let changed = ThreadScheduler::new(0).assign(&loads, &active, &mut assigned, random);
            prop_assert_eq!(changed, assigned.iter().zip(&previous).filter(|(now, before)| now != before).count());
            prop_assert!(assigned.iter().all(|queue_pair| active.contains(queue_pair)));

            let total: u128 = loads.iter().filter(|load| load.requests > 0).map(|load| load.bytes as u128).sum();
            let mut largest_before = 0;
            let mut used = 0;
            for queue_pair in &active {
                let mut members: Vec<_> = (0..loads.len())
                    .filter(|thread| assigned[*thread] == *queue_pair && loads[*thread].requests > 0)
                    .map(|thread| (loads[thread].median, loads[thread].requests, thread))
                    .collect();
                members.sort_unstable();
                let Some((last, others)) = members.split_last() else { continue };
                let is_last = *queue_pair + 1 == 100 + count;
                let sum = |members: &[(u32, u64, usize)]| -> u128 {
                    members.iter().map(|(_, _, thread)| loads[*thread].bytes as u128).sum()
                };
                if !is_last && !others.is_empty() {
                    prop_assert!(sum(others) * (count as u128) < total);
                }
                prop_assert!(members[0].0 >= largest_before);
                largest_before = last.0;
                used += 1;
                let is_last_in_use = assigned.iter().zip(&loads)
                    .all(|(other, load)| load.requests == 0 || other <= queue_pair);
                if !is_last_in_use {
                    let next = (0..loads.len())
                        .filter(|thread| assigned[*thread] > *queue_pair && loads[*thread].requests > 0)
                        .min_by_key(|thread| (assigned[*thread], loads[*thread].median, loads[*thread].requests, *thread));
                    let has = sum(&members) * count as u128;
                    let would_have = has + next.map_or(0, |thread| loads[thread].bytes as u128) * count as u128;
                    prop_assert!(has >= total || would_have - total > total - has);
                }
            }
            prop_assert!(used <= usize::from(count));

            let before = assigned.clone();
            prop_assert_eq!(ThreadScheduler::new(0).assign(&loads, &active, &mut assigned, !random), 0);
            prop_assert_eq!(assigned, before);
        }

        /// The median of a histogram lies within the power of two of the exact lower median.
        #[test]
        fn medians_are_right_to_a_power_of_two(sizes in prop::collection::vec(any_load(), 1..50)) {
            let mut sizes: Vec<u32> = sizes.iter().map(|load| load.median).collect();
            let counts = SizeCounts::default();
            sizes.iter().for_each(|bytes| counts.count(*bytes));
            let load = counts.since(&mut Sizes::default()).load();
            sizes.sort_unstable();
            let exact = sizes[(sizes.len() - 1) / 2];
            prop_assert_eq!(bucket(load.median), bucket(exact));
            prop_assert_eq!(load.requests, sizes.len() as u64);
            prop_assert_eq!(load.bytes, sizes.iter().map(|bytes| u64::from(*bytes)).sum::<u64>());
        }
    }
}
