//! The bare form: client and server use it for functions on which they agree, and the tagged form otherwise.
//! Malformed bytes are errors.

use dunlin::fabric::ShmFabric;
use dunlin::thrift::{
    Bytes, CallError, ClientOptions, ConnectError, Context, Failure, FastStr, Form, Never, Route,
    ServerOptions, serve_with,
};
use dunlin::{Address, ClientConfig, FunctionMode, Reply, Request, ServerBuilder};
use dunlin_generated::forms::*;
use dunlin_generated::{everything, younger};
use std::pin::pin;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Wake, Waker};

#[derive(Clone, Debug, Default)]
struct Handler {
    noted: Arc<AtomicI32>,
}

impl Forms for Handler {
    fn nothing(&self, _: &Context) -> Result<(), Failure<Never>> {
        Ok(())
    }

    fn echo(&self, _: &Context, data: &[u8]) -> Result<Bytes, Failure<Never>> {
        Ok(Bytes::copy_from_slice(data))
    }

    fn say(&self, _: &Context, text: &str) -> Result<FastStr, Failure<Never>> {
        Ok(FastStr::new(text))
    }

    fn look(&self, _: &Context, data: &[u8]) -> Result<Bytes, Failure<FormsLookException>> {
        match data {
            [0, ..] => Err(Refused { why: Bytes::copy_from_slice(data) }.into()),
            data => Ok(Bytes::copy_from_slice(data)),
        }
    }

    fn refuse(&self, _: &Context, data: &[u8]) -> Result<(), Failure<FormsRefuseException>> {
        Err(Refused { why: Bytes::copy_from_slice(data) })?
    }

    fn sum(&self, _: &Context, a: i8, b: i16, c: i32, d: i64, negative: bool) -> Result<i64, Failure<Never>> {
        let sum = d.wrapping_add(a.into()).wrapping_add(b.into()).wrapping_add(c.into());
        Ok(if negative { sum.wrapping_neg() } else { sum })
    }

    fn middle(&self, _: &Context, values: Vec<f64>) -> Result<f64, Failure<Never>> {
        Ok(values.iter().sum::<f64>() / values.len() as f64)
    }

    fn join(&self, _: &Context, first: &[u8], second: &str, third: &[u8]) -> Result<Bytes, Failure<Never>> {
        Ok([first, second.as_bytes(), third].concat().into())
    }

    fn swap(&self, _: &Context, pair: Pair, kind: Kind) -> Result<Pair, Failure<Never>> {
        Ok(Pair { left: kind.inner(), right: Some(format!("{} {:?}", pair.left, pair.right).into()) })
    }

    fn kinds(&self, _: &Context, kind: Kind, count: i32) -> Result<Vec<Kind>, Failure<FormsKindsException>> {
        Ok(vec![kind; usize::try_from(count).unwrap_or(0).min(1000)])
    }

    fn rename(&self, _: &Context, name: Name) -> Result<Name, Failure<Never>> {
        Ok(name)
    }

    fn maybe(&self, _: &Context, data: Option<&[u8]>) -> Result<Bytes, Failure<Never>> {
        Ok(Bytes::copy_from_slice(data.unwrap_or(b"none")))
    }

    fn remote(&self, context: &Context, text: &str) -> Result<FastStr, Failure<Never>> {
        assert!(context.tcp || text != "by TCP");
        Ok(FastStr::new(text))
    }

    fn mix(&self, _: &Context, mixed: Mixed) -> Result<Mixed, Failure<Never>> {
        Ok(mixed)
    }

    fn first(&self, _: &Context, pairs: Pairs, otherwise: Pair) -> Result<Couple, Failure<Never>> {
        Ok(Couple(pairs.0.first().cloned().unwrap_or(otherwise)))
    }

    fn note(&self, _: &Context, number: i32) -> Result<(), Failure<Never>> {
        self.noted.fetch_add(number, Ordering::SeqCst);
        Ok(())
    }
}

struct Rig {
    fabric: ShmFabric,
    address: Address,
    handler: Handler,
    server: dunlin::thrift::Server<ShmFabric, FormsProcessor<Handler>>,
}

fn rig(name: &str) -> Rig {
    let fabric = dunlin::fabric::shm().unwrap();
    let address = address(name);
    let handler = Handler::default();
    let options = ServerOptions { tcp: Some("127.0.0.1:0".into()), ..ServerOptions::default() };
    let server = serve_with(&fabric, &address, FormsProcessor(handler.clone()), options).unwrap();
    Rig { fabric, address, handler, server }
}

fn address(name: &str) -> Address {
    format!("shm:forms-{name}-{}", std::process::id()).parse().unwrap()
}

impl Rig {
    fn client(&self) -> FormsClient<ShmFabric> {
        FormsClient::connect_with(&self.fabric, &self.address, ClientOptions::default()).unwrap()
    }
}

/// Lengths around limits: of a cache line, of a message, and of payloads sent from separate buffers.
fn lengths() -> impl Iterator<Item = usize> {
    (0..70).chain([4000, 4094, 4095, 4096, 4097, 5000, 100_000])
}

#[test]
fn who_agrees_speaks_it() {
    let rig = rig("agree");
    let mut client = rig.client();
    let bare = |route: &Route| matches!(route, Route::Engine { form: Form::Bare, .. });
    assert!(client.inner().routes()[..11].iter().all(bare), "{:?}", client.inner().routes());
    assert!(!bare(&client.inner().routes()[11]), "an argument may be missing");
    client.nothing().unwrap();
    assert_eq!(client.sum(-1, -2, -3, -4, true).unwrap(), 10);
    assert_eq!(client.middle(&[1.0, 2.0, 6.0]).unwrap(), 3.0);
    assert_eq!(client.join(b"one", "two", b"three").unwrap(), "onetwothree");
    assert_eq!(client.join(b"", "", b"").unwrap(), "");
    let pair = Pair { left: 3, right: None };
    assert_eq!(client.swap(&pair, &Kind::SQUARE).unwrap(), Pair { left: 4, right: Some("3 None".into()) });
    for count in [0, 1, 6, 7, 8, 100, 1000] {
        assert_eq!(client.kinds(&Kind::ROUND, count).unwrap(), vec![Kind::ROUND; count as usize]);
    }
    assert!(client.inner().routes()[14..].iter().all(bare), "{:?}", client.inner().routes());
    assert_eq!(client.rename(&Name(Bytes::from_static(b"n"))).unwrap(), Name(Bytes::from_static(b"n")));
    assert_eq!(client.maybe(None).unwrap(), "none");
    assert_eq!(client.maybe(Some(b"some")).unwrap(), "some");
}

#[test]
fn every_length_goes_there_and_back() {
    let rig = rig("lengths");
    let mut client = rig.client();
    for length in lengths() {
        let data: Vec<u8> = (1..=length).map(|i| i as u8 | 1).collect();
        assert_eq!(client.echo(&data).unwrap(), data);
        assert_eq!(client.look(&data).unwrap(), data);
        let text = "x".repeat(length);
        assert_eq!(client.say(&text).unwrap(), text);
        let mut bad = data.clone();
        bad.insert(0, 0);
        match client.look(&bad) {
            Err(FormsError::Refused(refused)) => assert_eq!(refused.why, bad),
            other => panic!("{length}: {other:?}"),
        }
        match client.refuse(&data) {
            Err(FormsError::Refused(refused)) => {
                assert_eq!(refused.why, data)
            }
            other => panic!("{length}: {other:?}"),
        }
        // In batches as well.
        let calls = [client.push_echo(&data).unwrap(), client.push_echo(&bad).unwrap()];
        let [first, second] = calls.map(|call| client.wait(call).unwrap());
        assert_eq!((first, second), (data.into(), bad.into()));
    }
}

/// If the IDLs differ, the tagged form is used: unknown arguments are skipped, and missing ones named in the
/// error.
#[test]
fn who_does_not_agree_gets_along() {
    let rig = rig("differ");
    // Some functions cannot be understood, which connecting tells unless it is told not to mind.
    let options = ClientOptions { other_signatures: true, ..ClientOptions::default() };
    let mut client = younger::FormsClient::connect_with(&rig.fabric, &rig.address, options).unwrap();
    let forms = client.inner().routes().iter().map(|route| match route {
        Route::Engine { form, .. } => *form,
        other => panic!("{other:?}"),
    });
    assert_eq!(
        forms.collect::<Vec<_>>(),
        [
            Form::Tagged,
            Form::Tagged,
            Form::Tagged,
            Form::Tagged,
            Form::Bare,
            Form::Tagged,
            Form::Bare,
            Form::Tagged
        ]
    );
    assert_eq!(client.echo(b"data", Some(3)).unwrap(), "data");
    assert_eq!(client.rename(b"name").unwrap(), "name");
    assert_eq!(client.sum(1, 2, 3, 4, false).unwrap(), 10);
    match client.say("text") {
        Err(younger::FormsError::Call(CallError::Application(error))) => {
            assert!(error.message().contains("'text'"), "{error}")
        }
        other => panic!("{other:?}"),
    }
    assert!(client.nothing().is_err(), "there is no value");
    // The server skips a field that it does not know, and its answer does not contain it.
    let pair = younger::Pair { left: 3, right: None, height: Some(1) };
    let swapped = client.swap(&pair, &younger::Kind::ROUND).unwrap();
    assert_eq!(swapped, younger::Pair { left: 1, right: Some("3 None".into()), height: None });
    // Names do not matter.
    let two = younger::Two { one: 7, other: None };
    assert_eq!(client.first(std::slice::from_ref(&two), &younger::Two::default()).unwrap(), two);
    assert_eq!(client.first(&[], &two).unwrap(), two);
    match client.mix(&younger::Strict { left: 1, right: "x".into() }) {
        Err(younger::FormsError::Call(CallError::Application(error))) => {
            assert!(error.message().contains("required"), "{error}")
        }
        other => panic!("{other:?}"),
    }
}

/// If a field is optional on one side and required on the other, the sides do not agree, and the error names
/// a missing field.
#[test]
fn what_must_be_there_is_asked_for() {
    let rig = rig("strict");
    // The service has another name there.
    let mut options = ClientOptions::default();
    options.engine.service = "Forms".into();
    let mut client = younger::StricterClient::connect_with(&rig.fabric, &rig.address, options).unwrap();
    assert!(matches!(client.inner().routes(), [Route::Engine { form: Form::Tagged, .. }]));
    let strict = younger::Strict { left: 1, right: "x".into() };
    assert_eq!(client.first(std::slice::from_ref(&strict), &strict).unwrap(), strict);
    // A client of the server's own IDL may leave out the field that the other IDL requires.
    let mut forms = rig.client();
    let pair = Pair { left: 1, right: None };
    assert_eq!(forms.first(&Pairs(Vec::new()), &pair).unwrap().0, pair);
}

/// Reproducible pseudo-random bytes.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    /// Small numbers are more frequent, since lengths, types and ids are small.
    fn bytes(&mut self) -> Vec<u8> {
        let length = self.next() as usize % 90;
        (0..length)
            .map(|_| if self.next().is_multiple_of(2) { (self.next() % 17) as u8 } else { self.next() as u8 })
            .collect()
    }
}

#[test]
fn a_server_bears_any_bytes() {
    let rig = rig("hostile");
    let mut raw = dunlin::Client::connect_with(&rig.fabric, &rig.address, ClientConfig::default()).unwrap();
    let mut noise = Noise(1);
    let (mut executed, mut refused) = (0, 0);
    for _ in 0..3000 {
        for function in 0..33 {
            match raw.call(function, &noise.bytes()) {
                Ok(_) => executed += 1,
                Err(dunlin::CallError::Application { payload, .. }) => {
                    assert_ne!(payload, b"the handler panicked");
                    refused += 1;
                }
                // The bare form of a function without one.
                Err(dunlin::CallError::NotExecuted(_)) => assert_eq!(function, 24),
                Err(other) => panic!("{function}: {other}"),
            }
        }
    }
    assert!(executed > 1000 && refused > 1000, "{executed} executed, {refused} refused");
    assert_eq!(rig.client().sum(1, 1, 1, 1, false).unwrap(), 4);
}

#[test]
fn a_client_bears_any_bytes() {
    let rig = rig("liar-model");
    let mut raw = dunlin::Client::connect_with(&rig.fabric, &rig.address, ClientConfig::default()).unwrap();
    let introduction = raw.call(0, &[]).unwrap().to_vec();
    let mut builder = ServerBuilder::new().fabrics(&rig.fabric);
    for function in 0..33 {
        builder = builder.function(function, FunctionMode::Worker);
    }
    let noise = Arc::new(Mutex::new(Noise(2)));
    let liar = move |request: &Request<'_>, reply: &mut Reply<'_>| match request.function {
        0 => Ok(reply.write(&introduction)?),
        _ => Ok(reply.write(&noise.lock().unwrap().bytes())?),
    };
    let address = address("liar");
    let _server = builder.serve(&address, move |_| Box::new(liar.clone())).unwrap();
    let mut client = FormsClient::connect_with(&rig.fabric, &address, ClientOptions::default()).unwrap();
    let mixed = Mixed::default();
    let (mut values, mut errors) = (0, 0);
    let mut count = |is_value: bool| if is_value { values += 1 } else { errors += 1 };
    for _ in 0..3000 {
        count(client.nothing().is_ok());
        count(client.say("text").is_ok());
        count(client.look(b"data").is_ok());
        count(client.refuse(b"data").is_ok());
        count(client.sum(1, 2, 3, 4, false).is_ok());
        count(client.swap(&Pair { left: 1, right: None }, &Kind::ROUND).is_ok());
        count(client.kinds(&Kind::ROUND, 1).is_ok());
        count(client.maybe(None).is_ok());
        count(client.first(&Pairs(Vec::new()), &Pair { left: 1, right: None }).is_ok());
        count(client.mix(&mixed).is_ok());
    }
    assert!(values > 1000 && errors > 1000, "{values} values, {errors} errors");
}

struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Parks until it is woken.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    loop {
        match future.as_mut().poll(&mut std::task::Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::park(),
        }
    }
}

/// Functions whose hints select TCP use it in both kinds of clients, while other functions use the engine.
#[test]
fn tcp_beside_the_engine() {
    let rig = rig("hybrid");
    let mut client = rig.client();
    assert_eq!(client.inner().routes()[12..14], [Route::Tcp; 2]);
    assert_eq!(client.remote("by TCP").unwrap(), "by TCP");
    client.note(1).unwrap();
    let hub = dunlin::raw::AsyncHub::new(&rig.fabric).unwrap();
    let futures = FormsAsyncClient::connect_with(&hub, &rig.address, ClientOptions::default()).unwrap();
    futures.note(10).unwrap();
    let (remote, sum) = (futures.remote("by TCP"), futures.sum(1, 2, 3, 4, false));
    assert_eq!(block_on(remote).unwrap(), "by TCP");
    assert_eq!(block_on(sum).unwrap(), 10);
    // All functions use TCP, as with a server other than Dunlin's.
    let tcp = rig.server.tcp_address().unwrap().to_string();
    let stock: FormsAsyncClient = FormsAsyncClient::connect_tcp(&tcp, Default::default()).unwrap();
    stock.note(100).unwrap();
    assert_eq!(block_on(stock.sum(1, 2, 3, 4, true)).unwrap(), -10);
    match block_on(stock.look(b"\0no")) {
        Err(FormsError::Refused(refused)) => assert_eq!(refused.why, "\0no"),
        other => panic!("{other:?}"),
    }
    // Oneway calls may still be in transit.
    while rig.handler.noted.load(Ordering::SeqCst) < 111 {
        std::thread::yield_now();
    }
}

/// If the server does not listen on TCP, a call of a function that requires it returns an error.
#[test]
fn no_tcp_is_said() {
    let fabric = dunlin::fabric::shm().unwrap();
    let address = address("no-tcp");
    let _server =
        serve_with(&fabric, &address, FormsProcessor(Handler::default()), ServerOptions::default()).unwrap();
    let mut client = FormsClient::connect_with(&fabric, &address, ClientOptions::default()).unwrap();
    assert!(matches!(client.remote("x"), Err(FormsError::Call(CallError::NoTcp { .. }))));
    let hub = dunlin::raw::AsyncHub::new(&fabric).unwrap();
    let futures = FormsAsyncClient::connect_with(&hub, &address, ClientOptions::default()).unwrap();
    assert!(matches!(block_on(futures.remote("x")), Err(FormsError::Call(CallError::NoTcp { .. }))));
    assert!(matches!(futures.note(1), Err(FormsError::Call(CallError::NoTcp { .. }))));
}

/// A client asks for its service by name, so a function of another service with the same name is not called
/// by mistake. The refusal names both services.
#[test]
fn other_services_are_told_apart() {
    let rig = rig("other");
    let refused =
        everything::EverywhereClient::connect_with(&rig.fabric, &rig.address, ClientOptions::default());
    let error = refused.unwrap_err();
    assert!(
        matches!(&error, ConnectError::Engine(dunlin::errors::ConnectError::OtherService(_))),
        "{error:?}"
    );
    assert_eq!(error.to_string(), "this server serves 'Forms', not 'Everywhere'; look at the address");
    let hub = dunlin::raw::AsyncHub::new(&rig.fabric).unwrap();
    let refused =
        everything::EverywhereAsyncClient::connect_with(&hub, &rig.address, ClientOptions::default());
    assert!(refused.unwrap_err().to_string().contains("this server serves 'Forms', not 'Everywhere'"));
    // A client that states the server's name is let in, if it does not mind the functions' other types.
    let mut options = ClientOptions { other_signatures: true, ..ClientOptions::default() };
    options.engine.service = "Forms".into();
    let mut client = everything::EverywhereClient::connect_with(&rig.fabric, &rig.address, options).unwrap();
    // Only one function has a common name and can be called.
    let known = client.inner().routes().iter().filter(|route| **route != Route::Unknown).count();
    assert_eq!(known, 1);
}

/// Functions that no call could understand are refused by name when the client connects, and only those.
#[test]
fn other_signatures_are_refused_when_connecting() {
    let rig = rig("signatures");
    let expected = [
        ("nothing", "the result is i64 here and void on the server"),
        ("say", "argument 1 is required by the server and is not sent"),
        ("mix", "argument 1, field 1 is i32 or an enum here and bool on the server"),
    ];
    let check = |error: ConnectError| match &error {
        ConnectError::Signatures { service: "Forms", functions } => {
            let named = functions.iter().map(|(name, why)| (name.as_str(), why.as_str()));
            assert_eq!(named.collect::<Vec<_>>(), expected);
            assert!(error.to_string().contains("'nothing': the result is i64 here"), "{error}");
        }
        other => panic!("{other}"),
    };
    let (fabric, address) = (&rig.fabric, &rig.address);
    check(younger::FormsClient::connect_with(fabric, address, ClientOptions::default()).unwrap_err());
    let hub = dunlin::raw::AsyncHub::new(fabric).unwrap();
    check(younger::FormsAsyncClient::connect_with(&hub, address, ClientOptions::default()).unwrap_err());
}

/// A server of an older build introduces itself without signatures, and has no name for its service.
#[test]
fn a_server_without_signatures_is_accepted() {
    let fabric = dunlin::fabric::shm().unwrap();
    let text = |bytes: &mut Vec<u8>, text: &str| {
        bytes.push(text.len() as u8);
        bytes.extend(text.as_bytes());
    };
    let mut introduction = 3u16.to_le_bytes().to_vec();
    text(&mut introduction, "Forms");
    introduction.extend(2u16.to_le_bytes());
    for (id, name) in [(1u16, "nothing"), (3, "say")] {
        introduction.extend(id.to_le_bytes());
        text(&mut introduction, name);
        introduction.extend(0u16.to_le_bytes());
    }
    text(&mut introduction, "");
    let mut builder = ServerBuilder::new().fabrics(&fabric);
    for function in [0, 1, 3] {
        builder = builder.function(function, FunctionMode::Worker);
    }
    let older = move |request: &Request<'_>, reply: &mut Reply<'_>| match request.function {
        0 => Ok(reply.write(&introduction)?),
        // A tagged result: field 0 is an i64.
        _ => Ok(reply.write(&[10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0])?),
    };
    let address = address("older");
    let _server = builder.serve(&address, move |_| Box::new(older.clone())).unwrap();
    let mut client = younger::FormsClient::connect_with(&fabric, &address, ClientOptions::default()).unwrap();
    assert_eq!(client.nothing().unwrap(), 7);
}
