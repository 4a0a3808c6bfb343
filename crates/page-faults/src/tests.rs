use super::*;
use std::sync::atomic::AtomicBool;

const WAIT: Duration = Duration::from_millis(50);

/// Answers faults until `body` has ended: absent pages get bytes of their number, and protections are lifted.
fn answered<T>(memory: &FaultMemory, body: impl FnOnce() -> T) -> (T, Vec<Fault>) {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let answers = scope.spawn(|| {
            let mut faults = Vec::new();
            while !is_over.load(Ordering::Relaxed) {
                let Some(fault) = memory.next(WAIT).unwrap() else { continue };
                faults.push(fault);
                match fault {
                    Fault::Absent(page) => memory.place(page, &[page as u8; PAGE], true).unwrap(),
                    Fault::Protected(page) => memory.protect(page, false).unwrap(),
                }
            }
            faults
        });
        let result = body();
        is_over.store(true, Ordering::Relaxed);
        (result, answers.join().unwrap())
    })
}

#[test]
fn absent_pages_are_placed_and_protected_ones_are_written_after_a_fault() {
    let memory = FaultMemory::new(None, 8).unwrap();
    let mut page = [0; PAGE];
    let ((), faults) = answered(&memory, || {
        let words = memory.words();
        assert_eq!(words[5 * PAGE / WORD].load(Ordering::Relaxed), 0x0505_0505_0505_0505);
        words[5 * PAGE / WORD + 1].store(7, Ordering::Relaxed);
        words[5 * PAGE / WORD + 2].store(8, Ordering::Relaxed);
        memory.read_page(5, &mut page);
    });
    assert_eq!(faults, [Fault::Absent(5), Fault::Protected(5)]);
    assert_eq!((page[0], page[8], page[16], page[4095]), (5, 7, 8, 5));
    let ((), faults) = answered(&memory, || {
        memory.take(5).unwrap();
        memory.read_page(5, &mut page);
    });
    assert_eq!((faults, page), (vec![Fault::Absent(5)], [5; PAGE]));
    let ((), faults) = answered(&memory, || {
        memory.write(5, 13, b"across words, and more");
        memory.protect(5, true).unwrap();
        memory.write(5, 13, b"A");
        let mut found = [0; 24];
        memory.read(5, 12, &mut found);
        assert_eq!(&found, b"\x05Across words, and more\x05");
    });
    assert_eq!(faults, [Fault::Protected(5), Fault::Protected(5)]);
}

#[test]
fn many_threads_wait_for_pages_and_all_get_them() {
    let memory = FaultMemory::new(None, 64).unwrap();
    answered(&memory, || {
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let memory = &memory;
                scope.spawn(move || {
                    for round in 0..64 {
                        let page = (round * 7 + thread) % 64;
                        let word = memory.words()[page * PAGE / WORD].load(Ordering::Relaxed);
                        assert_eq!(word, u64::from_le_bytes([page as u8; 8]));
                    }
                });
            }
        });
    });
}

#[test]
fn addresses_are_those_that_were_asked_for_or_none() {
    let memory = FaultMemory::new(None, 4).unwrap();
    let (address, end) = (memory.address(), memory.address() + 4 * PAGE as u64);
    let taken = FaultMemory::new(Some(address), 1);
    assert!(matches!(taken, Err(FaultError::Taken { address: found }) if found == address), "{taken:?}");
    for (address, pages) in [(end + 1, 1), (end, 0), (end, usize::MAX / 2)] {
        let refused = FaultMemory::new(Some(address), pages);
        assert!(matches!(refused, Err(FaultError::Address { .. } | FaultError::Call { .. })), "{refused:?}");
    }
    drop(memory);
    let again = FaultMemory::new(Some(address), 4);
    // Another thread of the test may have got the addresses meanwhile.
    assert!(
        matches!(&again, Ok(memory) if memory.address() == address)
            || matches!(again, Err(FaultError::Taken { .. }))
    );
    check().unwrap();
}

/// The kernel does not have its own faults answered.
#[test]
fn a_system_call_fails_on_an_absent_page_and_succeeds_on_a_placed_one() {
    let memory = FaultMemory::new(None, 2).unwrap();
    let words = &memory.words()[PAGE / WORD..];
    // SAFETY: the page is mapped as long as the memory lives, and nobody stores to it.
    let bytes = unsafe { std::slice::from_raw_parts(words.as_ptr().cast::<u8>(), PAGE) };
    let (writer, _reader) = std::os::unix::net::UnixStream::pair().unwrap();
    assert_eq!(rustix::io::write(&writer, bytes), Err(rustix::io::Errno::FAULT));
    memory.place(1, &[9; PAGE], true).unwrap();
    assert_eq!(rustix::io::write(&writer, bytes), Ok(PAGE));
}
