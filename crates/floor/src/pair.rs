//! Starts the peer process and controls its phases. Every wait for the peer is bounded.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::thread::futex;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::area::Area;
use super::peer::POLLS_PER_LOOK;
use super::preemption::PreemptionCounter;
use super::{Floor, FloorError, PAYLOAD_CAPACITY, PageBuffer, TickClock};

/// Phase code: nothing to do.
pub(super) const IDLE: u8 = 0;
/// Phase code: end the process.
pub(super) const EXIT: u8 = 1;
/// First phase code of subjects.
pub(super) const SUBJECT: u8 = 64;

/// The hidden argument with which [`FloorPair::spawn_self`] starts this binary again. When a binary that
/// calls `spawn_self` sees it as first argument, it must only run [`serve_peer`](super::serve_peer) with
/// the [`inherited_descriptor`](super::inherited_descriptor).
pub const PEER_ARGUMENT: &str = "__floor-peer";

/// Time limit for the peer to enter or leave a phase, or to answer within one.
const PATIENCE: Duration = Duration::from_secs(10);
/// Samples buffered before they go into the histogram; 4 MiB.
const SAMPLES: usize = 1 << 20;

/// The two cores of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cores {
    /// Core of the calling thread.
    pub client: u32,
    /// Core of the peer process.
    pub server: u32,
}

impl Cores {
    /// Returns the first two cores that this thread may run on.
    ///
    /// # Errors
    /// [`FloorError::OneCore`] if there is only one.
    pub fn first_two() -> Result<Self, FloorError> {
        let allowed = allowed_cores()?;
        let mut cores = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core));
        match (cores.next(), cores.next()) {
            (Some(client), Some(server)) => Ok(Self { client: client as u32, server: server as u32 }),
            _ => Err(FloorError::OneCore),
        }
    }
}

/// The resources that the peer used in a phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerCost {
    /// CPU time of the peer process, ns.
    pub cpu_ns: u64,
    /// Number of times that the kernel preempted the peer's serving thread.
    pub preemptions: u64,
}

/// This thread and a peer process, each pinned to a core, connected by one shared memory area.
///
/// The pair stays on the thread that created it, which is pinned until the pair is dropped. The peer dies
/// with that thread. Dropping the pair ends the peer process and restores the thread's affinity; it blocks
/// for at most one second.
pub struct FloorPair {
    pub(super) area: Area,
    pub(super) clock: TickClock,
    pub(super) watch: PeerWatch,
    pub(super) preemptions: PreemptionCounter,
    pub(super) sequence: u64,
    pub(super) samples: Vec<u32>,
    pub(super) request: PageBuffer,
    pub(super) response: PageBuffer,
    cores: Cores,
    former_cores: CpuSet,
    generation: u32,
    phase: u32,
    one_thread: PhantomData<Rc<()>>,
}

impl FloorPair {
    /// Starts this binary again with [`PEER_ARGUMENT`] as its only argument, and pins both sides.
    ///
    /// # Errors
    /// If there is no second core, or if memory or process cannot be created.
    pub fn spawn_self(cores: Cores) -> Result<Self, FloorError> {
        let mut command = Command::new("/proc/self/exe");
        command.arg(PEER_ARGUMENT);
        Self::spawn(command, cores)
    }

    /// Starts `command`, which must call [`serve_peer`](super::serve_peer), with the shared area as its
    /// standard input, and pins both sides. Blocks until the peer serves.
    ///
    /// # Errors
    /// If there is no second core, if memory or process cannot be created, or if the peer does not answer
    /// within 10 s.
    pub fn spawn(mut command: Command, cores: Cores) -> Result<Self, FloorError> {
        let former_cores = allowed_cores()?;
        let (area, descriptor) = Area::create()?;
        area.leader.store(std::process::id(), Ordering::Release);
        area.peer_core.store(cores.server, Ordering::Release);
        let child = command
            .stdin(Stdio::from(descriptor))
            .stdout(Stdio::null())
            // Ctrl-C at the terminal must only reach the leader, which ends the peer.
            .process_group(0)
            .spawn()
            .map_err(FloorError::Spawn)?;
        let mut pair = Self {
            area,
            clock: TickClock::new(),
            watch: PeerWatch { child: RefCell::new(child) },
            preemptions: PreemptionCounter::of_this_thread()?,
            sequence: 0,
            samples: vec![0; SAMPLES],
            request: PageBuffer::new(PAYLOAD_CAPACITY),
            response: PageBuffer::new(PAYLOAD_CAPACITY),
            cores,
            former_cores,
            generation: 0,
            phase: 0,
            one_thread: PhantomData,
        };
        pin_to(cores.client)?;
        // After an empty phase, the peer is known to run on its core.
        pair.enter(Floor::Memcpy(0))?;
        pair.leave()?;
        Ok(pair)
    }

    /// Returns the cores of the pair.
    #[must_use]
    pub fn cores(&self) -> Cores {
        self.cores
    }

    /// Moves the peer to another core, from the next slice on. The client's own core gives the same-core
    /// exchange, which only makes sense for blocking floors and subjects.
    pub fn set_server_core(&mut self, core: u32) {
        self.cores.server = core;
    }

    /// Returns the clock that all slices use.
    #[must_use]
    pub fn clock(&self) -> TickClock {
        self.clock
    }

    /// Returns the process id of the peer.
    #[must_use]
    pub fn peer_id(&self) -> u32 {
        self.watch.child.borrow().id()
    }

    /// Starts subject `index` on the peer, and waits until its [`Subject::begin`](super::Subject::begin)
    /// has returned.
    ///
    /// # Errors
    /// The peer's error; a peer that has ended or does not answer; an index or parameters out of range.
    pub fn begin_subject(&mut self, index: u8, parameters: &[u8]) -> Result<(), FloorError> {
        let Some(code) = SUBJECT.checked_add(index) else {
            return Err(FloorError::BadArgument(format!("subject {index} is beyond {}", u8::MAX - SUBJECT)));
        };
        self.start_phase(code, parameters)
    }

    /// Ends the subject's slice. Returns the peer's cost of the slice, and the result of its
    /// [`Subject::end`](super::Subject::end).
    ///
    /// # Errors
    /// The peer's error, or a peer that has ended or does not answer.
    pub fn end_subject(&mut self) -> Result<(PeerCost, Vec<u8>), FloorError> {
        let ending = self.phase;
        self.publish(IDLE);
        self.await_word(|area| &area.left.0, ending)?;
        self.outcome()?;
        Ok((self.peer_cost(), self.area.from_peer.load()))
    }

    /// Starts a floor on the peer, and waits until the peer serves it.
    pub(super) fn enter(&mut self, floor: Floor) -> Result<(), FloorError> {
        let (code, argument) = floor.encode();
        self.area.start_sequence.store(self.sequence, Ordering::Relaxed);
        self.area.futex_request.0.store(0, Ordering::Relaxed);
        self.area.futex_response.0.store(0, Ordering::Relaxed);
        self.start_phase(code, &argument.to_le_bytes())
    }

    /// Waits until the peer, which has received the stop mark, has left its floor. Returns the peer's cost.
    pub(super) fn leave(&mut self) -> Result<PeerCost, FloorError> {
        self.await_word(|area| &area.left.0, self.phase)?;
        self.outcome()?;
        Ok(self.peer_cost())
    }

    fn peer_cost(&self) -> PeerCost {
        PeerCost {
            cpu_ns: self.area.peer_cpu_ns.load(Ordering::Relaxed),
            preemptions: self.area.peer_preemptions.load(Ordering::Relaxed),
        }
    }

    fn start_phase(&mut self, code: u8, message: &[u8]) -> Result<(), FloorError> {
        if !self.area.to_peer.store(message) {
            return Err(FloorError::BadArgument(format!(
                "{} bytes of parameters are more than the {} there is room for",
                message.len(),
                super::MESSAGE_CAPACITY
            )));
        }
        self.area.peer_core.store(self.cores.server, Ordering::Release);
        self.publish(code);
        self.await_word(|area| &area.entered.0, self.phase)?;
        self.outcome()
    }

    fn publish(&mut self, code: u8) {
        self.generation = (self.generation + 1) & 0x00ff_ffff;
        self.phase = self.generation << 8 | u32::from(code);
        self.area.phase.0.store(self.phase, Ordering::SeqCst);
    }

    fn outcome(&self) -> Result<(), FloorError> {
        if self.area.failed.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        Err(FloorError::PeerFailed(String::from_utf8_lossy(&self.area.from_peer.load()).into_owned()))
    }

    fn await_word(&self, word: impl Fn(&Area) -> &AtomicU32, wanted: u32) -> Result<(), FloorError> {
        let mut patience = None;
        loop {
            for _ in 0..POLLS_PER_LOOK / 16 {
                if word(&self.area).load(Ordering::Acquire) == wanted {
                    return Ok(());
                }
            }
            // The peer may sleep on the phase's futex, or may need this core.
            let _ = futex::wake(&self.area.phase.0, futex::Flags::empty(), 1);
            rustix::thread::sched_yield();
            self.watch.look(&mut patience)?;
        }
    }
}

impl Drop for FloorPair {
    fn drop(&mut self) {
        self.publish(EXIT);
        let deadline = Instant::now() + Duration::from_secs(1);
        let mut child = self.watch.child.borrow_mut();
        while matches!(child.try_wait(), Ok(None)) {
            let _ = futex::wake(&self.area.phase.0, futex::Flags::empty(), 1);
            if Instant::now() > deadline {
                // The subject hangs. `drop` cannot report an error, and `wait` must not block.
                let _ = child.kill();
                let _ = child.wait();
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let _ = sched_setaffinity(None, &self.former_cores);
    }
}

/// Checks whether the peer process is alive.
pub(super) struct PeerWatch {
    child: RefCell<Child>,
}

impl PeerWatch {
    /// Checks the peer process once, from a wait that has already lasted a while. `patience` is the
    /// deadline of the wait; `None` at the first check.
    #[cold]
    pub(super) fn look(&self, patience: &mut Option<Instant>) -> Result<(), FloorError> {
        match self.child.borrow_mut().try_wait() {
            Ok(Some(status)) => return Err(FloorError::PeerGone(status.to_string())),
            Ok(None) => {}
            Err(error) => return Err(FloorError::PeerGone(error.to_string())),
        }
        if Instant::now() > *patience.get_or_insert_with(|| Instant::now() + PATIENCE) {
            return Err(FloorError::PeerSilent { seconds: PATIENCE.as_secs() });
        }
        Ok(())
    }
}

fn allowed_cores() -> Result<CpuSet, FloorError> {
    sched_getaffinity(None)
        .map_err(|source| FloorError::System { action: "ask which cores are allowed", source })
}

/// Pins the calling thread.
pub(super) fn pin_to(core: u32) -> Result<(), FloorError> {
    if core as usize >= CpuSet::MAX_CPU {
        return Err(FloorError::BadArgument(format!("there is no core {core}")));
    }
    let mut set = CpuSet::new();
    set.set(core as usize);
    sched_setaffinity(None, &set)
        .map_err(|source| FloorError::System { action: "pin a thread to a core", source })
}

pub(super) fn timespec(duration: Duration) -> futex::Timespec {
    futex::Timespec { tv_sec: duration.as_secs() as i64, tv_nsec: i64::from(duration.subsec_nanos()) }
}
