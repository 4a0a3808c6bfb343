//! The legal plan that is nearest to a wished one.

use crate::key::Side;
use dunlin_fabric::Capabilities;
use dunlin_rpc::{CompletionMode, Illegal, LargePayload, Plan, Protocol, RequestHalf, ResponseHalf};

/// What is wished, and what of it was said by the user and should rather stay.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wish {
    /// The plan.
    pub(crate) plan: Plan,
    /// The halves are not to be changed.
    pub(crate) fixed_path: bool,
    /// The sides whose way to wait is a hint.
    pub(crate) hinted: [bool; 2],
}

/// Protocols whose halves stand in for others, best first: what tells the receiver by a completion comes before
/// what the receiver must poll for.
const STAND_INS: [&str; 5] =
    ["Direct-WriteIMM", "Chained-Write-Send", "Direct-Write-Send", "Eager-SendRecv", "Server-reply"];

/// The modes that stand in for one, itself first. Who is asked to spin need never sleep.
const fn modes(wished: CompletionMode) -> &'static [CompletionMode] {
    use CompletionMode::{Adaptive, Busy, Event};
    match wished {
        Busy => &[Busy],
        Event => &[Event, Adaptive, Busy],
        Adaptive => &[Adaptive, Event, Busy],
    }
}

/// How a side waits under a plan.
pub(crate) const fn mode(plan: &Plan, side: Side) -> CompletionMode {
    match side {
        Side::Client => plan.client,
        Side::Server => plan.server,
    }
}

impl Wish {
    /// A plan with requests that tell a sleeping server of them, which plain WRITEs do not: those of RF-RPC, and all
    /// that nobody asked for by a protocol's name.
    pub(crate) fn woken(&self, plan: Plan) -> Plan {
        let sleeps = plan.server != CompletionMode::Busy;
        let free = !self.fixed_path || plan.response == ResponseHalf::Fetch;
        if sleeps && free && plan.request == RequestHalf::Write {
            return Plan { request: RequestHalf::WriteImm, ..plan };
        }
        plan
    }
}

/// The wished plan if it is legal; else the legal one with the least changes, a hinted way to wait being changed
/// last and halves after ways to wait; if halves have to change, rather to some with which who would sleep still does. What
/// nobody asked for by a protocol's name may be READ instead of what its row has, if it is large. The error is why the wished one is illegal, where nothing legal is in reach.
pub(crate) fn nearest(wish: &Wish, capabilities: &Capabilities) -> Result<Plan, Illegal> {
    let wished = wish.woken(wish.plan);
    let Err(illegal) = wished.check(capabilities) else { return Ok(wished) };
    let stand_ins: Vec<&Protocol> = STAND_INS.into_iter().filter_map(Protocol::by_name).collect();
    let reach = if wish.fixed_path { 0 } else { stand_ins.len() };
    let mut larges = vec![wish.plan.large];
    if !wish.fixed_path && wish.plan.large != LargePayload::Read {
        larges.push(LargePayload::Read);
    }
    let mut best: Option<([usize; 4], Plan)> = None;
    let paths = (0..=reach).flat_map(|request| (0..=reach).map(move |response| (request, response)));
    for (request, response) in paths {
        for (large_change, large) in larges.iter().enumerate() {
            for (client_change, client) in modes(wish.plan.client).iter().enumerate() {
                for (server_change, server) in modes(wish.plan.server).iter().enumerate() {
                    let mut plan = Plan { large: *large, ..wish.plan.completion(*client, *server) };
                    if request > 0 {
                        plan.request = stand_ins[request - 1].request;
                    }
                    if response > 0 {
                        plan.response = stand_ins[response - 1].response;
                    }
                    let plan = wish.woken(plan);
                    let changed = [client_change, server_change];
                    let against = (0..2).filter(|side| wish.hinted[*side] && changed[*side] > 0).count();
                    let spins = |of: &Plan| {
                        [of.client, of.server]
                            .into_iter()
                            .filter(|mode| *mode == CompletionMode::Busy)
                            .count()
                    };
                    let halves = request + response;
                    let awake = if halves > 0 { spins(&plan) - spins(&wish.plan) } else { 0 };
                    let cost = [against, awake, halves + large_change, client_change + server_change];
                    if best.is_none_or(|(least, _)| cost < least) && plan.check(capabilities).is_ok() {
                        best = Some((cost, plan));
                    }
                }
            }
        }
    }
    best.map(|(_, plan)| plan).ok_or(illegal)
}
