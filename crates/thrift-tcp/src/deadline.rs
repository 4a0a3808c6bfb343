//! Deadlines of blocking calls, enforced by a watch thread that shuts down the sockets of overdue calls.
//!
//! A socket timeout (`SO_RCVTIMEO`) costs a kernel timer, set and cancelled for each call. Here a call costs
//! two atomic stores. The thread sleeps until the earliest deadline that it has seen. With equal timeouts,
//! that call has usually ended by then, and later calls have later deadlines. Only a call with an earlier
//! deadline wakes the thread.

use std::io;
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

/// No call is in progress.
const IDLE: u64 = u64::MAX;
/// The deadline has passed and the socket has been shut down.
const EXPIRED: u64 = 0;

/// The watch over all guarded sockets of the process.
static WATCH: Watch = Watch {
    watched: Mutex::new(Watched { sockets: Vec::new(), running: false }),
    news: Condvar::new(),
    next: AtomicU64::new(IDLE),
};

struct Watch {
    watched: Mutex<Watched>,
    news: Condvar,
    /// The time of the thread's next check, unless it is woken earlier.
    next: AtomicU64,
}

struct Watched {
    sockets: Vec<Weak<Socket>>,
    /// Whether the thread is running.
    running: bool,
}

#[derive(Debug)]
struct Socket {
    stream: TcpStream,
    /// The deadline in nanoseconds since [`origin`], or [`IDLE`] or [`EXPIRED`].
    until: AtomicU64,
}

/// A socket whose calls have deadlines.
#[derive(Debug)]
pub(crate) struct Guarded(Arc<Socket>);

impl Guarded {
    /// Adds a socket to the watch. Fails if the watch thread cannot be started.
    pub(crate) fn new(stream: TcpStream) -> io::Result<Self> {
        let socket = Arc::new(Socket { stream, until: AtomicU64::new(IDLE) });
        let mut watched = WATCH.lock();
        watched.sockets.retain(|socket| socket.strong_count() > 0);
        watched.sockets.push(Arc::downgrade(&socket));
        if !watched.running {
            thread::Builder::new().name("dunlin-tcp-watch".into()).spawn(|| WATCH.run())?;
            watched.running = true;
        }
        Ok(Guarded(socket))
    }

    pub(crate) fn stream(&self) -> &TcpStream {
        &self.0.stream
    }

    /// Begins a call with a deadline.
    pub(crate) fn begin(&self, deadline: Instant) {
        let until = nanoseconds(deadline).clamp(EXPIRED + 1, IDLE - 1);
        // This store precedes the load of `next`, and the watch thread stores `next` before its second check.
        // With SeqCst, at least one of the two threads sees the other's store.
        self.0.until.store(until, Ordering::SeqCst);
        if until < WATCH.next.load(Ordering::SeqCst) {
            let _watched = WATCH.lock();
            WATCH.news.notify_one();
        }
    }

    /// Ends the call. Returns whether it ended in time; if not, the socket has been shut down.
    pub(crate) fn end(&self) -> bool {
        self.0.until.swap(IDLE, Ordering::SeqCst) != EXPIRED
    }

    /// Returns the time left for the call; zero once its deadline has passed.
    pub(crate) fn left(&self) -> Duration {
        let until = self.0.until.load(Ordering::SeqCst);
        Duration::from_nanos(until.saturating_sub(nanoseconds(Instant::now())))
    }

    /// Returns whether the call's deadline has passed and the socket has been shut down.
    pub(crate) fn expired(&self) -> bool {
        self.0.until.load(Ordering::SeqCst) == EXPIRED
    }
}

impl Socket {
    /// Shuts the socket down if its call is overdue. Returns the deadline of its call otherwise.
    fn check(&self, now: u64) -> u64 {
        loop {
            let until = self.until.load(Ordering::SeqCst);
            if until == EXPIRED {
                return IDLE;
            }
            if until > now {
                return until;
            }
            // Fails if the call has just ended.
            let expired = self.until.compare_exchange(until, EXPIRED, Ordering::SeqCst, Ordering::SeqCst);
            if expired.is_ok() {
                // Fails only if the connection is already gone, which the caller notices too.
                let _ = self.stream.shutdown(Shutdown::Both);
                return IDLE;
            }
        }
    }
}

impl Watch {
    fn lock(&self) -> MutexGuard<'_, Watched> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs until no guarded socket is left.
    fn run(&self) {
        let mut watched = self.lock();
        loop {
            let now = nanoseconds(Instant::now());
            let next = watched.check(now);
            if watched.sockets.is_empty() {
                watched.running = false;
                self.next.store(IDLE, Ordering::SeqCst);
                return;
            }
            self.next.store(next, Ordering::SeqCst);
            // A call that began in the meantime may not have seen the new `next`.
            if watched.check(now) < next {
                continue;
            }
            watched = match next {
                IDLE => self.news.wait(watched).unwrap_or_else(PoisonError::into_inner),
                _ => {
                    let time = Duration::from_nanos(next - now);
                    self.news.wait_timeout(watched, time).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }
}

impl Watched {
    /// Checks all sockets. Returns the earliest deadline.
    fn check(&mut self, now: u64) -> u64 {
        let mut next = IDLE;
        self.sockets.retain(|socket| {
            let Some(socket) = socket.upgrade() else { return false };
            next = next.min(socket.check(now));
            true
        });
        next
    }
}

/// Returns the origin of the deadline clock.
fn origin() -> Instant {
    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    *ORIGIN.get_or_init(Instant::now)
}

fn nanoseconds(time: Instant) -> u64 {
    time.saturating_duration_since(origin()).as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::TcpListener;

    /// Returns both ends of a connection.
    fn pair() -> (Guarded, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (Guarded::new(stream).unwrap(), listener.accept().unwrap().0)
    }

    fn after(time: Duration) -> Instant {
        Instant::now() + time
    }

    const LONG: Duration = Duration::from_secs(1000);
    const SHORT: Duration = Duration::from_millis(20);

    #[test]
    fn who_is_late_is_woken() {
        // Another call with a much later deadline began first.
        let (patient, _other) = pair();
        patient.begin(after(LONG));
        for _ in 0..20 {
            let (guarded, _peer) = pair();
            guarded.begin(after(SHORT));
            assert_eq!(guarded.stream().read(&mut [0]).unwrap(), 0);
            assert!(guarded.expired() && !guarded.end());
        }
        assert!(!patient.expired() && patient.end());
    }

    #[test]
    fn who_is_in_time_is_left_alone() {
        let (guarded, _peer) = pair();
        for _ in 0..1000 {
            guarded.begin(after(LONG));
            assert!(guarded.end());
        }
        // No deadline applies between calls.
        guarded.begin(after(Duration::from_millis(500)));
        assert!(guarded.end());
        let (late, _peer) = pair();
        late.begin(after(Duration::from_millis(550)));
        assert_eq!(late.stream().read(&mut [0]).unwrap(), 0);
        assert!(!guarded.expired());
    }

    #[test]
    fn a_deadline_that_is_over_already_counts() {
        let (guarded, _peer) = pair();
        guarded.begin(Instant::now());
        assert_eq!(guarded.stream().read(&mut [0]).unwrap(), 0);
        assert!(guarded.expired());
    }
}
