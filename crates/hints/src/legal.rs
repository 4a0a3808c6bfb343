//! Search for the legal plan nearest to a wished one.

use crate::key::Side;
use dunlin_fabric::Capabilities;
use dunlin_rpc::{CompletionMode, LargePayload, Plan, PlanError, Protocol, RequestHalf, ResponseHalf};

/// A wished plan, and the parts of it that the user asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wish {
    /// The plan.
    pub(crate) plan: Plan,
    /// The halves must not be changed.
    pub(crate) fixed_path: bool,
    /// Whether a hint determines the completion mode of the client and the server.
    pub(crate) hinted: [bool; 2],
}

/// Protocols whose halves may replace others, best first. Halves that notify the receiver by a completion
/// come before halves for which the receiver must poll.
const STAND_INS: [&str; 5] =
    ["Direct-WriteIMM", "Chained-Write-Send", "Direct-Write-Send", "Eager-SendRecv", "Server-reply"];

/// The modes that may replace a mode, itself first. A busy-polling side need never sleep, so `Busy` is never
/// replaced.
const fn modes(wished: CompletionMode) -> &'static [CompletionMode] {
    use CompletionMode::{Adaptive, Busy, Event};
    match wished {
        Busy => &[Busy],
        Event => &[Event, Adaptive, Busy],
        Adaptive => &[Adaptive, Event, Busy],
    }
}

/// Returns a side's completion mode in a plan.
pub(crate) const fn mode(plan: &Plan, side: Side) -> CompletionMode {
    match side {
        Side::Client => plan.client,
        Side::Server => plan.server,
    }
}

impl Wish {
    /// Replaces plain WRITE requests, which on most fabrics do not wake a sleeping server, by WRITEs with
    /// immediate data. Applies if the server may sleep and the plan fetches results or was not asked for by protocol name.
    pub(crate) fn woken(&self, plan: Plan, capabilities: &Capabilities) -> Plan {
        let sleeps = plan.server != CompletionMode::Busy && !capabilities.write_wakes;
        let free = !self.fixed_path || plan.response == ResponseHalf::Fetch;
        if sleeps && free && plan.request == RequestHalf::Write {
            return Plan { request: RequestHalf::WriteImm, ..plan };
        }
        plan
    }
}

/// Returns the wished plan if it is legal, and otherwise the legal plan with the fewest changes. A hinted
/// completion mode is changed last, and halves are changed after completion modes. If halves must change,
/// plans under which sleeping sides still sleep are preferred. A large payload may be READ instead, unless
/// the protocol was asked for by name. The error says why the wished plan is illegal if no legal plan is in
/// reach.
pub(crate) fn nearest(wish: &Wish, capabilities: &Capabilities) -> Result<Plan, PlanError> {
    let wished = wish.woken(wish.plan, capabilities);
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
                    let plan = wish.woken(plan, capabilities);
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
