//! The client's side of a slice: a short, timed run of one floor or one subject.
//!
//! The first tenth of a slice is warm-up. Latency slices read the clock once per round and keep every
//! sample.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::thread::futex;

use super::area::{Direction, Line, RING_SLOTS, STOP};
use super::pair::{FloorPair, PeerWatch, timespec};
use super::payload::{expected_answer_sum, fill_bytes, sum_bytes};
use super::peer::POLLS_PER_LOOK;
use super::{
    Floor, FloorError, PAYLOAD_CAPACITY, PageBuffer, PeerCost, Placement, RING_SLOTS as SLOTS, TickClock,
};
use dunlin_report::statistics::Latency;

/// Default number of requests in flight of the ring floor.
pub const RING_WINDOW: u32 = 64;
/// Minimum number of measured rounds of a slice, however slow they are.
const MINIMUM_ROUNDS: u64 = 8;
/// Length of the cache-line probe.
const PROBE: Duration = Duration::from_micros(40);

/// The result of one slice.
#[derive(Clone, Debug)]
pub struct Slice {
    /// Latency of each round, ns; empty for a slice that counts throughput only.
    pub latency: Latency,
    /// Rounds, requests or copies done after the warm-up.
    pub operations: u64,
    /// Duration of these operations, ns.
    pub elapsed_ns: f64,
    /// CPU time of the peer over the whole slice, warm-up included, ns.
    pub peer_cpu_ns: u64,
    /// All rounds, warm-up included: the divisor of `peer_cpu_ns`.
    pub total_operations: u64,
    /// Number of times that the kernel preempted either side. In a busy-waiting slice, nonzero means that
    /// it also measured other work.
    pub preemptions: u64,
}

impl Slice {
    /// Adds the peer's cost of the slice.
    pub fn charge(&mut self, cost: PeerCost) {
        self.peer_cpu_ns += cost.cpu_ns;
        self.preemptions += cost.preemptions;
    }

    /// Returns the median latency in ns; 0 without samples.
    #[must_use]
    pub fn p50_ns(&self) -> f64 {
        self.latency.p50_ns()
    }

    /// Returns the operations per second.
    #[must_use]
    pub fn operations_per_second(&self) -> f64 {
        if self.elapsed_ns > 0.0 { self.operations as f64 * 1e9 / self.elapsed_ns } else { 0.0 }
    }
}

impl FloorPair {
    /// Runs one slice of a floor. Blocks for `duration`, or for 8 rounds if those take longer.
    ///
    /// # Errors
    /// A size or window out of range, wrong data, or a peer that has ended or does not answer.
    pub fn slice(&mut self, floor: Floor, duration: Duration) -> Result<Slice, FloorError> {
        match floor {
            Floor::Payload(size) if size as usize > PAYLOAD_CAPACITY => {
                return Err(FloorError::BadArgument(format!(
                    "{size} bytes are more than the {PAYLOAD_CAPACITY} there is room for"
                )));
            }
            Floor::Memcpy(size) if size == 0 || size as usize > PAYLOAD_CAPACITY => {
                return Err(FloorError::BadArgument(format!(
                    "a copy is of 1 to {PAYLOAD_CAPACITY} bytes, not {size}"
                )));
            }
            Floor::Ring { window } if window == 0 || window as usize > SLOTS => {
                return Err(FloorError::BadArgument(format!("the window is 1 to {SLOTS}, not {window}")));
            }
            _ => {}
        }
        let preempted_before = self.preemptions.count()?;
        self.enter(floor)?;
        let mut slice = match floor {
            Floor::CacheLine => self.cache_line(duration),
            Floor::Inline32 => self.inline(duration),
            Floor::Payload(size) => self.payload(size as usize, duration),
            Floor::Ring { window } => self.ring(u64::from(window), duration),
            Floor::Futex => self.futex(duration),
            Floor::Memcpy(size) => self.memcpy(size as usize, duration),
        }?;
        slice.charge(self.leave()?);
        slice.preemptions += self.preemptions.count()?.saturating_sub(preempted_before);
        Ok(slice)
    }

    /// Runs one whole slice of subject `index`: begins it, runs the client's side in `client` (with
    /// [`FloorPair::time_subject`] or [`FloorPair::count_subject`]), ends it, and adds the peer's cost.
    /// Also returns the peer's report.
    ///
    /// # Errors
    /// Errors of `client`, after the subject has been ended; errors of beginning and ending.
    pub fn subject_slice(
        &mut self,
        index: u8,
        parameters: &[u8],
        client: impl FnOnce(&mut Self) -> Result<Slice, FloorError>,
    ) -> Result<(Slice, Vec<u8>), FloorError> {
        let preempted_before = self.preemptions.count()?;
        self.begin_subject(index, parameters)?;
        let outcome = client(self);
        let ended = self.end_subject();
        // The client's error comes first, since it may have caused the error of ending.
        let mut slice = outcome?;
        let (cost, report) = ended?;
        slice.charge(cost);
        slice.preemptions += self.preemptions.count()?.saturating_sub(preempted_before);
        Ok((slice, report))
    }

    /// Calls `call` in a loop for `duration` and times each round. The peer must run the subject
    /// ([`FloorPair::begin_subject`]). `call` receives the round's number, and its error text ends the
    /// slice.
    ///
    /// # Errors
    /// [`FloorError::Subject`] with the text of `call`.
    pub fn time_subject(
        &mut self,
        duration: Duration,
        mut call: impl FnMut(u64) -> Result<(), String>,
    ) -> Result<Slice, FloorError> {
        let mut timer = Timer::new(self.clock, duration, &mut self.samples);
        let mut round = 0;
        loop {
            round += 1;
            call(round).map_err(FloorError::Subject)?;
            if timer.round() {
                return Ok(timer.finish());
            }
        }
    }

    /// Calls `turn` in a loop for `duration` and adds up the operations that it reports as finished. The
    /// clock is read once per call, so each call should finish several operations.
    ///
    /// # Errors
    /// [`FloorError::Subject`] with the text of `turn`.
    pub fn count_subject(
        &mut self,
        duration: Duration,
        mut turn: impl FnMut() -> Result<u64, String>,
    ) -> Result<Slice, FloorError> {
        let mut counter = Counter::new(self.clock, duration);
        let mut done = 0;
        loop {
            done += turn().map_err(FloorError::Subject)?;
            if counter.at(done) {
                return Ok(counter.finish());
            }
        }
    }

    /// Measures the current placement of the two cores: the median round trip of one cache line over about
    /// 40 us.
    ///
    /// # Errors
    /// A peer that has ended or does not answer.
    pub fn placement_probe(&mut self) -> Result<Placement, FloorError> {
        Ok(Placement::from_round_trip_ns(self.slice(Floor::CacheLine, PROBE)?.p50_ns()))
    }

    fn cache_line(&mut self, duration: Duration) -> Result<Slice, FloorError> {
        let line = &self.area.cache_line.0;
        let mut sequence = self.sequence;
        let mut timer = Timer::new(self.clock, duration, &mut self.samples);
        loop {
            line.store(sequence + 1, Ordering::Release);
            sequence += 2;
            wait(&self.watch, line, sequence)?;
            if timer.round() {
                break;
            }
        }
        line.store((sequence + 1) | STOP, Ordering::Release);
        self.sequence = sequence + 1;
        Ok(timer.finish())
    }

    fn inline(&mut self, duration: Duration) -> Result<Slice, FloorError> {
        let (request, response) = (&self.area.requests.0[0], &self.area.responses.0[0]);
        let mut sequence = self.sequence;
        let mut check = EchoCheck::default();
        let mut timer = Timer::new(self.clock, duration, &mut self.samples);
        loop {
            sequence += 1;
            send(request, sequence);
            wait(&self.watch, &response.sequence, sequence)?;
            check.add(response, sequence);
            if timer.round() {
                break;
            }
        }
        request.sequence.store((sequence + 1) | STOP, Ordering::Release);
        self.sequence = sequence + 1;
        check.verdict(Floor::Inline32)?;
        Ok(timer.finish())
    }

    fn payload(&mut self, size: usize, duration: Duration) -> Result<Slice, FloorError> {
        let (request, response) = (&self.area.requests.0[0], &self.area.responses.0[0]);
        let (outgoing, incoming) =
            (&mut self.request.as_mut_slice()[..size], &mut self.response.as_mut_slice()[..size]);
        let mut sequence = self.sequence;
        let mut right = true;
        let mut timer = Timer::new(self.clock, duration, &mut self.samples);
        loop {
            sequence += 1;
            fill_bytes(outgoing, sequence);
            self.area.copy_in(Direction::Request, outgoing);
            request.sequence.store(sequence, Ordering::Release);
            wait(&self.watch, &response.sequence, sequence)?;
            self.area.copy_out(Direction::Response, incoming);
            // The expected sum has a closed form here, so that the check does not touch the bytes a second
            // time.
            right &= sum_bytes(incoming) == expected_answer_sum(size, sequence);
            if timer.round() {
                break;
            }
        }
        request.sequence.store((sequence + 1) | STOP, Ordering::Release);
        self.sequence = sequence + 1;
        if right {
            Ok(timer.finish())
        } else {
            Err(FloorError::WrongData { floor: Floor::Payload(size as u32).name() })
        }
    }

    fn ring(&mut self, window: u64, duration: Duration) -> Result<Slice, FloorError> {
        let (requests, responses) = (&self.area.requests.0, &self.area.responses.0);
        let start = self.sequence;
        let (mut sent, mut done) = (start, start);
        let mut check = EchoCheck::default();
        let mut counter = Counter::new(self.clock, duration);
        let mut polls = 0u32;
        let mut idle_since = (done, None);
        let mut ending = false;
        while !(ending && done == sent) {
            while !ending && sent - done < window {
                sent += 1;
                send(&requests[sent as usize % RING_SLOTS], sent);
            }
            while done < sent {
                let response = &responses[(done + 1) as usize % RING_SLOTS];
                if response.sequence.load(Ordering::Acquire) != done + 1 {
                    break;
                }
                done += 1;
                check.add(response, done);
            }
            polls = polls.wrapping_add(1);
            // Read the clock only every 64 iterations: on near cores an iteration may be a single request.
            if polls.is_multiple_of(64) {
                ending = ending || counter.at(done - start);
                if polls.is_multiple_of(POLLS_PER_LOOK) {
                    if idle_since.0 != done {
                        idle_since = (done, None);
                    }
                    self.watch.look(&mut idle_since.1)?;
                }
            }
        }
        requests[(sent + 1) as usize % RING_SLOTS].sequence.store((sent + 1) | STOP, Ordering::Release);
        self.sequence = sent + 1;
        check.verdict(Floor::Ring { window: window as u32 })?;
        Ok(counter.finish())
    }

    fn futex(&mut self, duration: Duration) -> Result<Slice, FloorError> {
        let (request, response) = (&self.area.futex_request.0, &self.area.futex_response.0);
        let mut round = 0;
        let mut timer = Timer::new(self.clock, duration, &mut self.samples);
        loop {
            round += 1;
            request.store(round, Ordering::SeqCst);
            let _ = futex::wake(request, futex::Flags::empty(), 1);
            let mut patience = None;
            loop {
                let seen = response.load(Ordering::SeqCst);
                if seen == round {
                    break;
                }
                let timeout = timespec(Duration::from_millis(100));
                let woken = futex::wait(response, futex::Flags::empty(), seen, Some(&timeout));
                if woken == Err(rustix::io::Errno::TIMEDOUT) {
                    self.watch.look(&mut patience)?;
                }
            }
            if timer.round() {
                break;
            }
        }
        request.store(u32::MAX, Ordering::SeqCst);
        let _ = futex::wake(request, futex::Flags::empty(), 1);
        Ok(timer.finish())
    }

    fn memcpy(&mut self, size: usize, duration: Duration) -> Result<Slice, FloorError> {
        let (from, to): (&mut PageBuffer, &mut PageBuffer) = (&mut self.request, &mut self.response);
        fill_bytes(&mut from.as_mut_slice()[..size], self.sequence);
        let mut counter = Counter::new(self.clock, duration);
        let mut done = 0;
        loop {
            // Copy about 64 KiB between two clock readings.
            for _ in 0..(65_536 / size).max(1) {
                to.as_mut_slice()[..size].copy_from_slice(black_box(&from.as_slice()[..size]));
                black_box(to.as_slice());
                done += 1;
            }
            if counter.at(done) {
                break;
            }
        }
        if to.as_slice()[..size] != from.as_slice()[..size] {
            return Err(FloorError::WrongData { floor: Floor::Memcpy(size as u32).name() });
        }
        Ok(counter.finish())
    }
}

/// Writes 32 bytes and the flag to a line.
#[inline(always)]
fn send(line: &Line, sequence: u64) {
    for word in 0..4 {
        line.data[word].store(sequence + word as u64, Ordering::Relaxed);
    }
    line.sequence.store(sequence, Ordering::Release);
}

/// Compares the returned bytes with the sent ones, without a branch per round.
#[derive(Default)]
struct EchoCheck {
    difference: u64,
}

impl EchoCheck {
    #[inline(always)]
    fn add(&mut self, line: &Line, sequence: u64) {
        for word in 0..4 {
            self.difference |= line.data[word].load(Ordering::Relaxed) ^ (sequence + word as u64);
        }
    }

    fn verdict(&self, floor: Floor) -> Result<(), FloorError> {
        if self.difference == 0 { Ok(()) } else { Err(FloorError::WrongData { floor: floor.name() }) }
    }
}

/// Polls until the flag has the wanted value. After many empty polls, also checks that the peer process is
/// alive.
#[inline(always)]
fn wait(watch: &PeerWatch, flag: &AtomicU64, wanted: u64) -> Result<(), FloorError> {
    for _ in 0..POLLS_PER_LOOK {
        if flag.load(Ordering::Acquire) == wanted {
            return Ok(());
        }
    }
    wait_long(watch, flag, wanted)
}

#[cold]
#[inline(never)]
fn wait_long(watch: &PeerWatch, flag: &AtomicU64, wanted: u64) -> Result<(), FloorError> {
    let mut patience = None;
    loop {
        for _ in 0..POLLS_PER_LOOK {
            if flag.load(Ordering::Acquire) == wanted {
                return Ok(());
            }
        }
        watch.look(&mut patience)?;
    }
}

/// Times rounds with one clock reading each.
struct Timer<'a> {
    clock: TickClock,
    measure_from: u64,
    end: u64,
    last: u64,
    first_measured: Option<u64>,
    rounds: u64,
    warm_up_rounds: u64,
    samples: &'a mut Vec<u32>,
    kept: usize,
    latency: Latency,
}

impl<'a> Timer<'a> {
    fn new(clock: TickClock, duration: Duration, samples: &'a mut Vec<u32>) -> Self {
        let length = clock.from_ns(duration.as_nanos() as f64);
        let start = clock.ticks();
        Self {
            clock,
            measure_from: start + length / 10,
            end: start + length,
            last: start,
            first_measured: None,
            rounds: 0,
            warm_up_rounds: 0,
            samples,
            kept: 0,
            latency: Latency::new(),
        }
    }

    /// Records the end of a round; returns `true` after the last.
    #[inline(always)]
    fn round(&mut self) -> bool {
        let now = self.clock.ticks();
        let ticks = now - self.last;
        self.last = now;
        if self.first_measured.is_none() {
            self.warm_up_rounds += 1;
            if now >= self.measure_from {
                self.first_measured = Some(now);
            }
            return false;
        }
        if self.kept == self.samples.len() {
            self.flush();
        }
        self.samples[self.kept] = u32::try_from(ticks).unwrap_or(u32::MAX);
        self.kept += 1;
        self.rounds += 1;
        now >= self.end && self.rounds >= MINIMUM_ROUNDS
    }

    #[cold]
    fn flush(&mut self) {
        for ticks in &self.samples[..self.kept] {
            self.latency.record_ns(self.clock.to_ns(u64::from(*ticks)));
        }
        self.kept = 0;
        // Exclude the duration of the flush from all rounds.
        let now = self.clock.ticks();
        self.first_measured = self.first_measured.map(|first| first + (now - self.last));
        self.last = now;
    }

    fn finish(mut self) -> Slice {
        let elapsed = self.last - self.first_measured.unwrap_or(self.last);
        let elapsed_ns = self.clock.to_ns(elapsed);
        self.flush();
        Slice {
            latency: self.latency,
            operations: self.rounds,
            elapsed_ns,
            peer_cpu_ns: 0,
            total_operations: self.rounds + self.warm_up_rounds,
            preemptions: 0,
        }
    }
}

/// Counts operations between the end of the warm-up and the end of the slice.
struct Counter {
    clock: TickClock,
    measure_from: u64,
    end: u64,
    first: Option<(u64, u64)>,
    last: (u64, u64),
}

impl Counter {
    fn new(clock: TickClock, duration: Duration) -> Self {
        let length = clock.from_ns(duration.as_nanos() as f64);
        let start = clock.ticks();
        Self { clock, measure_from: start + length / 10, end: start + length, first: None, last: (start, 0) }
    }

    /// Records that `done` operations are complete in all; returns `true` when the slice is over.
    #[inline]
    fn at(&mut self, done: u64) -> bool {
        let now = self.clock.ticks();
        if self.first.is_none() && now >= self.measure_from {
            self.first = Some((now, done));
            return false;
        }
        self.last = (now, done);
        now >= self.end && self.first.is_some_and(|(_, first)| done > first)
    }

    fn finish(self) -> Slice {
        let (from, before) = self.first.unwrap_or(self.last);
        Slice {
            latency: Latency::new(),
            operations: self.last.1 - before,
            elapsed_ns: self.clock.to_ns(self.last.0 - from),
            peer_cpu_ns: 0,
            total_operations: self.last.1,
            preemptions: 0,
        }
    }
}
