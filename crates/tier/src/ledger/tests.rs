use super::bytes::HEADS;
use super::*;
use proptest::prelude::*;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Memory that is a copy of another one's stores up to a point.
#[derive(Clone, Debug)]
pub(super) struct Shared {
    bytes: Rc<RefCell<Vec<u8>>>,
    /// Stores that are still carried out: the process ends then, in the middle of a copy.
    left: Rc<Cell<u64>>,
}

impl Shared {
    pub(super) fn new(length: usize) -> Shared {
        Shared { bytes: Rc::new(RefCell::new(vec![0; length])), left: Rc::new(Cell::new(u64::MAX)) }
    }

    /// Returns memory with the same bytes, which the next life reads.
    pub(super) fn survives(&self) -> Shared {
        Shared { bytes: Rc::new(RefCell::new(self.bytes.borrow().clone())), ..Shared::new(0) }
    }

    /// Sets the number of stores that are still carried out.
    pub(super) fn stores_left(&self, stores: u64) {
        self.left.set(stores);
    }

    /// Returns the number of stores that are still carried out.
    pub(super) fn left(&self) -> u64 {
        self.left.get()
    }
}

impl LedgerMemory for Shared {
    fn length(&self) -> u64 {
        self.bytes.borrow().len() as u64
    }
    fn write(&self, at: u64, bytes: &[u8]) {
        // Words of eight bytes, each of which is there or not.
        for (number, word) in bytes.chunks(8).enumerate() {
            if self.left.get() == 0 {
                return;
            }
            self.left.set(self.left.get() - 1);
            let at = at as usize + 8 * number;
            self.bytes.borrow_mut()[at..at + word.len()].copy_from_slice(word);
        }
    }
    fn read(&self, at: u64, into: &mut [u8]) {
        into.copy_from_slice(&self.bytes.borrow()[at as usize..at as usize + into.len()]);
    }
    fn store(&self, at: u64, word: u64) {
        self.write(at, &word.to_le_bytes());
    }
    fn load(&self, at: u64) -> u64 {
        let mut word = [0; 8];
        self.read(at, &mut word);
        u64::from_le_bytes(word)
    }
}

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// A change: a key of few, and a value, or none to remove it.
fn change() -> impl Strategy<Value = (u8, Option<Vec<u8>>)> {
    (0u8..12, prop::option::weighted(0.7, prop::collection::vec(any::<u8>(), 0..300)))
}

fn apply(ledger: &mut Ledger<Shared>, model: &mut Model, (key, value): (u8, Option<Vec<u8>>)) {
    let key = vec![key % 3, key];
    match value {
        Some(value) => {
            ledger.put(&key, &value);
            model.insert(key, value);
        }
        None => {
            ledger.remove(&key);
            model.remove(&key);
        }
    }
}

fn written(changes: Vec<(u8, Option<Vec<u8>>)>) -> (Shared, Model) {
    let (memory, mut model) = (Shared::new(200_000), Model::new());
    let mut ledger = Ledger::begin(memory.clone()).unwrap();
    ledger.put(b"identity", b"1");
    model.insert(b"identity".to_vec(), b"1".to_vec());
    for one in changes {
        apply(&mut ledger, &mut model, one);
        ledger.commit().unwrap();
    }
    ledger.commit().unwrap();
    (memory, model)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever is changed and committed, the next life reads exactly that, and goes on with it.
    #[test]
    fn the_next_life_reads_what_was_committed(
        changes in prop::collection::vec((change(), any::<bool>()), 0..60), length in 12_300usize..40_000,
    ) {
        let (memory, mut model) = (Shared::new(length), Model::new());
        let mut ledger = Ledger::begin(memory.clone()).unwrap();
        prop_assert!(Ledger::open(memory.survives()).unwrap().is_none());
        for (one, restarts) in changes {
            apply(&mut ledger, &mut model, one);
            ledger.commit().unwrap();
            let next = Ledger::open(memory.survives()).unwrap();
            prop_assert_eq!(next.map(|next| next.entries).unwrap_or_default(), model.clone());
            let tables: usize = (0..3).map(|table| ledger.table(table).count()).sum();
            prop_assert_eq!(tables, model.len());
            if let Some(next) = Ledger::open(memory.clone()).unwrap().filter(|_| restarts) {
                prop_assert_eq!(next.live, ledger.live);
                ledger = next;
            }
        }
    }

    /// The process ends after any store of any commit: the next life reads the state before or after that commit.
    #[test]
    fn a_commit_that_is_cut_off_leaves_the_older_or_the_newer_state(
        changes in prop::collection::vec(change(), 1..8), last in prop::collection::vec(change(), 1..6),
        cut in 0u64..200, length in 12_300usize..20_000,
    ) {
        let (memory, mut model) = (Shared::new(length), Model::new());
        let mut ledger = Ledger::begin(memory.clone()).unwrap();
        for one in changes {
            apply(&mut ledger, &mut model, one);
            ledger.commit().unwrap();
        }
        let older = model.clone();
        last.into_iter().for_each(|one| apply(&mut ledger, &mut model, one));
        memory.left.set(cut);
        ledger.commit().unwrap();
        let next = Ledger::open(memory.survives()).unwrap();
        let entries = next.map(|next| next.entries).unwrap_or_default();
        prop_assert!(entries == older || entries == model);
        if memory.left.get() > 0 {
            prop_assert_eq!(entries, model);
        }
    }

    /// One changed bit anywhere: the ledger is refused, or nothing of it has changed.
    #[test]
    fn a_flipped_bit_is_refused_or_harmless(
        changes in prop::collection::vec(change(), 1..30),
        places in prop::collection::vec((any::<prop::sample::Index>(), 0u8..8), 30),
    ) {
        let (memory, model) = written(changes);
        let used = memory.bytes.borrow().iter().rposition(|byte| *byte != 0).unwrap() + 1;
        // Each bit of the first bytes, and a sample of all others in use.
        let header = (0..200).flat_map(|at| (0..8).map(move |bit| (at, bit)));
        for (at, bit) in header.chain(places.into_iter().map(|(place, bit)| (place.index(used), bit))) {
            let damaged = memory.survives();
            damaged.bytes.borrow_mut()[at] ^= 1 << bit;
            if let Ok(next) = Ledger::open(damaged) {
                prop_assert_eq!(&next.expect("a ledger").entries, &model, "byte {}", at);
            }
        }
    }

    /// Any bytes are a ledger or a refusal.
    #[test]
    fn any_bytes_are_read_without_a_panic(
        noise in prop::collection::vec(any::<u8>(), 0..200), at in 0usize..5000, keeps_check in any::<bool>(),
        head in any::<[u64; 3]>(),
    ) {
        let (memory, _) = written(vec![(1, Some(vec![7; 100]))]);
        let end = (at + noise.len()).min(memory.bytes.borrow().len());
        memory.bytes.borrow_mut()[at..end].copy_from_slice(&noise[..end - at]);
        let _ = Ledger::open(memory.survives());
        if keeps_check {
            // A head whose check is right, with any numbers.
            let [area, length, chain] = head;
            let head = Head { number: 7, area: area % 3, length: length % 200_000, chain };
            head.write(&memory);
            memory.store(SELECTOR, selector_of(7));
            let _ = Ledger::open(memory.survives());
        }
    }
}

/// Each bit that says which ledger it is, and which state counts, is checked.
#[test]
fn each_bit_of_the_words_in_use_is_refused() {
    let (memory, _) = written(vec![(1, Some(vec![7; 100])), (2, Some(vec![8; 100]))]);
    let Head { number, area, length, .. } = Ledger::open(memory.survives()).unwrap().unwrap().head;
    let head = HEADS[(number % 2) as usize] as usize;
    let area = (START + area * bytes::area_length(&memory).unwrap()) as usize;
    let area = area..area + length as usize;
    for at in (0..12).chain(16..24).chain(head..head + 40).chain(area) {
        for bit in 0..8 {
            let damaged = memory.survives();
            damaged.bytes.borrow_mut()[at] ^= 1 << bit;
            assert!(Ledger::open(damaged).is_err(), "bit {bit} of byte {at}");
        }
    }
}

#[test]
fn another_version_and_short_memory_say_so() {
    let (memory, _) = written(Vec::new());
    memory.bytes.borrow_mut()[8] = 9;
    let refused = Ledger::open(memory).map(drop);
    assert_eq!(refused, Err(LedgerError::Version { ours: LEDGER_VERSION, theirs: 9 }));
    let short = Ledger::begin(Shared::new(5000)).map(drop);
    assert_eq!(short, Err(LedgerError::Short { least: 12288, length: 5000 }));
}

#[test]
fn a_ledger_without_room_ends_and_says_so() {
    let memory = Shared::new(12_300);
    let mut ledger = Ledger::begin(memory.clone()).unwrap();
    ledger.put(b"a", &[1; 1000]);
    ledger.commit().unwrap();
    ledger.put(b"b", &[2; 5000]);
    assert_eq!(ledger.commit(), Err(LedgerError::Full));
    assert_eq!(Ledger::open(memory).map(drop), Err(LedgerError::Full));
}
