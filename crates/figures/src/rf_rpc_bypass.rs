//! The systems that RF-RPC's text compares with Jakiro in numbers: Pilaf and FaRM, whose clients READ the
//! server's tables, and HERD, which answers by datagrams (sections 2.3, 5.2, 5.3 and 6; not a figure of the
//! paper).

use super::drawing::Drawing;
use super::rf_rpc::{FETCH, REPLY, THREADS, gets, plan_of};
use super::{Effort, Figure, Outcome, Outcomes, Paper, Point, Run, measured, say};
use dunlin_kv::bypass::Kind;
use dunlin_rpc::{CompletionMode, Plan, RequestHalf, ResponseHalf};
use dunlin_scenario::bypass::Bypass;
use dunlin_scenario::load::{Extent, Function, Load, Network};
use dunlin_scenario::random_values::Sizes;

pub(super) const FIGURE: Figure = Figure::predicted(
    [
        "rf-rpc-bypass",
        "GETs and PUTs of 32 bytes: Jakiro, ServerReply, HERD, and tables that clients READ",
        "rf-rpc",
        "gets_percent",
    ],
    "16 server threads, 35 clients with one operation at a time, uniform keys. 20 Gb/s is the profile rf-rpc-20g, with five client machines. \
     Pilaf-style is a cuckoo table three quarters full whose GETs READ entries and values with checksums, one READ after the other; its \
     PUTs are SENDs. FaRM-style is a hopscotch table whose GETs READ a neighbourhood of 8 slots of 64 bytes, values included; its PUTs are WRITEs. \
     Both are the store's own (`kv/bypass`), with 20 000 items, so that no translation of addresses is missed. The time that a PUT takes at the \
     server's processor, or a checksum at the client's, is not charged. Of the paper's numbers, Pilaf's 3.5 is computed by it from READ rates, its 1.3 was measured \
     by others on their machines, and FaRM's 8 is a twentieth of what 20 machines do that are servers and clients at once.",
    runs,
    points,
)
.drawn(drawings);

const PILAF: &str = "Pilaf-style";
const FARM: &str = "FaRM-style";
const HERD: &str = "HERD";
const SLOWER: &str = ", 20 Gb/s";
const ONE_THREAD: &str = ", one server thread";
/// Percentages of GETs in the text: GETs only (FaRM), read-intensive, and write-intensive.
const LOOKUPS: u32 = 100;
const READ_INTENSIVE: u32 = 95;
const WRITE_INTENSIVE: u32 = 50;
/// Bytes of a PUT (key length, key and value), and of its answer.
const PUT_BYTES: u32 = 2 + 16 + 32;
const PUT_ANSWER_BYTES: u32 = 5;
const ITEMS: u64 = 20_000;
const SLOW_PROFILE: &str = "rf-rpc-20g";
const SLOW_HOSTS: usize = 5;

/// Returns a load of a store whose operations are all calls.
fn calls(plan: Plan, gets_percent: u32, effort: Effort) -> Load {
    let load = gets(ResponseHalf::Write, THREADS, 0, effort);
    let mut functions = Vec::new();
    for function in &load.functions {
        let get = Function { plan, weight: gets_percent, ..function.clone() };
        let (requests, results) = (Sizes::Fixed(PUT_BYTES), Sizes::Fixed(PUT_ANSWER_BYTES));
        let put = Function { requests, results, weight: 100 - gets_percent, ..get.clone() };
        functions.extend([get, put].into_iter().filter(|one| one.weight > 0));
    }
    // HERD's requests have one region for all clients.
    let request_blocks = plan.protocol().is_some_and(|protocol| protocol.name == HERD).then_some(64);
    Load { functions, request_blocks, ..load }
}

fn tables(kind: Kind, gets_percent: u32, effort: Effort) -> Bypass {
    let (warm_up, measured) = match measured(effort, 4_000_000) {
        Extent::Time { warm_up, measured } => (warm_up, measured),
        Extent::Calls(_) => (0, 1),
    };
    Bypass {
        profile: "rf-rpc".to_owned(),
        kind,
        client_hosts: 7,
        clients: 35,
        threads: THREADS,
        puts: match kind {
            Kind::Pilaf => plan_of("Eager-SendRecv"),
            Kind::Farm => plan_of("Server-reply"),
        },
        items: ITEMS,
        value_bytes: 32,
        gets_percent,
        warm_up,
        measured,
        limit: 20_000_000_000,
    }
}

fn runs(effort: Effort) -> Vec<Run> {
    let fetch = Plan::new(RequestHalf::Write, ResponseHalf::FetchOrWrite)
        .completion(CompletionMode::Busy, CompletionMode::Busy);
    let mut runs = Vec::new();
    for gets_percent in [READ_INTENSIVE, WRITE_INTENSIVE] {
        for (name, plan) in [(FETCH, fetch), (REPLY, plan_of("Server-reply")), (HERD, plan_of("HERD"))] {
            runs.push(Run::of(name, gets_percent, calls(plan, gets_percent, effort)));
        }
        runs.push(Run::bypass(PILAF, gets_percent, tables(Kind::Pilaf, gets_percent, effort)));
        runs.push(Run::bypass(FARM, gets_percent, tables(Kind::Farm, gets_percent, effort)));
    }
    runs.push(Run::bypass(FARM, LOOKUPS, tables(Kind::Farm, LOOKUPS, effort)));
    let jakiro = Load {
        network: Network::Modelled(SLOW_PROFILE.to_owned()),
        client_hosts: SLOW_HOSTS,
        ..calls(fetch, WRITE_INTENSIVE, effort)
    };
    runs.push(Run::of(format!("{FETCH}{SLOWER}"), WRITE_INTENSIVE, jakiro));
    let pilaf = Bypass {
        profile: SLOW_PROFILE.to_owned(),
        client_hosts: SLOW_HOSTS,
        ..tables(Kind::Pilaf, WRITE_INTENSIVE, effort)
    };
    runs.push(Run::bypass(format!("{PILAF}{SLOWER}"), WRITE_INTENSIVE, pilaf.clone()));
    let one = Bypass { threads: 1, ..pilaf };
    runs.push(Run::bypass(format!("{PILAF}{SLOWER}{ONE_THREAD}"), WRITE_INTENSIVE, one));
    runs
}

fn drawings(outcomes: &Outcomes) -> Vec<Drawing> {
    let group = |gets| format!("{gets}% GETs");
    vec![outcomes.bars(FIGURE.title, "million operations a second", group, mops)]
}

fn mops(outcome: &Outcome) -> f64 {
    outcome.mops
}

fn points(outcomes: &Outcomes) -> Vec<Point> {
    let mut points = outcomes.as_they_are("mops", mops);
    let reads = |series: &'static str, x| {
        let predicted = outcomes.get(series, x, |outcome| outcome.posted_per_call)?;
        let series = format!("READs of a GET, {series}");
        Some(Point { series, x, unit: "reads", predicted, said: None })
    };
    points.extend(
        [
            reads(PILAF, READ_INTENSIVE),
            reads(PILAF, WRITE_INTENSIVE),
            reads(FARM, READ_INTENSIVE),
            reads(FARM, WRITE_INTENSIVE),
        ]
        .into_iter()
        .flatten(),
    );
    let mut ratio = |title: &str, x, over: &str, under: &str, said| {
        let (Some(over), Some(under)) = (outcomes.get(over, x, mops), outcomes.get(under, x, mops)) else {
            return;
        };
        let said = Some(said);
        points.push(Point { series: title.to_owned(), x, unit: "ratio", predicted: over / under, said });
    };
    let (fetch, pilaf) = (format!("{FETCH}{SLOWER}"), format!("{PILAF}{SLOWER}"));
    let source = "5.2: 57% higher than what is computed for Pilaf";
    ratio("Jakiro over Pilaf-style", READ_INTENSIVE, FETCH, PILAF, (Paper::Value(1.57), source));
    let source = "5.2: 4 times as high as Pilaf's";
    let said = (Paper::Value(4.0), source);
    ratio("Jakiro over Pilaf-style, 20 Gb/s", WRITE_INTENSIVE, &fetch, &pilaf, said);
    say(&mut points, FETCH, READ_INTENSIVE, Paper::Value(5.5), "5.2: 5.5 MOPS");
    say(&mut points, REPLY, READ_INTENSIVE, Paper::Value(2.1), "5.3.1: 2.1 MOPS");
    say(&mut points, HERD, READ_INTENSIVE, Paper::Value(8.8), "5.3: 8.8 MOPS");
    say(&mut points, PILAF, READ_INTENSIVE, Paper::Value(3.5), "5.2: 3.5 MOPS in theory");
    say(&mut points, FARM, LOOKUPS, Paper::Value(8.0), "6: about 8 million lookups per second and server");
    say(&mut points, &fetch, WRITE_INTENSIVE, Paper::Value(5.4), "5.2: 5.4 MOPS");
    say(&mut points, &pilaf, WRITE_INTENSIVE, Paper::Value(1.3), "5.2: 1.3 MOPS, as Pilaf's paper has it");
    let reads = format!("READs of a GET, {PILAF}");
    say(&mut points, &reads, READ_INTENSIVE, Paper::Value(3.2), "2.3: 3.2 READs of a table that is 75% full");
    points
}
