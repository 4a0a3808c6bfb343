//! The Apache Thrift Benchmarks of HatRPC (sections 5.2 and 5.3): a service in Thrift whose hints choose the plan, against
//! the same service with each protocol of the table asked for by name. All of them take turns, slice by slice, in one pinned
//! process pair; the typed code path is the one that programs use, from the generated client to the handler.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use dunlin::thrift::ClientOptions;
use dunlin_fabric::Fabric as _;
use dunlin_fabric_shm::ShmFabric;

use super::peer::{Drive, ServiceKind};
use super::process::file_limit;
use super::session::{Served, Session};
use super::{Findings, MeasureError, progress_bar};
use dunlin_report::Row;

pub(super) mod crowd;
pub(super) mod hints;
mod latency;
mod mix;
mod service;
mod throughput;
pub(super) mod turns;

pub use hints::{Polling, Singles};
pub(super) use latency::named;
pub use latency::{AtbLatencyOptions, atb_latency};
pub use mix::{AtbMixOptions, atb_mix};
pub(super) use service::Handler;
pub use service::LARGEST;
pub(super) use throughput::check_clients;
pub use throughput::{AtbThroughputOptions, Pace, atb_throughput};

use crate::atb::AtbClient;
use hints::{Contestant, Surroundings, rewritten};
use service::{Call, IDL};

/// Ends a measurement before its time when set: what was measured until then is reported.
pub type Stop = Arc<AtomicBool>;

/// Bytes of request and answer of a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sizes {
    request: usize,
    answer: usize,
}

impl Sizes {
    /// Whether one of them is so large that its sender has to find out how to fill its buffers.
    fn are_large(self) -> bool {
        self.request.max(self.answer) >= LARGE
    }

    /// The points of a list of sizes, of which one direction may have a size of its own.
    fn points(
        sizes: &[usize],
        request: Option<usize>,
        answer: Option<usize>,
    ) -> Result<Vec<Self>, MeasureError> {
        // With both given there is but one point.
        let both = [request.unwrap_or_default()];
        let sizes = if request.is_some() && answer.is_some() { &both[..] } else { sizes };
        sizes
            .iter()
            .map(|size| {
                let point = Self { request: request.unwrap_or(*size), answer: answer.unwrap_or(*size) };
                match point.request.max(point.answer) {
                    0..=LARGEST => Ok(point),
                    too_large => Err(MeasureError::BadArgument(format!(
                        "{too_large} bytes are more than the {LARGEST} that the service answers with"
                    ))),
                }
            })
            .collect()
    }

    fn row(self) -> Row {
        Row::new().with("request_bytes", self.request).with("response_bytes", self.answer)
    }

    fn row_with_clients(self, clients: usize) -> Row {
        Row::new()
            .with("clients", clients)
            .with("request_bytes", self.request)
            .with("response_bytes", self.answer)
    }

    /// The hints that tell them.
    fn hints(self) -> String {
        // A payload of no bytes cannot be hinted, and is as small as one.
        let [request, answer] = [self.request, self.answer].map(|size| size.max(1));
        format!("c_hint: payload_size = {request}B; s_hint: payload_size = {answer}B;")
    }
}

/// The benchmark's IDL with these hints of the service and none of its functions.
fn service_hints(hints: &str) -> Result<String, MeasureError> {
    let none = ["echo", "quick", "bulk"].map(|function| (function, String::new()));
    rewritten(IDL, hints, &none)
}

/// The server of each contestant, started when first needed; a contestant keeps its server, since a process pair has room
/// for a limited number.
#[derive(Default)]
pub(super) struct Servers(Vec<(String, Served)>);

impl Servers {
    pub(super) fn of(
        &mut self,
        session: &mut Session,
        name: &str,
        service: ServiceKind,
    ) -> Result<Served, MeasureError> {
        if let Some((_, served)) = self.0.iter().find(|(known, _)| known == name) {
            return Ok(served.clone());
        }
        let served = session.serve(service, Drive::Waiting)?;
        self.0.push((name.to_owned(), served.clone()));
        Ok(served)
    }
}

/// What a run's plans depend on beside the hints.
pub(super) fn surroundings<'f>(fabric: &'f ShmFabric, session: &Session, clients: usize) -> Surroundings<'f> {
    let (cores, clients) = (session.allowed.count(), clients as u32);
    Surroundings { capabilities: fabric.capabilities(), cores, clients }
}

/// The settings of a contestant's clients.
pub(super) fn client_options(contestant: &Contestant, cores: u32, clients: u32) -> ClientOptions {
    ClientOptions {
        hints: contestant.hints.clone(),
        clients: Some(clients),
        // This thread is pinned, so the machine would seem to have one core.
        cores: Some(cores),
        ..ClientOptions::default()
    }
}

/// Connects so many clients of the benchmark's service and makes a few calls of each.
fn connect(
    session: &mut Session,
    served: &Served,
    contestant: &Contestant,
    clients: usize,
    sizes: Sizes,
    functions: &[service::Function],
) -> Result<Vec<Call>, MeasureError> {
    let options = client_options(contestant, session.allowed.count(), clients as u32);
    let protocol = || contestant.name.clone();
    session.while_serving(served, |fabric, address| {
        (0..clients)
            .map(|_| {
                let client = AtbClient::connect(fabric, address, options.clone())
                    .map_err(|source| MeasureError::ConnectTyped { protocol: protocol(), source })?;
                let mut call = Call::new(client, sizes.request, sizes.answer);
                for function in functions.iter().cycle().take(warm_up_calls(clients, sizes)) {
                    call.call(*function)
                        .map_err(|reason| MeasureError::TypedCall { protocol: protocol(), reason })?;
                }
                Ok(call)
            })
            .collect()
    })
}

/// Slices after which a contestant connects anew. Where memory happens to lie is worth some percent, for better or worse, and
/// must not be one contestant's luck for a whole point.
pub(super) const RENEWED_AFTER: usize = 5;

/// Calls that fill caches, pools and page tables before anything is timed.
const WARM_UP_CALLS: usize = 4;
/// The same for large payloads of a client alone, whose sender has found out by then how to fill its buffers, and touched all of them.
const LARGE_WARM_UP_CALLS: usize = 256;
/// What counts as large there.
const LARGE: usize = 64 << 10;

fn warm_up_calls(clients: usize, sizes: Sizes) -> usize {
    if clients == 1 && sizes.are_large() { LARGE_WARM_UP_CALLS } else { WARM_UP_CALLS }
}

/// How many connections a contest keeps open: with more bytes than this for all of them, a contestant's are made anew for
/// each slice.
const MEMORY: usize = 1 << 30;

/// Open files of a connection on each side, with some to spare.
const FILES: usize = 8;

/// Whether so many clients with such payloads can all stay connected, contestants times clients. A connection has rings,
/// queues and open files on both sides, and, if payloads are large, a few buffers of each.
pub(super) fn all_stay(connections: usize, request: usize, answer: usize) -> bool {
    let large = |size: usize| if size > dunlin_rpc::SMALL_LIMIT as usize { 4 * size } else { 0 };
    let memory = connections.saturating_mul((128 << 10) + large(request) + large(answer));
    memory <= MEMORY && connections.saturating_mul(FILES) as u64 <= file_limit()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_have_their_own_sizes_for_each_direction() {
        let points = |request, answer| Sizes::points(&[4, 8], request, answer).expect("in range");
        assert_eq!(points(None, None)[1], Sizes { request: 8, answer: 8 });
        assert_eq!(points(Some(100), None)[0], Sizes { request: 100, answer: 4 });
        assert_eq!(points(Some(100), Some(7)), [Sizes { request: 100, answer: 7 }]);
        assert!(Sizes::points(&[LARGEST + 1], None, None).is_err());
    }

    #[test]
    fn large_payloads_are_warmed_up_for_longer() {
        let calls = |clients, size| warm_up_calls(clients, Sizes { request: size, answer: 4 });
        assert_eq!([calls(1, 4), calls(1, 64 << 10), calls(2, 64 << 10)], [4, 256, 4]);
    }

    #[test]
    fn many_clients_with_large_payloads_do_not_stay() {
        assert!(all_stay(13, 512, 512));
        assert!(!all_stay(1_000_000, 4, 4));
        assert!(!all_stay(13 * 512, 128 << 10, 128 << 10));
    }
}
