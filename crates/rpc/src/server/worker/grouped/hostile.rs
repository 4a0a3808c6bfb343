//! Clients that lie about leases: each loses its connection, and nobody else notices.

use super::tests::{ECHO, LOAD, Load, plan, serve};
use super::*;
use crate::CompletionMode;
use crate::client::config::ClientConfig;
use crate::client::core::Core;
use crate::client::establish::{PreparedLane, greet, negotiate};
use crate::client::lane::SubmitError;
use crate::share::Client;
use dunlin_fabric::{Address, Scheme, Task};
use dunlin_fabric_sim::{Settings, Sim};
use std::time::Duration;

/// A client whose lane a test uses as it likes.
struct Raw {
    core: Core<Sim>,
    lane: u16,
}

impl Raw {
    fn connect(fabric: &Sim, address: &Address) -> Self {
        let config = ClientConfig::with_plan(plan(CompletionMode::Busy)).settled(fabric);
        let tuners = config.tuners(fabric);
        let mut core = Core::new(fabric, config.mode()).unwrap();
        let until = fabric.host().now() + 5_000_000_000;
        let greeting = greet(fabric, address, &config, until).unwrap();
        let prepared = PreparedLane::new(&mut core, &greeting, &config, config.plan.unwrap(), 1, 0).unwrap();
        let ready = negotiate(&greeting, std::slice::from_ref(&prepared), until).unwrap();
        let lane = core.install(&greeting, &config, vec![prepared], &ready, &tuners).unwrap()[0];
        Raw { core, lane }
    }

    fn step(&mut self) {
        self.core.progress();
        let host = self.core.fabric.host();
        host.sleep(host.now() + 1000);
    }

    /// Makes a call and waits for its answer, which begins a lease.
    fn call(&mut self) {
        let submitted = self.core.with_lane(self.lane, |cx, lane| lane.submit(cx, ECHO, b"a call", 0));
        let Ok(id) = submitted else { panic!("the lane takes no call") };
        while !self.core.is_done(id) {
            self.step();
        }
        assert_eq!(self.core.outcome(id).unwrap(), b"a call");
        self.core.forget(id);
    }

    /// Writes a word, true or not.
    fn say(&mut self, tail: u32, heard: u32) {
        let said = self.core.with_lane(self.lane, |cx, lane| {
            let to = (lane.control_key, WORD_AT);
            let word = Word { tail, heard }.to_wire();
            lane.tx.end.write_word(cx, to, word, None).map_err(SubmitError::from).map(|()| 0)
        });
        assert!(said.is_ok());
    }

    /// Waits until the server has closed the connection; `false` if it does not.
    fn is_closed(&mut self) -> bool {
        for _ in 0..10_000 {
            if !self.core.is_usable(self.lane) {
                return true;
            }
            self.step();
        }
        false
    }
}

fn in_virtual_time(body: impl FnOnce(&Sim, &Address) + Send + 'static) {
    Sim::run_with(Settings::default(), 6, move |fabric| {
        let address = Address::new(Scheme::Sim, "lies").unwrap();
        // One group, so that no lease ends.
        let (server, workers, _) = serve(&fabric, &address, Load { group: 40, ..LOAD });
        let honest = ClientConfig::with_plan(plan(CompletionMode::Busy));
        let mut honest = Client::connect(&fabric, &address, honest).unwrap();
        assert_eq!(*honest.call(ECHO, b"before").unwrap(), *b"before");
        body(&fabric, &address);
        assert_eq!(*honest.call(ECHO, b"after").unwrap(), *b"after");
        drop(honest);
        server.shutdown(Duration::from_secs(1));
        workers.into_iter().for_each(Task::join);
    })
    .unwrap();
}

/// The words that are lies before the first lease, and during a lease whose requests took one line.
#[test]
fn a_lie_closes_the_connection_of_the_liar() {
    in_virtual_time(|fabric, address| {
        // It has heard of a lease that did not begin; announces more than a ring; announces bytes that are no request.
        for (tail, heard) in [(0, 1), (0, u32::MAX), (ZONE_BYTES / LINE as u32 + 1, 0), (1, 0), (40, 0)] {
            let mut liar = Raw::connect(fabric, address);
            liar.say(tail, heard);
            assert!(liar.is_closed(), "tail {tail}, heard {heard}");
        }
        // It has heard of the end before it came, or of a lease that comes later.
        for (tail, heard) in [(1, 1), (1, 2)] {
            let mut liar = Raw::connect(fabric, address);
            liar.call();
            liar.say(tail, heard);
            assert!(liar.is_closed(), "tail {tail}, heard {heard} during a lease");
        }
    });
}

/// Announcements of requests that were taken already are old, not lies.
#[test]
fn an_old_announcement_is_ignored() {
    in_virtual_time(|fabric, address| {
        let mut client = Raw::connect(fabric, address);
        client.call();
        client.say(0, 0);
        client.say(1, 0);
        client.call();
        assert!(client.core.is_usable(client.lane));
    });
}
