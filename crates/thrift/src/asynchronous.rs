//! The asynchronous client under generated code: for any executor, any number of tasks, one hub.

use crate::arguments::{Arguments, Outcome};
use crate::client::{decode, failed, introduce};
use crate::codec::BinaryOutput;
use crate::descriptor::ServiceDescriptor;
use crate::error::{CallError, ConnectError};
use crate::route::{Choice, ClientOptions, Route, no_route};
use dunlin_fabric::{Address, Fabric};
use dunlin_rpc::{AsyncHub, Call, SMALL_LIMIT};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

/// A client of one service whose calls are futures. Clones share its connections.
#[derive(Clone, Debug)]
pub struct AsyncClient<F: Fabric>(Arc<Shared<F>>);

#[derive(Debug)]
struct Shared<F: Fabric> {
    service: &'static ServiceDescriptor,
    engine: dunlin_rpc::AsyncClient<F>,
    routes: Vec<Route>,
}

impl<F: Fabric> AsyncClient<F> {
    /// Connects, each function as its hints say, and learns the server's functions. Blocks.
    pub fn connect(
        hub: &AsyncHub<F>,
        fabric: &F,
        address: &Address,
        service: &'static ServiceDescriptor,
        options: ClientOptions,
    ) -> Result<Self, ConnectError> {
        let choice = Choice::new(service, fabric.capabilities(), &options)?;
        // The introduction is one call, made by a client that waits.
        let mut asking = dunlin_rpc::Client::connect(fabric, address, options.engine.clone())?;
        let introduction = introduce(&mut asking, service)?;
        let config = choice.config(service, &introduction, &options);
        let engine = dunlin_rpc::AsyncClient::connect(hub, address, config)?;
        let routes = choice.routes(service, &introduction);
        Ok(AsyncClient(Arc::new(Shared { service, engine, routes })))
    }

    /// Sends a call at once; the future gives its result.
    fn send<A: Arguments, E>(&self, function: usize, arguments: &A) -> Result<Call<F>, CallError<E>> {
        let Shared { service, engine, routes } = &*self.0;
        let id = match routes[function] {
            Route::Engine(id) => id,
            other => return Err(no_route(service, function, other)),
        };
        let size = arguments.size(&mut BinaryOutput::new(&mut []));
        let mut small = [0; SMALL_LIMIT as usize];
        let mut large = Vec::new();
        let place = match small.get_mut(..size) {
            Some(place) => place,
            None => {
                large.resize(size, 0);
                &mut large[..]
            }
        };
        arguments.encode(&mut BinaryOutput::new(place)).map_err(CallError::Encode)?;
        Ok(engine.call(id, place))
    }

    /// Makes a call. It is sent at once; dropping the future gives it up.
    pub fn call<A: Arguments, R: Outcome>(&self, function: usize, arguments: &A) -> AsyncCall<F, R> {
        AsyncCall(match self.send(function, arguments) {
            Ok(call) => State::Sent(call),
            Err(error) => State::Failed(error),
        })
    }

    /// Makes a call whose result nobody waits for.
    pub fn oneway<A: Arguments, E>(&self, function: usize, arguments: &A) -> Result<(), CallError<E>> {
        // Dropping the future gives up the answer, not the call.
        self.send(function, arguments).map(drop)
    }
}

/// A call under way. Dropping it gives the call up here; the server may still execute it.
#[derive(Debug)]
#[must_use = "a call that is dropped is given up"]
pub struct AsyncCall<F: Fabric, R: Outcome>(State<F, R>);

#[derive(Debug)]
enum State<F: Fabric, R: Outcome> {
    Sent(Call<F>),
    Failed(CallError<R::Exception>),
    Over,
}

// Nothing in it is pinned: the engine's call is not, and an error is only moved out.
impl<F: Fabric, R: Outcome> Unpin for AsyncCall<F, R> {}

impl<F: Fabric, R: Outcome> Future for AsyncCall<F, R> {
    type Output = Result<R::Value, CallError<R::Exception>>;

    /// # Panics
    /// When polled again after it was ready, as futures may.
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let state = &mut self.get_mut().0;
        if let State::Sent(call) = state {
            let answer = ready!(Pin::new(call).poll(context));
            *state = State::Over;
            return Poll::Ready(match answer {
                Ok(response) => decode::<R>(&response),
                Err(error) => Err(failed(error)),
            });
        }
        match std::mem::replace(state, State::Over) {
            State::Failed(error) => Poll::Ready(Err(error)),
            _ => panic!("the call was polled after it was ready"),
        }
    }
}
