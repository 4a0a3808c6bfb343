//! Calls to the node that wait for other processes: asynchronous calls of one connection, so that their number is not that
//! of connections, and none of them keeps another from the node.

use crate::attachment::{AttachConfig, Failed, MOST_TO_CONNECT, outcome};
use dunlin_fabric::{Fabric, Host, Nanos, Signal, nanos};
use dunlin_rpc::{AsyncClient, AsyncHub, CallError, ClientConfig, ConnectError};
use dunlin_tier::message::Malformed;
use dunlin_tier::process::{ATTACH, Problem, ProcessRequest, SERVICE, Secret};
use dunlin_tier_node::RequestError;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

/// Calls that wait at the same time; further ones wait in this process for one of these.
const WINDOW: u16 = 256;
/// The connection, which the first call makes.
#[derive(Debug)]
pub(crate) struct Waiting<P: Fabric>(Mutex<Option<AsyncClient<P>>>);

/// Wakes the thread that waits for a call.
struct Woken<S: Signal>(S);

impl<S: Signal> Wake for Woken<S> {
    fn wake(self: Arc<Self>) {
        self.0.raise();
    }
}

/// Blocks until a call has ended: by its deadline.
fn block_on<H: Host, T>(host: &H, call: impl Future<Output = T>) -> T {
    let signal = host.signal();
    let waker = Waker::from(Arc::new(Woken(signal.clone())));
    let mut call = pin!(call);
    loop {
        let seen = signal.seen();
        if let Poll::Ready(ended) = call.as_mut().poll(&mut Context::from_waker(&waker)) {
            return ended;
        }
        signal.wait(seen, Nanos::MAX);
    }
}

/// Calls, each of which is a future or has its outcome.
type Pending<'a, T> = Vec<Result<T, Pin<Box<dyn Future<Output = T> + 'a>>>>;

/// Polls all calls that have not ended; returns whether all have.
fn poll_each<T>(calls: &mut Pending<'_, T>, context: &mut Context<'_>) -> bool {
    for call in calls.iter_mut() {
        if let Err(future) = call
            && let Poll::Ready(ended) = future.as_mut().poll(context)
        {
            *call = Ok(ended);
        }
    }
    calls.iter().all(Result::is_ok)
}

impl<P: Fabric> Waiting<P> {
    pub(crate) fn new() -> Self {
        Waiting(Mutex::new(None))
    }

    fn client(&self, fabric: &P, config: &AttachConfig) -> Result<AsyncClient<P>, ConnectError> {
        let mut place = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = &*place {
            return Ok(client.clone());
        }
        // On a host whose threads wait for cores, one attempt takes seconds: a call outlasts it.
        let connecting = config.timeout.min(MOST_TO_CONNECT);
        let settings = ClientConfig {
            window: WINDOW,
            timeout: config.timeout,
            connect_timeout: connecting,
            wait_for_ready: connecting,
            // Nothing blocks with the lock held.
            lazy: true,
            service: SERVICE.to_owned(),
            program: config.program.clone(),
            token: config.token.0.clone(),
            ..ClientConfig::default()
        };
        let client = AsyncClient::connect(&AsyncHub::new(fabric)?, &config.address, settings)?;
        Ok(place.insert(client).clone())
    }

    /// Makes a call, and blocks until `timeout` at most.
    pub(crate) fn call<T>(
        &self,
        (fabric, config, secret): (&P, &AttachConfig, Secret),
        (function, payload): (u16, &[u8]),
        timeout: Duration,
        mut take: impl FnMut(&[u8]) -> Result<T, Malformed>,
    ) -> Result<T, Failed> {
        let host = fabric.host();
        let until = host.now().saturating_add(nanos(timeout));
        let client = self.client(fabric, config).map_err(|source| {
            Failed::Request(RequestError::Connect { node: "the node of this host".to_owned(), source })
        })?;
        let ask = |function: u16, payload: &[u8]| -> Result<Vec<u8>, CallError> {
            let left = Duration::from_nanos(until.saturating_sub(host.now()));
            block_on(host, client.within(left).call(function, payload)).map(|answer| answer.to_vec())
        };
        let mut answer = outcome(function, ask(function, payload), &mut take);
        if matches!(answer, Err(Failed::Problem(Problem::NotAttached))) {
            answer = match attach(secret, ask) {
                Ok(()) => outcome(function, ask(function, payload), &mut take),
                Err(failed) => Err(failed),
            };
        }
        answer
    }

    /// Makes calls of one function at the same time, and blocks until all have ended: `timeout` at most. Returns their
    /// answers in the order of the payloads.
    pub(crate) fn call_each(
        &self,
        (fabric, config, secret): (&P, &AttachConfig, Secret),
        function: u16,
        payloads: &[Vec<u8>],
        timeout: Duration,
    ) -> Result<Vec<Result<Vec<u8>, Failed>>, Failed> {
        let host = fabric.host();
        let until = host.now().saturating_add(nanos(timeout));
        let client = self.client(fabric, config).map_err(|source| {
            Failed::Request(RequestError::Connect { node: "the node of this host".to_owned(), source })
        })?;
        let left = || Duration::from_nanos(until.saturating_sub(host.now()));
        let ask = |function: u16, payload: &[u8]| -> Result<Vec<u8>, CallError> {
            block_on(host, client.within(left()).call(function, payload)).map(|answer| answer.to_vec())
        };
        let each = |payloads: &[&[u8]]| -> Vec<Result<Vec<u8>, Failed>> {
            let mut calls: Pending<'_, _> = Vec::with_capacity(payloads.len());
            for payload in payloads {
                let call = client.within(left()).call(function, payload);
                let copied = async move { call.await.map(|answer| answer.to_vec()) };
                calls.push(Err(Box::pin(copied)));
            }
            block_on(
                host,
                std::future::poll_fn(|context| match poll_each(&mut calls, context) {
                    true => Poll::Ready(()),
                    false => Poll::Pending,
                }),
            );
            let ended = calls.into_iter().filter_map(Result::ok);
            ended.map(|answer| outcome(function, answer, |answer| Ok(answer.to_vec()))).collect()
        };
        let mut answers = each(&payloads.iter().map(Vec::as_slice).collect::<Vec<_>>());
        let is_strange =
            |answer: &Result<_, Failed>| matches!(answer, Err(Failed::Problem(Problem::NotAttached)));
        if answers.iter().any(is_strange) {
            attach(secret, ask)?;
            let places: Vec<usize> =
                (0..answers.len()).filter(|place| is_strange(&answers[*place])).collect();
            let again = each(&places.iter().map(|place| &*payloads[*place]).collect::<Vec<_>>());
            for (place, answer) in places.into_iter().zip(again) {
                answers[place] = answer;
            }
        }
        Ok(answers)
    }
}

/// Joins a new connection to this process. Another thread may do so meanwhile: that is malformed then.
fn attach(secret: Secret, ask: impl Fn(u16, &[u8]) -> Result<Vec<u8>, CallError>) -> Result<(), Failed> {
    let mut attach = Vec::new();
    ProcessRequest::Attach { secret: Some(secret), priority: None }.encode_into(&mut attach);
    match outcome(ATTACH, ask(ATTACH, &attach), |_| Ok(())) {
        Ok(()) | Err(Failed::Problem(Problem::Malformed)) => Ok(()),
        Err(failed) => Err(failed),
    }
}
