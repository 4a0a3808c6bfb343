//! LITE figure 12: memory that messages use at their receiver, of the memory that they occupy there.

use super::drawing::lines;
use super::lite::{PROFILE, TIER};
use super::{Drawing, Effort, Figure, Outcome, Outcomes, Paper, Point, Run};
use dunlin_fabric_sim::Random;
use dunlin_rpc::SMALL_LIMIT;
use dunlin_scenario::random_values::Sizes;
use dunlin_tier::{CallHead, Name, Principal};
use dunlin_wire::{Descriptor, message_bytes};

pub(super) const FIGURE: Figure = Figure::predicted(
    [
        "lite-12",
        "Memory that messages use of the memory that they occupy, by the number of queues of RECVs",
        PROFILE,
        "queues",
    ],
    "Requests of the sizes of Facebook's keys (at most 250 bytes) and values (at most 1 MiB). Memory used: the bytes of the requests. Memory occupied: SEND, the RECV that each takes, \
     the smallest one that holds it; the largest ones hold the longest request. The paper does not state the sizes of the others: here they are those that waste the least for these requests, \
     without a header, and each queue has RECVs in proportion to its requests. That is the best that SEND can do. LITE: the request and the address of the result (8 bytes) in the ring \
     (section 5.1). The tier: the message in the ring as the engine lays it out (lines of 64 bytes, header, head of the call); of a request above 4 KiB a message that announces \
     it, and a buffer of the next power of two. 'Significantly more' is read as more by a tenth.",
    runs,
    points,
)
.drawn(drawings);

const SEND: &str = "SEND";
const LITE: &str = "LITE";
const QUEUES: [u32; 4] = [1, 2, 3, 4];
/// Payloads: their name and their distribution.
const PAYLOADS: [(&str, Sizes); 2] = [("keys", Sizes::FacebookKeys), ("values", Sizes::FacebookValues)];
/// Bytes of the address of a result that LITE WRITEs before a request.
const RETURN_ADDRESS: u64 = 8;

/// The memory that a number of requests occupies.
#[derive(Clone, Copy, Debug)]
pub(super) struct Space {
    sizes: Sizes,
    requests: usize,
    layout: Layout,
}

#[derive(Clone, Copy, Debug)]
enum Layout {
    /// Queues of RECVs, each of one size: their number.
    Receives(usize),
    /// LITE's ring.
    Lite,
    /// The engine's rings and buffers, with calls of the tier.
    Tier,
}

impl Space {
    /// Returns the share of the occupied memory that the requests use, in percent.
    pub(super) fn used_percent(&self) -> f64 {
        let mut random = Random::new(super::SEED, 0);
        let mut sizes: Vec<u64> =
            (0..self.requests).map(|_| u64::from(self.sizes.next(&mut random))).collect();
        sizes.sort_unstable();
        let used: u64 = sizes.iter().sum();
        let occupied = match self.layout {
            Layout::Receives(queues) => least_receives(&sizes, self.sizes.largest().into(), queues),
            Layout::Lite => sizes.iter().map(|size| size + RETURN_ADDRESS).sum(),
            Layout::Tier => {
                let head = head_bytes();
                sizes.iter().map(|size| tier_bytes(head + size)).sum()
            }
        };
        used as f64 * 100.0 / occupied.max(1) as f64
    }
}

/// Returns the bytes of the head of a call: of a service with a name of seven bytes, by a caller without a name.
fn head_bytes() -> u64 {
    let (Ok(service), Ok(caller)) = (Name::new("service"), Principal::new("anonymous")) else { return 0 };
    CallHead { service, function: 0, caller, is_one_way: false, ring: None }.encode(&[]).len() as u64
}

/// Returns the bytes that a call with its head occupies.
fn tier_bytes(call: u64) -> u64 {
    let line = |payload: u64| message_bytes(payload as u32, usize::MAX).unwrap_or(usize::MAX) as u64;
    if call <= u64::from(SMALL_LIMIT) {
        return line(call);
    }
    line(Descriptor::BYTES as u64) + call.next_power_of_two()
}

/// Returns the least memory of RECVs that requests can occupy, with RECVs of `queues` sizes, the largest of which is
/// `largest`. `sizes` are in ascending order.
fn least_receives(sizes: &[u64], largest: u64, queues: usize) -> u64 {
    // Sizes without repetition, each with the number of requests up to it.
    let mut steps: Vec<(u64, u64)> = Vec::new();
    for (number, size) in (1..).zip(sizes) {
        match steps.last_mut() {
            Some(last) if last.0 == *size => last.1 = number,
            _ => steps.push((*size, number)),
        }
    }
    if let Some(last) = steps.last_mut() {
        last.0 = largest;
    }
    // The least memory of the requests up to each step, if that is the size of a RECV.
    let mut least: Vec<u64> = steps.iter().map(|(size, number)| size * number).collect();
    for _ in 1..queues {
        let before = least;
        least = (0..steps.len())
            .map(|step| {
                let (size, number) = steps[step];
                let with = |smaller: usize| before[smaller] + size * (number - steps[smaller].1);
                (0..step).map(with).fold(before[step], u64::min)
            })
            .collect();
    }
    least.last().copied().unwrap_or(0)
}

fn series(layout: &str, payload: &str) -> String {
    format!("{layout}, {payload}")
}

fn runs(effort: Effort) -> Vec<Run> {
    let requests = match effort {
        Effort::Full => 100_000,
        Effort::Quick => 5_000,
    };
    let mut runs = Vec::new();
    for (payload, sizes) in PAYLOADS {
        for queues in QUEUES {
            for (name, layout) in
                [(SEND, Layout::Receives(queues as usize)), (LITE, Layout::Lite), (TIER, Layout::Tier)]
            {
                runs.push(Run::space(series(name, payload), queues, Space { sizes, requests, layout }));
            }
        }
    }
    runs
}

fn percent(outcome: &Outcome) -> f64 {
    outcome.value
}

fn drawings(outcomes: &Outcomes) -> Vec<Drawing> {
    let drawing = |(payload, _)| {
        let names = [SEND, LITE, TIER].map(|layout| series(layout, payload));
        let series = names.map(|name| {
            let points = outcomes.line(&name, |run, _| f64::from(run.x), percent);
            (name, points)
        });
        lines(format!("{}: {payload}", FIGURE.title), "percent", FIGURE.x_name, series.into())
    };
    PAYLOADS.map(drawing).into()
}

fn points(outcomes: &Outcomes) -> Vec<Point> {
    let mut points = outcomes.as_they_are("percent", percent);
    for (payload, _) in PAYLOADS {
        for layout in [LITE, TIER] {
            let (over, under) = (series(layout, payload), series(SEND, payload));
            let ratios = outcomes.ratios(&format!("{over} over SEND"), &over, &under, percent);
            let said =
                Some((Paper::AtLeast(1.1), "5.3: significantly more space-efficient than send-based RPC"));
            points.extend(ratios.into_iter().map(|point| Point { said, ..point }));
        }
    }
    points
}

#[cfg(test)]
mod tests {
    use super::*;
    use dunlin_fabric::Scheme;
    use dunlin_fabric::interpose::Count;
    use dunlin_fabric_sim::Sim;
    use dunlin_scenario::measured_run::cluster;
    use dunlin_tier_node::{Peer, Tier, TierConfig};
    use std::sync::Arc;

    #[test]
    fn receives_of_the_best_sizes_waste_the_least() {
        let sizes = [1, 1, 1, 10, 10, 90];
        assert_eq!(least_receives(&sizes, 100, 1), 600);
        // 5 of 10 bytes and 1 of 100; 3 of 1 and 3 of 100 would be more.
        assert_eq!(least_receives(&sizes, 100, 2), 150);
        assert_eq!(least_receives(&sizes, 100, 3), 3 + 20 + 100);
        assert_eq!(least_receives(&sizes, 100, 4), 3 + 20 + 100);
        assert_eq!(least_receives(&[], 100, 2), 0);
        // All choices of two sizes of many.
        let sizes: Vec<u64> = (1..60).flat_map(|size| vec![size; (61 - size) as usize]).collect();
        let by_hand = (1..60)
            .map(|small| sizes.iter().map(|size| if *size <= small { small } else { 64 }).sum::<u64>());
        assert_eq!(Some(least_receives(&sizes, 64, 2)), by_hand.min());
    }

    /// Returns the bytes that a node posts for a call with a request of this length, on average.
    fn posted(request: usize) -> u64 {
        const CALLS: u64 = 64;
        let (tell, told) = std::sync::mpsc::channel();
        let mut settings = cluster(2, 200, 10_000_000_000);
        settings.slack = 0;
        Sim::run_with(settings, 1, move |sim| {
            let names = ["a", "b"];
            let peers: Vec<Peer> = names.map(|name| Peer::named(Scheme::Sim, name).unwrap()).into();
            let counted: Vec<Count<Sim>> =
                (0..2).map(|machine| Count::new(sim.process_on(machine))).collect();
            let nodes: Vec<Tier<Count<Sim>>> = (counted.iter().zip(names))
                .map(|(fabric, name)| {
                    let config = TierConfig { memory: 1 << 20, ..TierConfig::new(peers.clone(), name) };
                    Tier::within(fabric, config).unwrap()
                })
                .collect();
            let calls = Arc::new(nodes[1].register("service", 0).unwrap());
            let serving = Arc::clone(&calls);
            let serve = move || {
                let mut buffer = vec![0; 1 << 20];
                for _ in 0..=CALLS {
                    serving.receive(&mut buffer).unwrap().reply(&[]);
                }
            };
            let task = dunlin_fabric::Host::spawn(
                dunlin_fabric::Fabric::host(&counted[1]),
                "serving",
                Box::new(serve),
            );
            let request = vec![7; request];
            let call = || nodes[0].call("b", "service", 0, &request, &mut []).unwrap();
            call();
            let before = counted[0].counts();
            (0..CALLS).for_each(|_| {
                call();
            });
            tell.send((counted[0].counts() - before).bytes_posted / CALLS).unwrap();
            task.unwrap().join();
        })
        .unwrap();
        told.recv().unwrap()
    }

    /// The layout is that of the engine: its nodes WRITE as many bytes, and little for heads.
    #[test]
    fn messages_are_as_long_as_the_engines() {
        for request in [1, 36, 250, 329, 3_000] {
            let (expected, posted) = (tier_bytes(head_bytes() + request), posted(request as usize));
            assert!((expected..expected + 64).contains(&posted), "{request}: {posted}, expected {expected}");
        }
    }
}
