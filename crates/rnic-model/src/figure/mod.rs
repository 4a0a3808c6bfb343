//! The papers' raw-verb figures: their tests, the values in the papers' texts, and the model's predictions.
//!
//! The papers are available as text only: a point whose value the text does not state has a prediction but no
//! paper value.

mod shape;

use crate::driver::{Outcome, Pick, Signaling, Test, TestError, run};
use crate::prices::Prices;
use crate::profile::Profile;
use crate::request::{Opcode, Transport};
use crate::sweep::Effort;
use shape::{Blocks, Shape};

/// A raw-verb figure that can be run.
#[derive(Clone, Copy, Debug)]
pub struct Figure {
    /// Name: paper and number.
    pub id: &'static str,
    /// Title.
    pub title: &'static str,
    /// Name of the profile that it runs on.
    pub profile: &'static str,
    /// Quantity on the x axis.
    pub x_name: &'static str,
    /// Its series.
    pub series: &'static [Series],
}

/// One line of a figure.
#[derive(Clone, Copy, Debug)]
pub struct Series {
    /// Name.
    pub name: &'static str,
    /// Unit of the values.
    pub unit: &'static str,
    /// Values of x that are computed.
    pub xs: &'static [u32],
    measure: Measure,
}

#[derive(Clone, Copy, Debug)]
enum Measure {
    /// RF-RPC figure 1: READs of 28 clients, one at a time.
    RfRpcInBound,
    /// RF-RPC figure 1: WRITEs of the server's threads, one at a time.
    RfRpcOutBound,
    RfRpcRatio,
    /// RF-RPC 2.4: half of a ping-pong of WRITEs.
    RfRpcLatency,
    ScaleRpcOutBound,
    ScaleRpcOutBoundReads,
    ScaleRpcReadsPerWrite,
    ScaleRpcInBound,
    ScaleRpcInBoundReads,
    ScaleRpcDatagrams,
    ScaleRpcDatagramsRelative,
    ScaleRpcBlocks,
    ScaleRpcBlockMisses,
    FlockRead,
    FlockReadRelative,
    LiteLatency,
    LiteLatencyRelative,
    LiteRate(u32),
    LiteRateRelative(u32),
}

const SIZES: &[u32] = &[8, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192];
const CLIENTS: &[u32] = &[10, 20, 40, 80, 120, 160, 200, 400, 600, 800];

/// All raw-verb figures.
pub const FIGURES: &[Figure] = &[
    Figure {
        id: "rf-rpc-1",
        title: "Rates of out-bound WRITE and in-bound READ by size, one operation at a time per thread",
        profile: "rf-rpc",
        x_name: "size_bytes",
        series: &[
            Series { name: "in-bound READ", unit: "mops", xs: SIZES, measure: Measure::RfRpcInBound },
            Series { name: "out-bound WRITE", unit: "mops", xs: SIZES, measure: Measure::RfRpcOutBound },
            Series {
                name: "in-bound over out-bound",
                unit: "ratio",
                xs: &[4096, 8192],
                measure: Measure::RfRpcRatio,
            },
        ],
    },
    Figure {
        id: "rf-rpc-2.4",
        title: "Latency of a WRITE by size",
        profile: "rf-rpc",
        x_name: "size_bytes",
        series: &[Series {
            name: "WRITE",
            unit: "us",
            xs: &[8, 32, 64, 128, 256, 512, 1024],
            measure: Measure::RfRpcLatency,
        }],
    },
    Figure {
        id: "scalerpc-1b",
        title: "Rates of raw verbs by the number of clients, 32 bytes, 10 server threads",
        profile: "scalerpc",
        x_name: "clients",
        series: &[
            Series { name: "out-bound WRITE", unit: "mops", xs: CLIENTS, measure: Measure::ScaleRpcOutBound },
            Series { name: "in-bound WRITE", unit: "mops", xs: CLIENTS, measure: Measure::ScaleRpcInBound },
            Series {
                name: "out-bound UD SEND",
                unit: "mops",
                xs: CLIENTS,
                measure: Measure::ScaleRpcDatagrams,
            },
            Series {
                name: "out-bound UD SEND over that at 40",
                unit: "ratio",
                xs: &[400, 800],
                measure: Measure::ScaleRpcDatagramsRelative,
            },
        ],
    },
    Figure {
        id: "scalerpc-3a",
        title: "PCIe reads of the server's NIC by the number of clients, beside its rates",
        profile: "scalerpc",
        x_name: "clients",
        series: &[
            Series { name: "out-bound WRITE", unit: "mops", xs: CLIENTS, measure: Measure::ScaleRpcOutBound },
            Series {
                name: "PCIe reads, out-bound",
                unit: "mops",
                xs: CLIENTS,
                measure: Measure::ScaleRpcOutBoundReads,
            },
            Series {
                name: "PCIe reads over out-bound WRITE",
                unit: "ratio",
                xs: &[10, 20, 40, 800],
                measure: Measure::ScaleRpcReadsPerWrite,
            },
            Series { name: "in-bound WRITE", unit: "mops", xs: CLIENTS, measure: Measure::ScaleRpcInBound },
            Series {
                name: "PCIe reads, in-bound",
                unit: "mops",
                xs: CLIENTS,
                measure: Measure::ScaleRpcInBoundReads,
            },
        ],
    },
    Figure {
        id: "scalerpc-3b",
        title: "Rate of in-bound WRITE by the size of message blocks, 400 clients of 20 blocks, 32 bytes",
        profile: "scalerpc",
        x_name: "block_bytes",
        series: &[
            Series {
                name: "in-bound WRITE",
                unit: "mops",
                xs: &[256, 512, 1024, 2048, 4096, 8192, 16384],
                measure: Measure::ScaleRpcBlocks,
            },
            Series {
                name: "last-level cache misses",
                unit: "ratio",
                xs: &[256, 512, 1024, 2048, 4096, 8192, 16384],
                measure: Measure::ScaleRpcBlockMisses,
            },
        ],
    },
    Figure {
        id: "flock-2a",
        title: "Rate of READs of 16 bytes from 22 hosts by the number of queue pairs",
        profile: "flock",
        x_name: "queue_pairs",
        series: &[
            Series {
                name: "READ",
                unit: "mops",
                xs: &[22, 44, 88, 176, 352, 704, 1408, 2816],
                measure: Measure::FlockRead,
            },
            Series {
                name: "READ over the best",
                unit: "ratio",
                xs: &[176, 352, 704],
                measure: Measure::FlockReadRelative,
            },
        ],
    },
    Figure {
        id: "lite-4",
        title: "Latency of a WRITE of 64 bytes by the number of regions of 4 KB",
        profile: "lite",
        x_name: "regions",
        series: &[
            Series {
                name: "WRITE",
                unit: "us",
                xs: &[1, 10, 50, 100, 200, 500, 1000, 10000],
                measure: Measure::LiteLatency,
            },
            Series {
                name: "WRITE over that with 1 region",
                unit: "ratio",
                xs: &[10, 100],
                measure: Measure::LiteLatencyRelative,
            },
        ],
    },
    Figure {
        id: "lite-5",
        title: "Rate of WRITEs by the size of the region that they go to",
        profile: "lite",
        x_name: "region_mib",
        series: &[
            Series { name: "WRITE 64 B", unit: "mops", xs: REGION_SIZES, measure: Measure::LiteRate(64) },
            Series { name: "WRITE 1 KB", unit: "mops", xs: REGION_SIZES, measure: Measure::LiteRate(1024) },
            Series {
                name: "WRITE 64 B over that in 1 MB",
                unit: "ratio",
                xs: &[2, 4],
                measure: Measure::LiteRateRelative(64),
            },
            Series {
                name: "WRITE 1 KB over that in 1 MB",
                unit: "ratio",
                xs: &[2, 4],
                measure: Measure::LiteRateRelative(1024),
            },
        ],
    },
];

const REGION_SIZES: &[u32] = &[1, 2, 4, 8, 16, 64, 256, 1024];

/// Values in the papers' texts.
const PAPERS: &str = include_str!("../../curves/papers.csv");

/// Returns the value in the paper's text at a point, and its source; `None` if the text states none.
#[must_use]
pub fn paper(figure: &str, series: &str, x: u32) -> Option<(f64, &'static str)> {
    PAPERS.lines().skip(1).find_map(|line| {
        let mut cells = line.splitn(5, ',');
        let same =
            cells.next()? == figure && cells.next()? == series && cells.next()?.parse::<u32>() == Ok(x);
        let (value, source) = (cells.next()?, cells.next()?);
        same.then(|| value.parse().ok().map(|value| (value, source.trim_matches('"')))).flatten()
    })
}

impl Series {
    /// Predicts one point with the model, on a given profile.
    ///
    /// # Errors
    /// Returns an error if the test cannot be run on the profile.
    pub fn predict(&self, x: u32, profile: &Profile, effort: Effort) -> Result<f64, TestError> {
        let go = Go { profile, effort };
        let mops = |outcome: &Outcome| outcome.rate / 1e6;
        Ok(match self.measure {
            Measure::RfRpcInBound => mops(&go.rf_rpc_in_bound(x)?),
            Measure::RfRpcOutBound => mops(&go.rf_rpc_out_bound(x)?),
            Measure::RfRpcRatio => go.rf_rpc_in_bound(x)?.rate / go.rf_rpc_out_bound(x)?.rate,
            Measure::RfRpcLatency => go.rf_rpc_latency(x)?,
            Measure::ScaleRpcOutBound => mops(&go.scalerpc_out_bound(x)?),
            Measure::ScaleRpcOutBoundReads => reads(&go.scalerpc_out_bound(x)?),
            Measure::ScaleRpcReadsPerWrite => {
                let outcome = go.scalerpc_out_bound(x)?;
                reads(&outcome) / mops(&outcome)
            }
            Measure::ScaleRpcInBound => mops(&go.scalerpc_in_bound(x, SCALERPC_BLOCKS)?),
            Measure::ScaleRpcInBoundReads => reads(&go.scalerpc_in_bound(x, SCALERPC_BLOCKS)?),
            Measure::ScaleRpcDatagrams => mops(&go.scalerpc_datagrams(x)?),
            Measure::ScaleRpcDatagramsRelative => {
                go.scalerpc_datagrams(x)?.rate / go.scalerpc_datagrams(40)?.rate
            }
            Measure::ScaleRpcBlocks => mops(&go.scalerpc_blocks(x)?),
            Measure::ScaleRpcBlockMisses => {
                let counters = go.scalerpc_blocks(x)?.counters[0];
                let all = (counters.line_hits + counters.line_misses).max(1);
                counters.line_misses as f64 / all as f64
            }
            Measure::FlockRead => mops(&go.flock_read(x)?),
            Measure::FlockReadRelative => {
                let mut best: f64 = 0.0;
                for pairs in [176, 352, 704] {
                    best = best.max(go.flock_read(pairs)?.rate);
                }
                go.flock_read(x)?.rate / best
            }
            Measure::LiteLatency => go.lite_latency(x)? / 1e3,
            Measure::LiteLatencyRelative => go.lite_latency(x)? / go.lite_latency(1)?,
            Measure::LiteRate(bytes) => mops(&go.lite_rate(x, bytes)?),
            Measure::LiteRateRelative(bytes) => go.lite_rate(x, bytes)?.rate / go.lite_rate(1, bytes)?.rate,
        })
    }
}

/// Returns the PCIe reads of the first host's NIC, in millions per second.
fn reads(outcome: &Outcome) -> f64 {
    outcome.counters[0].dma_reads as f64 * 1e3 / outcome.measured_ns as f64
}

/// Blocks of a client where the paper does not state them: 20 of 1 KB, small enough to stay in the last-level
/// cache.
const SCALERPC_BLOCKS: Blocks = Blocks { each: 20, bytes: 1024 };
/// Server threads of RF-RPC's out-bound test: one per core of its server (RF-RPC 5; not stated for the test).
const RF_RPC_SERVER_THREADS: u32 = 16;
/// Largest payload that RF-RPC inlines, in bytes (its section 4).
const RF_RPC_INLINE: u32 = 92;

/// A profile and an effort, with which the papers' tests run.
struct Go<'a> {
    profile: &'a Profile,
    effort: Effort,
}

impl Go<'_> {
    fn measured(&self) -> u64 {
        match self.effort {
            Effort::Full => 30_000,
            Effort::Quick => 10_000,
        }
    }

    fn test(&self, shape: Shape, opcode: Opcode, transport: Transport) -> Test<'_> {
        let (cluster, threads) = shape.build(self.profile);
        let pairs: u64 = threads.iter().map(|thread| thread.connections.len() as u64).sum();
        Test {
            cluster,
            warm_up: 4_000 + pairs * 4,
            measured: self.measured().max(pairs * 4),
            threads,
            opcode,
            transport,
            bytes: 32,
            inline: false,
            window: 1,
            signaling: Signaling::All,
            pick: Pick::Random,
        }
    }

    fn rf_rpc_in_bound(&self, bytes: u32) -> Result<Outcome, TestError> {
        let shape = Shape::InBound { hosts: 7, threads_per_host: 4, connections: 28, blocks: None };
        let test = self.test(shape, Opcode::Read, Transport::ReliableConnection);
        run(&Test { bytes, ..test })
    }

    fn rf_rpc_out_bound(&self, bytes: u32) -> Result<Outcome, TestError> {
        let shape = Shape::OutBound { hosts: 7, peers: 28, threads: RF_RPC_SERVER_THREADS, all: true };
        let test = self.test(shape, Opcode::Write, Transport::ReliableConnection);
        run(&Test { bytes, ..test })
    }

    fn rf_rpc_latency(&self, bytes: u32) -> Result<f64, TestError> {
        let shape = Shape::OutBound { hosts: 1, peers: 1, threads: 1, all: true };
        let test = self.test(shape, Opcode::Write, Transport::ReliableConnection);
        let outcome = run(&Test { bytes, inline: bytes <= RF_RPC_INLINE, ..test })?;
        // The peer polls memory for the data, so the successful poll is part of the latency.
        let look = Prices::of(self.profile).work_ns(dunlin_fabric::Work::PollHit);
        Ok((outcome.one_way_ns + look) / 1e3)
    }

    fn scalerpc_out_bound(&self, clients: u32) -> Result<Outcome, TestError> {
        let shape = Shape::OutBound { hosts: 11, peers: clients, threads: 10, all: false };
        let test = self.test(shape, Opcode::Write, Transport::ReliableConnection);
        // The order of clients is not stated; a server answers in the order of requests.
        run(&Test { window: 16, ..test })
    }

    fn scalerpc_datagrams(&self, clients: u32) -> Result<Outcome, TestError> {
        let shape = Shape::Datagrams { hosts: 11, peers: clients, threads: 10 };
        let test = self.test(shape, Opcode::Send, Transport::UnreliableDatagram);
        run(&Test { inline: true, window: 16, pick: Pick::InTurn, ..test })
    }

    fn scalerpc_in_bound(&self, clients: u32, blocks: Blocks) -> Result<Outcome, TestError> {
        // Clients are coroutines on as many threads as the hosts have cores.
        let shape =
            Shape::InBound { hosts: 11, threads_per_host: 24, connections: clients, blocks: Some(blocks) };
        let test = self.test(shape, Opcode::Write, Transport::ReliableConnection);
        let touched = u64::from(clients) * u64::from(blocks.each);
        run(&Test {
            inline: true,
            window: 16,
            pick: Pick::InTurn,
            warm_up: test.warm_up + touched * 2,
            measured: test.measured.max(touched),
            ..test
        })
    }

    fn scalerpc_blocks(&self, bytes: u32) -> Result<Outcome, TestError> {
        self.scalerpc_in_bound(400, Blocks { each: 20, bytes: u64::from(bytes) })
    }

    fn flock_read(&self, pairs: u32) -> Result<Outcome, TestError> {
        let shape =
            Shape::InBound { hosts: 22, threads_per_host: pairs / 22, connections: pairs, blocks: None };
        let test = self.test(shape, Opcode::Read, Transport::ReliableConnection);
        run(&Test { bytes: 16, ..test })
    }

    fn lite_latency(&self, regions: u32) -> Result<f64, TestError> {
        let shape = Shape::Regions { threads: 1, regions, bytes: 4096 };
        let test = self.test(shape, Opcode::Write, Transport::ReliableConnection);
        let warm_up = test.warm_up + u64::from(regions) * 2;
        Ok(run(&Test { bytes: 64, warm_up, ..test })?.latency_ns)
    }

    fn lite_rate(&self, megabytes: u32, bytes: u32) -> Result<Outcome, TestError> {
        let shape = Shape::Regions { threads: 8, regions: 1, bytes: u64::from(megabytes) << 20 };
        let test = self.test(shape, Opcode::Write, Transport::ReliableConnection);
        run(&Test { bytes, ..test })
    }
}
