//! Calls on their way through a node, to other nodes and to servers of this host (section 5.1): asynchronous calls of the
//! engine, so that no thread waits for an answer, and one connection to each node, in whose messages the calls of all
//! processes meet.

use crate::calls::node_client;
use crate::error::RequestError;
use crate::node::Node;
use dunlin_fabric::{Address, Fabric};
use dunlin_rpc::{AsyncClient, AsyncHub, Batching, Call, CallError, Cause, ClientConfig, ConnectError};
use dunlin_tier::qos::Policy;
use dunlin_tier::{NodeId, Priority};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

/// The most calls that are under way for all processes of a node.
const MAX_UNDER_WAY: usize = 65_536;
/// Calls in flight on one link to a node.
pub(crate) const WINDOW: u16 = 256;
/// The time that calls wait for a connection to a node.
const CONNECTING: Duration = Duration::from_secs(1);

/// Takes the outcome of a call, on any thread. Must not block.
pub(crate) type Done = Box<dyn FnOnce(Result<Vec<u8>, CallError>) + Send>;

/// A call under way.
struct Forward<F: Fabric> {
    number: u64,
    /// The node, of a call to one.
    to: Option<NodeId>,
    board: Arc<Board<F>>,
    /// None once it has ended.
    call: Mutex<Option<(Call<F>, Done)>>,
}

impl<F: Fabric> Wake for Forward<F> {
    fn wake(self: Arc<Self>) {
        let board = Arc::clone(&self.board);
        board.look_at(self);
    }
}

impl<F: Fabric> Forward<F> {
    fn take(&self) -> Option<(Call<F>, Done)> {
        self.call.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Only one thread at a time looks at calls: see [`Board::look_at`].
    fn poll(self: Arc<Self>) {
        let Some((mut call, done)) = self.take() else { return };
        let waker = Waker::from(Arc::clone(&self));
        match std::pin::Pin::new(&mut call).poll(&mut Context::from_waker(&waker)) {
            Poll::Pending => {
                let mut place = self.call.lock().unwrap_or_else(PoisonError::into_inner);
                // The board may have been closed meanwhile.
                if !self.board.state().is_closed {
                    *place = Some((call, done));
                    return;
                }
                drop(place);
                done(Err(CallError::MaybeExecuted(Cause::Closed)));
            }
            Poll::Ready(outcome) => {
                self.board.state().under_way.remove(&self.number);
                done(outcome.map(|response| response.to_vec()));
            }
        }
    }
}

struct State<F: Fabric> {
    under_way: BTreeMap<u64, Arc<Forward<F>>>,
    next: u64,
    /// Calls to look at.
    ready: VecDeque<Arc<Forward<F>>>,
    /// A thread looks at them.
    is_looked_at: bool,
    is_closed: bool,
    hub: Option<AsyncHub<F>>,
}

/// The calls of a node that are under way on one fabric.
pub(crate) struct Board<F: Fabric> {
    fabric: F,
    state: Mutex<State<F>>,
}

impl<F: Fabric> std::fmt::Debug for Board<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Board").field("under_way", &self.state().under_way.len()).finish_non_exhaustive()
    }
}

impl<F: Fabric> Board<F> {
    pub(crate) fn new(fabric: &F) -> Self {
        let state = State {
            under_way: BTreeMap::new(),
            next: 0,
            ready: VecDeque::new(),
            is_looked_at: false,
            is_closed: false,
            hub: None,
        };
        Board { fabric: fabric.clone(), state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State<F>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at a call that may have ended. A thread that finds another one looking leaves the call to it: a call may be
    /// woken while it is looked at, by the very thread that looks.
    fn look_at(&self, forward: Arc<Forward<F>>) {
        let mut state = self.state();
        state.ready.push_back(forward);
        if std::mem::replace(&mut state.is_looked_at, true) {
            return;
        }
        while let Some(next) = state.ready.pop_front() {
            drop(state);
            next.poll();
            state = self.state();
        }
        state.is_looked_at = false;
    }

    /// Makes a client that connects with its first call. Waits for the hub's lead, and for nothing else.
    pub(crate) fn client(
        &self,
        address: &Address,
        batching: Option<Batching>,
        config: ClientConfig,
    ) -> Result<AsyncClient<F>, ConnectError> {
        let hub = {
            let mut state = self.state();
            match &state.hub {
                Some(hub) => hub.clone(),
                None => state.hub.insert(AsyncHub::new(&self.fabric)?).clone(),
            }
        };
        let config = ClientConfig {
            window: WINDOW,
            wait_for_ready: CONNECTING,
            batching,
            // The first call connects: nothing here blocks.
            lazy: true,
            ..config
        };
        AsyncClient::connect(&hub, address, config)
    }

    /// Makes a call, and has `done` take its outcome. Does not block.
    pub(crate) fn call(
        self: &Arc<Self>,
        (client, to): (&AsyncClient<F>, Option<NodeId>),
        function: u16,
        bytes: &[u8],
        time: Duration,
        done: Done,
    ) {
        let forward = {
            let mut state = self.state();
            if state.is_closed || state.under_way.len() >= MAX_UNDER_WAY {
                drop(state);
                return done(Err(CallError::NotExecuted(Cause::WindowFull)));
            }
            state.next += 1;
            let call = Mutex::new(None);
            let forward = Arc::new(Forward { number: state.next, to, board: Arc::clone(self), call });
            state.under_way.insert(forward.number, Arc::clone(&forward));
            forward
        };
        let call = client.within(time).call(function, bytes);
        *forward.call.lock().unwrap_or_else(PoisonError::into_inner) = Some((call, done));
        self.look_at(forward);
    }

    /// Returns the number of calls under way.
    pub(crate) fn under_way(&self) -> usize {
        self.state().under_way.len()
    }

    /// Ends the calls to a node that was declared dead: it may have executed them.
    pub(crate) fn end(&self, to: NodeId) {
        let ended: Vec<Arc<Forward<F>>> = {
            let mut state = self.state();
            state.under_way.extract_if(.., |_, forward| forward.to == Some(to)).map(|(_, one)| one).collect()
        };
        for forward in ended {
            // A call that is looked at in this instant ends by its deadline, or with its connection.
            if let Some((call, done)) = forward.take() {
                drop(call);
                done(Err(CallError::MaybeExecuted(Cause::Disconnected)));
            }
        }
    }

    /// Ends all calls: their servers may execute them.
    pub(crate) fn close(&self) {
        let (under_way, hub) = {
            let mut state = self.state();
            state.is_closed = true;
            (std::mem::take(&mut state.under_way), state.hub.take())
        };
        for forward in under_way.into_values() {
            if let Some((call, done)) = forward.take() {
                drop(call);
                done(Err(CallError::MaybeExecuted(Cause::Closed)));
            }
        }
        // The last user of the hub ends its thread.
        drop(hub);
    }
}

/// A connection to another node, for calls of one kind: those of one kind do not wait for another's answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    /// Calls of services with high priority, which meet in messages.
    Services,
    /// Requests to the owner of locks that are answered at once.
    Owner,
    /// Calls that wait for a lock or at a barrier.
    Waits,
    /// Calls of services with low priority: calls of high priority wait behind none of them.
    Background,
}

impl Link {
    /// Returns the link of calls to services with a priority. In order of arrival, priorities have no effect.
    pub(crate) fn of_calls(policy: Policy, priority: Priority) -> Link {
        match (policy, priority) {
            (Policy::Arrival, _) | (_, Priority::High) => Link::Services,
            (_, Priority::Low) => Link::Background,
        }
    }
}

/// The clients of the board for one node, by [`Link`].
pub(crate) type Links<F> = [Option<AsyncClient<F>>; 4];

impl<F: Fabric> Node<F> {
    /// Returns the number of connections to other nodes for calls.
    pub(crate) fn call_connections(&self) -> u32 {
        let links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        let others = links.iter().enumerate().filter(|(number, _)| *number != usize::from(self.me.0));
        others.flat_map(|(_, links)| links).flatten().count() as u32
    }

    /// Returns the number of queue pairs that paths have to other nodes.
    pub(crate) fn queue_pairs(&self) -> u32 {
        let links = self.path_links.lock().unwrap_or_else(PoisonError::into_inner);
        links.keys().filter(|(_, to)| *to != self.me).count() as u32
    }

    /// Makes a call of a function of another node's service, and has `done` take its outcome. Does not wait for the call.
    pub(crate) fn forward(
        &self,
        (to, link): (NodeId, Link),
        function: u16,
        bytes: &[u8],
        time: Duration,
        done: Done,
    ) {
        if self.roster.dead_in(to).is_some() {
            return done(Err(CallError::NotExecuted(Cause::Disconnected)));
        }
        let links = || self.links.lock().unwrap_or_else(PoisonError::into_inner);
        let known = links()[usize::from(to.0)][link as usize].clone();
        let client: Result<AsyncClient<F>, RequestError> = known.map_or_else(
            || {
                // Making and dropping a client waits for the hub's lead, so no lock is held meanwhile.
                let meets = matches!(link, Link::Services | Link::Background);
                let batching = meets.then(Batching::default);
                let failed = |source| RequestError::Connect { node: self.name_of(to), source };
                let address = self.address_of(to)?;
                let made = self.board.client(&address, batching, node_client(self)).map_err(failed)?;
                let mut links = links();
                let place = &mut links[usize::from(to.0)][link as usize];
                let (client, unused) = match place {
                    Some(first) => (first.clone(), Some(made)),
                    None => (place.insert(made).clone(), None),
                };
                drop(links);
                drop(unused);
                Ok(client)
            },
            Ok,
        );
        match client {
            Ok(client) => self.board.call((&client, Some(to)), function, bytes, time, done),
            Err(error) => {
                tracing::warn!(target: "dunlin::tier", node = self.name_of(to), %error, "no client for calls to a node");
                done(Err(CallError::NotExecuted(Cause::Disconnected)));
            }
        }
    }
}
