//! The peer process: waits for phases, serves floors and subjects, ends with its leader.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use rustix::thread::futex;

use super::area::{Area, Direction, Line, RING_SLOTS, STOP};
use super::clock::process_cpu_ns;
use super::pair::{EXIT, IDLE, SUBJECT, pin_to, timespec};
use super::payload::{PageBuffer, answer_seed, fill_bytes, sum_bytes};
use super::preemption::PreemptionCounter;
use super::{Floor, FloorError, PAYLOAD_CAPACITY};

/// Number of empty polls between two checks of the other process: some 10 to 50 us.
pub(super) const POLLS_PER_LOOK: u32 = 1 << 16;

/// The peer's side of a system that is compared with a floor, for example an RPC server.
///
/// All methods run on the peer's one pinned thread. Between [`Subject::begin`] and [`Subject::end`],
/// [`Subject::serve_once`] is called in a loop until the leading process ends the slice.
pub trait Subject {
    /// Begins a slice of the subject numbered `index`, and creates whatever the subject still needs.
    /// `parameters` comes from [`FloorPair::begin_subject`](super::FloorPair::begin_subject). An error text
    /// is passed to the leader.
    fn begin(&mut self, index: u8, parameters: &[u8]) -> Result<(), String>;

    /// Serves all pending requests. A busy-waiting subject returns at once; a sleeping one must bound its
    /// sleep.
    fn serve_once(&mut self, index: u8);

    /// Ends the slice. The returned bytes (at most [`super::MESSAGE_CAPACITY`]) are passed to the leader.
    fn end(&mut self, index: u8) -> Result<Vec<u8>, String>;
}

/// A peer that serves only floors.
pub struct NoSubject;

impl Subject for NoSubject {
    fn begin(&mut self, index: u8, _parameters: &[u8]) -> Result<(), String> {
        Err(format!("this binary serves floors only, there is no subject {index}"))
    }

    fn serve_once(&mut self, _index: u8) {}

    fn end(&mut self, _index: u8) -> Result<Vec<u8>, String> {
        Ok(Vec::new())
    }
}

/// Returns the descriptor of the shared area in a process that [`FloorPair`](super::FloorPair) started: a
/// duplicate of its standard input.
///
/// # Errors
/// If the descriptor cannot be duplicated.
pub fn inherited_descriptor() -> Result<OwnedFd, FloorError> {
    std::io::stdin()
        .as_fd()
        .try_clone_to_owned()
        .map_err(|_| FloorError::NotAnArea { reason: "standard input is closed" })
}

/// Serves phases until the leader sends the exit phase. Blocks; call it on the main thread of the peer
/// process.
///
/// The kernel kills the process when the thread that started it ends. Every wait also checks that the
/// leader is alive.
///
/// # Errors
/// If the descriptor is not a floor area, or if the leader has ended.
pub fn serve_peer<S: Subject>(descriptor: impl AsFd, subject: &mut S) -> Result<(), FloorError> {
    let area = Area::open(descriptor)?;
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|source| FloorError::System { action: "ask to die with the leading process", source })?;
    let preemptions = PreemptionCounter::of_this_thread()?;
    let peer = Peer { leader: area.leader.load(Ordering::Acquire), area, preemptions };
    peer.look_for_leader()?;
    peer.run(subject)
}

/// The result of a wait.
enum Turn {
    Serve,
    Stop,
}

struct Peer {
    area: Area,
    leader: u32,
    preemptions: PreemptionCounter,
}

impl Peer {
    fn look_for_leader(&self) -> Result<(), FloorError> {
        let parent = getppid().map_or(0, |id| id.as_raw_nonzero().get() as u32);
        if parent == self.leader { Ok(()) } else { Err(FloorError::LeaderGone) }
    }

    fn run<S: Subject>(&self, subject: &mut S) -> Result<(), FloorError> {
        let mut request = PageBuffer::new(PAYLOAD_CAPACITY);
        let mut response = PageBuffer::new(PAYLOAD_CAPACITY);
        let mut phase = 0;
        let mut core = u32::MAX;
        loop {
            phase = self.next_phase(phase)?;
            let code = (phase & 0xff) as u8;
            let wanted = self.area.peer_core.load(Ordering::Acquire);
            if wanted != core {
                pin_to(wanted)?;
                core = wanted;
            }
            let preempted_before = self.preemptions.count()?;
            let cpu_before = process_cpu_ns();
            let outcome = match code {
                EXIT => return Ok(()),
                // Keep the last phase's message to the leader.
                IDLE => continue,
                SUBJECT.. => self.serve_subject(subject, phase, code - SUBJECT),
                _ => self.serve_floor(phase, code, request.as_mut_slice(), response.as_mut_slice())?,
            };
            self.area.peer_cpu_ns.store(process_cpu_ns().saturating_sub(cpu_before), Ordering::Relaxed);
            let preempted = self.preemptions.count()?.saturating_sub(preempted_before);
            self.area.peer_preemptions.store(preempted, Ordering::Relaxed);
            self.hand_over(outcome);
            self.area.entered.0.store(phase, Ordering::Release);
            self.area.left.0.store(phase, Ordering::Release);
        }
    }

    /// Stores the result of a phase for the leader.
    fn hand_over(&self, outcome: Result<Vec<u8>, String>) {
        let failed = match &outcome {
            Ok(bytes) if self.area.from_peer.store(bytes) => {
                return self.area.failed.store(0, Ordering::Relaxed);
            }
            Ok(bytes) => format!("the subject's report of {} bytes is too long", bytes.len()),
            Err(text) => text.clone(),
        };
        let mut end = failed.len().min(super::MESSAGE_CAPACITY);
        while !failed.is_char_boundary(end) {
            end -= 1;
        }
        self.area.from_peer.store(&failed.as_bytes()[..end]);
        self.area.failed.store(1, Ordering::Relaxed);
    }

    /// Spins briefly, then sleeps, until the phase differs from `last`.
    fn next_phase(&self, last: u32) -> Result<u32, FloorError> {
        for _ in 0..4 * POLLS_PER_LOOK {
            let phase = self.area.phase.0.load(Ordering::Acquire);
            if phase != last {
                return Ok(phase);
            }
        }
        loop {
            let phase = self.area.phase.0.load(Ordering::Acquire);
            if phase != last {
                return Ok(phase);
            }
            self.look_for_leader()?;
            // A changed value, an interrupt and a timeout are treated alike: check the phase again.
            let _ = futex::wait(
                &self.area.phase.0,
                futex::Flags::empty(),
                last,
                Some(&timespec(Duration::from_millis(100))),
            );
        }
    }

    fn serve_subject<S: Subject>(&self, subject: &mut S, phase: u32, index: u8) -> Result<Vec<u8>, String> {
        subject.begin(index, &self.area.to_peer.load())?;
        self.area.failed.store(0, Ordering::Relaxed);
        self.area.entered.0.store(phase, Ordering::Release);
        // This line changes only with the phase, so it stays in the cache and the load is cheap.
        while self.area.phase.0.load(Ordering::Relaxed) == phase {
            subject.serve_once(index);
        }
        subject.end(index)
    }

    fn serve_floor(
        &self,
        phase: u32,
        code: u8,
        request: &mut [u8],
        response: &mut [u8],
    ) -> Result<Result<Vec<u8>, String>, FloorError> {
        let argument = self.area.to_peer.load().try_into().map_or(0, u32::from_le_bytes);
        let Some(floor) = Floor::decode(code, argument) else {
            return Ok(Err(format!("unknown phase {code}: leader and peer are different builds")));
        };
        let start = self.area.start_sequence.load(Ordering::Relaxed);
        self.area.failed.store(0, Ordering::Relaxed);
        self.area.entered.0.store(phase, Ordering::Release);
        match floor {
            Floor::CacheLine => self.serve_cache_line(phase, start)?,
            Floor::Inline32 => self.serve_inline(phase, start)?,
            Floor::Payload(size) => {
                let size = (size as usize).min(PAYLOAD_CAPACITY);
                self.serve_payload(phase, start, &mut request[..size], &mut response[..size])?;
            }
            Floor::Ring { .. } => self.serve_ring(phase, start)?,
            Floor::Futex => self.serve_futex(phase)?,
            Floor::Memcpy(_) => {}
        }
        Ok(Ok(Vec::new()))
    }

    /// Waits for `wanted` or its stop mark. Also ends when the leader has started another phase.
    #[inline(always)]
    fn wait(&self, phase: u32, flag: &AtomicU64, wanted: u64) -> Result<Turn, FloorError> {
        let mut polls = 0u32;
        loop {
            let seen = flag.load(Ordering::Acquire);
            if seen == wanted {
                return Ok(Turn::Serve);
            }
            if seen == wanted | STOP {
                return Ok(Turn::Stop);
            }
            polls += 1;
            if polls == POLLS_PER_LOOK {
                polls = 0;
                if self.moved_on(phase)? {
                    return Ok(Turn::Stop);
                }
            }
        }
    }

    #[cold]
    fn moved_on(&self, phase: u32) -> Result<bool, FloorError> {
        self.look_for_leader()?;
        Ok(self.area.phase.0.load(Ordering::Acquire) != phase)
    }

    fn serve_cache_line(&self, phase: u32, start: u64) -> Result<(), FloorError> {
        let line = &self.area.cache_line.0;
        let mut sequence = start + 1;
        while let Turn::Serve = self.wait(phase, line, sequence)? {
            line.store(sequence + 1, Ordering::Release);
            sequence += 2;
        }
        Ok(())
    }

    fn serve_inline(&self, phase: u32, start: u64) -> Result<(), FloorError> {
        let (request, response) = (&self.area.requests.0[0], &self.area.responses.0[0]);
        let mut sequence = start + 1;
        while let Turn::Serve = self.wait(phase, &request.sequence, sequence)? {
            echo(request, response, sequence);
            sequence += 1;
        }
        Ok(())
    }

    fn serve_ring(&self, phase: u32, start: u64) -> Result<(), FloorError> {
        let mut sequence = start + 1;
        loop {
            let slot = sequence as usize % RING_SLOTS;
            let request = &self.area.requests.0[slot];
            let Turn::Serve = self.wait(phase, &request.sequence, sequence)? else { return Ok(()) };
            echo(request, &self.area.responses.0[slot], sequence);
            sequence += 1;
        }
    }

    fn serve_payload(
        &self,
        phase: u32,
        start: u64,
        request: &mut [u8],
        response: &mut [u8],
    ) -> Result<(), FloorError> {
        let (request_line, response_line) = (&self.area.requests.0[0], &self.area.responses.0[0]);
        let mut sequence = start + 1;
        while let Turn::Serve = self.wait(phase, &request_line.sequence, sequence)? {
            self.area.copy_out(Direction::Request, request);
            fill_bytes(response, answer_seed(sum_bytes(request)));
            self.area.copy_in(Direction::Response, response);
            response_line.sequence.store(sequence, Ordering::Release);
            sequence += 1;
        }
        Ok(())
    }

    fn serve_futex(&self, phase: u32) -> Result<(), FloorError> {
        let (request, response) = (&self.area.futex_request.0, &self.area.futex_response.0);
        let mut round = 0;
        loop {
            round += 1;
            loop {
                let seen = request.load(Ordering::SeqCst);
                if seen == u32::MAX {
                    return Ok(());
                }
                if seen == round {
                    break;
                }
                let timeout = timespec(Duration::from_millis(100));
                let woken = futex::wait(request, futex::Flags::empty(), seen, Some(&timeout));
                if woken == Err(rustix::io::Errno::TIMEDOUT) && self.moved_on(phase)? {
                    return Ok(());
                }
            }
            response.store(round, Ordering::SeqCst);
            let _ = futex::wake(response, futex::Flags::empty(), 1);
        }
    }
}

/// Copies 32 bytes to the other line and sets its flag.
#[inline(always)]
fn echo(request: &Line, response: &Line, sequence: u64) {
    for word in 0..4 {
        response.data[word].store(request.data[word].load(Ordering::Relaxed), Ordering::Relaxed);
    }
    response.sequence.store(sequence, Ordering::Release);
}
