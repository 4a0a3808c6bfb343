//! LITE figures 6 and 7: WRITEs of one size, native and through the memory tier, compared with TCP over IPoIB.

use super::lite::{PROFILE, TIER, measured, native, tier};
use super::{Effort, Figure, FigureError, Outcome, Outcomes, Paper, Point, Run, Work};
use dunlin_rnic_model::{Profile, Sockets};
use dunlin_scenario::native::NativeWrites;
use dunlin_scenario::tier::{Extra, Process, TierLoad};

pub(super) const LATENCY: Figure = Figure::predicted(
    ["lite-6", "Time of a WRITE and of a message over TCP (IPoIB) by its size", PROFILE, "size_bytes"],
    "One thread, one message at a time, inline up to 912 bytes; the time of a WRITE includes posting and polling. The tier: a node in \
     each process; through the node: a process that attaches to the node of its machine, where processors copy and a line takes 50 ns. LITE: the tier, with the times that LITE's paper states charged on top: mapping and checks (0.3 us), for users also \
     crossings (0.17 us). TCP is half of a ping-pong on the cost model of sockets. 'Almost identical' is read as within 5%, 'slight' \
     as up to a tenth.",
    |effort| runs(effort, &[1]),
    latency,
);

pub(super) const THROUGHPUT: Figure = Figure::predicted(
    ["lite-7", "Rate of WRITEs and of messages over TCP (IPoIB) by their size", PROFILE, "size_bytes"],
    "As lite-6, with 1 and 8 threads, each of which waits for its WRITE; a path of the tier for each thread. Messages over TCP, of \
     one thread, follow each other, on the cost model of sockets, which puts no small ones together.",
    |effort| runs(effort, &[1, 8]),
    throughput,
);

const WRITE: &str = "WRITE";
/// A process that attaches to the node of its machine.
const THROUGH: &str = "the tier, through the node";
const KERNEL: &str = "LITE, kernel";
const USER: &str = "LITE, user";
const TCP: &str = "TCP/IP";
const RATIO: &str = "TCP/IP over WRITE";

/// Messages over TCP from one thread to another.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tcp {
    bytes: u32,
}

impl Tcp {
    /// Returns the rate in millions per second, and the latency of one message in microseconds.
    pub(super) fn run(self) -> Result<(f64, f64), FigureError> {
        let sockets = Sockets::of(&Profile::built_in(PROFILE)?);
        Ok((sockets.stream(self.bytes) / 1e6, sockets.one_way(self.bytes) as f64 / 1e3))
    }
}

/// Returns the name of a series of several threads.
fn by(series: &str, threads: u32) -> String {
    if threads == 1 { series.to_owned() } else { format!("{series}, {threads} threads") }
}

fn runs(effort: Effort, threads: &[u32]) -> Vec<Run> {
    let sizes: &[u32] = match effort {
        Effort::Full => &[8, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536],
        Effort::Quick => &[64, 512, 16_384],
    };
    let mut runs = Vec::new();
    for &bytes in sizes {
        for &threads in threads {
            let measured = measured(effort) * u64::from(threads);
            let load = NativeWrites { threads: threads as usize, measured, ..native(bytes, effort) };
            runs.push(Run::native(&by(WRITE, threads), bytes, load));
            for (series, extra) in [(TIER, Extra::None), (KERNEL, Extra::Kernel), (USER, Extra::User)] {
                let load = TierLoad {
                    extra,
                    threads: threads as usize,
                    paths: threads as u16,
                    measured,
                    ..tier(bytes, effort)
                };
                runs.push(Run::tier(&by(series, threads), bytes, load));
            }
            let load = TierLoad {
                process: Process::Attached,
                threads: threads as usize,
                paths: threads as u16,
                measured,
                ..tier(bytes, effort)
            };
            runs.push(Run::tier(&by(THROUGH, threads), bytes, load));
        }
        runs.push(Run::doing(TCP, bytes, Work::Tcp(Tcp { bytes })));
    }
    runs
}

/// Appends the ratio of two series, with the paper's statement.
fn compare(
    points: &mut Vec<Point>,
    outcomes: &Outcomes,
    (over, under): (&str, &str),
    value: fn(&Outcome) -> f64,
    said: impl Fn(u32) -> Option<(Paper, &'static str)>,
) {
    let mut ratios = outcomes.ratios(&format!("{over} over {under}"), over, under, value);
    ratios.iter_mut().for_each(|point| point.said = said(point.x));
    points.append(&mut ratios);
}

const IDENTICAL: (Paper, &str) = (Paper::Between(0.95, 1.05), "4.2: almost identical to native RDMA");
const SLIGHT: (Paper, &str) = (Paper::Between(1.0, 1.1), "4.2: only a slight overhead over native RDMA");
const BETTER: (Paper, &str) =
    (Paper::Between(1.0, 1.1), "4.2: slightly better than native RDMA's with more threads");

fn latency(outcomes: &Outcomes) -> Vec<Point> {
    let value: fn(&Outcome) -> f64 = |outcome| outcome.mean_us;
    let mut points = outcomes.as_they_are("us", value);
    compare(&mut points, outcomes, (TIER, WRITE), value, |_| Some(IDENTICAL));
    compare(&mut points, outcomes, (KERNEL, WRITE), value, |_| Some(IDENTICAL));
    compare(&mut points, outcomes, (USER, WRITE), value, |_| Some(SLIGHT));
    for x in outcomes.xs() {
        let of = |series| outcomes.get(series, x, value);
        if let (Some(through), Some(within)) = (of(THROUGH), of(TIER)) {
            let series = format!("{THROUGH}: longer than in one process");
            let said = Some((Paper::AtMost(0.35), "an aim: the paper's crossings take 0.17 us"));
            points.push(Point { series, x, unit: "us", predicted: through - within, said });
        }
    }
    let said = (Paper::AtLeast(1.0), "4.2: always higher than that of native RDMA");
    compare(&mut points, outcomes, (TCP, WRITE), value, |_| Some(said));
    points
}

fn throughput(outcomes: &Outcomes) -> Vec<Point> {
    let value: fn(&Outcome) -> f64 = |outcome| outcome.mops;
    let mut points = outcomes.as_they_are("mops", value);
    compare(&mut points, outcomes, (TIER, WRITE), value, |_| Some(IDENTICAL));
    for series in [TIER, THROUGH, KERNEL, USER] {
        let (series, native) = (by(series, 8), by(WRITE, 8));
        compare(&mut points, outcomes, (&series, &native), value, |_| Some(BETTER));
    }
    let mut ratios = outcomes.ratios(RATIO, TCP, WRITE, value);
    for point in &mut ratios {
        point.said = Some(match point.x {
            128..=1024 => (Paper::AtLeast(1.0), "4.2: slightly higher than RDMA's from 128 B to 1 KB"),
            _ => (Paper::AtMost(1.0), "4.2: mostly lower"),
        });
    }
    points.append(&mut ratios);
    points
}
