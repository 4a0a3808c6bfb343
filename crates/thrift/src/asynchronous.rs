//! The asynchronous client that generated code uses: any executor and any number of tasks share one hub.

use crate::client::{by_tcp, failed, introduce, numa};
use crate::form::Form;
use crate::introduction::tagged_id;
use crate::numa::Bound;
use crate::route::{Choice, ClientOptions, Route, no_route};
use crate::running::Known;
use dunlin_fabric::{Address, ChosenTransport, Fabric};
use dunlin_rpc::{AsyncHub, Call, RunningPlan, SMALL_LIMIT, Tuning};
use dunlin_thrift_core::{
    Arguments, CallError, ConnectError, ErrorOf, Outcome, PlanOfError, ServiceDescriptor,
};
use dunlin_thrift_tcp::{AsyncConnection, ConnectionOptions, HeldMessage, TcpCall};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

/// An asynchronous client of one service, whose calls are futures. Clones share its connections as those of
/// [`dunlin_rpc::AsyncClient`] do.
#[derive(Clone, Debug)]
pub struct AsyncClient<F: Fabric> {
    /// `None` if all functions use TCP.
    engine: Option<dunlin_rpc::AsyncClient<F>>,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    service: &'static ServiceDescriptor,
    tcp: Option<AsyncConnection>,
    known: Known,
    cores: Vec<u32>,
    transport: ChosenTransport,
}

impl<F: Fabric> AsyncClient<F> {
    /// Connects with the plans that the functions' hints select, and learns the server's functions. Blocks.
    ///
    /// # Errors
    /// [`ClientConfig::lazy`](dunlin_rpc::ClientConfig::lazy) is refused: calls are encoded as the server's
    /// introduction says. The client of `dunlin::Fabrics` may be lazy at every address.
    pub fn connect(
        hub: &AsyncHub<F>,
        address: &Address,
        service: &'static ServiceDescriptor,
        options: ClientOptions,
    ) -> Result<Self, ConnectError> {
        if options.engine.lazy {
            let why = "an asynchronous typed client of one fabric learns the server's functions when it connects; connect it with Fabrics";
            return Err(dunlin_rpc::ConnectError::Lazy(why).into());
        }
        let fabric = hub.fabric();
        let choice = Choice::new(service, fabric, &options, Default::default())?;
        let bound = Bound::new(fabric.host(), &choice.cores).map_err(|error| numa(service, error))?;
        // A temporary synchronous client makes the introduction call.
        let connect = |config| dunlin_rpc::Client::connect(fabric, address, config);
        let mut asking = Choice::connected(service, options.engine.clone(), connect)?;
        let introduction = introduce((&mut asking, None), service, &options)?;
        let choice = Choice::new(service, fabric, &options, (asking.server_connections(), asking.workers()))?;
        let config = choice.config(service, &introduction, &options);
        let connect = |config| dunlin_rpc::AsyncClient::connect(hub, address, config);
        let engine = Choice::connected(service, config, connect)?;
        let routes = choice.routes(service, &introduction);
        let tcp_address = options.tcp.as_ref().or(introduction.tcp.as_ref());
        let tcp = match tcp_address.filter(|_| routes.contains(&Route::Tcp)) {
            Some(address) => Some(AsyncConnection::connect(address, options.tcp_connection())?),
            None => None,
        };
        drop(bound);
        let mut known = Known { selections: choice.selections, ..Known::default() };
        known.learn(service, routes, &introduction);
        let (cores, engine) = (choice.cores, Some(engine));
        let transport = ChosenTransport::named(fabric.capabilities().name, address.to_string());
        Ok(AsyncClient { engine, shared: Arc::new(Shared { service, tcp, known, cores, transport }) })
    }

    /// Returns the cores of the NUMA node on which the client's memory lies because of its hints; empty for
    /// no binding. The client does not bind the executor's threads.
    pub fn cores(&self) -> &[u32] {
        &self.shared.cores
    }

    /// Connects to any server of stock Thrift, Dunlin's or Apache's, at `address` (`host:port`). All
    /// functions use TCP. Blocks.
    pub fn connect_tcp(
        address: &str,
        service: &'static ServiceDescriptor,
        options: ConnectionOptions,
    ) -> Result<Self, ConnectError> {
        let known = Known::by_tcp(service);
        let tcp = Some(AsyncConnection::connect(address, options)?);
        let (cores, transport) = (Vec::new(), by_tcp(address));
        Ok(AsyncClient { engine: None, shared: Arc::new(Shared { service, tcp, known, cores, transport }) })
    }

    /// Waits until the client is connected, for at most `at_most`, and connects with back-off meanwhile
    /// ([`dunlin_rpc::AsyncClient::wait_ready`]). A client of TCP alone holds no connection between calls, so
    /// there it ends at once.
    ///
    /// # Errors
    /// There is no connection by then. Later calls connect as before.
    pub async fn wait_ready(&self, at_most: Duration) -> Result<(), CallError> {
        match &self.engine {
            Some(engine) => Ok(engine.wait_ready(at_most).await?),
            None => Ok(()),
        }
    }

    /// Returns how the calls of the function with this name in the IDL run: the protocol, how both sides
    /// wait, where it runs, and the reasons.
    pub fn plan_of(&self, function: &str) -> Result<RunningPlan, PlanOfError> {
        let (Shared { service, known, .. }, engine) = (&*self.shared, &self.engine);
        known.plan_of(service, function, |id, name| engine.as_ref().map(|engine| engine.plan_of_as(id, name)))
    }

    /// Returns the transport of calls whose hints do not select TCP.
    pub fn transport(&self) -> &ChosenTransport {
        &self.shared.transport
    }

    /// Returns the current tuning of each connection to a worker, for plans that fetch results or have them
    /// written back; empty for other plans and on TCP.
    pub fn tuning(&self) -> Vec<Tuning> {
        let tuning = self.engine.as_ref().map_or_else(Vec::new, |engine| engine.tuning());
        self.shared.known.named(self.shared.service, tuning)
    }

    /// Returns the current maximum batch size in calls of each connection to a worker; empty without
    /// [`ClientConfig::batching`](dunlin_rpc::ClientConfig::batching) and on TCP.
    pub fn batch_calls(&self) -> Vec<u16> {
        self.engine.as_ref().map_or_else(Vec::new, |engine| engine.batch_calls())
    }

    /// Returns the route of each function, in the order of the service's descriptor.
    pub fn routes(&self) -> &[Route] {
        &self.shared.known.routes
    }

    /// Returns the engine with the function's id and form, or the TCP connection with its name.
    fn route(&self, function: usize) -> Result<Way<'_, F>, CallError> {
        let (Shared { service, tcp, known, .. }, engine) = (&*self.shared, &self.engine);
        match (known.routes[function], engine, tcp) {
            (Route::Engine { id, form }, Some(engine), _) => Ok(Way::Engine(engine, id, form)),
            (Route::Tcp, _, Some(tcp)) => Ok(Way::Tcp(tcp, &service.functions[function].name)),
            (route, ..) => Err(no_route(service, function, route)),
        }
    }

    /// Makes a call, sending it immediately if there is room. Dropping the future abandons the call.
    pub fn call<A: Arguments, R: Outcome, E: ErrorOf<R>>(
        &self,
        function: usize,
        arguments: &A,
    ) -> AsyncCall<F, R, E> {
        self.call_within(None, function, arguments)
    }

    /// As [`call`](AsyncClient::call), with a time of its own in place of that of the settings.
    pub fn call_within<A: Arguments, R: Outcome, E: ErrorOf<R>>(
        &self,
        time: Option<Duration>,
        function: usize,
        arguments: &A,
    ) -> AsyncCall<F, R, E> {
        let state = match self.route(function) {
            Ok(Way::Tcp(tcp, name)) => State::Tcp(tcp.call_within(time, name, arguments)),
            Ok(Way::Engine(engine, id, form)) => match send((engine, time), id, form, arguments) {
                Ok(call) => State::Sent(call, form),
                Err(error) => State::Failed(error),
            },
            Err(error) => State::Failed(error),
        };
        AsyncCall(state)
    }

    /// Makes a call whose arguments were encoded before this client was connected. As
    /// [`call_within`](AsyncClient::call_within).
    pub fn call_held<R: Outcome, E: ErrorOf<R>>(
        &self,
        time: Option<Duration>,
        held: HeldCall,
    ) -> AsyncCall<F, R, E> {
        AsyncCall(match self.route(held.function) {
            Ok(Way::Tcp(tcp, name)) => State::Tcp(tcp.call_held(time, name, held.message)),
            Ok(Way::Engine(engine, id, form)) => {
                let call = engine.within_or_default(time).call(tagged_id(id, form), &held.tagged);
                State::Sent(call, Form::Tagged)
            }
            Err(error) => State::Failed(error),
        })
    }

    /// Sends a oneway call. If there is no room, returns an error instead of waiting; the call is then not
    /// executed.
    pub fn oneway<A: Arguments>(&self, function: usize, arguments: &A) -> Result<(), CallError> {
        self.oneway_within(None, function, arguments)
    }

    /// As [`oneway`](AsyncClient::oneway), with a time of its own in place of that of the settings.
    pub fn oneway_within<A: Arguments>(
        &self,
        time: Option<Duration>,
        function: usize,
        arguments: &A,
    ) -> Result<(), CallError> {
        match self.route(function)? {
            Way::Tcp(tcp, name) => tcp.oneway_within(time, name, arguments),
            Way::Engine(engine, id, form) => {
                send((engine, time), id, form, arguments)?.leave().map_err(failed)
            }
        }
    }
}

/// A call whose arguments are encoded before the client knows its server: in the forms that any server of the
/// service reads.
#[derive(Debug)]
pub struct HeldCall {
    function: usize,
    /// For the engine.
    tagged: Vec<u8>,
    /// For stock Thrift.
    message: HeldMessage,
}

impl HeldCall {
    /// Encodes the arguments of a function.
    ///
    /// # Errors
    /// The arguments cannot be encoded.
    pub fn new<A: Arguments>(
        service: &'static ServiceDescriptor,
        options: &ConnectionOptions,
        function: usize,
        arguments: &A,
    ) -> Result<Self, CallError> {
        let mut tagged = vec![0; Form::Tagged.size(arguments)];
        Form::Tagged.encode(arguments, &mut tagged).map_err(CallError::Encode)?;
        let name = &service.functions[function].name;
        let message = HeldMessage::new(options, name, arguments).map_err(CallError::Encode)?;
        Ok(HeldCall { function, tagged, message })
    }
}

/// The connection of a call: the engine or TCP.
enum Way<'a, F: Fabric> {
    Engine(&'a dunlin_rpc::AsyncClient<F>, u16, Form),
    Tcp(&'a AsyncConnection, &'static str),
}

/// Sends a call immediately and returns the future of its result.
fn send<F: Fabric, A: Arguments>(
    (engine, time): (&dunlin_rpc::AsyncClient<F>, Option<Duration>),
    id: u16,
    form: Form,
    arguments: &A,
) -> Result<Call<F>, CallError> {
    if let Some(bytes) = form.raw(arguments) {
        return Ok(engine.within_or_default(time).call(id, bytes));
    }
    let size = form.size(arguments);
    let mut small = [0; SMALL_LIMIT as usize];
    let mut large = Vec::new();
    let place = match small.get_mut(..size) {
        Some(place) => place,
        None => {
            large.resize(size, 0);
            &mut large[..]
        }
    };
    form.encode(arguments, place).map_err(CallError::Encode)?;
    Ok(engine.within_or_default(time).call(id, place))
}

/// A call in progress. Dropping it abandons the call; the server may still execute it.
#[derive(Debug)]
#[must_use = "a call that is dropped is given up"]
pub struct AsyncCall<F: Fabric, R: Outcome, E>(State<F, R, E>);

#[derive(Debug)]
enum State<F: Fabric, R: Outcome, E> {
    Sent(Call<F>, Form),
    Tcp(TcpCall<R, E>),
    Failed(CallError),
    Over,
}

// No field is pinned: the engine's call is `Unpin`, and an error is only moved out.
impl<F: Fabric, R: Outcome, E> Unpin for AsyncCall<F, R, E> {}

impl<F: Fabric, R: Outcome, E: ErrorOf<R>> Future for AsyncCall<F, R, E> {
    type Output = Result<R::Value, E>;

    /// # Panics
    /// Panics when polled again after it returned `Ready`.
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let state = &mut self.get_mut().0;
        if let State::Sent(call, form) = state {
            let answer = ready!(Pin::new(call).poll(context));
            let form = *form;
            *state = State::Over;
            return Poll::Ready(match answer {
                Ok(response) => form.decode::<R, E>(&response),
                Err(error) => Err(failed(error).into()),
            });
        }
        if let State::Tcp(call) = state {
            let result = ready!(Pin::new(call).poll(context));
            *state = State::Over;
            return Poll::Ready(result);
        }
        match std::mem::replace(state, State::Over) {
            State::Failed(error) => Poll::Ready(Err(error.into())),
            _ => panic!("the call was polled after it was ready"),
        }
    }
}
