//! `bench tier-idle`: the cost of nodes of the memory tier without requests, each in a process of its own, with processes
//! attached to the first one.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use dunlin_fabric::{Address, WithSources};
use dunlin_fabric_shm::{ShmConfig, ShmFabric};
use dunlin_tier_client::AttachConfig;
use dunlin_tier_node::{AnyLmr, AnyTier, ProcessConfig, ProcessServer, Spec, Tier};
use serde::{Deserialize, Serialize};

use super::process::{ProcessCost, raise_file_limit};
use super::tier::settings_of;
use super::{Findings, MeasureError, progress_bar};
use dunlin_report::statistics::ratio;
use dunlin_report::{Row, rounded};

/// The hidden first argument of the processes of this measurement.
pub(super) const MEMBER_ARGUMENT: &str = "__tier-member";
/// The time from the last request to the measurement, in which all threads come to rest.
const SETTLE: Duration = Duration::from_secs(1);
/// Bytes of a region.
const REGION: u64 = 4096;

/// The parameters of the measurement.
#[derive(Clone, Copy, Debug)]
pub struct TierIdleOptions {
    /// Number of nodes. Default: 10.
    pub nodes: usize,
    /// Number of processes that attach to the first node. Default: 100.
    pub processes: usize,
    /// Duration of the measurement. Default: 10 s.
    pub watched: Duration,
}

impl Default for TierIdleOptions {
    fn default() -> Self {
        TierIdleOptions { nodes: 10, processes: 100, watched: Duration::from_secs(10) }
    }
}

/// The part of a process, as its argument in JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Part {
    /// The address at which processes attach to the first node.
    attach: String,
    nodes: Vec<String>,
    /// The place of the node of this process; `None` for a process that attaches.
    node: Option<usize>,
}

/// A request to a process: a line of its standard input. The answer is a line of its standard output.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum Ask {
    /// Whether it is ready.
    Ready,
    /// Make a region on each other node, and use it.
    Meet,
    /// The processor time until now.
    Times,
    /// The memory, too.
    Memory,
}

/// The answer of a process, or the reason of its failure.
type Answer = Result<ProcessCost, String>;

/// A process of the measurement; it ends when it is dropped.
struct Member {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Member {
    fn start(part: &Part) -> Result<Member, MeasureError> {
        let argument = serde_json::to_string(part).map_err(|error| bad(&error))?;
        let mut child = Command::new("/proc/self/exe")
            .args([MEMBER_ARGUMENT, &argument])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| bad(&error))?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let Some(output) = output else { return Err(MeasureError::BadArgument("no output".to_owned())) };
        Ok(Member { child, input, output: BufReader::new(output) })
    }

    /// Sends a request, without waiting for the answer.
    fn send(&mut self, ask: Ask) -> Result<(), MeasureError> {
        let line = serde_json::to_string(&ask).map_err(|error| bad(&error))? + "\n";
        self.input
            .as_ref()
            .map_or(Ok(()), |mut input| input.write_all(line.as_bytes()))
            .map_err(|error| bad(&error))
    }

    /// Waits for the answer.
    fn answer(&mut self) -> Result<ProcessCost, MeasureError> {
        let mut line = String::new();
        self.output.read_line(&mut line).map_err(|error| bad(&error))?;
        let answer: Answer = serde_json::from_str(&line)
            .map_err(|_| MeasureError::BadArgument("a process of the measurement has ended".to_owned()))?;
        answer.map_err(MeasureError::BadArgument)
    }

    fn ask(&mut self, ask: Ask) -> Result<ProcessCost, MeasureError> {
        self.send(ask)?;
        self.answer()
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // The end of its input ends the process.
        self.input = None;
        let _ = self.child.wait();
    }
}

fn bad(error: &dyn std::error::Error) -> MeasureError {
    MeasureError::BadArgument(WithSources(error).to_string())
}

/// Starts nodes in processes of their own, each with a region on each other one, and processes that attach to the first
/// node, each with a region on that node and one on another. All of them have used their regions, and then make no requests.
/// A row for each kind of process has `cpu_percent` of one core, the mean of the processes of that kind, and for the first
/// node the growth of its resident memory by a process that attaches, with shared pages counted in full. Blocks for the given time, plus starting.
///
/// # Errors
/// Any failure.
pub fn tier_idle(options: &TierIdleOptions) -> Result<Findings, MeasureError> {
    let TierIdleOptions { nodes, processes, watched } = *options;
    if !(2..=64).contains(&nodes) || !(1..=1000).contains(&processes) {
        return Err(MeasureError::BadArgument(format!(
            "2 to 64 nodes and 1 to 1000 processes are possible, not {nodes} and {processes}"
        )));
    }
    raise_file_limit();
    let attach = format!("shm:bench-idle-{}", std::process::id());
    let names: Vec<String> = (0..nodes).map(|node| format!("n{node}")).collect();
    let part = |node| Part { attach: attach.clone(), nodes: names.clone(), node };
    let progress = progress_bar(nodes + processes);
    progress.set_message("starting nodes");
    let mut of_nodes =
        (0..nodes).map(|node| Member::start(&part(Some(node)))).collect::<Result<Vec<_>, _>>()?;
    for ask in [Ask::Ready, Ask::Meet] {
        for node in &mut of_nodes {
            node.ask(ask)?;
        }
    }
    progress.inc(nodes as u64);
    let before = of_nodes[0].ask(Ask::Memory)?;
    progress.set_message("attaching");
    let mut attached = Vec::with_capacity(processes);
    for _ in 0..processes {
        let mut member = Member::start(&part(None))?;
        member.ask(Ask::Ready)?;
        attached.push(member);
        progress.inc(1);
    }
    let after = of_nodes[0].ask(Ask::Memory)?;
    progress.set_message("watching");
    std::thread::sleep(SETTLE);
    let count = nodes + processes;
    let mut times =
        |ask| of_nodes.iter_mut().chain(&mut attached).map(|one| one.ask(ask)).collect::<Result<Vec<_>, _>>();
    let began = times(Ask::Times)?;
    std::thread::sleep(watched);
    let ended = times(Ask::Times)?;
    progress.finish_and_clear();
    let costs: Vec<ProcessCost> = ended.iter().zip(began).map(|(ended, began)| ended.since(began)).collect();
    let row = |kind: &str, of: &[ProcessCost]| {
        let sum = |value: fn(&ProcessCost) -> u64| of.iter().map(value).sum::<u64>() as f64;
        Row::new()
            .with("process", kind)
            .with("count", of.len())
            .with("seconds", rounded(sum(|cost| cost.wall_ns) / 1e9 / of.len() as f64))
            .with(
                "cpu_percent",
                ratio(sum(|cost| cost.cpu_ns) * 100.0, sum(|cost| cost.wall_ns)).map(rounded),
            )
    };
    let growth = after.resident_bytes as f64 - before.resident_bytes as f64;
    let first = row("the node of the processes", &costs[..1])
        .with("resident_bytes_per_process", (growth / processes as f64).round());
    let rows =
        vec![first, row("another node", &costs[1..nodes]), row("an attached process", &costs[nodes..count])];
    Ok(Findings { rows, notes: Vec::new() })
}

/// Serves as a process of the measurement, until its standard input ends.
pub(super) fn serve_member(argument: &str) {
    let mut part = Err("not started".to_owned());
    for line in std::io::stdin().lines().map_while(Result::ok) {
        if part.is_err() {
            part = Playing::start(argument);
        }
        let answer: Answer = match (&mut part, serde_json::from_str(&line)) {
            (Err(error), _) => Err(error.clone()),
            (Ok(_), Err(error)) => Err(error.to_string()),
            (Ok(playing), Ok(ask)) => playing.answer(ask),
        };
        let mut text = serde_json::to_string(&answer).unwrap_or_default();
        text.push('\n');
        let mut output = std::io::stdout();
        if output.write_all(text.as_bytes()).and_then(|()| output.flush()).is_err() {
            return;
        }
    }
}

/// The node or the attachment of a process, which lives until the measurement ends.
enum Playing {
    Node {
        _processes: Option<Box<ProcessServer<ShmFabric>>>,
        tier: Tier<ShmFabric>,
        others: Vec<String>,
        regions: Vec<dunlin_tier_node::Lmr<ShmFabric>>,
    },
    Attached {
        _regions: Vec<dunlin_tier_client::Lmr<ShmFabric>>,
    },
}

fn text(error: impl std::error::Error) -> String {
    WithSources(&error).to_string()
}

impl Playing {
    fn start(argument: &str) -> Result<Playing, String> {
        let Part { attach, nodes, node } = serde_json::from_str(argument).map_err(text)?;
        raise_file_limit();
        let fabric = ShmFabric::new(ShmConfig::default()).map_err(text)?;
        let attach: Address = attach.parse().map_err(text)?;
        let Some(number) = node else {
            let attached =
                dunlin_tier_client::Tier::attach_with(&fabric, AttachConfig::new(attach)).map_err(text)?;
            let other = 1 + std::process::id() as usize % (nodes.len() - 1);
            let regions = [0, other].map(|node| used(&attached, &nodes[node]));
            return Ok(Playing::Attached { _regions: regions.into_iter().collect::<Result<_, _>>()? });
        };
        let name = nodes.get(number).cloned().unwrap_or_default();
        let tier = Tier::within(&fabric, settings_of(&attach, &nodes, &name).map_err(text)?).map_err(text)?;
        let processes = match number {
            0 => {
                let config = ProcessConfig::new(attach);
                Some(Box::new(ProcessServer::serve(&fabric, &tier, config).map_err(text)?))
            }
            _ => None,
        };
        let others = nodes.into_iter().filter(|other| *other != name).collect();
        Ok(Playing::Node { _processes: processes, tier, others, regions: Vec::new() })
    }

    fn answer(&mut self, ask: Ask) -> Answer {
        if let (Ask::Meet, Playing::Node { tier, others, regions, .. }) = (ask, &mut *self) {
            *regions = others.iter().map(|other| used(tier, other)).collect::<Result<_, _>>()?;
        }
        match ask {
            Ask::Memory => ProcessCost::of_this_process().map_err(text),
            Ask::Ready | Ask::Meet | Ask::Times => Ok(ProcessCost::times()),
        }
    }
}

/// Makes a region on a node, and writes and reads it.
fn used<T: AnyTier>(tier: &T, node: &str) -> Result<T::Lmr, String> {
    let region = tier.malloc(REGION, Spec::on(node)).map_err(text)?;
    let mut bytes = [0; 64];
    region.write(0, &[7; 64]).and_then(|()| region.read(0, &mut bytes)).map_err(text)?;
    match bytes {
        [7, ..] => Ok(region),
        _ => Err("a region has other bytes than were written".to_owned()),
    }
}
