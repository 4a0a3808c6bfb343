//! Processor costs: the price of each [`Work`] item, of verbs calls, of thread switches and wake-ups, and of
//! sockets.

use crate::profile::{Parameter, Profile};
use dunlin_fabric::{Nanos, Work};

/// Prices of one cluster in nanoseconds, taken from its profile, which documents their sources.
#[derive(Clone, Debug)]
pub struct Prices {
    work: [f64; 12],
    verbs: Verbs,
    context_switch: Nanos,
    wake: Nanos,
    quantum: Nanos,
}

/// Prices of calls of the verbs library, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Verbs {
    /// Writing one work request to the send queue.
    pub post_ns: f64,
    /// The call and its doorbell, once for all linked work requests.
    pub doorbell_ns: f64,
    /// Polling an empty completion queue.
    pub poll_empty_ns: f64,
    /// Finding and taking one completion.
    pub poll_found_ns: f64,
    /// Posting one RECV again.
    pub post_receive_ns: f64,
    /// Other work in one iteration of a raw-verbs benchmark's loop.
    pub benchmark_loop_ns: f64,
}

const WORK: [(Work, Parameter); 12] = [
    (Work::PollMiss, Parameter::PricePollMiss),
    (Work::PollHit, Parameter::PricePollHit),
    (Work::ParseMessage, Parameter::PriceParseMessage),
    (Work::ParseEntry, Parameter::PriceParseEntry),
    (Work::BuildMessage, Parameter::PriceBuildMessage),
    (Work::BuildEntry, Parameter::PriceBuildEntry),
    (Work::CopyBytes, Parameter::PriceCopyByte),
    (Work::PostWork, Parameter::PricePostWork),
    (Work::Doorbell, Parameter::PriceDoorbell),
    (Work::PollCompletion, Parameter::PricePollCompletion),
    (Work::Dispatch, Parameter::PriceDispatch),
    (Work::TakeLine, Parameter::PriceTakeLine),
];

impl Prices {
    /// Returns the prices of a profile.
    #[must_use]
    pub fn of(profile: &Profile) -> Prices {
        let mut work = [0.0; 12];
        for (item, parameter) in WORK {
            work[item as usize] = profile.number(parameter);
        }
        Prices {
            work,
            verbs: Verbs {
                post_ns: profile.number(Parameter::PricePost),
                doorbell_ns: profile.number(Parameter::PriceRing),
                poll_empty_ns: profile.number(Parameter::PricePollEmpty),
                poll_found_ns: profile.number(Parameter::PricePollFound),
                post_receive_ns: profile.number(Parameter::PriceReceive),
                benchmark_loop_ns: profile.number(Parameter::PriceLoop),
            },
            context_switch: profile.number(Parameter::ContextSwitch) as Nanos,
            wake: profile.number(Parameter::WakeLatency) as Nanos,
            quantum: profile.number(Parameter::Quantum) as Nanos,
        }
    }

    /// Returns the price of one item (or byte), in nanoseconds. Excludes the verbs library, which is covered
    /// by [`Posted::processor`](crate::Posted::processor) and [`Prices::verbs`].
    #[must_use]
    pub fn work_ns(&self, work: Work) -> f64 {
        self.work[work as usize]
    }

    /// Returns the prices of the verbs library.
    #[must_use]
    pub fn verbs(&self) -> &Verbs {
        &self.verbs
    }

    /// Returns the time of a context switch between two threads of a core.
    #[must_use]
    pub fn context_switch(&self) -> Nanos {
        self.context_switch
    }

    /// Returns the time from an event to the first instruction of the thread that slept on it.
    #[must_use]
    pub fn wake(&self) -> Nanos {
        self.wake
    }

    /// Returns how long a thread runs while others wait for its core.
    #[must_use]
    pub fn quantum(&self) -> Nanos {
        self.quantum
    }
}

/// A cost model of sockets (TCP over IPoIB or Ethernet), for baselines: processor time on both sides, a
/// latency, and the bandwidth of one host's stack. Windows, losses and congestion are not modelled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sockets {
    send_ns: f64,
    receive_ns: f64,
    byte_ns: f64,
    latency_ns: f64,
    bytes_per_ns: f64,
}

impl Sockets {
    /// Returns the sockets of a profile.
    #[must_use]
    pub fn of(profile: &Profile) -> Sockets {
        Sockets {
            send_ns: profile.number(Parameter::SocketSend),
            receive_ns: profile.number(Parameter::SocketReceive),
            byte_ns: profile.number(Parameter::SocketByte),
            latency_ns: profile.number(Parameter::SocketLatency),
            bytes_per_ns: profile.number(Parameter::SocketRate) / 8.0,
        }
    }

    /// Returns the processor time of sending one message.
    #[must_use]
    pub fn send(&self, bytes: u32) -> Nanos {
        (self.send_ns + self.byte_ns * f64::from(bytes)) as Nanos
    }

    /// Returns the processor time of receiving one message.
    #[must_use]
    pub fn receive(&self, bytes: u32) -> Nanos {
        (self.receive_ns + self.byte_ns * f64::from(bytes)) as Nanos
    }

    /// Returns how long the message occupies the host's stack and link.
    #[must_use]
    pub fn occupies(&self, bytes: u32) -> Nanos {
        (f64::from(bytes) / self.bytes_per_ns) as Nanos
    }

    /// Returns the time from the end of sending to the receiver's readiness, without [`Sockets::occupies`].
    #[must_use]
    pub fn latency(&self) -> Nanos {
        self.latency_ns as Nanos
    }

    /// Returns the time from the sender's call to the receiver's return with the whole message, on an idle
    /// network.
    #[must_use]
    pub fn one_way(&self, bytes: u32) -> Nanos {
        self.send(bytes) + self.occupies(bytes) + self.latency() + self.receive(bytes)
    }

    /// Returns the messages per second from one thread to another with unlimited messages in flight.
    #[must_use]
    pub fn stream(&self, bytes: u32) -> f64 {
        1e9 / self.send(bytes).max(self.receive(bytes)).max(self.occupies(bytes)).max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_item_has_the_price_of_its_own_parameter() {
        let mut profile = Profile::built_in("rf-rpc").expect("built in");
        for (number, (_, parameter)) in WORK.into_iter().enumerate() {
            profile = profile.with(parameter, 1.0 + number as f64);
        }
        let prices = Prices::of(&profile);
        for (number, (item, parameter)) in WORK.into_iter().enumerate() {
            let (_, most) = parameter.range();
            assert_eq!(prices.work_ns(item), (1.0 + number as f64).min(most), "{item:?}");
        }
    }

    #[test]
    fn sockets_cost_more_for_more_bytes() {
        let sockets = Sockets::of(&Profile::built_in("lite").expect("built in"));
        assert!(sockets.send(65_536) > sockets.send(64) && sockets.receive(65_536) > sockets.receive(64));
        let rate = 1e6 * 8.0 / sockets.occupies(1_000_000) as f64;
        assert!((rate - 15.0).abs() < 0.01, "{rate} Gb/s");
        // The slowest stage bounds a stream: the receiver's calls for small messages, the stack for large
        // ones.
        let calls = 1e9 / sockets.receive(64) as f64;
        assert!((sockets.stream(64) / calls - 1.0).abs() < 1e-9);
        assert!((sockets.stream(1_000_000) * 8e6 / 15e9 - 1.0).abs() < 1e-3);
        assert!(sockets.one_way(64) > sockets.send(64) + sockets.latency() + sockets.receive(64));
    }
}
