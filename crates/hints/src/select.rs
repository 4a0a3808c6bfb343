//! From hints to a plan: the table of HatRPC figure 6, then what the hints of each side say, then the nearest legal
//! plan.

use crate::hints::{FunctionHints, Hints, Place};
use crate::key::{Key, Side};
use crate::legal::{self, Wish};
use crate::value::{Numa, PerfGoal, Priority, Transport, Value};
use dunlin_fabric::{Capabilities, TransportSet};
use dunlin_rpc::{CompletionMode, Illegal, Plan, Protocol, RequestHalf, ResponseHalf};
use std::fmt;
use thiserror::Error;

/// Payloads of at most this many bytes are small (HatRPC section 4.3).
pub const SMALL: u64 = 4096;

/// What a selection depends on besides the hints.
#[derive(Clone, Copy, Debug)]
pub struct Environment<'a> {
    /// What the fabric can do.
    pub capabilities: &'a Capabilities,
    /// Cores of the NUMA node that the server's NIC is at.
    pub node_cores: u32,
    /// Cores of the server's machine.
    pub cores: u32,
    /// NUMA nodes of the machine.
    pub nodes: u32,
    /// Clients that call at the same time, where that is known better than by the hint `concurrency`.
    pub clients: Option<u32>,
    /// The largest small payload, in bytes.
    pub small: u64,
}

impl<'a> Environment<'a> {
    /// A machine of one NUMA node with these cores; clients as hinted, [`SMALL`] as usual.
    pub const fn new(capabilities: &'a Capabilities, cores: u32) -> Self {
        Environment { capabilities, node_cores: cores, cores, nodes: 1, clients: None, small: SMALL }
    }
}

/// How many clients there are for the server's cores (HatRPC section 3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subscription {
    /// At most as many as cores of the NIC's NUMA node.
    Under,
    /// More than that, and at most as many as cores of the machine.
    Full,
    /// More than cores of the machine.
    Over,
}

impl Subscription {
    /// Of this many clients on a machine.
    pub const fn of(clients: u32, environment: &Environment<'_>) -> Subscription {
        if clients <= environment.node_cores {
            Subscription::Under
        } else if clients <= environment.cores {
            Subscription::Full
        } else {
            Subscription::Over
        }
    }
}

impl fmt::Display for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Subscription::Under => "under-subscribed",
            Subscription::Full => "fully subscribed",
            Subscription::Over => "over-subscribed",
        })
    }
}

/// What a reason is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Subject {
    /// What carries the calls.
    Transport,
    /// The protocol, or the half by which requests travel.
    Request,
    /// The half by which responses travel.
    Response,
    /// How a side waits.
    Polling(Side),
    /// Where a side's threads are bound.
    Numa(Side),
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Subject::Transport => f.write_str("transport"),
            Subject::Request => f.write_str("request"),
            Subject::Response => f.write_str("response"),
            Subject::Polling(side) => write!(f, "{side} polling"),
            Subject::Numa(side) => write!(f, "{side} numa"),
        }
    }
}

/// Why a part of a selection is as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    /// The part.
    pub subject: Subject,
    /// The reason, in words.
    pub text: String,
    /// Whose hint decided, if one did.
    pub hint: Option<(Side, Key)>,
    /// Where that hint stands, if that is known.
    pub place: Option<Place>,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.subject, self.text)?;
        match &self.place {
            Some(place) => write!(f, " ({place})"),
            None => Ok(()),
        }
    }
}

/// Where a side's threads are to be bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NumaBinding {
    /// To the node that the NIC is at.
    NicNode,
    /// To this node.
    Node(u16),
}

/// What was chosen for a function, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    /// What carries the calls.
    pub transport: Transport,
    /// The plan, which the fabric can run; `None` if TCP carries the calls.
    pub plan: Option<Plan>,
    /// The protocol whose halves the plan has, or `None` if they are of two protocols.
    pub protocol: Option<&'static str>,
    /// Where the client's threads are to be bound.
    pub client_binding: Option<NumaBinding>,
    /// Where the server's threads are to be bound.
    pub server_binding: Option<NumaBinding>,
    /// How many clients there are for the cores.
    pub subscription: Subscription,
    /// Why.
    pub reasons: Vec<Reason>,
}

impl Selection {
    /// The reasons about a part.
    pub fn reasons_for(&self, subject: Subject) -> impl Iterator<Item = &Reason> {
        self.reasons.iter().filter(move |reason| reason.subject == subject)
    }
}

/// A place before a message, if it is known.
struct At<'a>(&'a Option<Place>);

impl fmt::Display for At<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(place) => write!(f, "{place}: "),
            None => Ok(()),
        }
    }
}

/// A place in the middle of a message, if it is known.
struct InBrackets<'a>(&'a Option<Place>);

impl fmt::Display for InBrackets<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(place) => write!(f, " ({place})"),
            None => Ok(()),
        }
    }
}

/// Why hints have no plan.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SelectError {
    /// The table has no such protocol.
    #[error(
        "{}there is no protocol '{name}' in this version: 'dunlin protocols' lists those that there are",
        At(place)
    )]
    UnknownProtocol {
        /// The name.
        name: &'static str,
        /// Where it was asked for.
        place: Option<Place>,
    },
    /// The fabric cannot run the protocol that was asked for.
    #[error(
        "{}{name} cannot run on the fabric '{fabric}': {illegal}; choose another protocol, or none and leave the choice to perf_goal",
        At(place)
    )]
    IllegalProtocol {
        /// The protocol.
        name: &'static str,
        /// Where it was asked for.
        place: Option<Place>,
        /// The fabric.
        fabric: &'static str,
        /// Why not.
        illegal: Illegal,
    },
    /// The protocol and the way to wait that were asked for exclude each other.
    #[error(
        "{}the {side} is to wait by {mode}, which {name}{} does not allow: {illegal}; drop one of the two hints",
        At(place),
        InBrackets(protocol_place)
    )]
    ProtocolAgainstPolling {
        /// The protocol.
        name: &'static str,
        /// Where it was asked for.
        protocol_place: Option<Place>,
        /// The side.
        side: Side,
        /// How it is to wait.
        mode: CompletionMode,
        /// Where that was asked for.
        place: Option<Place>,
        /// Why not.
        illegal: Illegal,
    },
    /// A protocol of the fabric is asked for, and TCP.
    #[error(
        "{}{name} needs the fabric, but transport is tcp{}: drop one of the two hints",
        At(place),
        InBrackets(transport_place)
    )]
    ProtocolOnTcp {
        /// The protocol.
        name: &'static str,
        /// Where it was asked for.
        place: Option<Place>,
        /// Where TCP was asked for.
        transport_place: Option<Place>,
    },
    /// The sides ask for different things of which a call can have only one.
    #[error(
        "{}the client asks for {key} = {client} and the server for {server}{}: a call has one {key}, so let both ask for the same",
        At(client_place),
        InBrackets(server_place)
    )]
    SidesDiffer {
        /// The key.
        key: Key,
        /// The client's value.
        client: Value,
        /// Where it stands.
        client_place: Option<Place>,
        /// The server's value.
        server: Value,
        /// Where it stands.
        server_place: Option<Place>,
    },
    /// Not even the simplest plan runs on the fabric.
    #[error("no plan can run on the fabric '{fabric}': {illegal}")]
    NothingLegal {
        /// The fabric.
        fabric: &'static str,
        /// Why the chosen plan cannot.
        illegal: Illegal,
    },
}

impl SelectError {
    /// The message without the places, for who shows them otherwise.
    pub fn without_places(&self) -> String {
        let mut bare = self.clone();
        match &mut bare {
            SelectError::UnknownProtocol { place, .. } | SelectError::IllegalProtocol { place, .. } => {
                *place = None
            }
            SelectError::ProtocolAgainstPolling { place, protocol_place, .. } => {
                (*place, *protocol_place) = (None, None);
            }
            SelectError::ProtocolOnTcp { place, transport_place, .. } => {
                (*place, *transport_place) = (None, None)
            }
            SelectError::SidesDiffer { client_place, server_place, .. } => {
                (*client_place, *server_place) = (None, None);
            }
            SelectError::NothingLegal { .. } => {}
        }
        bare.to_string()
    }
}

/// A fabric that can do everything, to ask whether hints exclude each other wherever they are used.
pub fn every_capability() -> &'static Capabilities {
    static EVERYTHING: Capabilities = Capabilities {
        name: "that can do everything",
        transports: TransportSet::ALL,
        max_inline: 256,
        max_message: 1 << 30,
        max_datagram: 4096,
        datagram_headroom: 0,
        atomics: true,
        immediate: true,
        in_order_write: true,
        shared_receive_queue: true,
        events: true,
        target_progress: false,
        max_queue_pairs: 1 << 16,
        max_queue_depth: 1 << 16,
    };
    &EVERYTHING
}

/// Chooses the plan of a function.
///
/// The goal of the server decides the path, since its resources are shared by all; if it has none, the client's
/// does. Requests travel as the client's `payload_size` asks for, responses as the server's does. How a side waits
/// follows from its own hints.
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
    let Chooser { reasons, .. } = chooser;
    Ok(Selection { transport, plan, protocol, client_binding, server_binding, subscription, reasons })
}

/// One selection under way.
struct Chooser<'a> {
    hints: &'a FunctionHints,
    environment: &'a Environment<'a>,
    reasons: Vec<Reason>,
}

/// A row of the table that was chosen for one direction.
#[derive(Clone, Copy)]
struct Cell {
    protocol: &'static Protocol,
    large: bool,
}

impl Chooser<'_> {
    fn side(&self, side: Side) -> &Hints {
        self.hints.side(side)
    }

    fn place(&self, side: Side, key: Key) -> Option<Place> {
        self.hints.place(side, key).cloned()
    }

    fn say(&mut self, subject: Subject, hint: Option<(Side, Key)>, text: String) {
        let place = hint.and_then(|(side, key)| self.place(side, key));
        self.reasons.push(Reason { subject, text, hint, place });
    }

    /// The side whose hint counts for something that a call has once, the first of `order` that has it.
    fn first(&self, order: [Side; 2], key: Key) -> Option<(Side, Value)> {
        order.into_iter().find_map(|side| Some((side, self.side(side).get(key)?)))
    }

    /// The value of a key that both sides must agree on.
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

    /// How many clients there are, and who says so.
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
                // Who says tcp nearer to the function than the protocol means tcp.
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
        self.say(Subject::Transport, Some((side, Key::Transport)), text);
        Ok(transport)
    }

    /// The size of the payload of a direction, by the hint of the side that sends it.
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
            None => (self.path(subscription), false),
        };
        plan = plan.completion(modes[0].0, modes[1].0);
        // A server that sleeps is told of requests whose results are fetched.
        if plan.response == ResponseHalf::Fetch
            && plan.request == RequestHalf::Write
            && plan.server != CompletionMode::Busy
        {
            plan.request = RequestHalf::WriteImm;
        }
        let hinted = modes.map(|(_, hinted)| hinted);
        let found = legal::nearest(&Wish { plan, fixed_path, hinted }, self.environment.capabilities);
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
        self.tell_changes(&plan, &chosen, hinted, asked)?;
        Ok((chosen, name_of(&chosen)))
    }

    /// The protocol that was asked for by name, and by whom.
    fn asked_protocol(&mut self) -> Result<Option<(&'static Protocol, Side)>, SelectError> {
        let Some((side, Value::Protocol(name))) = self.agreed(Key::Protocol)? else { return Ok(None) };
        let Some(protocol) = Protocol::by_name(name) else {
            return Err(SelectError::UnknownProtocol { name, place: self.place(side, Key::Protocol) });
        };
        for subject in [Subject::Request, Subject::Response] {
            self.say(subject, Some((side, Key::Protocol)), format!("protocol = {}", protocol.name));
        }
        Ok(Some((protocol, side)))
    }

    /// The path by the table: a row for each direction.
    fn path(&mut self, subscription: Subscription) -> Plan {
        let goal = match self.first([Side::Server, Side::Client], Key::PerfGoal) {
            Some((side, Value::PerfGoal(goal))) => Some((side, goal)),
            _ => None,
        };
        let request = self.direction(Side::Client, goal, subscription);
        let response = self.direction(Side::Server, goal, subscription);
        let (first, second) =
            (request.protocol.plan(CompletionMode::Busy), response.protocol.plan(CompletionMode::Busy));
        // One threshold for both: that of the direction which is large, if one is.
        let threshold = if request.large || !response.large { &first } else { &second };
        Plan { response: second.response, rendezvous_above: threshold.rendezvous_above, ..first }
    }

    /// The table's row for what one side sends, and why.
    fn direction(
        &mut self,
        sender: Side,
        goal: Option<(Side, PerfGoal)>,
        subscription: Subscription,
    ) -> Cell {
        let subject = if sender == Side::Client { Subject::Request } else { Subject::Response };
        let large = self.is_large(sender);
        let (name, text) = self.row(sender, goal.map(|(_, goal)| goal), subscription, large);
        let hint = goal.map(|(side, _)| (side, Key::PerfGoal));
        self.say(subject, hint, text);
        let mut name = name;
        if name == "Remote-fetch"
            && let Some((side, Value::ProcessTime(time))) =
                self.first([Side::Server, Side::Client], Key::ProcessTime)
            && time.is_long()
        {
            name = "Direct-WriteIMM";
            let text = format!(
                "process_time = {} is long, so that fetching would only repeat READs in vain: Direct-WriteIMM",
                Value::ProcessTime(time)
            );
            self.say(subject, Some((side, Key::ProcessTime)), text);
        }
        let protocol = Protocol::by_name(name).or_else(|| Protocol::by_name("Read-RNDV"));
        Cell { protocol: protocol.unwrap_or(&dunlin_rpc::PROTOCOLS[0]), large }
    }

    /// HatRPC figure 6, with its sections 3.2, 4.3 and 5.2.
    fn row(
        &self,
        sender: Side,
        goal: Option<PerfGoal>,
        subscription: Subscription,
        large: bool,
    ) -> (&'static str, String) {
        let Some(goal) = goal else {
            return ("Direct-WriteIMM", "no perf_goal, so the usual Direct-WriteIMM".to_owned());
        };
        let size = match self.size(sender) {
            Some(size) => {
                format!("{} of {}", if large { "large" } else { "small" }, Value::PayloadSize(size))
            }
            None if sender == Side::Server && self.hints.oneway => "none (oneway)".to_owned(),
            None => "taken for small without payload_size".to_owned(),
        };
        let (clients, _) = self.clients();
        let cores = format!("{clients} clients, {subscription}");
        let what = if sender == Side::Client { "requests" } else { "responses" };
        let name = match (goal, subscription, large) {
            (PerfGoal::Latency, ..) | (PerfGoal::Throughput, _, false) => "Direct-WriteIMM",
            (PerfGoal::Throughput, Subscription::Under, true) => "Direct-WriteIMM",
            (PerfGoal::Throughput, _, true) => "Remote-fetch",
            (PerfGoal::ResUtil, Subscription::Under, false) => "Direct-WriteIMM",
            (PerfGoal::ResUtil, _, false) => "Eager-SendRecv",
            (PerfGoal::ResUtil, _, true) => "Write-RNDV",
        };
        let goal = Value::PerfGoal(goal);
        (name, format!("perf_goal = {goal}, {what} {size}, {cores}: {name}"))
    }

    /// How a side waits, and whether that is its hint.
    fn mode(&mut self, side: Side, subscription: Subscription) -> (CompletionMode, bool) {
        let hints = *self.side(side);
        let subject = Subject::Polling(side);
        if let Some(mode) = hints.polling {
            self.say(subject, Some((side, Key::Polling)), format!("polling = {mode}"));
            return (mode, true);
        }
        let large = self.is_large(Side::Client) || self.is_large(Side::Server);
        let size = if large { "large" } else { "small" };
        let (mode, text) = match hints.perf_goal {
            None => (CompletionMode::Adaptive, "no perf_goal, so the usual adaptive".to_owned()),
            Some(goal) => {
                let mode = match (goal, subscription) {
                    (PerfGoal::Latency, Subscription::Over) => CompletionMode::Adaptive,
                    (PerfGoal::Latency, _) => CompletionMode::Busy,
                    (PerfGoal::Throughput, Subscription::Under) if large => CompletionMode::Busy,
                    (PerfGoal::Throughput | PerfGoal::ResUtil, _) => CompletionMode::Event,
                };
                let goal = Value::PerfGoal(goal);
                (mode, format!("perf_goal = {goal}, payloads {size}, {subscription}: {mode}"))
            }
        };
        let hint = hints.perf_goal.map(|_| (side, Key::PerfGoal));
        self.say(subject, hint, text);
        if hints.priority == Some(Priority::Low) && mode != CompletionMode::Event {
            let text = "priority = low, which gives way to others: event".to_owned();
            self.say(subject, Some((side, Key::Priority)), text);
            return (CompletionMode::Event, false);
        }
        (mode, false)
    }

    /// Says how the chosen plan differs from the wished one; what was asked for by a protocol's name and a way to
    /// wait on the same level is an error.
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
            self.say(Subject::Polling(side), hint, format!("{after} in the place of {before}: {illegal}"));
        }
        if wished.request != chosen.request {
            self.say(
                Subject::Request,
                None,
                format!("{:?} in the place of {:?}: {illegal}", chosen.request, wished.request),
            );
        }
        if wished.response != chosen.response {
            self.say(
                Subject::Response,
                None,
                format!("{:?} in the place of {:?}: {illegal}", chosen.response, wished.response),
            );
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
            Numa::Node(node) => {
                (Some(NumaBinding::Node(node)), format!("numa = {written}: bound to node {node}"))
            }
            Numa::On if subscription == Subscription::Under => (
                Some(NumaBinding::NicNode),
                format!("numa = {written}, {subscription}: bound to the NIC's node"),
            ),
            Numa::On => (None, format!("numa = {written}, but {subscription}: all cores are needed")),
        };
        self.say(Subject::Numa(side), Some((side, Key::Numa)), text);
        binding
    }
}

/// The name of a plan's protocol; fetching with requests that wake the server is still Remote-fetch.
fn name_of(plan: &Plan) -> Option<&'static str> {
    let named = |plan: &Plan| plan.protocol().map(|protocol| protocol.name);
    named(plan).or_else(|| {
        (plan.response == ResponseHalf::Fetch && plan.request == RequestHalf::WriteImm)
            .then(|| named(&Plan { request: RequestHalf::Write, ..*plan }))
            .flatten()
    })
}
