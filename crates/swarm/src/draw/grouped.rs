//! The draw of clients whose leases end (ScaleRPC): groups, slices, priorities, and more clients than a group holds.

use super::{Act, Drawn, DrawnClient, MOST_CALLS, UNTIL, client};
use dunlin_fabric::{Capabilities, Nanos, nanos};
use dunlin_fabric_sim::{Faults, Random, Settings};
use dunlin_rpc::tune::grouping::GroupDefaults;
use dunlin_rpc::{CompletionMode, Lease, Plan, RequestHalf, ResponseHalf, Sharing};
use std::time::Duration;

/// The longest time of an exchange beside the slices of other groups, in nanoseconds, where nothing disturbs a run and
/// no handler is slow. A worker that misses the end of a slice sleeps for longer, until the next arrival.
const EXCHANGE: Nanos = 5_000_000;
/// The same for a client whose threads share connections, perhaps with a single credit. A thread whose call is forgotten
/// waits for its deadline.
const SHARED_EXCHANGE: Nanos = 100_000_000;

/// Returns whether the server's memory belongs to the plan's lanes for slices.
fn ends(plan: &Plan) -> bool {
    plan.lease == Lease::Slice
}

impl DrawnClient {
    /// Returns whether the calls of a function are made on a lane whose leases end.
    pub(crate) fn is_grouped(&self, function: u16) -> bool {
        self.config.functions.get(&function).or(self.config.plan.as_ref()).is_some_and(ends)
    }
}

impl Drawn {
    /// Returns whether a lane of any client has leases that end.
    pub(super) fn has_groups(&self) -> bool {
        let plans = |client: &DrawnClient| {
            client.config.plan.iter().chain(client.config.functions.values()).any(ends)
        };
        self.clients.iter().any(plans)
    }

    /// Returns the default number of clients in a group.
    pub(crate) fn group_size(&self) -> u16 {
        self.server.group_size.unwrap_or(GroupDefaults::PAPER.size)
    }

    /// Returns the default slice in nanoseconds.
    pub(crate) fn slice(&self) -> Nanos {
        nanos(self.server.group_slice.unwrap_or(GroupDefaults::PAPER.slice))
    }

    /// Returns how long a call of a client by itself may take where nothing disturbs the run, if there are groups, or if
    /// threads share the client: all groups have their slices, the longest of which is 3/2 of the default one, and the
    /// calls of other threads go first. `None` where calls may hold it up for longer: those of slow handlers, and those
    /// that the application keeps.
    pub(crate) fn turn(&self, client: &DrawnClient) -> Option<Nanos> {
        let is_shared = client.threads > 1;
        let counts = (self.has_groups() || is_shared) && self.is_undisturbed(client);
        let counts = counts && self.slow_ones.is_none() && self.pullers == 0;
        let slices = 3 * self.clients.len() as Nanos;
        let exchange = if is_shared { SHARED_EXCHANGE } else { EXCHANGE };
        counts.then(|| exchange + slices * self.slice())
    }
}

/// Draws a plan whose leases end, with the waiting of both sides.
pub(super) fn lease(
    random: &mut Random,
    capabilities: &Capabilities,
    server: CompletionMode,
) -> Option<Plan> {
    let responses = [
        ResponseHalf::Write,
        ResponseHalf::Write,
        ResponseHalf::WriteImm,
        ResponseHalf::WriteSend,
        ResponseHalf::WriteSendChained,
    ];
    let modes = [CompletionMode::Busy, CompletionMode::Event, CompletionMode::Adaptive];
    let response = responses[random.below(responses.len() as u64) as usize];
    let client = modes[random.below(3) as usize];
    let plan = |response, client, server| {
        let plan = Plan::new(RequestHalf::Write, response).completion(client, server);
        let plan = plan.shared(Sharing::Dedicated, Lease::Slice);
        plan.check(capabilities).is_ok().then_some(plan)
    };
    let (busy, write) = (CompletionMode::Busy, ResponseHalf::Write);
    plan(response, client, server)
        .or_else(|| plan(response, busy, server))
        .or_else(|| plan(write, busy, busy))
}

/// Gives a client plans whose leases end: the usual plan, and that of every second function with one of its own.
fn put(random: &mut Random, settings: &Settings, server: CompletionMode, client: &mut DrawnClient) {
    if client.threads > 1 {
        return;
    }
    let Some(usual) = lease(random, &settings.capabilities, server) else { return };
    client.config.plan = Some(usual);
    for plan in client.config.functions.values_mut() {
        if random.one_in(2) {
            *plan = usual;
        }
    }
}

/// Gives leases that end to half of the clients whose threads or clones share connections, in runs with groups.
pub(super) fn share(random: &mut Random, drawn: &mut Drawn) {
    if !drawn.has_groups() {
        return;
    }
    let plans = drawn.clients.iter().filter_map(|client| client.config.plan).filter(ends);
    let Some(server) = plans.map(|plan| plan.server).next() else { return };
    let capabilities = drawn.settings.capabilities.clone();
    for client in drawn.clients.iter_mut().filter(|client| client.threads > 1) {
        let Some(sharing) = client.config.plan.map(|plan| plan.sharing) else { continue };
        if random.one_in(2) {
            continue;
        }
        let Some(plan) = lease(random, &capabilities, server) else { continue };
        client.config.plan = Some(plan.shared(sharing, Lease::Slice));
    }
}

/// Gives half or all of the clients whose leases end requests by WRITE_WITH_IMM, in half of the runs with groups. A
/// server that sleeps is woken by them, also on a fabric whose WRITEs wake nobody.
pub(super) fn notify(random: &mut Random, drawn: &mut Drawn) {
    if !drawn.has_groups() || random.one_in(2) {
        return;
    }
    let capabilities = &drawn.settings.capabilities;
    let modes = [CompletionMode::Busy, CompletionMode::Event, CompletionMode::Adaptive];
    let server = modes[random.below(3) as usize];
    let all = server != CompletionMode::Busy || random.one_in(2);
    let with = |plan: &Plan, request| {
        let plan = Plan { request, ..*plan }.completion(plan.client, server);
        plan.check(capabilities).is_ok().then_some(plan)
    };
    let leased = drawn.clients.iter().filter_map(|client| client.config.plan).find(ends);
    let leased = leased.and_then(|plan| with(&plan, RequestHalf::WriteImm));
    for client in &mut drawn.clients {
        let plans = client.config.plan.iter_mut().chain(client.config.functions.values_mut());
        let is_notified = all || random.one_in(2);
        for plan in plans {
            let request = if ends(plan) && is_notified { RequestHalf::WriteImm } else { plan.request };
            // A worker sleeps only if all its lanes let it.
            let instead = leased.filter(|_| all && plan.sharing == Sharing::Dedicated);
            if request != plan.request || all {
                *plan = with(plan, request).or(instead).unwrap_or(*plan);
            }
        }
    }
}

/// Draws the clients whose leases end: most clients of one run of three, and others beside them. In a third of these
/// runs nothing disturbs the calls. The long runs of RF-RPC stay as they are.
pub(super) fn draw(random: &mut Random, drawn: &mut Drawn) {
    if !random.one_in(3) || drawn.clients.iter().any(|client| client.calls > MOST_CALLS) {
        return;
    }
    let before = drawn.clone();
    let server = &mut drawn.server;
    server.group_size = Some([1, 1, 1, 2, 3, 40][random.below(6) as usize]);
    let slice = match random.below(3) {
        0 => 1_000 + random.below(9_000),
        1 => 10_000 + random.below(90_000),
        _ => 100_000 + random.below(400_000),
    };
    server.group_slice = Some(Duration::from_nanos(slice));
    server.group_priorities = random.one_in(2);
    // A server that sleeps is woken by the WRITEs of its clients, as on shared memory.
    let capabilities = &mut drawn.settings.capabilities;
    capabilities.write_wakes |= capabilities.in_order_write && random.one_in(2);
    let sleeps = capabilities.write_wakes && random.one_in(2);
    let modes = [CompletionMode::Event, CompletionMode::Adaptive];
    let mode = if sleeps { modes[random.below(2) as usize] } else { CompletionMode::Busy };
    let calm = random.one_in(3);
    for client in &mut drawn.clients {
        if !random.one_in(4) {
            put(random, &drawn.settings, mode, client);
        }
    }
    for _ in 0..random.below(6) {
        let mut more = client(random, &drawn.settings);
        put(random, &drawn.settings, mode, &mut more);
        drawn.clients.push(more);
        if random.one_in(8) {
            let crash = Act::CrashClient(drawn.clients.len() - 1);
            drawn.acts.push((random.below(UNTIL), crash));
        }
    }
    drawn.acts.sort_by_key(|(at, _)| *at);
    if !drawn.has_groups() {
        // The fabric has no leases.
        *drawn = before;
        return;
    }
    if !calm {
        return;
    }
    drawn.settings.faults = Faults::default();
    drawn.acts.clear();
    drawn.settings.machines.iter_mut().for_each(|machine| machine.cores = None);
    if random.one_in(2) {
        (drawn.slow_ones, drawn.pullers) = (None, 0);
    }
    if sleeps {
        let sleep = |plan: &mut Plan| {
            let asleep = plan.completion(plan.client, mode);
            if asleep.check(&drawn.settings.capabilities).is_ok() {
                *plan = asleep;
            }
        };
        for client in &mut drawn.clients {
            client.config.plan.iter_mut().chain(client.config.functions.values_mut()).for_each(sleep);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Enough runs have groups of each kind: with more clients than a group holds, short slices, both kinds of
    /// priorities, sleeping servers, disturbances, and none.
    #[test]
    fn many_runs_have_clients_by_turns() {
        let drawn: Vec<Drawn> = (0..400).map(|seed| Drawn::from_seed(seed, None)).collect();
        let runs = |which: &dyn Fn(&Drawn) -> bool| {
            drawn.iter().filter(|drawn| drawn.has_groups() && which(drawn)).count()
        };
        assert!((80..200).contains(&runs(&|_| true)), "{}", runs(&|_| true));
        let grouped = |drawn: &Drawn| drawn.clients.iter().filter(|client| client.is_grouped(0)).count();
        let several = |drawn: &Drawn| grouped(drawn) * 2 > 3 * usize::from(drawn.group_size());
        assert!(runs(&several) > 60, "{}", runs(&several));
        let short = |drawn: &Drawn| drawn.slice() < 10_000;
        let asleep = |drawn: &Drawn| {
            drawn
                .clients
                .iter()
                .all(|client| client.config.plan.is_some_and(|plan| plan.server != CompletionMode::Busy))
        };
        let notified = |drawn: &Drawn| {
            let plans = drawn.clients.iter().filter_map(|client| client.config.plan);
            plans.filter(ends).any(|plan| plan.request == RequestHalf::WriteImm)
        };
        let woken = |drawn: &Drawn| notified(drawn) && !drawn.settings.capabilities.write_wakes;
        assert!(runs(&|drawn| several(drawn) && notified(drawn)) > 15);
        assert!(runs(&|drawn| several(drawn) && woken(drawn) && asleep(drawn)) > 2);
        let calm = |drawn: &Drawn| drawn.acts.is_empty() && drawn.settings.faults == Faults::default();
        assert!(runs(&|drawn| several(drawn) && short(drawn)) > 15);
        assert!(runs(&|drawn| several(drawn) && drawn.server.group_priorities) > 25);
        assert!(runs(&|drawn| several(drawn) && !drawn.server.group_priorities) > 25);
        assert!(runs(&|drawn| several(drawn) && asleep(drawn)) > 5);
        assert!(runs(&|drawn| several(drawn) && calm(drawn)) > 20);
        assert!(runs(&|drawn| several(drawn) && !calm(drawn)) > 30);
        let exact = |drawn: &Drawn| drawn.clients.iter().any(|client| drawn.turn(client).is_some());
        assert!(runs(&|drawn| several(drawn) && exact(drawn)) > 5);
    }
}
