//! LITE figures 6 and 7: a WRITE compared with TCP over IPoIB, on bare verbs and sockets.

use super::{Effort, Figure, FigureError, Outcomes, Paper, Point, Run};
use dunlin_rnic_model::driver::{Connection, Pick, Places, Signaling, Test, Thread, run};
use dunlin_rnic_model::{Cluster, Opcode, Profile, Sockets, Transport};

pub(super) const LATENCY: Figure = Figure::predicted(
    ["lite-6", "Latency of a WRITE and of a message over TCP (IPoIB) by its size", PROFILE, "size_bytes"],
    "One thread, one message at a time. TCP is half of a ping-pong on the cost model of sockets. LITE itself is not simulated.",
    runs,
    latency,
);

pub(super) const THROUGHPUT: Figure = Figure::predicted(
    [
        "lite-7",
        "Rate of WRITEs and of messages over TCP (IPoIB) by their size, one thread",
        PROFILE,
        "size_bytes",
    ],
    "WRITEs wait for their completions, one at a time; messages over TCP follow each other, on the cost model of sockets, which puts \
     no small ones together. LITE itself is not simulated.",
    runs,
    throughput,
);

const PROFILE: &str = "lite";
const WRITE: &str = "WRITE";
const TCP: &str = "TCP/IP";
const RATIO: &str = "TCP/IP over WRITE";
/// Size of the written region: small enough for the NIC's caches, like the paper's small-scale tests.
const REGION: u64 = 1 << 20;

/// The transport of a lone message.
#[derive(Clone, Copy, Debug)]
pub(super) enum Carrier {
    Write(Effort),
    Tcp,
}

/// Messages from one thread to another.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lone {
    carrier: Carrier,
    bytes: u32,
}

impl Lone {
    pub(super) const PROFILE: &str = PROFILE;

    /// Returns the rate in millions per second, and the latency of one message in microseconds.
    pub(super) fn run(&self) -> Result<(f64, f64), FigureError> {
        let profile = Profile::built_in(PROFILE)?;
        let effort = match self.carrier {
            Carrier::Write(effort) => effort,
            Carrier::Tcp => {
                let sockets = Sockets::of(&profile);
                return Ok((sockets.stream(self.bytes) / 1e6, sockets.one_way(self.bytes) as f64 / 1e3));
            }
        };
        let outcome = run(&Test {
            cluster: Cluster::uniform(&profile, 2),
            threads: vec![Thread {
                host: 0,
                connections: vec![Connection { queue_pair: 0, peer: 1, peer_queue_pair: 0 }],
                region: 1,
                remote: Places::Anywhere { first: 0, regions: 1, bytes: REGION },
            }],
            opcode: Opcode::Write,
            transport: Transport::ReliableConnection,
            bytes: self.bytes,
            inline: false,
            window: 1,
            signaling: Signaling::All,
            pick: Pick::InTurn,
            warm_up: 100,
            measured: match effort {
                Effort::Full => 3_000,
                Effort::Quick => 1_000,
            },
        })?;
        Ok((outcome.rate / 1e6, outcome.latency_ns / 1e3))
    }
}

fn runs(effort: Effort) -> Vec<Run> {
    let sizes: &[u32] = match effort {
        Effort::Full => &[8, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536],
        Effort::Quick => &[64, 512, 16_384],
    };
    let pair = |bytes: &u32| {
        let bytes = *bytes;
        [(WRITE, Carrier::Write(effort)), (TCP, Carrier::Tcp)]
            .map(|(series, carrier)| Run::lone(series, bytes, Lone { carrier, bytes }))
    };
    sizes.iter().flat_map(pair).collect()
}

fn latency(outcomes: &Outcomes) -> Vec<Point> {
    let mut points = outcomes.as_they_are("us", |outcome| outcome.mean_us);
    let mut ratios = outcomes.ratios(RATIO, TCP, WRITE, |outcome| outcome.mean_us);
    for point in &mut ratios {
        point.said = Some((Paper::AtLeast(1.0), "4.2: always higher than that of native RDMA"));
    }
    points.append(&mut ratios);
    points
}

fn throughput(outcomes: &Outcomes) -> Vec<Point> {
    let mut points = outcomes.as_they_are("mops", |outcome| outcome.mops);
    let mut ratios = outcomes.ratios(RATIO, TCP, WRITE, |outcome| outcome.mops);
    for point in &mut ratios {
        point.said = Some(match point.x {
            128..=1024 => (Paper::AtLeast(1.0), "4.2: slightly higher than RDMA's from 128 B to 1 KB"),
            _ => (Paper::AtMost(1.0), "4.2: mostly lower"),
        });
    }
    points.append(&mut ratios);
    points
}
