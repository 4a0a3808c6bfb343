//! Measures round trips of bare SENDs of the fabric, to compare with `fi_pingpong` (libfabric alone) and
//! `dunlin ping` (calls).
//!
//! `ofi_trip serve PROVIDER:HOST:PORT` on one side, for one client, `ofi_trip PROVIDER:HOST:PORT [BYTES
//! [ROUNDS]]` on the other.

use dunlin_fabric::*;
use dunlin_fabric_ofi::{OfiConfig, OfiDomain, OfiFabric, OfiLink, OfiMemory};
use std::process::ExitCode;
use std::time::Instant;

/// The number of posted RECVs.
const RECEIVES: usize = 16;
const LONGEST: usize = 4096;

struct End {
    domain: OfiDomain,
    queue: CompletionQueueId,
    queue_pair: QueuePairId,
    arena: Arena<OfiMemory>,
    _link: OfiLink,
    found: Vec<Completion<OfiMemory>>,
    sent: usize,
}

impl End {
    fn new(fabric: &OfiFabric, link: OfiLink, until: Nanos) -> Self {
        let mut domain = fabric.domain().unwrap();
        let queue = domain.create_completion_queue(256, false).unwrap();
        let config =
            QueuePairConfig { max_send: 64, max_receive: 64, ..QueuePairConfig::reliable(queue, queue) };
        let queue_pair = domain.create_queue_pair(&config).unwrap();
        let endpoint = domain.endpoint(queue_pair, &link).unwrap();
        link.send(&endpoint.0).unwrap();
        let theirs = Endpoint(link.receive(until).unwrap());
        domain.connect(queue_pair, &link, &theirs).unwrap();
        let arena = Arena::new(fabric.register(1 << 20, Access::LOCAL).unwrap()).unwrap();
        let mut end = End { domain, queue, queue_pair, arena, _link: link, found: Vec::new(), sent: 0 };
        for _ in 0..RECEIVES {
            let buffer = end.arena.reserve(LONGEST).unwrap();
            end.receive(buffer);
        }
        end
    }

    fn receive(&mut self, buffer: Buffer<OfiMemory>) {
        self.domain.post_receive(ReceiveTarget::QueuePair(self.queue_pair), WorkId(1), Some(buffer)).unwrap();
    }

    fn send(&mut self, bytes: &[u8]) {
        let operation = Operation::Send { data: Data::Inline(&[bytes]), immediate: None, to: None };
        self.sent += 1;
        let signaled = self.sent.is_multiple_of(16);
        self.domain.post(self.queue_pair, WorkRequest { id: WorkId(0), operation, signaled }).unwrap();
    }

    /// Returns the length of the next message, and posts its RECV again.
    fn take(&mut self) -> usize {
        loop {
            self.domain.poll(self.queue, &mut self.found, 16);
            for done in std::mem::take(&mut self.found) {
                assert_eq!(done.status, CompletionStatus::Success);
                if let Some(buffer) = done.buffer {
                    self.receive(buffer);
                    return done.bytes as usize;
                }
            }
        }
    }
}

fn soon() -> Nanos {
    RealHost.now() + 60_000_000_000
}

/// Echoes messages until one has a length of one byte.
fn serve(fabric: &OfiFabric, address: &Address) {
    let listener = fabric.listen(address).unwrap();
    let mut end = End::new(fabric, listener.accept(soon()).unwrap(), soon());
    let bytes = [7; LONGEST];
    loop {
        let length = end.take();
        end.send(&bytes[..length]);
        if length == 1 {
            return;
        }
    }
}

fn measure(rounds: usize, mut round: impl FnMut()) {
    (0..rounds / 10).for_each(|_| round());
    let mut times: Vec<u64> = (0..rounds)
        .map(|_| {
            let begin = Instant::now();
            round();
            begin.elapsed().as_nanos() as u64
        })
        .collect();
    times.sort_unstable();
    let mean = times.iter().sum::<u64>() / times.len() as u64;
    println!("least {} p50 {} mean {mean} ns", times[0], times[times.len() / 2]);
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (serves, place, rest) = match words[..] {
        ["serve", place] => (true, place, &[][..]),
        [place, ref rest @ ..] => (false, place, rest),
        [] => {
            eprintln!("ofi_trip serve PROVIDER:HOST:PORT, or ofi_trip PROVIDER:HOST:PORT [BYTES [ROUNDS]]");
            return ExitCode::FAILURE;
        }
    };
    let number = |at: usize, usual: usize| rest.get(at).map_or(usual, |word| word.parse().unwrap());
    let (bytes, rounds) = (vec![5; number(0, 64)], number(1, 20_000));
    let fabric = OfiFabric::new(place.split(':').next().unwrap(), OfiConfig::default()).unwrap();
    let address = Address::new(Scheme::Ofi, place).unwrap();
    if serves {
        serve(&fabric, &address);
        return ExitCode::SUCCESS;
    }
    let mut end = End::new(&fabric, fabric.dial(&address, soon()).unwrap(), soon());
    measure(rounds, || {
        end.send(&bytes);
        assert_eq!(end.take(), bytes.len());
    });
    end.send(&[1]);
    end.take();
    ExitCode::SUCCESS
}
