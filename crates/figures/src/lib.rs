//! The papers' figures in one catalogue: raw verbs, to which the model is fitted (calibrated), and whole
//! systems, to which it is not (predicted).
//!
//! A figure is a list of [`Run`]s, which are independent simulations that may run on any thread, and a
//! function from their outcomes to [`Point`]s, each with the statement in the paper's text. The papers are
//! available as text only. Where a curve has no number there, a point has only a prediction, or a relation (a
//! ratio, a crossover, a direction) is compared as a ratio that should lie in a range.

mod drawing;
pub mod effort;
mod error;
mod flock;
mod flock_10;
mod flock_11;
mod flock_12;
mod flock_2b;
mod flock_6;
mod flock_9;
mod flock_many;
mod flock_own;
mod hatrpc;
mod hatrpc_11;
mod hatrpc_12;
mod hatrpc_13;
mod hatrpc_15;
mod hatrpc_4;
mod hatrpc_5;
mod hatrpc_hints;
mod lite;
mod lite_10;
mod lite_12;
mod lite_13;
mod lite_14;
mod lite_15;
mod lite_16;
mod lite_17;
mod lite_4;
mod lite_5;
mod lite_6;
mod lite_8;
mod lite_dsm;
mod lite_graph;
mod lite_hosts;
mod lite_lock;
mod lite_log;
mod lite_mapreduce;
mod lite_membership;
mod lite_processes;
mod of_function;
mod outcomes;
mod rf_rpc;
mod rf_rpc_10;
mod rf_rpc_11;
mod rf_rpc_13;
mod rf_rpc_16;
mod rf_rpc_2;
mod rf_rpc_5;
mod rf_rpc_7;
mod rf_rpc_8;
mod rf_rpc_9;
mod rf_rpc_batch_tuner;
mod rf_rpc_bypass;
mod rf_rpc_hybrid;
mod rf_rpc_shared;
mod rf_rpc_tables;
mod rf_rpc_tuner;
mod rf_rpc_verbs;
mod rf_rpc_wait;
mod scalerpc;
mod scalerpc_10;
mod scalerpc_11;
mod scalerpc_12;
mod scalerpc_8;
mod scalerpc_9;
mod scalerpc_light;
mod scalerpc_many;
mod scalerpc_servers;
mod spinning;

use self::of_function::MOST_FUNCTIONS;
pub use self::of_function::OfFunction;
use self::outcomes::{Outcomes, say, settled};
pub use drawing::{Drawing, Shape};
use dunlin_fabric::Nanos;
use dunlin_rnic_model::Profile;
use dunlin_rnic_model::figure::{self as raw_verbs, FIGURES};
pub use dunlin_rnic_model::sweep::Effort;
use dunlin_scenario::bypass::Bypass;
use dunlin_scenario::datagrams::Datagrams;
use dunlin_scenario::erpc::Erpc;
use dunlin_scenario::graph::GraphLoad;
use dunlin_scenario::load::{Extent, Granted, Load, Network};
use dunlin_scenario::log::LogLoad;
use dunlin_scenario::mapreduce::MapReduceLoad;
use dunlin_scenario::measured_run::Counted;
use dunlin_scenario::membership::MembershipLoad;
use dunlin_scenario::native::NativeWrites;
use dunlin_scenario::priorities::Priorities;
use dunlin_scenario::processes::ProcessCalls;
use dunlin_scenario::shared::Shared;
use dunlin_scenario::shared_memory::MemoryLoad;
use dunlin_scenario::synchronised::Synchronised;
use dunlin_scenario::tier::TierLoad;
use dunlin_scenario::tier_calls::TierCalls;
pub use error::FigureError;
pub use lite_16::OfPriorities;

/// The evidential value of a figure's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The model is fitted to the paper's values.
    Calibrated,
    /// Nothing is fitted to the figure.
    Predicted,
}

impl Kind {
    /// Returns the word used in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Kind::Calibrated => "calibrated",
            Kind::Predicted => "predicted",
        }
    }
}

/// A statement in a paper's text about a point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Paper {
    /// A number.
    Value(f64),
    /// A lower bound.
    AtLeast(f64),
    /// An upper bound.
    AtMost(f64),
    /// A range from the first to the second number.
    Between(f64, f64),
}

impl Paper {
    /// Returns the distance of a value from the statement, relative to the latter, in percent; 0 within a
    /// range.
    #[must_use]
    pub fn error_percent(self, value: f64) -> f64 {
        let nearest = match self {
            Paper::Value(said) => said,
            Paper::AtLeast(low) => value.max(low),
            Paper::AtMost(high) => value.min(high),
            Paper::Between(low, high) => value.max(low).min(high),
        };
        if nearest == value { 0.0 } else { (value - nearest) / nearest * 100.0 }
    }

    /// Returns whether a relation holds; `None` for a number, which has an error instead.
    #[must_use]
    pub fn holds(self, value: f64) -> Option<bool> {
        match self {
            Paper::Value(_) => None,
            _ => Some(self.error_percent(value) == 0.0),
        }
    }
}

/// One value of a figure.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// Name of the series.
    pub series: String,
    /// Position along x.
    pub x: u32,
    /// Unit of the value.
    pub unit: &'static str,
    /// The simulator's prediction.
    pub predicted: f64,
    /// The statement in the paper's text and its place, if there is one.
    pub said: Option<(Paper, &'static str)>,
}

/// A figure that can be run.
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
    /// The evidential value of its numbers.
    pub kind: Kind,
    /// Interpretation of the experiment where the paper does not specify it.
    pub notes: &'static str,
    source: Source,
}

#[derive(Clone, Copy, Debug)]
enum Source {
    RawVerbs(&'static raw_verbs::Figure),
    System(System),
}

/// A figure of a whole system: its runs, and the evaluation of their outcomes.
#[derive(Clone, Copy, Debug)]
struct System {
    runs: fn(Effort) -> Vec<Run>,
    points: fn(&Outcomes) -> Vec<Point>,
    /// Drawings that replace the points.
    drawings: fn(&Outcomes) -> Vec<Drawing>,
}

/// One simulation.
#[derive(Clone, Debug)]
pub struct Run {
    /// Name of its series.
    pub series: String,
    /// Position along x.
    pub x: u32,
    work: Work,
    /// Time of a change in the load since calls began, in nanoseconds.
    step: Option<Nanos>,
}

#[derive(Clone, Debug)]
enum Work {
    RawVerbs { series: &'static raw_verbs::Series, profile: &'static str, effort: Effort },
    Load(Box<Load>),
    Clients(rf_rpc_verbs::Clients),
    Datagrams(Datagrams),
    Erpc(Erpc),
    Tcp(lite_6::Tcp),
    Bypass(Bypass),
    Shared(Shared),
    Tier(Box<TierLoad>),
    Log(Box<LogLoad>),
    Graph(Box<GraphLoad>),
    MapReduce(Box<MapReduceLoad>),
    Membership(Box<MembershipLoad>),
    Memory(Box<MemoryLoad>),
    Calls(Box<TierCalls>),
    Processes(Box<ProcessCalls>),
    Space(lite_12::Space),
    Native(Box<NativeWrites>),
    Priorities(Box<Priorities>),
    Registering(lite::Registering),
    Synchronised(Box<Synchronised>),
}

/// The result of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// The value of a raw-verbs series, in its own unit.
    pub value: f64,
    /// Calls (or raw verbs, if that is the unit) per second, in millions.
    pub mops: f64,
    /// Mean latency of calls, in microseconds.
    pub mean_us: f64,
    /// Latency quantiles of calls at 15%, 50% and 99%, in microseconds.
    pub quantiles_us: [f64; 3],
    /// Latency curve: pairs of percent of calls and latency in microseconds.
    pub percentiles_us: Vec<(f64, f64)>,
    /// Calls answered by each server thread per second, in millions.
    pub thread_mops: Vec<f64>,
    /// Latency quantile of calls at 95%, in microseconds.
    pub p95_us: f64,
    /// The largest latency of calls, in microseconds.
    pub max_us: f64,
    /// DMA reads of the server's NIC per second, in millions.
    pub pcie_reads_mops: f64,
    /// The busiest part of the server's NIC, and the share of the time for which it was busy.
    pub busiest: (&'static str, f64),
    /// Writes of the server's NIC per second that evict a line of the last-level cache, in millions.
    pub allocates_mops: f64,
    /// WRITEs of the server that only told a client of the end of its lease, in percent of all calls.
    pub told_alone_percent: f64,
    /// Work requests posted by clients per call, if counted.
    pub posted_per_call: f64,
    /// Calls in a message of clients, if messages are counted.
    pub degree: f64,
    /// Doorbells of the server per call, if counted.
    pub answers_rung_per_call: f64,
    /// The queue pairs with credits that the server granted a client, on average.
    pub granted: Granted,
    /// Memory of the server's lanes for a client host, in KiB.
    pub server_kib_of_a_host: f64,
    /// Rate and mean latency of each of the first functions of the load.
    pub functions: [OfFunction; MOST_FUNCTIONS],
    /// Share of the server's time spent in the verbs library, empty polls included.
    pub verbs_share: f64,
    /// Share of the server's time without empty polls that the verbs library uses.
    pub verbs_share_of_work: f64,
    /// Time from a step until the rate reached its final value, in milliseconds.
    pub settled_ms: f64,
    /// Processor time of both sides for each call, in microseconds, if counted.
    pub processor_us: f64,
    /// Rates by priority.
    pub priorities: OfPriorities,
    /// Times of the phases of a job, in milliseconds.
    pub phases_ms: [f64; 3],
    /// Requests of all NICs, in thousands; the time for which the links from them were busy, and that of the busiest, in
    /// milliseconds.
    pub moved: [f64; 3],
}

impl From<Counted> for Outcome {
    fn from(counted: Counted) -> Self {
        let (mops, mean_us) = (counted.mops(), counted.mean_us());
        let processor_us = counted.processor as f64 / 1e3 / counted.operations.max(1) as f64;
        let max_us = counted.longest as f64 / 1e3;
        Outcome { value: mops, mops, mean_us, max_us, processor_us, ..Outcome::default() }
    }
}

/// Returns all figures, calibrated ones first.
#[must_use]
pub fn all() -> Vec<Figure> {
    let raw = FIGURES.iter().map(|figure| Figure {
        id: figure.id,
        title: figure.title,
        profile: figure.profile,
        x_name: figure.x_name,
        kind: Kind::Calibrated,
        notes: "",
        source: Source::RawVerbs(figure),
    });
    let predicted = [
        flock_2b::FIGURE,
        flock_6::FIGURE,
        flock_9::FIGURE,
        flock_10::FIGURE,
        flock_11::FIGURE,
        flock_12::FIGURE,
        flock_many::FIGURE,
        flock_own::FIGURE,
        hatrpc_4::FIGURE,
        hatrpc_5::SMALL,
        hatrpc_5::LARGE,
        hatrpc_11::FIGURE,
        hatrpc_12::SMALL,
        hatrpc_12::LARGE,
        hatrpc_13::SMALL,
        hatrpc_13::LARGE,
        hatrpc_15::UPDATES,
        hatrpc_15::READS,
        lite_4::FIGURE,
        lite_5::FIGURE,
        lite_6::LATENCY,
        lite_6::THROUGHPUT,
        lite_8::FIGURE,
        lite_10::LATENCY,
        lite_10::THROUGHPUT,
        lite_12::FIGURE,
        lite_13::FIGURE,
        lite_13::LIGHT,
        lite_14::FIGURE,
        lite_10::NODES,
        lite_hosts::FIGURE,
        lite_15::FIGURE,
        lite_16::FIGURE,
        lite_17::FIGURE,
        lite_processes::SHARED,
        lite_processes::STEPS,
        lite_lock::FIGURE,
        lite_graph::FIGURE,
        lite_log::FIGURE,
        lite_mapreduce::FIGURE,
        lite_membership::FIGURE,
        lite_dsm::FIGURE,
        rf_rpc_2::FIGURE,
        rf_rpc_5::FIGURE,
        rf_rpc_7::FIGURE,
        rf_rpc_8::FIGURE,
        rf_rpc_9::FIGURE,
        rf_rpc_hybrid::FIGURE,
        rf_rpc_bypass::FIGURE,
        rf_rpc_shared::FIGURE,
        rf_rpc_tuner::FIGURE,
        rf_rpc_batch_tuner::FIGURE,
        rf_rpc_wait::FIGURE,
        spinning::FIGURE,
        rf_rpc_10::FIGURE,
        rf_rpc_11::FIGURE,
        rf_rpc_13::UNIFORM,
        rf_rpc_13::SKEWED,
        rf_rpc_16::FIGURE,
        rf_rpc_tables::THREE,
        rf_rpc_tables::FOUR,
        scalerpc_8::CLIENTS,
        scalerpc_8::MACHINES,
        scalerpc_9::FIGURE,
        scalerpc_10::FIGURE,
        scalerpc_11::SLICES,
        scalerpc_11::GROUPS,
        scalerpc_12::FIGURE,
        scalerpc_servers::FIGURE,
        scalerpc_many::FIGURE,
        scalerpc_light::FIGURE,
    ];
    raw.chain(predicted).collect()
}

/// Figures of the papers that are shown within another figure.
const ALIASES: [(&str, &str); 4] =
    [("flock-7", "flock-6"), ("flock-8", "flock-6"), ("rf-rpc-12", "rf-rpc-11"), ("rf-rpc-14", "rf-rpc-13")];

/// Returns a figure by its name.
///
/// # Errors
/// Returns an error for an unknown name, with the nearest known one.
pub fn figure(id: &str) -> Result<Figure, FigureError> {
    let all = all();
    let named = ALIASES.into_iter().find(|(alias, _)| *alias == id).map_or(id, |(_, of)| of);
    all.iter().find(|figure| figure.id == named).copied().ok_or_else(|| FigureError::Unknown {
        id: id.to_owned(),
        nearest: dunlin_rnic_model::nearest(id, all.iter().map(|figure| figure.id)).to_owned(),
        known: all.iter().map(|figure| figure.id).collect::<Vec<_>>().join(", "),
    })
}

impl Figure {
    const fn predicted(
        [id, title, profile, x_name]: [&'static str; 4],
        notes: &'static str,
        runs: fn(Effort) -> Vec<Run>,
        points: fn(&Outcomes) -> Vec<Point>,
    ) -> Figure {
        let source = Source::System(System { runs, points, drawings: |_| Vec::new() });
        Figure { id, title, profile, x_name, kind: Kind::Predicted, notes, source }
    }

    /// Returns the figure with drawings.
    const fn drawn(self, drawings: fn(&Outcomes) -> Vec<Drawing>) -> Figure {
        match self.source {
            Source::System(system) => {
                let source = Source::System(System { drawings, ..system });
                Figure { source, ..self }
            }
            Source::RawVerbs(_) => self,
        }
    }

    /// Returns the names of other figures of the paper that this one covers.
    pub fn aliases(&self) -> impl Iterator<Item = &'static str> {
        let id = self.id;
        ALIASES.into_iter().filter(move |(_, of)| *of == id).map(|(alias, _)| alias)
    }

    /// Returns the runs of the figure.
    #[must_use]
    pub fn runs(&self, effort: Effort) -> Vec<Run> {
        match self.source {
            Source::RawVerbs(figure) => {
                let run = |series: &'static raw_verbs::Series, x: &u32| {
                    let work = Work::RawVerbs { series, profile: figure.profile, effort };
                    Run::doing(series.name, *x, work)
                };
                figure
                    .series
                    .iter()
                    .flat_map(|series| series.xs.iter().map(move |x| run(series, x)))
                    .collect()
            }
            Source::System(system) => (system.runs)(effort),
        }
    }

    fn all(&self, effort: Effort, outcomes: &[Outcome]) -> Vec<(Run, Outcome)> {
        self.runs(effort).into_iter().zip(outcomes.iter().cloned()).collect()
    }

    /// Returns the drawings of the figure, if its points along x do not show it.
    #[must_use]
    pub fn drawings(&self, effort: Effort, outcomes: &[Outcome]) -> Vec<Drawing> {
        match self.source {
            Source::System(system) => (system.drawings)(&Outcomes(self.all(effort, outcomes))),
            Source::RawVerbs(_) => Vec::new(),
        }
    }

    /// Evaluates the outcomes of the runs, given in the order of the runs.
    #[must_use]
    pub fn points(&self, effort: Effort, outcomes: &[Outcome]) -> Vec<Point> {
        let all = self.all(effort, outcomes);
        match self.source {
            Source::System(system) => (system.points)(&Outcomes(all)),
            Source::RawVerbs(figure) => {
                let point = |(run, outcome): &(Run, Outcome)| {
                    let Work::RawVerbs { series, .. } = run.work else { return None };
                    let said = raw_verbs::paper(figure.id, series.name, run.x);
                    Some(Point {
                        series: run.series.clone(),
                        x: run.x,
                        unit: series.unit,
                        predicted: outcome.value,
                        said: said.map(|(value, source)| (Paper::Value(value), source)),
                    })
                };
                all.iter().filter_map(point).collect()
            }
        }
    }
}

/// The seed of all figures: random choices (which client calls which worker) are the same everywhere.
const SEED: u64 = 1;

impl Run {
    fn of(series: impl Into<String>, x: u32, load: Load) -> Run {
        Run::doing(series, x, Work::Load(Box::new(load)))
    }

    fn doing(series: impl Into<String>, x: u32, work: Work) -> Run {
        Run { series: series.into(), x, work, step: None }
    }

    /// Returns the run with a change in the load `step` nanoseconds after calls began.
    fn settling(self, step: Nanos) -> Run {
        Run { step: Some(step), ..self }
    }

    /// Returns the run of a point of a raw-verb figure.
    fn raw_verbs(figure: &str, series: &str, x: u32, effort: Effort) -> Option<Run> {
        let figure = FIGURES.iter().find(|known| known.id == figure)?;
        let series = figure.series.iter().find(|known| known.name == series)?;
        let work = Work::RawVerbs { series, profile: figure.profile, effort };
        Some(Run::doing(series.name, x, work))
    }

    fn clients(series: &str, x: u32, clients: rf_rpc_verbs::Clients) -> Run {
        Run::doing(series, x, Work::Clients(clients))
    }

    fn datagrams(series: &str, x: u32, load: Datagrams) -> Run {
        Run::doing(series, x, Work::Datagrams(load))
    }

    fn erpc(series: impl Into<String>, x: u32, load: Erpc) -> Run {
        Run::doing(series, x, Work::Erpc(load))
    }

    fn bypass(series: impl Into<String>, x: u32, load: Bypass) -> Run {
        Run::doing(series, x, Work::Bypass(load))
    }

    fn shared(series: &str, x: u32, load: Shared) -> Run {
        Run::doing(series, x, Work::Shared(load))
    }

    fn tier(series: &str, x: u32, load: TierLoad) -> Run {
        Run::doing(series, x, Work::Tier(Box::new(load)))
    }

    fn calls(series: &str, x: u32, load: TierCalls) -> Run {
        Run::doing(series, x, Work::Calls(Box::new(load)))
    }

    fn processes(series: &str, x: u32, load: ProcessCalls) -> Run {
        Run::doing(series, x, Work::Processes(Box::new(load)))
    }

    fn space(series: String, x: u32, space: lite_12::Space) -> Run {
        Run::doing(series, x, Work::Space(space))
    }

    fn graph(series: &str, x: u32, load: GraphLoad) -> Run {
        Run::doing(series, x, Work::Graph(Box::new(load)))
    }

    fn map_reduce(series: &str, x: u32, load: MapReduceLoad) -> Run {
        Run::doing(series, x, Work::MapReduce(Box::new(load)))
    }

    fn membership(series: &str, x: u32, load: MembershipLoad) -> Run {
        Run::doing(series, x, Work::Membership(Box::new(load)))
    }

    fn memory(series: &str, x: u32, load: MemoryLoad) -> Run {
        Run::doing(series, x, Work::Memory(Box::new(load)))
    }

    fn log(series: &str, x: u32, load: LogLoad) -> Run {
        Run::doing(series, x, Work::Log(Box::new(load)))
    }
    fn priorities(series: &str, load: Priorities) -> Run {
        Run::doing(series, 0, Work::Priorities(Box::new(load)))
    }

    fn synchronised(series: &str, x: u32, load: Synchronised) -> Run {
        Run::doing(series, x, Work::Synchronised(Box::new(load)))
    }

    fn native(series: &str, x: u32, load: NativeWrites) -> Run {
        Run::doing(series, x, Work::Native(Box::new(load)))
    }

    /// Returns the profile of the run; `None` on a network of fixed rates.
    #[must_use]
    pub fn profile(&self) -> Option<&str> {
        match &self.work {
            Work::RawVerbs { profile, .. } => Some(profile),
            Work::Load(load) => match &load.network {
                Network::Modelled(profile) => Some(profile),
                Network::Rates => None,
            },
            Work::Clients(_) => Some(rf_rpc_verbs::PROFILE),
            Work::Datagrams(load) => Some(&load.profile),
            Work::Erpc(load) => Some(&load.profile),
            Work::Bypass(load) => Some(&load.profile),
            Work::Shared(load) => Some(&load.profile),
            Work::Tier(load) => Some(&load.profile),
            Work::Log(load) => Some(&load.profile),
            Work::Graph(load) => Some(&load.profile),
            Work::Membership(load) => Some(&load.profile),
            Work::MapReduce(load) => Some(&load.profile),
            Work::Memory(load) => Some(&load.profile),
            Work::Calls(load) => Some(&load.profile),
            Work::Processes(load) => Some(&load.profile),
            Work::Native(load) => Some(&load.profile),
            Work::Priorities(load) => Some(&load.profile),
            Work::Synchronised(load) => Some(&load.profile),
            Work::Tcp(_) | Work::Registering(_) | Work::Space(_) => Some(lite::PROFILE),
        }
    }

    /// Returns the amount of simulation relative to other runs; start the largest runs first.
    #[must_use]
    pub fn size(&self) -> u64 {
        let load = match &self.work {
            Work::Load(load) => load,
            Work::Tier(load) => return (load.warm_up + load.measured + u64::from(load.regions)) * 10,
            Work::Log(load) => return (load.warm_up + load.measured) * 20,
            Work::Graph(load) => return 1 << load.scale,
            Work::MapReduce(load) => return u64::from(load.splits) * u64::from(load.words) / 4,
            Work::Memory(load) => return (load.warm_up + load.measured) * 100,
            Work::Calls(load) => return (load.warm_up + load.measured) * 20,
            Work::Processes(load) => return (load.warm_up + load.measured) * 40,
            Work::Synchronised(load) => {
                return (load.warm_up + load.measured).saturating_mul(3 * load.clients as u64);
            }
            Work::Native(load) => return (load.warm_up + load.measured) * 5,
            Work::Priorities(load) => return load.low_requests * load.low.len() as u64 * 10,
            Work::Erpc(load) => return (load.warm_up + load.measured).saturating_mul(load.clients as u64),
            _ => return 0,
        };
        let time = match load.extent {
            Extent::Time { warm_up, measured } => warm_up + measured,
            Extent::Calls(calls) => calls * 1_000 / load.clients.max(1) as u64,
        };
        time.saturating_mul(load.clients as u64)
    }

    /// Executes the run on the calling thread, for about a second. Repeated calls give the same outcome.
    ///
    /// # Errors
    /// Returns an error if the simulation does not come to its end.
    pub fn go(&self) -> Result<Outcome, FigureError> {
        let failed = |error| FigureError::MeasuredRun { series: self.series.clone(), x: self.x, error };
        match &self.work {
            Work::RawVerbs { series, profile, effort } => {
                let value = series.predict(self.x, &Profile::built_in(profile)?, *effort)?;
                Ok(Outcome { value, mops: value, ..Outcome::default() })
            }
            Work::Clients(clients) => {
                let value = clients.run()?;
                Ok(Outcome { value, mops: value, ..Outcome::default() })
            }
            Work::Tcp(messages) => {
                let (mops, mean_us) = messages.run()?;
                Ok(Outcome { value: mops, mops, mean_us, ..Outcome::default() })
            }
            Work::Load(load) => {
                let failed = |error| FigureError::Load { series: self.series.clone(), x: self.x, error };
                let outcome = load.run(SEED, || [0, 0]).map_err(failed)?;
                Ok(Outcome {
                    mops: outcome.throughput() / 1e6,
                    mean_us: outcome.all.mean_ns / 1e3,
                    quantiles_us: [outcome.all.p15_ns, outcome.all.p50_ns, outcome.all.p99_ns]
                        .map(|nanos| nanos as f64 / 1e3),
                    percentiles_us: outcome
                        .percentiles
                        .iter()
                        .map(|(percent, nanos)| (*percent, *nanos as f64 / 1e3))
                        .collect(),
                    thread_mops: outcome
                        .by_worker
                        .iter()
                        .map(|calls| *calls as f64 * 1e3 / outcome.time_ns.max(1) as f64)
                        .collect(),
                    p95_us: outcome.all.p95_ns as f64 / 1e3,
                    max_us: outcome.all.max_ns as f64 / 1e3,
                    pcie_reads_mops: outcome.nic.dma_reads as f64 * 1e3 / outcome.time_ns.max(1) as f64,
                    busiest: outcome.nic.busy.busiest(outcome.time_ns),
                    allocates_mops: outcome.nic.line_misses as f64 * 1e3 / outcome.time_ns.max(1) as f64,
                    told_alone_percent: outcome.groups.told_alone as f64 * 100.0
                        / outcome.all.calls.max(1) as f64,
                    processor_us: outcome.processor_ns as f64 / 1e3 / outcome.all.calls.max(1) as f64,
                    posted_per_call: outcome.posted as f64 / outcome.all.calls.max(1) as f64,
                    degree: outcome.degree(),
                    answers_rung_per_call: outcome.answers_rung as f64 / outcome.all.calls.max(1) as f64,
                    granted: outcome.granted,
                    server_kib_of_a_host: outcome.server_bytes as f64
                        / 1024.0
                        / load.client_hosts.max(1) as f64,
                    functions: OfFunction::all(&outcome),
                    settled_ms: self.step.map_or(0.0, |step| settled(&outcome.timeline, load.timeline, step)),
                    ..Outcome::default()
                })
            }
            Work::Shared(load) => {
                let outcome = load.run(SEED).map_err(failed)?;
                Ok(Outcome {
                    mops: outcome.calls as f64 * 1e3 / outcome.time_ns.max(1) as f64,
                    mean_us: outcome.mean_ns / 1e3,
                    ..Outcome::default()
                })
            }
            Work::Tier(load) => Ok(Outcome::from(load.run(SEED).map_err(failed)?)),
            Work::Log(load) => Ok(Outcome::from(load.run(SEED).map_err(failed)?)),
            Work::Graph(load) => Ok(load.run(SEED).map_err(failed)?.into()),
            Work::Membership(load) => Ok(load.run(SEED).map_err(failed)?.into()),
            Work::MapReduce(load) => Ok(load.run(SEED).map_err(failed)?.into()),
            Work::Memory(load) => Ok(Outcome::from(load.run(SEED).map_err(failed)?)),
            Work::Calls(load) => Ok(Outcome::from(load.run(SEED).map_err(failed)?)),
            Work::Processes(load) => Ok(Outcome::from(load.run(SEED).map_err(failed)?)),
            Work::Native(load) => Ok(Outcome::from(load.run(SEED).map_err(failed)?)),
            Work::Synchronised(load) => Ok((load.run(SEED).map_err(failed)?.0, load.measured).into()),
            Work::Priorities(load) => {
                let ended = load.run(SEED).map_err(failed)?;
                Ok(Outcome { priorities: OfPriorities::of(&ended, load.stretch), ..Outcome::default() })
            }
            Work::Space(space) => Ok(Outcome { value: space.used_percent(), ..Outcome::default() }),
            Work::Registering(registering) => {
                let mean_us = registering.microseconds()?;
                Ok(Outcome { value: mean_us, mean_us, mops: 1.0 / mean_us, ..Outcome::default() })
            }
            Work::Bypass(load) => {
                let outcome = load.run(SEED).map_err(failed)?;
                Ok(Outcome {
                    mops: outcome.operations as f64 * 1e3 / outcome.time_ns.max(1) as f64,
                    mean_us: outcome.mean_ns / 1e3,
                    posted_per_call: outcome.reads_per_get,
                    ..Outcome::default()
                })
            }
            Work::Erpc(load) => {
                let outcome = load.run(SEED).map_err(failed)?;
                Ok(Outcome {
                    mops: outcome.all.calls as f64 * 1e3 / outcome.time_ns.max(1) as f64,
                    mean_us: outcome.all.mean_ns / 1e3,
                    quantiles_us: [outcome.all.p15_ns, outcome.all.p50_ns, outcome.all.p99_ns]
                        .map(|nanos| nanos as f64 / 1e3),
                    p95_us: outcome.all.p95_ns as f64 / 1e3,
                    busiest: outcome.nic.busy.busiest(outcome.time_ns),
                    ..Outcome::default()
                })
            }
            Work::Datagrams(load) => {
                let outcome = load.run(SEED).map_err(failed)?;
                Ok(Outcome {
                    mops: outcome.calls as f64 * 1e3 / outcome.time_ns.max(1) as f64,
                    verbs_share: outcome.verbs_share,
                    verbs_share_of_work: outcome.verbs_share_of_work,
                    ..Outcome::default()
                })
            }
        }
    }
}

/// Returns an extent of `full` nanoseconds (a tenth for quick runs), after a warm-up of half that time.
fn measured(effort: Effort, full: Nanos) -> Extent {
    let measured = match effort {
        Effort::Full => full,
        Effort::Quick => full / 10,
    };
    Extent::Time { warm_up: measured / 2, measured }
}
