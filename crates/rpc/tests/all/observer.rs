//! A service observes the connections of its server.

#![allow(missing_docs, clippy::disallowed_methods, clippy::disallowed_types)]

use crate::common::*;
use dunlin_fabric::PeerIdentity;
use dunlin_rpc::*;
use std::sync::{Arc, Mutex};

#[derive(Debug, PartialEq, Eq)]
enum Event {
    Opened(u64, PeerIdentity),
    Refused,
    Closed(u64),
}

/// Admits two connections.
#[derive(Debug, Default)]
struct Watch(Mutex<Vec<Event>>);

impl ConnectionObserver for Watch {
    fn opened(&self, session: u64, peer: &PeerIdentity, _: &str, token: &Token) -> Result<(), NotAdmitted> {
        if token.0 == b"unknown" {
            return Err(NotAdmitted::Unauthorised("who is that".to_owned()));
        }
        let mut events = self.0.lock().unwrap();
        if events.len() >= 2 {
            events.push(Event::Refused);
            return Err("two are enough".to_owned().into());
        }
        events.push(Event::Opened(session, peer.clone()));
        Ok(())
    }

    fn closed(&self, session: u64) {
        self.0.lock().unwrap().push(Event::Closed(session));
    }
}

#[test]
fn a_service_knows_the_user_and_the_end_of_each_connection() {
    let (fabric, watch) = (fabric(), Arc::new(Watch::default()));
    let sessions = Arc::new(Mutex::new(Vec::new()));
    let (seen, known) = (Arc::clone(&sessions), Arc::clone(&watch));
    let server = ServerBuilder::new(&fabric)
        .observe(Arc::clone(&watch) as _)
        .function(ECHO, FunctionMode::Worker)
        .serve(&unique("observed"), move |_| {
            let (seen, known) = (Arc::clone(&seen), Arc::clone(&known));
            Box::new(move |request: &Request<'_>, _: &mut Reply<'_>| {
                let of_call =
                    |event: &Event| matches!(event, Event::Opened(one, _) if *one == request.session);
                assert!(known.0.lock().unwrap().iter().any(of_call), "a call before its connection");
                seen.lock().unwrap().push(request.session);
                Ok(())
            })
        })
        .unwrap();
    let connect = || Client::connect(&fabric, server.address(), ClientConfig::default());
    let mut clients = [connect().unwrap(), connect().unwrap()];
    for client in &mut clients {
        drop(client.call(ECHO, b"").unwrap());
    }
    let refused = connect().unwrap_err();
    assert!(refused.to_string().contains("two are enough"), "{refused}");
    let token = b"unknown".to_vec();
    let unknown =
        Client::connect(&fabric, server.address(), ClientConfig { token, ..ClientConfig::default() });
    assert!(matches!(unknown, Err(ConnectError::Unauthorised(text)) if text == "who is that"));
    let sessions = sessions.lock().unwrap().clone();
    let peer =
        PeerIdentity { process: Some(std::process::id()), user: Some(rustix::process::geteuid().as_raw()) };
    let opened = |at: usize| Event::Opened(sessions[at], peer.clone());
    let [first, second] = clients;
    drop(first);
    until("the first connection ends", || watch.0.lock().unwrap().len() == 4);
    let expected = [opened(0), opened(1), Event::Refused, Event::Closed(sessions[0])];
    assert_eq!(*watch.0.lock().unwrap(), expected);
    // The end of the server is the end of its connections.
    drop(server);
    assert_eq!(watch.0.lock().unwrap().last(), Some(&Event::Closed(sessions[1])));
    drop(second);
}
