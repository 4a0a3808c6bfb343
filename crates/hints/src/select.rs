//! Selection of a plan: the table of HatRPC figure 6, then the hints of each side, then the nearest legal
//! plan.

use crate::hints::{FunctionHints, Hints, Place};
use crate::key::{Key, Side};
use crate::legal::{self, Wish};
use crate::select_error::SelectError;
use crate::selection::{Because, Environment, NumaBinding, Reason, Selection, Subject, Subscription};
use crate::sharing;
use crate::value::{Numa, PerfGoal, Priority, ProcessTime, Sharing, Transport, Value};
use dunlin_rpc::{
    CompletionMode, LargePayload, Occupancy, Plan, PlanError, Protocol, RequestHalf, ResponseHalf,
};

/// The protocol under which both sides poll memory.
const POLLED: &str = "Server-reply";

/// The payload size in bytes from which a payload is sent in pieces if both sides poll memory. Pieces are
/// then faster in both directions (measured with `dunlin bench atb`).
const PIECES_FROM: u64 = 64 << 10;

/// Selects the plan of a function.
///
/// The server's goal determines the path, since all clients share its resources; without one, the client's
/// goal does. The request path depends on the client's `payload_size` and the response path on the server's.
/// The completion mode of each side depends on its own hints. The client's hints decide how its threads share
/// connections; [`unify_sharing`](crate::unify_sharing) then lets the functions of a client agree on it.
pub fn select(hints: &FunctionHints, environment: &Environment<'_>) -> Result<Selection, SelectError> {
    let mut chooser = Chooser { hints, environment, reasons: Vec::new() };
    let subscription = Subscription::of(chooser.clients().0, environment);
    let transport = chooser.transport()?;
    let (plan, protocol) = match transport {
        Transport::Tcp => (None, None),
        Transport::Rdma => {
            let (plan, protocol) = chooser.plan(subscription)?;
            (Some(plan), protocol)
        }
    };
    let [client_binding, server_binding] = Side::BOTH.map(|side| chooser.binding(side, subscription));
    let Chooser { mut reasons, .. } = chooser;
    reasons.sort_by_key(|reason| reason.subject);
    Ok(Selection { transport, plan, protocol, client_binding, server_binding, subscription, reasons })
}

/// A selection in progress.
struct Chooser<'a> {
    hints: &'a FunctionHints,
    environment: &'a Environment<'a>,
    reasons: Vec<Reason>,
}

impl Chooser<'_> {
    fn side(&self, side: Side) -> &Hints {
        self.hints.side(side)
    }

    fn place(&self, side: Side, key: Key) -> Option<Place> {
        self.hints.place(side, key).cloned()
    }

    fn say(&mut self, subject: Subject, hints: &[(Side, Key)], text: String) {
        let hints = hints
            .iter()
            .filter(|(side, key)| self.side(*side).get(*key).is_some())
            .map(|(side, key)| Because { side: *side, key: *key, place: self.place(*side, *key) })
            .collect();
        self.reasons.push(Reason { subject, text, hints });
    }

    /// Returns the first side of `order` with a hint for a key that a call has only once, and its value.
    fn first(&self, order: [Side; 2], key: Key) -> Option<(Side, Value)> {
        order.into_iter().find_map(|side| Some((side, self.side(side).get(key)?)))
    }

    /// Returns the value of a key on which both sides must agree.
    fn agreed(&self, key: Key) -> Result<Option<(Side, Value)>, SelectError> {
        match (self.side(Side::Client).get(key), self.side(Side::Server).get(key)) {
            (Some(client), Some(server)) if client != server => Err(SelectError::SidesDiffer {
                key,
                client,
                client_place: self.place(Side::Client, key),
                server,
                server_place: self.place(Side::Server, key),
            }),
            _ => Ok(self.first(Side::BOTH, key)),
        }
    }

    /// Returns the number of clients, and the hint that gave it.
    fn clients(&self) -> (u32, Option<(Side, Key)>) {
        match (self.environment.clients, self.first([Side::Server, Side::Client], Key::Concurrency)) {
            (Some(clients), _) => (clients, None),
            (None, Some((side, Value::Concurrency(clients)))) => (clients, Some((side, Key::Concurrency))),
            _ => (1, None),
        }
    }

    fn transport(&mut self) -> Result<Transport, SelectError> {
        let Some((side, Value::Transport(transport))) = self.agreed(Key::Transport)? else {
            return Ok(Transport::Rdma);
        };
        if transport == Transport::Tcp {
            let nearness = |side, key| self.hints.origin(side, key).map(|origin| origin.level.nearness());
            for other in Side::BOTH {
                let Some(name) = self.side(other).protocol else { continue };
                // A tcp hint nearer to the function than the protocol hint overrides it.
                let nearer = match (nearness(side, Key::Transport), nearness(other, Key::Protocol)) {
                    (Some(transport), Some(protocol)) => transport > protocol,
                    _ => false,
                };
                if !nearer {
                    return Err(SelectError::ProtocolOnTcp {
                        name,
                        place: self.place(other, Key::Protocol),
                        transport_place: self.place(side, Key::Transport),
                    });
                }
            }
        }
        let text = format!("transport = {}", Value::Transport(transport));
        self.say(Subject::Transport, &[(side, Key::Transport)], text);
        Ok(transport)
    }

    /// Returns the payload size of a direction, hinted on the side that sends it.
    fn size(&self, sender: Side) -> Option<u64> {
        if sender == Side::Server && self.hints.oneway { None } else { self.side(sender).payload_size }
    }

    fn is_large(&self, sender: Side) -> bool {
        self.size(sender).is_some_and(|size| size > self.environment.small)
    }

    fn plan(&mut self, subscription: Subscription) -> Result<(Plan, Option<&'static str>), SelectError> {
        let asked = self.asked_protocol()?;
        let modes = Side::BOTH.map(|side| self.mode(side, subscription));
        let (mut plan, fixed_path) = match asked {
            Some((protocol, _)) => (protocol.plan(CompletionMode::Busy), true),
            None => (self.path(subscription)?, false),
        };
        plan = plan.completion(modes[0].0, modes[1].0);
        let sharing = self.sharing(&plan)?;
        plan = sharing.on(plan);
        let hinted = modes.map(|(_, hinted)| hinted);
        let wish = Wish { plan, fixed_path, hinted };
        let found = self.legal(&wish, sharing)?;
        let chosen = match (found, asked) {
            (Ok(chosen), _) => chosen,
            (Err(illegal), None) => {
                return Err(SelectError::NothingLegal {
                    fabric: self.environment.capabilities.name,
                    illegal,
                });
            }
            (Err(illegal), Some((protocol, side))) => {
                return Err(SelectError::IllegalProtocol {
                    name: protocol.name,
                    place: self.place(side, Key::Protocol),
                    fabric: self.environment.capabilities.name,
                    illegal,
                });
            }
        };
        self.tell_changes(&wish.woken(plan, self.environment.capabilities), &chosen, hinted, asked)?;
        let executed = self.executed(chosen);
        Ok((executed, name_of(&executed)))
    }

    /// Chooses how the client's threads share connections. They are the client's, so the server's hint has no
    /// effect.
    fn sharing(&mut self, plan: &Plan) -> Result<Sharing, SelectError> {
        if let Some(of_server) = self.side(Side::Server).sharing
            && self.side(Side::Client).sharing != Some(of_server)
        {
            let text = format!(
                "the server's sharing = {} has no effect: the connections are the client's",
                Value::Sharing(of_server)
            );
            self.say(Subject::Sharing, &[(Side::Server, Key::Sharing)], text);
        }
        let goal = self.first([Side::Server, Side::Client], Key::PerfGoal);
        let wants_latency = matches!(goal, Some((_, Value::PerfGoal(PerfGoal::Latency))));
        let chosen = sharing::choose(self.hints, self.environment, self.clients(), plan, wants_latency);
        if chosen.sharing == Sharing::Tier && self.environment.through_node == Some(false) {
            return Err(SelectError::NotThroughNode { place: self.place(Side::Client, Key::Sharing) });
        }
        self.say(Subject::Sharing, &chosen.hints, chosen.text);
        Ok(chosen.sharing)
    }

    /// Returns the legal plan nearest to a wished one. If the sharing is the only obstacle, that is an error: it
    /// is never replaced.
    fn legal(&self, wish: &Wish, sharing: Sharing) -> Result<Result<Plan, PlanError>, SelectError> {
        let capabilities = self.environment.capabilities;
        let illegal = match legal::nearest(wish, capabilities) {
            Err(illegal) if sharing != Sharing::Dedicated => illegal,
            found => return Ok(found),
        };
        let dedicated = Wish { plan: Sharing::Dedicated.on(wish.plan), ..*wish };
        match legal::nearest(&dedicated, capabilities) {
            Ok(_) => Err(SelectError::IllegalSharing {
                sharing,
                place: self.place(Side::Client, Key::Sharing),
                fabric: capabilities.name,
                illegal,
            }),
            Err(illegal) => Ok(Err(illegal)),
        }
    }

    /// Returns the plan as the server executes it: its workers wait adaptively if threads outnumber cores.
    fn executed(&mut self, plan: Plan) -> Plan {
        let Environment { capabilities, workers: Some(workers), cores, .. } = *self.environment else {
            return plan;
        };
        let occupancy = Occupancy { workers, clients: self.clients().0, cores };
        let adaptive = plan.completion(plan.client, CompletionMode::Adaptive);
        let waits = plan.server == CompletionMode::Busy && adaptive.check(capabilities).is_ok();
        if occupancy.fits() || !waits || !capabilities.initiator_copies {
            return plan;
        }
        self.say(Subject::Polling(Side::Server), &[], occupancy.to_string());
        adaptive
    }

    /// Returns the protocol requested by name, and the side that requested it.
    fn asked_protocol(&mut self) -> Result<Option<(&'static Protocol, Side)>, SelectError> {
        let Some((side, Value::Protocol(name))) = self.agreed(Key::Protocol)? else { return Ok(None) };
        let Some(protocol) = Protocol::by_name(name) else {
            return Err(SelectError::UnknownProtocol { name, place: self.place(side, Key::Protocol) });
        };
        for subject in [Subject::Request, Subject::Response] {
            self.say(subject, &[(side, Key::Protocol)], format!("protocol = {}", protocol.name));
        }
        Ok(Some((protocol, side)))
    }

    /// Returns the path from the table: one row for each direction.
    fn path(&mut self, subscription: Subscription) -> Result<Plan, SelectError> {
        let goal = match self.first([Side::Server, Side::Client], Key::PerfGoal) {
            Some((side, Value::PerfGoal(goal))) => Some((side, goal)),
            _ => None,
        };
        let request = self.direction(Side::Client, goal, subscription)?;
        let response = self.direction(Side::Server, goal, subscription)?;
        let (first, second) = (request.plan(CompletionMode::Busy), response.plan(CompletionMode::Busy));
        // The rows differ only if exactly one direction is large. That direction determines the handling of
        // large payloads.
        let mut large = if self.is_large(Side::Server) { second.large } else { first.large };
        let above = first.rendezvous_above.max(second.rendezvous_above);
        if large == LargePayload::Read && self.polls() {
            for (sender, subject) in [(Side::Client, Subject::Request), (Side::Server, Subject::Response)] {
                if self.size(sender).is_some_and(|size| size >= PIECES_FROM) {
                    large = LargePayload::Pipelined;
                    let text = format!(
                        "from {} on a payload is read while it is being filled: {}",
                        Value::PayloadSize(PIECES_FROM),
                        large.name()
                    );
                    self.say(subject, &[(sender, Key::PayloadSize)], text);
                }
            }
        }
        Ok(Plan { response: second.response, ..first }.large(large, above))
    }

    /// Returns the table's row for the payloads that one side sends, and records the reason.
    fn direction(
        &mut self,
        sender: Side,
        goal: Option<(Side, PerfGoal)>,
        subscription: Subscription,
    ) -> Result<&'static Protocol, SelectError> {
        let subject = if sender == Side::Client { Subject::Request } else { Subject::Response };
        let (mut name, text) = self.row(sender, goal.map(|(_, goal)| goal), subscription);
        if let Some((side, _)) = goal {
            let mut hints = vec![(side, Key::PerfGoal), (sender, Key::PayloadSize)];
            hints.extend(self.clients().1);
            self.say(subject, &hints, text);
        } else {
            self.say(subject, &[], text);
        }
        if name == "Remote-fetch"
            && let Some((side, Value::ProcessTime(time))) =
                self.first([Side::Server, Side::Client], Key::ProcessTime)
            && time.is_long()
        {
            name = "Direct-WriteIMM";
            let text = format!(
                "process_time = {} is long, so that fetching would only repeat READs in vain: {name}",
                Value::ProcessTime(time)
            );
            self.say(subject, &[(side, Key::ProcessTime)], text);
        }
        if self.polls() && name != POLLED {
            name = POLLED;
            let fabric = self.environment.capabilities.name;
            let text = format!(
                "on {fabric} the sender's processor does what a NIC would, and to tell of a message costs it as much as the message: {name}"
            );
            self.say(subject, &[], text);
        }
        Protocol::by_name(name).ok_or(SelectError::UnknownProtocol { name, place: None })
    }

    /// Returns whether both sides poll memory instead of using the table's row, which is meant for NICs. On
    /// fabrics where the sender's processor copies the messages, polling is fastest for latency and
    /// throughput, at any number of clients and any payload size (measured with `dunlin bench atb`). Not used
    /// if a side has another goal or works long, or if it may sleep and WRITEs do not wake it.
    fn polls(&self) -> bool {
        let may_be = |mode: Option<CompletionMode>| match mode {
            Some(CompletionMode::Busy) => true,
            Some(CompletionMode::Adaptive) | None => self.environment.capabilities.write_wakes,
            Some(CompletionMode::Event) => false,
        };
        self.environment.capabilities.initiator_copies
            && Side::BOTH.into_iter().all(|side| {
                let hints = self.side(side);
                matches!(hints.perf_goal, Some(PerfGoal::Latency | PerfGoal::Throughput))
                    && may_be(hints.polling)
                    && hints.priority != Some(Priority::Low)
                    && !hints.process_time.is_some_and(ProcessTime::is_long)
            })
    }

    /// Returns a row of HatRPC figure 6, with the refinements of sections 3.2, 4.3 and 5.2.
    fn row(
        &self,
        sender: Side,
        goal: Option<PerfGoal>,
        subscription: Subscription,
    ) -> (&'static str, String) {
        let large = self.is_large(sender);
        let Some(goal) = goal else {
            return ("Direct-WriteIMM", "no perf_goal, so the usual Direct-WriteIMM".to_owned());
        };
        let what = if sender == Side::Client { "requests" } else { "responses" };
        let size = match self.size(sender) {
            Some(size) if large => format!("large {what} ({})", Value::PayloadSize(size)),
            Some(size) => format!("small {what} ({})", Value::PayloadSize(size)),
            None if sender == Side::Server && self.hints.oneway => format!("no {what} (oneway)"),
            None => format!("{what} without payload_size, so small"),
        };
        let (clients, _) = self.clients();
        let clients = format!("{clients} {}", if clients == 1 { "client" } else { "clients" });
        let name = match (goal, subscription, large) {
            (PerfGoal::Latency, ..) | (PerfGoal::Throughput, _, false) => "Direct-WriteIMM",
            (PerfGoal::Throughput, Subscription::Under, true) => "Direct-WriteIMM",
            (PerfGoal::Throughput, _, true) => "Remote-fetch",
            (PerfGoal::ResUtil, Subscription::Under, false) => "Direct-WriteIMM",
            (PerfGoal::ResUtil, _, false) => "Eager-SendRecv",
            (PerfGoal::ResUtil, _, true) => "Write-RNDV",
        };
        let goal = Value::PerfGoal(goal);
        (name, format!("perf_goal = {goal}, {size}, {clients}, {subscription}: {name}"))
    }

    /// Returns the completion mode of a side, and whether a hint determined it. Only `polling = busy` spins
    /// without end: HatRPC's table has `busy` where this has `adaptive`, which spins as long as calls follow
    /// each other and leaves its core to others after that.
    fn mode(&mut self, side: Side, subscription: Subscription) -> (CompletionMode, bool) {
        let hints = *self.side(side);
        let subject = Subject::Polling(side);
        if let Some(mode) = hints.polling {
            self.say(subject, &[(side, Key::Polling)], format!("polling = {mode}"));
            return (mode, true);
        }
        let large = self.is_large(Side::Client) || self.is_large(Side::Server);
        let payloads = if large { "large payloads" } else { "small payloads" };
        let (mode, text, counts_clients) = match hints.perf_goal {
            None => (CompletionMode::Adaptive, "no perf_goal, so the usual adaptive".to_owned(), false),
            Some(PerfGoal::Latency) => {
                let text = "perf_goal = latency: adaptive, since only polling = busy never sleeps";
                (CompletionMode::Adaptive, text.to_owned(), false)
            }
            Some(goal) => {
                let mode = match (goal, subscription) {
                    (PerfGoal::Throughput, Subscription::Under) if large => CompletionMode::Adaptive,
                    _ => CompletionMode::Event,
                };
                let goal = Value::PerfGoal(goal);
                (mode, format!("perf_goal = {goal}, {payloads}, {subscription}: {mode}"), true)
            }
        };
        let mut deciding = vec![(side, Key::PerfGoal)];
        deciding.extend(counts_clients.then(|| self.clients().1).flatten());
        self.say(subject, &deciding, text);
        if self.polls() {
            if mode != CompletionMode::Adaptive {
                let text = format!(
                    "on {} nobody rings a thread that is awake, so sleeping while idle costs no call anything: adaptive",
                    self.environment.capabilities.name
                );
                self.say(subject, &[], text);
            }
            return (CompletionMode::Adaptive, false);
        }
        if hints.priority == Some(Priority::Low) && mode != CompletionMode::Event {
            let text = "priority = low, which gives way to others: event".to_owned();
            self.say(subject, &[(side, Key::Priority)], text);
            return (CompletionMode::Event, false);
        }
        (mode, false)
    }

    /// Records the differences between the wished and the chosen plan. A conflict between a protocol
    /// requested by name and a completion mode hinted on the same level is an error.
    fn tell_changes(
        &mut self,
        wished: &Plan,
        chosen: &Plan,
        hinted: [bool; 2],
        asked: Option<(&'static Protocol, Side)>,
    ) -> Result<(), SelectError> {
        let Err(illegal) = wished.check(self.environment.capabilities) else { return Ok(()) };
        for (side, hinted) in Side::BOTH.into_iter().zip(hinted) {
            let (before, after) = (legal::mode(wished, side), legal::mode(chosen, side));
            if before == after {
                continue;
            }
            if let (true, Some((protocol, asker))) = (hinted, asked) {
                let level = |side, key| self.hints.origin(side, key).map(|origin| origin.level.nearness());
                let nearer = match (level(asker, Key::Protocol), level(side, Key::Polling)) {
                    (Some(protocol), Some(polling)) => protocol > polling,
                    _ => false,
                };
                if !nearer {
                    return Err(SelectError::ProtocolAgainstPolling {
                        name: protocol.name,
                        protocol_place: self.place(asker, Key::Protocol),
                        side,
                        mode: before,
                        place: self.place(side, Key::Polling),
                        illegal,
                    });
                }
            }
            let hint = asked.map(|(_, asker)| (asker, Key::Protocol));
            self.say(
                Subject::Polling(side),
                hint.as_slice(),
                format!("{after} in the place of {before}: {illegal}"),
            );
        }
        for (subject, before, after) in [
            (Subject::Request, wished.request.name(), chosen.request.name()),
            (Subject::Response, wished.response.name(), chosen.response.name()),
            // Both directions have the same handling, so one reason suffices.
            (Subject::Request, wished.large.name(), chosen.large.name()),
        ] {
            if before != after {
                self.say(subject, &[], format!("{after} in the place of {before}: {illegal}"));
            }
        }
        Ok(())
    }

    fn binding(&mut self, side: Side, subscription: Subscription) -> Option<NumaBinding> {
        let numa = self.side(side).numa?;
        let written = Value::Numa(numa);
        let (binding, text) = match numa {
            Numa::Off => (None, format!("numa = {written}")),
            _ if self.environment.nodes <= 1 => {
                (None, format!("numa = {written}, but the machine has one node: nothing to bind"))
            }
            // The binding code checks which nodes exist, and refuses one that does not.
            Numa::Node(node) if u32::from(node) >= self.environment.nodes => (
                Some(NumaBinding::Node(node)),
                format!(
                    "numa = {written}, but the machine has only {} nodes: without node {node} it is refused",
                    self.environment.nodes
                ),
            ),
            Numa::Node(node) => {
                let bound = bound(side, &format!("node {node}"));
                (Some(NumaBinding::Node(node)), format!("numa = {written}: {bound}"))
            }
            Numa::On if subscription == Subscription::Under => (
                Some(NumaBinding::NicNode),
                format!("numa = {written}, {subscription}: {}", bound(side, "the NIC's node")),
            ),
            Numa::On => (None, format!("numa = {written}, but {subscription}: all cores are needed")),
        };
        self.say(Subject::Numa(side), &[(side, Key::Numa)], text);
        binding
    }
}

/// Describes the effect of binding a side to a node.
fn bound(side: Side, node: &str) -> String {
    match side {
        Side::Client => {
            format!("connects from {node}, so that its memory lies there; threads bind themselves")
        }
        Side::Server => format!("workers and pool are bound to {node}"),
    }
}

/// Returns the name of a plan's protocol. Fetching with requests that wake the server still counts as
/// Remote-fetch.
fn name_of(plan: &Plan) -> Option<&'static str> {
    let named = |plan: &Plan| plan.protocol().map(|protocol| protocol.name);
    named(plan).or_else(|| {
        (plan.response == ResponseHalf::Fetch && plan.request == RequestHalf::WriteImm)
            .then(|| named(&Plan { request: RequestHalf::Write, ..*plan }))
            .flatten()
    })
}
