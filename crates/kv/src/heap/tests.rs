//! The heap's own state, fully checked after every step of random use.

use proptest::prelude::*;

use super::*;
use crate::size_class::Footprint;

fn heap(pages: usize) -> Heap {
    let memory = HeapMemory {
        bytes: vec![0; pages * PAGE_BYTES + ALIGNMENT_SLACK],
        map: vec![0; PageMap::words_for(pages)],
    };
    Heap::new(memory, pages).unwrap()
}

/// Panics unless pages, slabs, lists and free chunks agree with each other; returns the number of items.
fn check(heap: &Heap) -> usize {
    let (mut items, mut slabs, mut page) = (0, 0, 0);
    while page < heap.map.pages() {
        let taken = heap.map.is_taken(page);
        let state = heap.pages.get(page).copied().unwrap_or(Page::Free);
        let length = match state {
            Page::Free => {
                assert!(!taken);
                page += 1;
                continue;
            }
            Page::Interior(head) => panic!("page {page} belongs to {head}, which does not reach it"),
            Page::Run(pages) => {
                assert!(heap.header(Location::from_offset(page * PAGE_BYTES)).is_used());
                items += 1;
                pages as usize
            }
            Page::Slab(slab) => {
                items += check_slab(heap, page, &slab);
                slabs += 1;
                SLAB_PAGES
            }
        };
        for inner in page..page + length {
            assert!(heap.map.is_taken(inner));
            assert!(
                inner == page || matches!(heap.pages[inner], Page::Interior(head) if head as usize == page)
            );
        }
        page += length;
    }
    for (class, list) in heap.classes.iter().enumerate() {
        let (mut previous, mut head, mut full_seen) = (NO_SLAB, list.first, false);
        let mut clock_seen = list.clock == NO_SLAB;
        while head != NO_SLAB {
            let slab = heap.slab(head as usize);
            assert_eq!((slab.previous, usize::from(slab.class)), (previous, class));
            assert!(!(full_seen && slab.has_room()), "a slab with room stands behind a full one");
            full_seen |= !slab.has_room();
            clock_seen |= list.clock == head;
            slabs -= 1;
            (previous, head) = (head, slab.next);
        }
        assert_eq!(list.last, previous);
        assert!(clock_seen, "the clock of class {class} stands at a slab that is not in its list");
    }
    assert_eq!(slabs, 0, "every slab is in one list");
    items
}

fn check_slab(heap: &Heap, head: usize, slab: &Slab) -> usize {
    let location = |chunk: usize| Location::from_offset(head * PAGE_BYTES + chunk * chunk_bytes(slab.class));
    let used = (0..usize::from(slab.carved)).filter(|&chunk| heap.header(location(chunk)).is_used()).count();
    assert_eq!(used, usize::from(slab.used));
    assert!(
        used > 0 && slab.carved <= chunks_per_slab(slab.class) && slab.hand < chunks_per_slab(slab.class)
    );
    let mut free = 0;
    let mut unit = slab.free;
    while unit != NO_CHUNK {
        let header = heap.header(Location((head * UNITS_PER_PAGE) as u32 + u32::from(unit)));
        assert!(!header.is_used());
        free += 1;
        unit = header.next_free();
    }
    assert_eq!(free + used, usize::from(slab.carved));
    used
}

#[derive(Clone, Debug)]
enum Step {
    Allocate(usize),
    Release(prop::sample::Index),
    Reference(prop::sample::Index),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let length = prop_oneof![4 => 0usize..100, 4 => 3000usize..8300, 2 => 8000usize..60_000];
    let step = prop_oneof![
        6 => length.prop_map(Step::Allocate),
        2 => any::<prop::sample::Index>().prop_map(Step::Release),
        2 => any::<prop::sample::Index>().prop_map(Step::Reference),
    ];
    prop::collection::vec(step, 1..250)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn books_agree_and_items_stay_whole(pages in 20usize..80, steps in steps()) {
        let mut heap = heap(pages);
        let mut live: Vec<(Location, u32, usize)> = Vec::new();
        for (number, step) in steps.into_iter().enumerate() {
            let number = number as u32;
            match step {
                Step::Allocate(length) => {
                    let footprint = Footprint::of(HEADER_BYTES + 4 + length);
                    prop_assert!(heap.can_ever_hold(footprint));
                    let location = heap.allocate(footprint, |victim| {
                        let place = live.iter().position(|(location, ..)| *location == victim.location);
                        let (_, number, length) = live.swap_remove(place.expect("a victim is a live item"));
                        assert_eq!((victim.key, victim.value_length), (&number.to_le_bytes()[..], length));
                    });
                    heap.write(location, &number.to_le_bytes(), &vec![number as u8; length]);
                    prop_assert_eq!(heap.footprint(location), footprint);
                    live.push((location, number, length));
                }
                Step::Release(index) if !live.is_empty() => {
                    heap.release(live.swap_remove(index.index(live.len())).0);
                }
                Step::Reference(index) if !live.is_empty() => heap.mark_referenced(live[index.index(live.len())].0),
                Step::Release(_) | Step::Reference(_) => {}
            }
            prop_assert_eq!(check(&heap), live.len());
            for &(location, number, length) in &live {
                let place = heap.find(location, &number.to_le_bytes()).expect("a live item has its key");
                let value = heap.value(place);
                prop_assert!(value.len() == length && value.iter().all(|&byte| byte == number as u8));
            }
        }
        for (location, ..) in live {
            heap.release(location);
        }
        prop_assert_eq!((check(&heap), heap.taken_bytes()), (0, 0));
    }
}

#[test]
fn a_large_item_read_lately_is_passed_over() {
    let mut heap = heap(12);
    let footprint = Footprint::of(3 * PAGE_BYTES);
    let none = |_: Victim<'_>| panic!("there is room");
    let locations: Vec<_> = (0..4u8)
        .map(|number| {
            let location = heap.allocate(footprint, none);
            heap.write(location, &[number], &[0; 3 * PAGE_BYTES - 9]);
            location
        })
        .collect();
    heap.mark_referenced(locations[0]);
    heap.mark_referenced(locations[1]);
    let mut victims = Vec::new();
    heap.allocate(footprint, |victim| victims.push(victim.key.to_vec()));
    assert_eq!(victims, [[2]]);
}

#[test]
fn a_page_too_far_away_is_not_needed() {
    // Locations reach exactly the largest heap that a partition may ask for.
    assert_eq!(Location::from_offset((MAX_PAGES - 1) * PAGE_BYTES).offset(), (MAX_PAGES - 1) * PAGE_BYTES);
}
