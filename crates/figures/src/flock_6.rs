//! FLOCK figures 6, 7 and 8: throughput, median and 99% latency by the number of threads of a client, beside
//! eRPC.

use super::flock::{
    HOSTS, Said, Threads, beyond, busiest, chosen, erpc, median, mops, p99, ratios, three_ways,
};
use super::{Effort, Figure, Outcomes, Paper, Point, Run};

pub(super) const FIGURE: Figure = Figure::predicted(
    ["flock-6", "FLOCK and eRPC by threads of a client, 23 clients", "flock", "threads_of_a_client"],
    "64 bytes each way, one server with 32 threads, clients with 64 hardware threads. FLOCK: at most 256 queue pairs in all, over which the threads of a \
     client are dealt evenly; a client has one handle for each of its queue pairs, so that the threads on each are those of the figure. Calls of one thread may meet in a message too. eRPC: a session for each thread, 32 credits, RECVs in lists of 32, Timely, no loss. \
     'Level', 'equal' and 'saturates' are read as within a tenth.",
    runs,
    points,
);

const IN_FLIGHT: [u16; 3] = [1, 4, 8];

fn flock(in_flight: u16) -> String {
    format!("FLOCK, {in_flight} in flight")
}

fn other(in_flight: u16) -> String {
    format!("eRPC, {in_flight} in flight")
}

fn own(in_flight: u16) -> String {
    format!("a queue pair per thread, {in_flight} in flight")
}

/// The most threads of a client of which none shares a queue pair.
const UNSHARED: u32 = 8;

fn runs(effort: Effort) -> Vec<Run> {
    let (threads, windows): (&[u32], &[u16]) = match effort {
        Effort::Full => (&[1, 2, 4, 8, 16, 32, 48], &IN_FLIGHT),
        Effort::Quick => (&[4, 16, 32], &[1, 8]),
    };
    let mut runs = Vec::new();
    for threads in threads {
        for window in windows {
            let all = HOSTS * threads;
            runs.push(Run::of(flock(*window), *threads, Threads::flock(all, *window).load(effort)));
            runs.push(Run::erpc(other(*window), *threads, erpc(all, *window, effort)));
            if *threads <= UNSHARED {
                runs.push(Run::of(own(*window), *threads, Threads::dedicated(all, *window).load(effort)));
            }
        }
    }
    runs
}

/// The statement of a text that names positions.
fn at(places: &'static [(u32, Paper)], source: &'static str) -> impl Fn(u32) -> Option<Said> {
    move |x| places.iter().find(|(place, _)| *place == x).map(|(_, paper)| (*paper, source))
}

fn points(outcomes: &Outcomes) -> Vec<Point> {
    let mut points = three_ways(outcomes);
    points.extend(throughput(outcomes));
    points.extend(latencies(outcomes));
    points
}

fn throughput(outcomes: &Outcomes) -> Vec<Point> {
    let mut points = Vec::new();
    let (one, erpc_one) = (flock(1), other(1));
    let level = |x: u32| (x <= 4).then_some((Paper::Between(0.9, 1.1), "8.2: comparable up to 4 threads"));
    let mut gains = Vec::new();
    for window in IN_FLIGHT {
        let title = format!("FLOCK over eRPC, {window} in flight");
        let said = |x| if window == 1 { level(x) } else { None };
        gains.extend(ratios(outcomes, &title, (&flock(window), &other(window)), mops, said));
        // Not in the paper: the price of shared connections that nobody shares.
        let title = format!("{} over {}", flock(window), own(window));
        points.extend(ratios(outcomes, &title, (&flock(window), &own(window)), mops, |_| None));
    }
    let few: Vec<Point> = gains.iter().filter(|point| point.x >= 16).cloned().collect();
    points.extend(gains);
    points.extend(chosen(
        &few,
        "largest FLOCK over eRPC from 16 threads on",
        |one, other| one.predicted.total_cmp(&other.predicted),
        (Paper::Value(3.4), "8.2: overall 1.25 to 3.4 times"),
    ));
    points.extend(chosen(
        &few,
        "smallest FLOCK over eRPC from 16 threads on",
        |one, other| other.predicted.total_cmp(&one.predicted),
        (Paper::Value(1.25), "8.2: overall 1.25 to 3.4 times"),
    ));
    let saturated = |x: u32| (x > 16).then_some((Paper::AtMost(1.1), "8.2: eRPC saturates at 16 threads"));
    points.extend(beyond(outcomes, "eRPC, 1 in flight, over 16 threads", (&erpc_one, 16), mops, saturated));
    let said = at(&[(32, Paper::Value(1.25))], "8.2: 25% more from 16 to 32 threads");
    points.extend(beyond(outcomes, "FLOCK, 1 in flight, over 16 threads", (&one, 16), mops, said));
    let said = at(&[(48, Paper::Value(1.47))], "8.2: 47% more from 32 to 48 threads");
    points.extend(beyond(outcomes, "FLOCK, 1 in flight, over 32 threads", (&one, 32), mops, said));
    for window in [4, 8] {
        let title = format!("eRPC, {window} in flight, over 8 threads");
        let source = "8.2: with several in flight eRPC improves up to 8 threads";
        let said = |x: u32| (x > 8).then_some((Paper::AtMost(1.1), source));
        points.extend(beyond(outcomes, &title, (&other(window), 8), mops, said));
        let title = format!("eRPC, {window} in flight over 1");
        let source = "8.2: at many threads as with one in flight";
        let said = |x: u32| (x >= 32).then_some((Paper::Between(0.9, 1.1), source));
        points.extend(ratios(outcomes, &title, (&other(window), &erpc_one), mops, said));
    }
    points
}

fn latencies(outcomes: &Outcomes) -> Vec<Point> {
    let mut points = Vec::new();
    for window in IN_FLIGHT {
        let (erpc, own) = (other(window), flock(window));
        let said = move |x: u32| match (window, x) {
            (1, ..=4) => Some((Paper::AtMost(1.1), "8.2: eRPC equal or slightly better up to 4 threads")),
            (1, 32) => Some((Paper::Value(2.0), "8.2: 2 times at 32 threads")),
            (8, 32) => Some((Paper::Value(2.9), "8.2: 2.9 times at 32 threads, several in flight")),
            (8, 48) => Some((Paper::Value(3.9), "8.2: 3.9 times at 48 threads, several in flight")),
            _ => None,
        };
        let title = format!("median of eRPC over FLOCK, {window} in flight");
        points.extend(ratios(outcomes, &title, (&erpc, &own), median, said));
        let said = move |x: u32| match (window, x) {
            (1, ..=4) => Some((Paper::AtMost(1.1), "8.2: eRPC equal or slightly better up to 4 threads")),
            (1, 32) => Some((Paper::Value(1.5), "8.2: 1.5 times at 32 threads")),
            _ => None,
        };
        let title = format!("99% of calls of eRPC over FLOCK, {window} in flight");
        points.extend(ratios(outcomes, &title, (&erpc, &own), p99, said));
    }
    points.extend(busiest(outcomes));
    points
}
