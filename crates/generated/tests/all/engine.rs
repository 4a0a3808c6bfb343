//! Typed calls on shared memory: all types, exceptions, versions, batches, futures, failures.

use dunlin::Certainty;
use dunlin::fabric::ShmFabric;
use dunlin::thrift::{
    ApplicationException, ApplicationExceptionKind, Bytes, CallError, ClientOptions, ConnectError, Context,
    Failure, Never, Server, ServerOptions, serve_with,
};
use dunlin_generated::everything::*;
use dunlin_generated::shared::{BaseFailException, Color, Elsewhere};
use dunlin_generated::younger;
use std::collections::{BTreeMap, HashMap};
use std::pin::pin;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::time::Duration;

#[derive(Clone, Default)]
struct Handler(Arc<State>);

#[derive(Default)]
struct State {
    pairs: Mutex<HashMap<Vec<u8>, Bytes>>,
    heartbeats: AtomicI64,
    calls: AtomicUsize,
    /// Blocks handlers of large results while it is locked.
    gate: Mutex<()>,
}

impl Everywhere for Handler {
    fn version(&self, _: &Context) -> Result<i32, Failure<Never>> {
        Ok(3)
    }

    fn fail(&self, _: &Context, code: i32) -> Result<(), Failure<BaseFailException>> {
        Err(Elsewhere { code: Some(code), why: Some("told to".into()) })?
    }

    fn echo(&self, _: &Context, value: Everything) -> Result<Everything, Failure<Never>> {
        Ok(value)
    }

    fn describe(
        &self,
        _: &Context,
        truth: bool,
        small: i8,
        medium: i16,
        large: i32,
        huge: i64,
        real: f64,
        text: &str,
        raw: &[u8],
        color: Color,
        words: Vec<dunlin::thrift::FastStr>,
        counts: dunlin::thrift::pilota::AHashMap<dunlin::thrift::FastStr, i32>,
        moments: dunlin::thrift::pilota::AHashSet<i64>,
        either: Either,
        keys: Keys,
    ) -> Result<dunlin::thrift::FastStr, Failure<Never>> {
        let counts: BTreeMap<_, _> = counts.into_iter().collect();
        let mut moments: Vec<_> = moments.into_iter().collect();
        moments.sort_unstable();
        Ok(format!(
            "{truth} {small} {medium} {large} {huge} {real} {text} {raw:?} {} {words:?} {counts:?} {moments:?} {either:?} {:?}",
            color.to_string(),
            keys.0
        )
        .into())
    }

    fn get(
        &self,
        _: &Context,
        key: &[u8],
        r#type: Option<i32>,
    ) -> Result<Bytes, Failure<EverywhereGetException>> {
        self.0.calls.fetch_add(1, Ordering::Relaxed);
        if let Some(code) = r#type {
            return Err(Elsewhere { code: Some(code), why: None }.into());
        }
        let pairs = self.0.pairs.lock().unwrap();
        Ok(pairs.get(key).cloned().ok_or_else(|| Missing { key: Bytes::copy_from_slice(key) })?)
    }

    fn bulk(&self, _: &Context, size: i64) -> Result<Bytes, Failure<Never>> {
        drop(self.0.gate.lock());
        let size = usize::try_from(size).map_err(|_| Failure::internal("a size is not negative"))?;
        Ok((0..size).map(|i| i as u8).collect::<Vec<_>>().into())
    }

    fn put(&self, _: &Context, key: &[u8], value: &[u8]) -> Result<(), Failure<Never>> {
        self.0.pairs.lock().unwrap().insert(key.to_vec(), Bytes::copy_from_slice(value));
        Ok(())
    }

    fn heartbeat(&self, _: &Context, number: i64) -> Result<(), Failure<Never>> {
        self.0.heartbeats.fetch_add(number, Ordering::Relaxed);
        Ok(())
    }

    fn flush(
        &self,
        _: &Context,
        context: i32,
        input: i32,
        protocol: i32,
        id: i32,
        kind: i32,
        function: i32,
        responder: i32,
        r#match: i32,
        value: i32,
    ) -> Result<i32, Failure<Never>> {
        Ok(context + input + protocol + id + kind + function + responder + r#match - value)
    }

    fn push_flush(&self, _: &Context) -> Result<(), Failure<Never>> {
        Ok(())
    }

    fn panics(&self, _: &Context) -> Result<(), Failure<Never>> {
        panic!("as told")
    }

    fn fails(&self, _: &Context, message: &str) -> Result<i32, Failure<Never>> {
        Err(Failure::Application(ApplicationException::new(
            ApplicationExceptionKind::INVALID_TRANSFORM,
            message.to_owned(),
        )))
    }
}

struct Rig {
    fabric: ShmFabric,
    address: dunlin::Address,
    handler: Handler,
    server: Option<Server<ShmFabric, EverywhereProcessor<Handler>>>,
}

fn rig(name: &str) -> Rig {
    let fabric = dunlin::fabric::shm().unwrap();
    let address: dunlin::Address = format!("shm:typed-{name}-{}", std::process::id()).parse().unwrap();
    let handler = Handler::default();
    let processor = EverywhereProcessor(handler.clone());
    let server = serve_with(&fabric, &address, processor, ServerOptions::default()).unwrap();
    Rig { fabric, address, handler, server: Some(server) }
}

impl Rig {
    fn client(&self) -> EverywhereClient<ShmFabric> {
        EverywhereClient::connect_with(&self.fabric, &self.address, ClientOptions::default()).unwrap()
    }
}

fn everything(depth: usize) -> Everything {
    let leaf = |name: &str| Leaf { name: name.to_owned().into(), weight: None };
    Everything {
        truth: true,
        small: -128,
        medium: -2,
        large: i32::MIN,
        huge: i64::MAX,
        real: -0.5,
        text: "Löffler".into(),
        raw: Bytes::from_static(&[0, 255, 1]),
        numbers: (0..100).collect(),
        words: ["a", "b"].map(Into::into).into_iter().collect(),
        leaves: [("x".into(), leaf("X"))].into_iter().collect(),
        color: Some(Color::BLUE),
        either: Some(Either::Leaf(leaf("L"))),
        keys: Some(Keys(vec![Bytes::from_static(b"k")])),
        inner: (depth > 0).then(|| Box::new(everything(depth - 1))),
        nested: Some(vec![[(1, [2i16, 3].into_iter().collect())].into_iter().collect()]),
        moment: Some(Moment(-1)),
        truths: Some(vec![true, false, true]),
        eithers: Some(
            [(Color::RED, vec![Either::Number(1), Either::Text("t".into())])].into_iter().collect(),
        ),
    }
}

#[test]
fn every_type_goes_there_and_back() {
    let rig = rig("types");
    let mut client = rig.client();
    for depth in [0, 1, 20] {
        let value = everything(depth);
        let mut expected = value.clone();
        // A field with a default is always present.
        fn with_defaults(value: &mut Everything) {
            let weigh = |leaf: &mut Leaf| leaf.weight = leaf.weight.or(Some(7));
            value.leaves.values_mut().for_each(weigh);
            if let Some(Either::Leaf(leaf)) = &mut value.either {
                weigh(leaf);
            }
            value.inner.as_deref_mut().into_iter().for_each(with_defaults);
        }
        with_defaults(&mut expected);
        assert_eq!(client.echo(&value).unwrap(), expected);
    }
    let text = client
        .describe(
            true,
            -1,
            -2,
            -3,
            -4,
            0.25,
            "text",
            &[1, 2],
            &Color::GREEN,
            &["w".into()],
            &[("c".into(), 9)].into_iter().collect(),
            &[5, 4].into_iter().collect(),
            &Either::Number(6),
            &Keys(vec![Bytes::from_static(b"k")]),
        )
        .unwrap();
    assert_eq!(text, r#"true -1 -2 -3 -4 0.25 text [1, 2] GREEN ["w"] {"c": 9} [4, 5] Number(6) [b"k"]"#);
    assert_eq!((LIMIT, GREETING, PRIMES.len()), (12, "hello", 3));
}

#[test]
fn exceptions_are_results() {
    let rig = rig("exceptions");
    let mut client = rig.client();
    match client.get(b"none", None) {
        Err(EverywhereError::Missing(missing)) => {
            assert_eq!(missing.key, "none")
        }
        other => panic!("{other:?}"),
    }
    match client.get(b"none", Some(5)) {
        Err(EverywhereError::Elsewhere(elsewhere)) => {
            assert_eq!(elsewhere.code, Some(5));
        }
        other => panic!("{other:?}"),
    }
    // An inherited function, with an exception of another file.
    assert_eq!(client.version().unwrap(), 3);
    match client.fail(4) {
        Err(EverywhereError::Elsewhere(elsewhere)) => {
            assert_eq!((elsewhere.code, elsewhere.why), (Some(4), Some("told to".into())));
        }
        other => panic!("{other:?}"),
    }
    client.put(b"key", b"value").unwrap();
    assert_eq!(client.get(b"key", None).unwrap(), "value");
}

#[test]
fn what_is_not_declared_comes_as_an_application_exception() {
    let rig = rig("application");
    let mut client = rig.client();
    match client.fails("so") {
        Err(EverywhereError::Call(CallError::Application(error))) => {
            assert_eq!(error.kind(), ApplicationExceptionKind::INVALID_TRANSFORM);
            assert_eq!(error.message(), "so");
        }
        other => panic!("{other:?}"),
    }
    match client.panics() {
        Err(EverywhereError::Call(CallError::Application(error))) => {
            assert_eq!(error.kind(), ApplicationExceptionKind::INTERNAL_ERROR)
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(client.version().unwrap(), 3, "the server lives");
}

#[test]
fn large_values_go_both_ways_and_long_functions_to_the_pool() {
    let rig = rig("large");
    let mut client = rig.client();
    for size in [0, 1, 4000, 4096, 5000, 1 << 20, 3 << 20] {
        let value = client.bulk(size).unwrap();
        assert_eq!(value.len() as i64, size);
        assert!(value.iter().enumerate().all(|(i, byte)| *byte == i as u8));
        client.put(b"large", &value).unwrap();
        assert_eq!(client.get(b"large", None).unwrap(), value);
    }
    match client.bulk(-1) {
        Err(EverywhereError::Call(CallError::Application(error))) => {
            assert_eq!(error.message(), "a size is not negative")
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn batches_and_oneway_calls_arrive() {
    let mut rig = rig("batches");
    let mut client = rig.client();
    client.put(b"k", b"v").unwrap();
    for round in 0..20 {
        let calls: Vec<_> =
            (0..50).map(|i| client.push_get(if i % 5 == 0 { b"x" } else { b"k" }, None).unwrap()).collect();
        if round % 2 == 0 {
            client.flush().unwrap();
        }
        for (i, call) in calls.into_iter().enumerate() {
            match client.wait(call) {
                Ok(value) => assert!(i % 5 != 0 && value == "v"),
                Err(EverywhereError::Missing(_)) => assert_eq!(i % 5, 0),
                other => panic!("{other:?}"),
            }
        }
    }
    for number in 1..=100 {
        client.heartbeat(number).unwrap();
    }
    client.version().unwrap();
    rig.server.take().unwrap().shutdown(Duration::from_secs(5));
    assert_eq!(rig.handler.0.heartbeats.load(Ordering::Relaxed), 5050);
    assert_eq!(rig.handler.0.calls.load(Ordering::Relaxed), 1000);
}

#[test]
fn futures_give_the_same() {
    let rig = rig("futures");
    let hub = dunlin::raw::AsyncHub::new(&rig.fabric).unwrap();
    let client = EverywhereAsyncClient::connect_with(&hub, &rig.address, ClientOptions::default()).unwrap();
    let value = everything(2);
    let put = client.put(b"key", &vec![7; 100_000]);
    assert!(ready(put).is_ok());
    let (get, missing, echo) = (client.get(b"key", None), client.get(b"no", None), client.echo(&value));
    assert_eq!(ready(echo).unwrap().text, "Löffler");
    assert_eq!(ready(get).unwrap().len(), 100_000);
    assert!(matches!(ready(missing), Err(EverywhereError::Missing(_))));
    client.heartbeat(3).unwrap();
    drop(client.version());
    assert_eq!(ready(client.version()).unwrap(), 3);
}

fn ready<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut std::task::Context::from_waker(Waker::noop())) {
            return value;
        }
        std::thread::yield_now();
    }
}

/// A oneway call is sent or returns an error; it is never silently dropped for lack of room.
#[test]
fn a_oneway_call_without_room_is_told_so() {
    let mut rig = rig("oneway");
    let hub = dunlin::raw::AsyncHub::new(&rig.fabric).unwrap();
    let client = EverywhereAsyncClient::connect_with(&hub, &rig.address, ClientOptions::default()).unwrap();
    let (mut sent, mut refused) = (0, 0);
    for _ in 0..100_000 {
        match client.heartbeat(1) {
            Ok(()) => sent += 1,
            Err(error) => {
                assert_eq!(error.certainty(), Certainty::NotExecuted, "{error}");
                refused += 1;
            }
        }
    }
    assert!(sent > 0 && refused > 0, "{sent} sent and {refused} refused: there is a window");
    assert_eq!(ready(client.version()).unwrap(), 3);
    rig.server.take().unwrap().shutdown(Duration::from_secs(5));
    assert_eq!(rig.handler.0.heartbeats.load(Ordering::Relaxed), sent);
}

/// A handler in the pool takes longer than the client's timeout: the error says that the call may have been
/// executed. Other functions are answered in the meantime, and the function itself once its handlers have
/// returned.
#[test]
fn a_handler_past_its_deadline() {
    let rig = rig("deadline");
    let mut options = ClientOptions::default();
    options.engine.timeout = Duration::from_secs(1);
    let mut client = EverywhereClient::connect_with(&rig.fabric, &rig.address, options.clone()).unwrap();
    let hub = dunlin::raw::AsyncHub::new(&rig.fabric).unwrap();
    let futures = EverywhereAsyncClient::connect_with(&hub, &rig.address, options).unwrap();
    let mut others = rig.client();

    let held = rig.handler.0.gate.lock();
    let late = futures.bulk(10);
    let errors = [client.bulk(10).unwrap_err(), ready(late).unwrap_err()];
    assert_eq!(others.version().unwrap(), 3);
    drop(held);
    for error in errors {
        assert!(matches!(error, EverywhereError::Call(CallError::Transport(_))), "{error}");
        assert!(error.to_string().contains("deadline"), "{error}");
        assert_eq!(error.certainty(), Certainty::MaybeExecuted);
    }
    assert_eq!(client.bulk(10).unwrap().len(), 10);
    assert_eq!(ready(futures.bulk(20)).unwrap().len(), 20);
    assert_eq!((client.version().unwrap(), ready(futures.version()).unwrap()), (3, 3));
}

/// Calls with a time of their own: blocking, oneway, in a batch, as futures, large, over the engine and TCP.
#[test]
fn a_call_has_the_time_that_it_is_given() {
    let rig = rig("within");
    let mut client = rig.client();
    let hub = dunlin::raw::AsyncHub::new(&rig.fabric).unwrap();
    let futures = EverywhereAsyncClient::connect_with(&hub, &rig.address, ClientOptions::default()).unwrap();
    let (minute, short) = (Duration::from_secs(60), Duration::from_millis(20));
    let century = Duration::from_secs(100 * 365 * 24 * 3600);
    let large = vec![7; 100_000];
    for time in [minute, century, Duration::MAX] {
        client.within(time).put(b"key", &large).unwrap();
        assert_eq!(client.within(time).get(b"key", None).unwrap(), large);
        assert_eq!(ready(futures.within(time).version()).unwrap(), 3);
        let batched = client.within(time).push_bulk(10).unwrap();
        let usual = client.push_version().unwrap();
        client.flush().unwrap();
        assert_eq!((client.wait(batched).unwrap().len(), client.wait(usual).unwrap()), (10, 3));
    }
    let mut view = client.within(minute);
    assert_eq!((view.version().unwrap(), view.version().unwrap()), (3, 3));

    let is_over = |error: EverywhereError, certainty| {
        let EverywhereError::Call(CallError::Transport(error)) = error else { panic!("{error}") };
        assert_eq!((error.cause(), error.certainty()), (Some(dunlin::Cause::DeadlineExceeded), certainty));
    };
    let zero = Duration::ZERO;
    is_over(client.within(zero).version().unwrap_err(), Certainty::NotExecuted);
    is_over(client.within(zero).push_version().unwrap_err(), Certainty::NotExecuted);
    is_over(client.within(zero).heartbeat(1).unwrap_err(), Certainty::NotExecuted);
    is_over(client.within(zero).put(b"key", &large).unwrap_err(), Certainty::NotExecuted);
    is_over(ready(futures.within(zero).version()).unwrap_err(), Certainty::NotExecuted);
    let held = rig.handler.0.gate.lock();
    is_over(client.within(short).bulk(10).unwrap_err(), Certainty::MaybeExecuted);
    is_over(ready(futures.within(short).bulk(10)).unwrap_err(), Certainty::MaybeExecuted);
    drop(held);
    assert_eq!(client.bulk(10).unwrap().len(), 10);
    assert_eq!(rig.handler.0.heartbeats.load(Ordering::Relaxed), 0);
}

/// If a ring is full, a batch waits for room. If the window is full of unclaimed results, the call fails.
#[test]
fn a_batch_waits_for_room() {
    let rig = rig("room");
    let mut client = rig.client();
    let value = vec![3; 4000];
    let calls: Vec<_> = (0..60).map(|_| client.push_put(b"key", &value).unwrap()).collect();
    client.flush().unwrap();
    for call in calls {
        client.wait(call).unwrap();
    }
    let mut calls = Vec::new();
    let refused = loop {
        match client.push_get(b"key", None) {
            Ok(call) => calls.push(call),
            Err(error) => break error,
        }
        assert!(calls.len() <= 64, "the window");
    };
    assert!(
        matches!(refused, EverywhereError::Call(CallError::Transport(_)))
            && refused.certainty() == Certainty::NotExecuted
    );
    for call in calls {
        assert_eq!(client.wait(call).unwrap(), value);
    }
}

/// A client of a later IDL: the server skips unknown arguments, and a call of a function that it lacks fails
/// before anything is sent.
#[test]
fn a_younger_client_gets_along() {
    let rig = rig("younger");
    let options = ClientOptions::default();
    let mut client = younger::EverywhereClient::connect_with(&rig.fabric, &rig.address, options).unwrap();
    let leaf = younger::Leaf { name: "n".into(), weight: None, colors: Some(vec!["red".into()]) };
    client.put(b"key", b"value", Some(&leaf)).unwrap();
    assert_eq!(client.get(b"key", "why not", None).unwrap(), "value");
    assert!(matches!(client.get(b"none", "", None), Err(younger::EverywhereError::Missing(_))));
    let calls = rig.handler.0.calls.load(Ordering::Relaxed);
    match client.added(1) {
        Err(error @ younger::EverywhereError::Call(CallError::Application(_))) => {
            assert_eq!(error.certainty(), Certainty::NotExecuted)
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(rig.handler.0.calls.load(Ordering::Relaxed), calls);
}

struct Younger;

impl younger::Everywhere for Younger {
    fn get(
        &self,
        _: &Context,
        key: &[u8],
        _: &str,
        _: Option<i32>,
    ) -> Result<Bytes, Failure<younger::EverywhereGetException>> {
        Ok(Bytes::copy_from_slice(key))
    }

    fn put(
        &self,
        _: &Context,
        _: &[u8],
        _: &[u8],
        leaf: Option<younger::Leaf>,
    ) -> Result<(), Failure<Never>> {
        assert_eq!(leaf, None);
        Ok(())
    }

    fn added(&self, _: &Context, number: i32) -> Result<i32, Failure<Never>> {
        Ok(number + 1)
    }
}

/// A client of an earlier IDL: the error names the required argument that is missing.
#[test]
fn an_older_client_is_told_what_it_lacks() {
    let fabric = dunlin::fabric::shm().unwrap();
    let address: dunlin::Address = format!("shm:typed-older-{}", std::process::id()).parse().unwrap();
    let processor = younger::EverywhereProcessor(Younger);
    let _server = serve_with(&fabric, &address, processor, ServerOptions::default()).unwrap();
    let error = EverywhereClient::connect_with(&fabric, &address, ClientOptions::default()).unwrap_err();
    assert!(error.to_string().contains("'get': argument 2 is required by the server"), "{error}");
    let options = ClientOptions { other_signatures: true, ..ClientOptions::default() };
    let mut client = EverywhereClient::connect_with(&fabric, &address, options).unwrap();
    client.put(b"key", b"value").unwrap();
    match client.get(b"key", None) {
        Err(EverywhereError::Call(CallError::Application(error))) => {
            assert_eq!(error.kind(), ApplicationExceptionKind::PROTOCOL_ERROR);
            assert!(error.message().contains("'reason'"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    assert!(matches!(client.version(), Err(EverywhereError::Call(CallError::Application(_)))));
}

#[test]
fn names_that_are_in_use_get_along() {
    let rig = rig("names");
    let mut client = rig.client();
    assert_eq!(client.flush_call(1, 2, 3, 4, 5, 6, 7, 8, 100).unwrap(), 36 - 100);
    let call = client.push_flush_(1, 0, 0, 0, 0, 0, 0, 0, 0).unwrap();
    client.flush().unwrap();
    assert_eq!(client.wait(call).unwrap(), 1);
    client.push_flush().unwrap();
}

/// A server of raw functions is not accepted as a Thrift service.
#[test]
fn who_is_no_thrift_service_is_found_out() {
    let fabric = dunlin::fabric::shm().unwrap();
    let address: dunlin::Address = format!("shm:typed-raw-{}", std::process::id()).parse().unwrap();
    let builder = dunlin::ServerBuilder::new().fabrics(&fabric).function(0, dunlin::FunctionMode::Worker);
    let raw =
        |request: &dunlin::Request<'_>, reply: &mut dunlin::Reply<'_>| Ok(reply.write(request.payload)?);
    let _server = builder.serve(&address, move |_| Box::new(raw)).unwrap();
    let refused = EverywhereClient::connect_with(&fabric, &address, ClientOptions::default());
    assert!(matches!(refused, Err(ConnectError::NotThrift(_))), "{refused:?}");
}
