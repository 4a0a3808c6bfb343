//! Typed clients at the wrong port of a typed server at an `auto:` address: each error names the address to
//! use, and no call is executed.

use dunlin::errors::WithSources;
use dunlin::thrift::tcp::ConnectionOptions;
use dunlin::thrift::{CallError, ClientOptions, Context, Failure, FastStr, Never, ServerOptions, serve_with};
use dunlin::{Address, Certainty, Client, ClientConfig, Fabrics, Server};
use dunlin_generated::asked::*;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

#[derive(Clone, Debug, Default)]
struct Handler(Arc<AtomicUsize>);

impl Asked for Handler {
    fn say(&self, _: &Context, text: &str) -> Result<FastStr, Failure<AskedSayException>> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(FastStr::new(text))
    }

    fn by_tcp(&self, context: &Context) -> Result<bool, Failure<Never>> {
        Ok(context.tcp)
    }

    fn note(&self, _: &Context, _: i32) -> Result<(), Failure<Never>> {
        Ok(())
    }

    fn remote(&self, context: &Context) -> Result<bool, Failure<Never>> {
        Ok(context.tcp)
    }
}

#[test]
fn every_wrong_port_names_the_right_address() {
    let fabrics = Fabrics::default();
    let handler = Handler::default();
    let anywhere: Address = "auto:127.0.0.1:0".parse().unwrap();
    let processor = AskedProcessor(handler.clone());
    let server = serve_with(&fabrics, &anywhere, processor, ServerOptions::default()).unwrap();
    let auto = server.address().clone();
    let tcp = server.tcp_address().unwrap().to_string();

    // `tcp:` at the port of `auto:`.
    for wire in dunlin::thrift::tcp::Wire::ALL {
        let options = ConnectionOptions { wire, ..ConnectionOptions::default() };
        let mut client: AskedClient = AskedClient::connect_tcp(auto.name(), options).unwrap();
        let error = client.say("in").unwrap_err();
        assert!(error.to_string().contains(&format!("use {auto}")), "{error}");
        assert_eq!(error.certainty(), Certainty::NotExecuted);
        assert!(matches!(error, AskedError::Call(CallError::Application(_))), "{error}");
    }

    // `auto:` at the port of stock Thrift, with typed calls and calls by number.
    let wrong: Address = format!("auto:{tcp}").parse().unwrap();
    let expected =
        format!("this is a server of stock Thrift; use tcp:{tcp} with a typed client; it serves 'Asked'");
    let typed = AskedClient::connect_with(&fabrics, &wrong, ClientOptions::default()).unwrap_err();
    let raw = Client::connect_with(&fabrics, &wrong, ClientConfig::default()).unwrap_err();
    for error in [&typed as &dyn std::error::Error, &raw] {
        let error = WithSources(error).to_string();
        assert!(error.contains(&expected), "{error}");
    }

    // A client of another service, at an engine.
    let Some(Server::Several(servers)) = server.engine() else { panic!("{server:?}") };
    let shm = servers.servers()[0].address();
    let config = ClientConfig { service: "key-value store".into(), ..ClientConfig::default() };
    let error = Client::connect_with(&fabrics, shm, config).unwrap_err().to_string();
    assert!(error.contains("this server serves 'Asked', not 'key-value store'"), "{error}");

    // A browser, at both ports.
    for (place, part) in [(auto.name(), format!("use {auto}")), (tcp.as_str(), format!("use tcp:{tcp}"))] {
        let mut socket = TcpStream::connect(place).unwrap();
        socket.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains(&part), "{answer}");
    }
    assert_eq!(handler.0.load(Ordering::Relaxed), 0);
    let mut client = AskedClient::connect_with(&fabrics, &auto, ClientOptions::default()).unwrap();
    assert_eq!(client.say("in").unwrap(), "in");
}

/// Listens on a free port and sends each visitor zeros, for as long as it stays. Returns `host:port`.
fn sender_of_nothing() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let place = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        while let Ok((mut socket, _)) = listener.accept() {
            std::thread::spawn(move || while socket.write_all(&[0; 1 << 20]).is_ok() {});
        }
    });
    place
}

#[test]
fn a_listener_that_sends_megabytes_of_nothing_is_refused_by_every_client() {
    let (fabrics, place) = (Fabrics::default(), sender_of_nothing());
    let auto: Address = format!("auto:{place}").parse().unwrap();
    let typed = AskedClient::connect_with(&fabrics, &auto, ClientOptions::default()).unwrap_err();
    let raw = Client::connect_with(&fabrics, &auto, ClientConfig::default()).unwrap_err();
    for error in [&typed as &dyn std::error::Error, &raw] {
        let error = WithSources(error).to_string();
        assert!(error.contains("this is no server of Dunlin"), "{error}");
    }
    for wire in dunlin::thrift::tcp::Wire::ALL {
        let options = ConnectionOptions { wire, ..ConnectionOptions::default() };
        let mut client: AskedClient = AskedClient::connect_tcp(&place, options).unwrap();
        let error = client.say("in").unwrap_err();
        // The request had been sent when the zeros came.
        assert_eq!(error.certainty(), Certainty::MaybeExecuted, "{error}");
    }
}
