//! Asynchronous handlers. Each call is a task on the application's executor: a thread of the server pulls the
//! call and spawns it. The tasks in progress are counted, and calls beyond the limit are refused.

use crate::form::Form;
use crate::introduction::{Introduction, function_number};
use crate::on_server::OnServer;
use crate::route::environment;
use crate::server::{ServerOptions, application_code, bound_cores};
use dunlin_fabric::{Address, Fabric, Host, Nanos, Task};
use dunlin_rpc::{
    FunctionMode, Incoming, Puller, Reply, Request, RunsIn, ServerBuilder, ServerConfig, Status,
};
use dunlin_thrift_core::codec::BinaryInput;
use dunlin_thrift_core::{Context, Outcome, Refusal, Responder, ServeError, ServiceDescriptor};
use pilota::thrift::{ApplicationException, ApplicationExceptionKind};
use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::Duration;

/// A service with its asynchronous handler. Generated code implements it.
pub trait AsyncProcessor: Send + Sync + 'static {
    /// Returns the service's descriptor.
    fn service(&self) -> &'static ServiceDescriptor;

    /// Executes one call of the function with this index in the service's descriptor.
    fn process<'a, R: Responder + Send + 'a>(
        &'a self,
        function: usize,
        input: BinaryInput<'a>,
        context: &'a Context,
        responder: R,
    ) -> impl Future<Output = R::Done> + Send + 'a
    where
        R::Done: Send + 'a;
}

/// Several servers may share the handler.
impl<P: AsyncProcessor> AsyncProcessor for Arc<P> {
    fn service(&self) -> &'static ServiceDescriptor {
        P::service(self)
    }

    fn process<'a, R: Responder + Send + 'a>(
        &'a self,
        function: usize,
        input: BinaryInput<'a>,
        context: &'a Context,
        responder: R,
    ) -> impl Future<Output = R::Done> + Send + 'a
    where
        R::Done: Send + 'a,
    {
        P::process(self, function, input, context, responder)
    }
}

/// A call to be run by an executor. It ends by itself when the server ends.
pub type CallTask = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The executor that runs the calls of asynchronous handlers, and the most calls in progress.
#[derive(Clone)]
pub struct Tasks {
    spawn: Arc<dyn Fn(CallTask) + Send + Sync>,
    most: u32,
}

impl fmt::Debug for Tasks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tasks").field("most", &self.most).finish_non_exhaustive()
    }
}

impl Tasks {
    /// Runs calls with `spawn`, at most 1024 at a time. `spawn` hands a future to an executor and does not
    /// wait for it. One thread of the server calls it.
    pub fn new(spawn: impl Fn(CallTask) + Send + Sync + 'static) -> Self {
        Tasks { spawn: Arc::new(spawn), most: 1024 }
    }

    /// Sets the most calls in progress; at an `auto:` address on each fabric. Further calls are refused as
    /// overloaded: not executed.
    #[must_use]
    pub fn at_most(mut self, most: u32) -> Self {
        self.most = most;
        self
    }
}

/// The calls in progress.
#[derive(Debug, Default)]
struct Calls(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    next: u64,
    cancelled: bool,
    /// By number; with the waker of a call that was polled.
    calls: BTreeMap<u64, Option<Waker>>,
}

impl Calls {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a place for one more call; `None` if there are `most` already, or the server has ended.
    fn admit(self: &Arc<Self>, most: u32) -> Option<Place> {
        let mut state = self.state();
        if state.cancelled || state.calls.len() >= most as usize {
            return None;
        }
        state.next += 1;
        let number = state.next;
        state.calls.insert(number, None);
        drop(state);
        Some(Place { calls: Arc::clone(self), number })
    }

    /// Ends all calls at their next poll, and wakes them for it.
    fn cancel(&self) {
        let wakers: Vec<Waker> = {
            let mut state = self.state();
            state.cancelled = true;
            state.calls.values_mut().filter_map(Option::take).collect()
        };
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// The place of one call among those in progress. Dropping it frees the place.
#[derive(Debug)]
struct Place {
    calls: Arc<Calls>,
    number: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        let waker = self.calls.state().calls.remove(&self.number);
        // Dropping a waker may drop a task, and with it another call: the lock is free again.
        drop(waker);
    }
}

/// A call in progress. A panic of its handler ends this call alone.
struct Call<T> {
    task: Option<Pin<Box<T>>>,
    place: Place,
}

impl<T: Future<Output = ()>> Future for Call<T> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut TaskContext<'_>) -> Poll<()> {
        let this = self.get_mut();
        let (cancelled, before) = {
            let mut state = this.place.calls.state();
            let cancelled = state.cancelled;
            (cancelled, state.calls.insert(this.place.number, Some(context.waker().clone())))
        };
        drop(before);
        let Some(task) = &mut this.task else { return Poll::Ready(()) };
        let polled = match cancelled {
            true => Ok(Poll::Ready(())),
            false => catch_unwind(AssertUnwindSafe(|| task.as_mut().poll(context))),
        };
        if matches!(polled, Ok(Poll::Pending)) {
            return Poll::Pending;
        }
        // A call that was not answered is answered by this: it may have been executed in part.
        let task = this.task.take();
        let dropped = catch_unwind(AssertUnwindSafe(|| drop(task)));
        if polled.is_err() || dropped.is_err() {
            tracing::error!(target: "dunlin::server", "an asynchronous handler panicked");
        }
        Poll::Ready(())
    }
}

/// Encodes a result and answers the pulled call.
struct IntoIncoming<F: Fabric> {
    incoming: Incoming<F>,
    form: Form,
    /// The largest result, in bytes.
    limit: u64,
}

impl<F: Fabric> Responder for IntoIncoming<F> {
    type Done = ();

    fn respond<R: Outcome>(self, outcome: Result<R, Refusal>) {
        let result = match outcome {
            Ok(result) => result,
            Err(refusal) => return self.refuse(refusal),
        };
        let size = self.form.result_size(&result);
        if size as u64 > self.limit {
            return self.incoming.refuse(Status::TooLarge);
        }
        let mut bytes = vec![0; size];
        match self.form.encode_result(&result, (&mut bytes, None)) {
            Ok(()) => self.incoming.reply(bytes),
            Err(error) => {
                let (kind, text) = (ApplicationExceptionKind::INTERNAL_ERROR, error.message().clone());
                self.refuse(Refusal::Application(ApplicationException::new(kind, text)));
            }
        }
    }

    #[cold]
    fn refuse(self, refusal: Refusal) {
        let exception = refusal.into_exception();
        match application_code(&exception) {
            Some(code) => self.incoming.fail(code, exception.message().as_bytes().to_vec()),
            None => self.incoming.refuse(Status::Malformed),
        }
    }
}

/// Pulls calls and spawns them until the server ends.
fn spawn_calls<F: Fabric, P: AsyncProcessor>(
    puller: &Puller<F>,
    processor: &Arc<P>,
    (tasks, calls): (&Tasks, &Arc<Calls>),
    limit: u64,
) {
    while let Some(mut incoming) = puller.receive(Nanos::MAX) {
        let Some((function, form)) = function_number(incoming.function) else {
            incoming.refuse(Status::UnknownFunction);
            continue;
        };
        let Some(place) = calls.admit(tasks.most) else {
            incoming.refuse(Status::Overloaded);
            continue;
        };
        let processor = Arc::clone(processor);
        let task = async move {
            // The call may have waited in the executor.
            if incoming.time_left() == Some(Duration::ZERO) {
                incoming.refuse(Status::DeadlineExceeded);
                return;
            }
            incoming.begin();
            let payload = std::mem::take(&mut incoming.payload);
            let deadline = incoming.deadline().map(|(deadline, clock)| (deadline, clock.clone()));
            let context = Context::on_engine(incoming.session, deadline);
            let input = match form {
                Form::Bare => BinaryInput::bare(&payload),
                Form::Tagged => BinaryInput::new(&payload),
            };
            processor.process(function, input, &context, IntoIncoming { incoming, form, limit }).await;
        };
        let call = Call { task: Some(Box::pin(task)), place };
        // If the executor refuses the task by a panic, the call ends with it.
        if catch_unwind(AssertUnwindSafe(|| (tasks.spawn)(Box::pin(call)))).is_err() {
            tracing::error!(target: "dunlin::server", "the executor panicked when it was given a call");
        }
    }
}

/// A running server of asynchronous handlers on one fabric. Dropping it stops it immediately.
#[derive(Debug)]
pub struct AsyncServer<F: Fabric> {
    address: Address,
    engine: Option<dunlin_rpc::Server<F>>,
    calls: Arc<Calls>,
    spawner: Option<Task>,
}

/// Starts a server of asynchronous handlers on one fabric.
pub(crate) fn serve_async_on<F: Fabric, P: AsyncProcessor>(
    fabric: &F,
    address: &Address,
    processor: P,
    options: ServerOptions,
    tasks: Tasks,
) -> Result<AsyncServer<F>, ServeError> {
    let refused = |why| Err(ServeError::Asynchronous { why });
    if options.tcp.is_some() {
        return refused("they do not answer stock Thrift: leave out ServerOptions::tcp");
    }
    if !options.pool.is_empty() {
        return refused("they run in tasks and not in the pool: leave out ServerOptions::pool");
    }
    if tasks.most == 0 {
        return refused("at least one call must be allowed in progress: see Tasks::at_most");
    }
    let (service, mut config) = (processor.service(), options.engine);
    let topology = options.topology.unwrap_or_else(|| fabric.host().topology());
    if config.cores.is_empty() {
        config.cores = bound_cores(fabric, service, &topology)?;
    }
    let environment = environment(fabric.capabilities(), None, &topology);
    let on_server = service.functions.iter().enumerate().map(|(number, function)| OnServer {
        runs: RunsIn::Tasks { most: tasks.most },
        why: "asynchronous handlers".to_owned(),
        ..OnServer::new(number, function, &Default::default(), config.pool_threads, &environment)
    });
    let introduction = Introduction { on_server: on_server.collect(), ..Introduction::of(service, None) };
    let limit = config.max_response;
    let mut builder = ServerBuilder::new(fabric)
        .config(config)
        .function(crate::introduction::INTRODUCTION, FunctionMode::Worker);
    for id in introduction.functions.iter().flat_map(crate::introduction::Function::ids) {
        builder = builder.function(id, FunctionMode::Pull);
    }
    let introduction: Arc<[u8]> = introduction.encode().into();
    let engine = builder.serve(address, move |_| {
        let introduction = Arc::clone(&introduction);
        Box::new(move |_: &Request<'_>, reply: &mut Reply<'_>| Ok(reply.write(&introduction)?))
    })?;
    let (calls, puller, processor) = (Arc::new(Calls::default()), engine.puller(), Arc::new(processor));
    let mine = Arc::clone(&calls);
    let body = move || spawn_calls(&puller, &processor, (&tasks, &mine), limit);
    let spawner = fabric.host().spawn("dunlin-tasks", Box::new(body));
    let spawner = spawner.map_err(dunlin_rpc::ServeError::Thread)?;
    Ok(AsyncServer { address: engine.address().clone(), engine: Some(engine), calls, spawner: Some(spawner) })
}

impl<F: Fabric> AsyncServer<F> {
    /// Returns the address to which clients connect.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Returns the engine's settings.
    pub fn config(&self) -> Option<&ServerConfig> {
        self.engine.as_ref().map(dunlin_rpc::Server::config)
    }

    /// Returns the number of calls in progress.
    pub fn in_progress(&self) -> usize {
        self.calls.state().calls.len()
    }

    /// Stops the server gracefully: answers the received calls, for at most `timeout`. Then the
    /// calls in progress are cancelled: their futures are dropped, and their callers learn that they may have
    /// been executed. Blocks. The executor must run meanwhile.
    pub fn shutdown(mut self, timeout: Duration) {
        self.stop(timeout);
    }

    fn stop(&mut self, timeout: Duration) {
        let Some(engine) = self.engine.take() else { return };
        engine.shutdown(timeout);
        self.calls.cancel();
        if let Some(spawner) = self.spawner.take() {
            spawner.join();
        }
    }
}

impl<F: Fabric> Drop for AsyncServer<F> {
    fn drop(&mut self) {
        self.stop(Duration::ZERO);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts its drops.
    struct Dropped(Arc<Woken>);

    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn places_are_bounded_and_come_back() {
        let calls = Arc::new(Calls::default());
        let (first, second) = (calls.admit(2).unwrap(), calls.admit(2).unwrap());
        assert!(calls.admit(2).is_none());
        drop(first);
        let third = calls.admit(2).unwrap();
        assert!(calls.admit(2).is_none());
        calls.cancel();
        drop((second, third));
        assert!(calls.admit(2).is_none() && calls.state().calls.is_empty());
    }

    #[test]
    fn a_cancelled_call_is_woken_and_dropped() {
        let (calls, woken, dropped) =
            (Arc::new(Calls::default()), Arc::new(Woken::default()), Arc::default());
        let held = Dropped(Arc::clone(&dropped));
        let task = async move {
            let _held = held;
            std::future::pending::<()>().await;
        };
        let mut call = Call { task: Some(Box::pin(task)), place: calls.admit(1).unwrap() };
        let waker = Waker::from(Arc::clone(&woken));
        let mut context = TaskContext::from_waker(&waker);
        assert!(Pin::new(&mut call).poll(&mut context).is_pending());
        calls.cancel();
        assert_eq!((woken.0.load(Ordering::Relaxed), dropped.0.load(Ordering::Relaxed)), (1, 0));
        assert!(Pin::new(&mut call).poll(&mut context).is_ready());
        assert_eq!(dropped.0.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_panic_ends_one_call() {
        let calls = Arc::new(Calls::default());
        let mut call =
            Call { task: Some(Box::pin(async { panic!("on purpose") })), place: calls.admit(1).unwrap() };
        let mut context = TaskContext::from_waker(Waker::noop());
        assert!(Pin::new(&mut call).poll(&mut context).is_ready());
        assert!(Pin::new(&mut call).poll(&mut context).is_ready());
        drop(call);
        assert!(calls.state().calls.is_empty());
    }
}
