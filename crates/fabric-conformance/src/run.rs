//! The runners: both roles in threads of one process, or each role in its own process.

use crate::case::{Case, Role};
use crate::cases::cases;
use crate::context::Context;
use crate::expect_eq;
use crate::failure::{Failure, Verdict};
use dunlin_fabric::{Address, Fabric, Host, Link, Nanos, RealHost, Scheme, Signal};
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

/// Options of a run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The time after which a case counts as stuck.
    pub limit: Nanos,
    /// Runs only cases whose name contains one of these texts; all cases if empty.
    pub only: Vec<String>,
    /// The cases that are not run, each with the reason: faults of the system below the fabric.
    pub withheld: Withheld,
}

/// Names of cases, and the reason why they are not run.
pub type Withheld = Vec<(&'static str, String)>;

impl Default for Options {
    /// Returns options for all cases with 30 seconds each.
    fn default() -> Self {
        Options { limit: 30_000_000_000, only: Vec::new(), withheld: Vec::new() }
    }
}

impl Options {
    fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|part| name.contains(part.as_str()))
    }

    /// Returns the outcome of a case that is not run.
    fn not_run<F: Fabric>(&self, case: &Case<F>, fabric: &F) -> Option<Outcome> {
        if let Some(need) = case.lacks(fabric.capabilities()) {
            return Some(Outcome::NotApplicable(need.to_string()));
        }
        let (_, reason) = self.withheld.iter().find(|(name, _)| *name == case.name)?;
        Some(Outcome::Withheld(reason.clone()))
    }
}

/// The fabric as each role sees it (two handles of one fabric, or two hosts of a simulator), and the address
/// of the first role.
#[derive(Clone, Debug)]
pub struct Pair<F> {
    /// The fabric for the first role.
    pub first: F,
    /// The fabric for the second role.
    pub second: F,
    /// An unused address.
    pub address: Address,
}

/// The result of a case.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// The case passed.
    Passed,
    /// The case does not apply to the fabric, which lacks this capability.
    NotApplicable(String),
    /// The case applies to the fabric and was not run, for this reason.
    Withheld(String),
    /// The case failed, with the messages of the roles.
    Failed(Vec<(Role, String)>),
}

/// A case and its result.
#[derive(Clone, Debug)]
pub struct Row {
    /// The name of the case.
    pub name: &'static str,
    /// The result.
    pub outcome: Outcome,
    /// The process ids of the roles, if there were two processes.
    pub processes: Option<(u32, u32)>,
    /// The duration, by the clock of the fabric's host.
    pub elapsed: Nanos,
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.outcome {
            Outcome::Passed => write!(f, "{:<55} passed {:>6} ms", self.name, self.elapsed / 1_000_000)?,
            Outcome::NotApplicable(need) => write!(f, "{:<55} not applicable: needs {need}", self.name)?,
            Outcome::Withheld(reason) => write!(f, "{:<55} withheld: {reason}", self.name)?,
            Outcome::Failed(_) => write!(f, "{:<55} FAILED", self.name)?,
        }
        if let Some((first, second)) = self.processes {
            write!(f, "  (processes {first} and {second})")?;
        }
        if let Outcome::Failed(roles) = &self.outcome {
            for (role, why) in roles {
                write!(f, "\n    {} role: {why}", role.as_str())?;
            }
        }
        Ok(())
    }
}

/// The results of a run of the suite.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The results, case by case.
    pub rows: Vec<Row>,
}

impl Report {
    fn names(&self, wanted: impl Fn(&Outcome) -> bool) -> Vec<&'static str> {
        self.rows.iter().filter(|row| wanted(&row.outcome)).map(|row| row.name).collect()
    }

    /// Returns the names of the cases that failed.
    pub fn failed(&self) -> Vec<&'static str> {
        self.names(|outcome| matches!(outcome, Outcome::Failed(_)))
    }

    /// Returns the names of the cases that passed.
    pub fn passed(&self) -> Vec<&'static str> {
        self.names(|outcome| matches!(outcome, Outcome::Passed))
    }

    /// Returns the names of the cases that do not apply.
    pub fn not_applicable(&self) -> Vec<&'static str> {
        self.names(|outcome| matches!(outcome, Outcome::NotApplicable(_)))
    }

    /// Returns the names of the cases that apply and were not run.
    pub fn withheld(&self) -> Vec<&'static str> {
        self.names(|outcome| matches!(outcome, Outcome::Withheld(_)))
    }
}

/// Executes one role of a case, after connecting to the other role; returns the other's process id, or 0 for
/// a case with one role.
pub fn serve_role<F: Fabric>(
    fabric: &F,
    address: &Address,
    case: &Case<F>,
    role: Role,
    two_processes: bool,
    limit: Nanos,
) -> Result<u32, Failure> {
    let mut peer = 0;
    let mut context = if case.roles == 1 {
        Context::alone(fabric, address, limit)
    } else {
        let context = Context::meet(fabric, address, role, two_processes, limit)?;
        let ours = std::process::id();
        let mut hello = ours.to_le_bytes().to_vec();
        hello.extend(case.name.as_bytes());
        let theirs = context.exchange(&hello)?;
        let Some((id, name)) = theirs.split_first_chunk::<4>() else {
            return Err(Failure::new("the peer's hello is too short"));
        };
        expect_eq!(name, case.name.as_bytes(), "the roles play different cases");
        peer = u32::from_le_bytes(*id);
        expect_eq!(peer != ours, two_processes, "processes {ours} and {peer}");
        context
    };
    let verdict = std::panic::catch_unwind(AssertUnwindSafe(|| (case.body)(&mut context, role)));
    let verdict = verdict.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Err(Failure::new(format!("panicked: {}", text.unwrap_or_default())))
    });
    if verdict.is_err() && case.roles == 2 {
        // So that the other role need not wait for its deadline.
        context.link().close();
    }
    verdict.map(|()| peer)
}

/// The results of threads.
type Results = Arc<Mutex<Vec<(Role, Result<u32, Failure>)>>>;

/// One role of a case that is about to be executed.
struct Play<F: Fabric> {
    fabric: F,
    address: Address,
    case: Case<F>,
    role: Role,
    two_processes: bool,
    limit: Nanos,
}

impl<F: Fabric> Play<F> {
    fn start(self, results: &Results, ended: &<F::Host as Host>::Signal) -> Verdict {
        let (results, ended) = (Arc::clone(results), ended.clone());
        let host = self.fabric.host().clone();
        let name = format!("{}-{}", self.role.as_str(), self.case.name);
        let body = move || {
            let Play { fabric, address, case, role, two_processes, limit } = self;
            let result = serve_role(&fabric, &address, &case, role, two_processes, limit);
            drop(fabric);
            results.lock().unwrap_or_else(PoisonError::into_inner).push((role, result));
            ended.raise();
        };
        host.spawn(&name, Box::new(body))?;
        Ok(())
    }
}

/// Waits until all roles have ended or their time has passed; returns their results.
fn gather<H: Host>(
    host: &H,
    roles: &[Role],
    limit: Nanos,
    results: &Results,
    ended: &H::Signal,
) -> Vec<(Role, Result<u32, Failure>)> {
    // A role ends by itself at its deadline. One that does not is stuck inside the fabric.
    let deadline = host.now() + limit + limit / 2;
    loop {
        let seen = ended.seen();
        let done = results.lock().unwrap_or_else(PoisonError::into_inner).len() >= roles.len();
        if done || !ended.wait(seen, deadline) {
            break;
        }
    }
    let mut results: Vec<_> = results.lock().unwrap_or_else(PoisonError::into_inner).drain(..).collect();
    for role in roles {
        if !results.iter().any(|(ended, _)| ended == role) {
            results.push((*role, Err(Failure::new("stuck inside the fabric, past every deadline"))));
        }
    }
    results.sort_by_key(|(role, _)| *role == Role::Second);
    results
}

fn outcome(results: &[(Role, Result<u32, Failure>)]) -> Outcome {
    let failed: Vec<_> = results
        .iter()
        .filter_map(|(role, result)| result.as_ref().err().map(|failure| (*role, failure.to_string())))
        .collect();
    if failed.is_empty() { Outcome::Passed } else { Outcome::Failed(failed) }
}

/// Runs the suite with both roles in threads of this process's (or the simulator's) host, one case after
/// another. `make` returns the fabric for each case, and `tell` is called with each row.
pub fn run_in_process<F: Fabric>(
    options: &Options,
    mut make: impl FnMut(&Case<F>) -> Pair<F>,
    mut tell: impl FnMut(&Row),
) -> Report {
    let mut report = Report::default();
    for case in cases::<F>().into_iter().filter(|case| options.wants(case.name)) {
        let pair = make(&case);
        let host = pair.first.host().clone();
        let start = host.now();
        let outcome = match options.not_run(&case, &pair.first) {
            Some(outcome) => outcome,
            None => in_process(&case, pair, options.limit),
        };
        let elapsed = host.now() - start;
        report.rows.push(Row { name: case.name, outcome, processes: None, elapsed });
        report.rows.last().into_iter().for_each(&mut tell);
    }
    report
}

fn in_process<F: Fabric>(case: &Case<F>, pair: Pair<F>, limit: Nanos) -> Outcome {
    let roles = &[Role::First, Role::Second][..usize::from(case.roles)];
    let host = pair.first.host().clone();
    let (results, ended) = (Results::default(), host.signal());
    for role in roles {
        let fabric = if *role == Role::First { &pair.first } else { &pair.second }.clone();
        let play = Play {
            fabric,
            address: pair.address.clone(),
            case: *case,
            role: *role,
            two_processes: false,
            limit,
        };
        if let Err(failure) = play.start(&results, &ended) {
            return Outcome::Failed(vec![(*role, failure.to_string())]);
        }
    }
    outcome(&gather(&host, roles, limit, &results, &ended))
}

/// Runs the cases with two roles in two processes: the first role in this one, the second in a child process.
/// `child` starts it for a case and an address; the child calls [`serve_role`].
pub fn run_two_processes<F: Fabric>(
    options: &Options,
    mut make: impl FnMut(&Case<F>) -> (F, Address),
    mut child: impl FnMut(&Case<F>, &Address) -> std::io::Result<Child>,
    mut tell: impl FnMut(&Row),
) -> Report {
    let mut report = Report::default();
    for case in cases::<F>().into_iter().filter(|case| case.roles == 2 && options.wants(case.name)) {
        let (fabric, address) = make(&case);
        let host = fabric.host().clone();
        let start = host.now();
        let mut processes = None;
        let outcome = match options.not_run(&case, &fabric) {
            Some(outcome) => outcome,
            None => {
                let started = child(&case, &address);
                started.map_or_else(
                    |error| Outcome::Failed(vec![(Role::Second, format!("cannot start a process: {error}"))]),
                    |child| {
                        processes = Some((std::process::id(), child.id()));
                        across(&case, fabric, address, child, options.limit)
                    },
                )
            }
        };
        let elapsed = host.now() - start;
        report.rows.push(Row { name: case.name, outcome, processes, elapsed });
        report.rows.last().into_iter().for_each(&mut tell);
    }
    report
}

fn across<F: Fabric>(case: &Case<F>, fabric: F, address: Address, mut child: Child, limit: Nanos) -> Outcome {
    let host = fabric.host().clone();
    let (results, ended) = (Results::default(), host.signal());
    let play = Play { fabric, address, case: *case, role: Role::First, two_processes: true, limit };
    let mut results = match play.start(&results, &ended) {
        Ok(()) => gather(&host, &[Role::First], limit, &results, &ended),
        Err(failure) => vec![(Role::First, Err(failure))],
    };
    if let Some((_, Ok(peer))) = results.first()
        && *peer != child.id()
    {
        let text = format!("the peer was process {peer}, not the child {}", child.id());
        results[0].1 = Err(Failure::new(text));
    }
    results.push((Role::Second, ended_well(case, &host, &mut child, limit).map(|()| 0)));
    outcome(&results)
}

/// Waits for a child to end, and kills it when its time has passed.
fn ended_well<F: Fabric>(case: &Case<F>, host: &F::Host, child: &mut Child, limit: Nanos) -> Verdict {
    let deadline = host.now() + limit;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if host.now() >= deadline {
            child.kill()?;
            child.wait()?;
            return Err(Failure::new("the process did not end and was killed"));
        }
        host.sleep(host.now() + crate::MILLISECOND);
    };
    let mut said = String::new();
    if let Some(mut output) = child.stderr.take() {
        std::io::Read::read_to_string(&mut output, &mut said)?;
    }
    let killed = std::os::unix::process::ExitStatusExt::signal(&status) == Some(9);
    match case.second_dies {
        true if killed => Ok(()),
        false if status.success() => Ok(()),
        _ => Err(Failure::new(format!("the process ended with {status}: {}", said.trim()))),
    }
}

/// Returns an address of a scheme whose addresses are names.
fn named(scheme: Scheme, case: &str) -> Address {
    let random = RealHost.random();
    let name = format!("conformance-{}-{random:016x}-{case}", std::process::id());
    let name: String = name.chars().take(80).collect();
    Address::new(scheme, &name).expect("made of letters, digits and dashes")
}

/// An environment variable with a command that starts the second role's process, placed before the role's own
/// command; for example `ip netns exec NAME`. It has to become that process, rather than wait for it.
pub const SECOND_BY: &str = "DUNLIN_CONFORMANCE_SECOND_BY";

/// The definition of a back-end's test binary (`harness = false`), which runs the suite in one process and in
/// two.
#[derive(Clone, Copy, Debug)]
pub struct Suite<F: Fabric> {
    /// Makes the fabric, in each process and for each case.
    pub fabric: fn() -> F,
    /// The scheme of the fabric's addresses.
    pub scheme: Scheme,
    /// Returns an unused address for a case. If addresses have ports, the next port must be unused too.
    pub address: fn(Scheme, &str) -> Address,
    /// Whether the suite also runs in two processes.
    pub two_processes: bool,
    /// The number of cases that apply to the fabric. Written down, so that a case that is lost is noticed.
    pub applicable: usize,
    /// The cases that a fabric has to do without, because of a fault of the system below it.
    pub withheld: fn(&F) -> Withheld,
}

impl<F: Fabric> Suite<F> {
    /// Makes a suite for one process and two.
    pub fn new(fabric: fn() -> F, scheme: Scheme, applicable: usize) -> Self {
        let withheld = |_: &F| Vec::new();
        Suite { fabric, scheme, address: named, two_processes: true, applicable, withheld }
    }

    /// Runs the command line: words select cases by part of their name, `--list` lists them, and
    /// `--one-process` leaves out the runs with the second role in a process of its own. Fails if a case fails,
    /// or if the number of cases that apply differs from [`applicable`](Suite::applicable).
    pub fn main(&self) -> ExitCode {
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        if let [play, case, address] = &arguments[..]
            && play == PLAY_SECOND
        {
            return self.second(case, address);
        }
        let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
        let (list, one_process) = (has("--list"), has("--one-process"));
        let only: Vec<String> = arguments.into_iter().filter(|a| !a.starts_with('-')).collect();
        if list {
            for case in cases::<F>() {
                println!("{}: test", case.name);
            }
            return ExitCode::SUCCESS;
        }
        let withheld = (self.withheld)(&(self.fabric)());
        let options = Options { only, withheld, ..Options::default() };
        let mut good = self.in_process(&options);
        if self.two_processes && !one_process {
            good &= self.across(&options);
        }
        if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }

    fn in_process(&self, options: &Options) -> bool {
        println!("\nboth roles in process {}", std::process::id());
        let make = |case: &Case<F>| {
            let fabric = (self.fabric)();
            let address = (self.address)(self.scheme, case.name);
            Pair { first: fabric.clone(), second: fabric, address }
        };
        let report = run_in_process(options, make, |row| println!("{row}"));
        let applicable = report.rows.len() - report.not_applicable().len();
        let mut good = conclude(&report);
        if options.only.is_empty() && applicable != self.applicable {
            println!("{applicable} cases apply to this fabric, but {} were expected", self.applicable);
            good = false;
        }
        good
    }

    fn across(&self, options: &Options) -> bool {
        println!("\neach role in a process of its own");
        let make = |case: &Case<F>| {
            let fabric = (self.fabric)();
            (fabric, (self.address)(self.scheme, case.name))
        };
        let child = |case: &Case<F>, address: &Address| {
            // Words placed before the command, for example to run it in another network namespace.
            let before = std::env::var(SECOND_BY).unwrap_or_default();
            let mut words = before.split_whitespace();
            let this = std::env::current_exe()?;
            let mut command = match words.next() {
                Some(first) => Command::new(first),
                None => Command::new(&this),
            };
            command.args(words);
            if !before.trim().is_empty() {
                command.arg(&this);
            }
            command
                .args([PLAY_SECOND, case.name, &address.to_string()])
                .stdin(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()
        };
        conclude(&run_two_processes(options, make, child, |row| println!("{row}")))
    }

    fn second(&self, case: &str, address: &str) -> ExitCode {
        let Some(case) = cases::<F>().into_iter().find(|known| known.name == case) else {
            eprintln!("no case '{case}'");
            return ExitCode::FAILURE;
        };
        let address = match address.parse() {
            Ok(address) => address,
            Err(error) => {
                eprintln!("{error}");
                return ExitCode::FAILURE;
            }
        };
        let limit = Options::default().limit;
        match serve_role(&(self.fabric)(), &address, &case, Role::Second, true, limit) {
            Ok(_) => ExitCode::SUCCESS,
            Err(failure) => {
                eprintln!("{failure}");
                ExitCode::FAILURE
            }
        }
    }
}

/// The first argument of a child's command line.
const PLAY_SECOND: &str = "--play-second-role";

fn conclude(report: &Report) -> bool {
    let (passed, failed) = (report.passed().len(), report.failed());
    let (lacking, withheld) = (report.not_applicable().len(), report.withheld().len());
    println!("{passed} passed, {} failed, {withheld} withheld, {lacking} not applicable", failed.len());
    for name in &failed {
        println!("    failed: {name}");
    }
    failed.is_empty()
}
