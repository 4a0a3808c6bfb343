//! Connecting within the first call: blocking clients that were made without their server
//! ([`ClientConfig::lazy`]) at an `auto:` address, whose server decides the fabric.

use crate::resolve::ResolveError;
use dunlin_fabric::{Address, DialError, Host, Nanos, RealHost, WithSources, nanos};
use dunlin_rpc::{Backoff, Cause, ClientConfig, ConnectError};
use std::error::Error;
use std::time::Duration;

/// The error of an attempt to connect.
pub(crate) trait AttemptError: Error + 'static {
    /// Returns whether a later attempt may succeed, because the server was not there.
    fn may_pass(&self) -> bool;
}

impl AttemptError for ConnectError {
    fn may_pass(&self) -> bool {
        let ConnectError::Dial(DialError::Unavailable(unavailable)) = self else {
            return self.is_unavailable();
        };
        let resolving = unavailable.source.downcast_ref::<ResolveError>();
        matches!(resolving, Some(ResolveError::Asking(_) | ResolveError::NoWay(_)))
    }
}

#[cfg(feature = "thrift")]
impl AttemptError for dunlin_thrift::ConnectError {
    fn may_pass(&self) -> bool {
        match self {
            dunlin_thrift::ConnectError::Engine(error) => error.may_pass(),
            error => error.is_unavailable(),
        }
    }
}

/// The reason why a call has no connection. The call was not executed.
#[derive(Debug)]
pub(crate) enum Missing<E> {
    /// The server was not there in time.
    Cause(Cause),
    /// The client cannot use the server that is there.
    Refused(E),
}

/// The end of a call's wait for a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait {
    pub(crate) until: Nanos,
    /// The cause of a call without a connection by then.
    pub(crate) cause: Cause,
}

/// The settings of a client that say how long its calls wait for a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    timeout: Duration,
    wait_for_ready: Duration,
}

impl Times {
    pub(crate) fn new(config: &ClientConfig) -> Self {
        Times { timeout: config.timeout, wait_for_ready: config.wait_for_ready }
    }

    /// Returns the deadline of a call that begins at `now` with a time of its own or that of the settings.
    pub(crate) fn deadline(self, now: Nanos, time: Option<Duration>) -> Nanos {
        match time {
            Some(time) => now.saturating_add(nanos(time)),
            None if self.timeout.is_zero() => Nanos::MAX,
            None => now.saturating_add(nanos(self.timeout)),
        }
    }

    /// Returns the wait of a call that begins at `now`.
    pub(crate) fn wait(self, now: Nanos, time: Option<Duration>) -> Wait {
        let (deadline, ready) = (self.deadline(now, time), now.saturating_add(nanos(self.wait_for_ready)));
        match deadline < ready {
            true => Wait { until: deadline, cause: Cause::DeadlineExceeded },
            false => Wait { until: ready, cause: Cause::Disconnected },
        }
    }
}

/// Logs a failed attempt: the first one of an outage as a warning.
pub(crate) fn log(address: &Address, failures: u32, error: &dyn Error) {
    let error = WithSources(error);
    match failures {
        1 => {
            tracing::warn!(target: "dunlin::client", %address, %error, "no connection; the client connects again with back-off")
        }
        _ => tracing::debug!(target: "dunlin::client", %address, %error, failures, "no connection"),
    }
}

/// The attempts of a blocking client that has not connected yet.
#[derive(Clone, Debug)]
pub(crate) struct Attempts {
    pub(crate) address: Address,
    backoff: Backoff,
    times: Times,
}

impl Attempts {
    pub(crate) fn new(address: Address, config: &ClientConfig) -> Self {
        Attempts { address, backoff: Backoff::new(config.backoff), times: Times::new(config) }
    }

    /// Connects within a call that has this time, or that of the settings. `connect` gets the time that an
    /// attempt may take. Returns the client, and the time that is left of the given one. Blocks.
    pub(crate) fn for_call<T, E: AttemptError>(
        &mut self,
        time: Option<Duration>,
        connect: impl FnMut(Duration) -> Result<T, E>,
    ) -> Result<(T, Option<Duration>), Missing<E>> {
        let now = RealHost.now();
        let deadline = self.times.deadline(now, time);
        if deadline <= now {
            return Err(Missing::Cause(Cause::DeadlineExceeded));
        }
        let made = self.until(self.times.wait(now, time), deadline, connect)?;
        let left = time.map(|_| Duration::from_nanos(deadline.saturating_sub(RealHost.now())));
        Ok((made, left))
    }

    /// Connects for `wait_ready`. Blocks.
    pub(crate) fn for_ready<T, E: AttemptError>(
        &mut self,
        at_most: Duration,
        connect: impl FnMut(Duration) -> Result<T, E>,
    ) -> Result<T, Missing<E>> {
        let until = RealHost.now().saturating_add(nanos(at_most));
        self.until(Wait { until, cause: Cause::Disconnected }, Nanos::MAX, connect)
    }

    /// Makes one attempt, unless the back-off forbids it, and further ones until the wait ends.
    fn until<T, E: AttemptError>(
        &mut self,
        wait: Wait,
        deadline: Nanos,
        mut connect: impl FnMut(Duration) -> Result<T, E>,
    ) -> Result<T, Missing<E>> {
        loop {
            let now = RealHost.now();
            if self.backoff.is_due(now) {
                match connect(Duration::from_nanos(deadline.saturating_sub(now))) {
                    Ok(made) => return Ok(made),
                    Err(error) => {
                        self.backoff.failed(RealHost.now(), RealHost.random());
                        log(&self.address, self.backoff.failures(), &error);
                        if !error.may_pass() {
                            return Err(Missing::Refused(error));
                        }
                    }
                }
            }
            let now = RealHost.now();
            if now >= wait.until {
                return Err(Missing::Cause(wait.cause));
            }
            let next = self.backoff.not_before().min(wait.until);
            std::thread::sleep(Duration::from_nanos(next.saturating_sub(now)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempts(timeout: u64, wait_for_ready: u64) -> Attempts {
        let config = ClientConfig {
            timeout: Duration::from_millis(timeout),
            wait_for_ready: Duration::from_millis(wait_for_ready),
            ..ClientConfig::default()
        };
        Attempts::new("auto:127.0.0.1:1".parse().expect("an address"), &config)
    }

    fn gone() -> ConnectError {
        ConnectError::Dial(DialError::NobodyListens { address: "shm:none".parse().expect("an address") })
    }

    #[test]
    fn a_call_without_patience_makes_one_attempt_and_respects_the_backoff() {
        let (mut attempts, mut made) = (attempts(1000, 0), 0);
        for _ in 0..2 {
            // The back-off after the first failure is at least half a millisecond.
            let outcome = attempts.for_call(None, |_| {
                made += 1;
                Err::<(), _>(gone())
            });
            assert!(matches!(outcome, Err(Missing::Cause(Cause::Disconnected))), "{outcome:?}");
        }
        assert!((1..=2).contains(&made), "{made}");
    }

    #[test]
    fn patience_ends_with_a_connection_a_refusal_or_the_deadline() {
        let mut failures = 3;
        let connect = |_| match failures {
            0 => Ok(7),
            _ => {
                failures -= 1;
                Err(gone())
            }
        };
        let (made, left) = attempts(0, 60_000).for_call(Some(Duration::from_secs(60)), connect).unwrap();
        assert!(made == 7 && left.unwrap() < Duration::from_secs(60));
        let refused = || Err::<(), _>(ConnectError::OtherService("it serves X".into()));
        let outcome = attempts(0, 60_000).for_call(None, |_| refused());
        assert!(matches!(outcome, Err(Missing::Refused(ConnectError::OtherService(_)))), "{outcome:?}");
        let outcome = attempts(5, 60_000).for_call(None, |most| {
            assert!(most <= Duration::from_millis(5));
            Err::<(), _>(gone())
        });
        assert!(matches!(outcome, Err(Missing::Cause(Cause::DeadlineExceeded))), "{outcome:?}");
        let outcome = attempts(0, 60_000).for_call(Some(Duration::ZERO), |_| -> Result<(), ConnectError> {
            panic!("a call whose time is over makes no attempt")
        });
        assert!(matches!(outcome, Err(Missing::Cause(Cause::DeadlineExceeded))), "{outcome:?}");
        let outcome = attempts(0, 0).for_ready(Duration::from_millis(5), |_| Err::<(), _>(gone()));
        assert!(matches!(outcome, Err(Missing::Cause(Cause::Disconnected))), "{outcome:?}");
    }

    #[test]
    fn only_a_missing_server_may_pass() {
        let resolving = |error: ResolveError| {
            let address = "auto:h:1".parse().expect("an address");
            ConnectError::Dial(DialError::Unavailable(dunlin_fabric::Unavailable {
                address,
                source: Box::new(error),
            }))
        };
        let refused = std::io::ErrorKind::ConnectionRefused;
        assert!(gone().may_pass() && resolving(ResolveError::Asking(refused.into())).may_pass());
        assert!(!resolving(ResolveError::WrongDoor("this is HTTP".into())).may_pass());
        assert!(!ConnectError::OtherService(String::new()).may_pass());
    }
}
