//! The Apache Thrift Benchmarks of HatRPC (sections 5.2 and 5.3). A Thrift service whose hints select the
//! plan competes with the same service under each protocol of the table, requested by name. The contestants
//! alternate, slice by slice, in one pinned process pair. The typed code path is that of real programs,
//! from the generated client to the handler.

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

/// A flag that ends a measurement early. The results so far are reported.
pub type Stop = Arc<AtomicBool>;

/// Sizes of request and response of a point, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sizes {
    request: usize,
    answer: usize,
}

impl Sizes {
    /// Returns whether a payload is so large that its sender adapts how it fills its buffers.
    fn are_large(self) -> bool {
        self.request.max(self.answer) >= LARGE
    }

    /// Returns the points of a list of sizes; `request` and `answer` override the size of one direction.
    fn points(
        sizes: &[usize],
        request: Option<usize>,
        answer: Option<usize>,
    ) -> Result<Vec<Self>, MeasureError> {
        // With both given, there is only one point.
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

    /// Returns the hints that state the sizes.
    fn hints(self) -> String {
        // Hints do not allow a payload of 0 bytes; 1 byte is equally small.
        let [request, answer] = [self.request, self.answer].map(|size| size.max(1));
        format!("c_hint: payload_size = {request}B; s_hint: payload_size = {answer}B;")
    }
}

/// Returns the benchmark's IDL with these service hints and no function hints.
fn service_hints(hints: &str) -> Result<String, MeasureError> {
    let none = ["echo", "quick", "bulk"].map(|function| (function, String::new()));
    rewritten(IDL, hints, &none)
}

/// The servers of the contestants, each started on first use. A contestant keeps its server, because the
/// number of servers of a process pair is limited.
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

/// Returns the inputs of plan selection other than hints.
pub(super) fn surroundings<'f>(fabric: &'f ShmFabric, session: &Session, clients: usize) -> Surroundings<'f> {
    let (cores, clients) = (session.allowed.count(), clients as u32);
    Surroundings { capabilities: fabric.capabilities(), cores, clients }
}

/// Returns the settings of a contestant's clients.
pub(super) fn client_options(contestant: &Contestant, cores: u32, clients: u32) -> ClientOptions {
    ClientOptions {
        hints: contestant.hints.clone(),
        clients: Some(clients),
        // Set explicitly, since this pinned thread would detect a single core.
        cores: Some(cores),
        ..ClientOptions::default()
    }
}

/// Connects `clients` clients to the benchmark's service and makes a few warm-up calls with each.
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
                let client = AtbClient::connect_with(fabric, address, options.clone())
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

/// Number of slices after which a contestant reconnects. Memory addresses affect the speed by some percent,
/// and must not favour one contestant for a whole point.
pub(super) const RENEWED_AFTER: usize = 5;

/// Warm-up calls, which fill caches, pools and page tables before timing starts.
const WARM_UP_CALLS: usize = 4;
/// Warm-up calls of a single client with large payloads. They let the sender adapt how it fills its
/// buffers, and touch all of these.
const LARGE_WARM_UP_CALLS: usize = 256;
/// Payload size from which the large warm-up applies, bytes.
const LARGE: usize = 64 << 10;

fn warm_up_calls(clients: usize, sizes: Sizes) -> usize {
    if clients == 1 && sizes.are_large() { LARGE_WARM_UP_CALLS } else { WARM_UP_CALLS }
}

/// Memory limit for open connections, bytes. If the connections of all contestants need more, each
/// contestant reconnects for every slice.
const MEMORY: usize = 1 << 30;

/// Open files per connection on each side, with some reserve.
const FILES: usize = 8;

/// Returns whether all connections (contestants times clients) with these payload sizes can stay open. A
/// connection has rings, queues and open files on both sides, and a few buffers of each payload size if
/// payloads are large.
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
