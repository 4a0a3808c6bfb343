//! Machines that are cut off from the others: messages wait, queue pairs give up, dials run out of time.

use dunlin_fabric::{
    Access, Address, Completion, CompletionQueueId, CompletionStatus, Data, DialError, Fabric, Host, Link,
    LinkError, Listener, Nanos, Operation, QueuePairConfig, QueuePairId, Region, RegionKey, ThreadDomain,
    WaitMode, WorkId, WorkRequest,
};
use dunlin_fabric_sim::{MachineSettings, RETRIES_LAST, Settings, Sim, SimDomain, SimLink, SimMemory};

const FOREVER: Nanos = Nanos::MAX;

/// A queue pair of one machine, connected with another one that answers by itself.
struct End {
    sim: Sim,
    domain: SimDomain,
    link: SimLink,
    queue: CompletionQueueId,
    pair: QueuePairId,
}

impl End {
    fn new(sim: &Sim, link: SimLink) -> Self {
        let mut domain = sim.domain().expect("a domain");
        let queue = domain.create_completion_queue(64, true).expect("a completion queue");
        let pair = domain.create_queue_pair(&QueuePairConfig::reliable(queue, queue)).expect("a queue pair");
        End { sim: sim.clone(), domain, link, queue, pair }
    }

    fn write(&mut self, id: u64, key: RegionKey, offset: u64) {
        let data = Data::Inline(&[&[7; 8]]);
        let operation = Operation::Write { data, key, offset, immediate: None };
        self.domain
            .post(self.pair, WorkRequest { id: WorkId(id), operation, signaled: true })
            .expect("posted");
    }

    fn next(&mut self) -> Completion<SimMemory> {
        let mut got = Vec::new();
        loop {
            let armed = self.domain.arm(WaitMode::Event);
            if self.domain.poll(self.queue, &mut got, 1) == 1 {
                self.domain.disarm(armed);
                return got.remove(0);
            }
            let _ = self.domain.wait(armed, FOREVER);
        }
    }
}

/// Runs `body` with a queue pair on machine 0, one on machine 1 that is connected with it, and memory of that one.
fn between_machines(
    body: impl Fn(&Sim, &mut End, &mut End, &Region<SimMemory>, RegionKey) + Send + Clone + 'static,
) {
    for seed in 0..10 {
        let settings = Settings { machines: vec![MachineSettings::default(); 3], ..Settings::default() };
        let body = body.clone();
        let run = Sim::run_with(settings, seed, move |sim| {
            let (near, far) = (sim.process_on(0), sim.process_on(1));
            let address: Address = "sim:cut".parse().expect("an address");
            let listener = far.listen(&address).expect("listening");
            let dialled = near.dial(&address, FOREVER).expect("a listener");
            let accepted = listener.accept(FOREVER).expect("a connection");
            let (mut one, mut two) = (End::new(&near, dialled), End::new(&far, accepted));
            let first = one.domain.endpoint(one.pair, &one.link).expect("an endpoint");
            let second = two.domain.endpoint(two.pair, &two.link).expect("an endpoint");
            one.domain.connect(one.pair, &one.link, &second).expect("connected");
            two.domain.connect(two.pair, &two.link, &first).expect("connected");
            let access = Access::READ.with(Access::WRITE);
            let region = Region::new(far.register(4096, access).expect("memory"));
            let key = two.link.grant(region.memory(), access).expect("a key");
            body(&sim, &mut one, &mut two, &region, key);
        });
        run.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
}

#[test]
fn messages_wait_for_the_end_of_a_short_cut() {
    between_machines(|sim, one, two, memory, key| {
        let start = sim.time();
        sim.cut_off(1, RETRIES_LAST / 2);
        one.write(1, key, 0);
        one.link.send(b"held up").expect("sent");
        sim.host().sleep(sim.host().now() + RETRIES_LAST / 3);
        assert_eq!(memory.load(0), 0, "nothing arrives");
        let early = two.link.receive(sim.host().now());
        assert!(matches!(early, Err(LinkError::TimedOut)), "{early:?}");
        let got = one.next();
        assert_eq!((got.id, got.status), (WorkId(1), CompletionStatus::Success));
        assert!(sim.time() >= start + RETRIES_LAST / 2);
        assert_eq!(two.link.receive(FOREVER).expect("a message"), b"held up");
        // An answer waits too: the request was on its way when the cut began.
        one.write(2, key, 8);
        let cut = sim.time();
        sim.cut_off(0, RETRIES_LAST / 2);
        sim.host().sleep(sim.host().now() + RETRIES_LAST / 3);
        assert_eq!(memory.load(8), u64::from_le_bytes([7; 8]), "it arrives");
        assert_eq!(one.next().status, CompletionStatus::Success);
        assert!(sim.time() >= cut + RETRIES_LAST / 2);
    });
}

#[test]
fn a_queue_pair_gives_up_behind_a_long_cut() {
    between_machines(|sim, one, _, _, key| {
        let start = sim.time();
        sim.cut_off(1, 10 * RETRIES_LAST);
        one.write(1, key, 0);
        assert_eq!(one.next().status, CompletionStatus::TransportRetry);
        let took = sim.time() - start;
        assert!((RETRIES_LAST..2 * RETRIES_LAST).contains(&took), "{took}");
    });
}

#[test]
fn dials_run_out_of_time_and_others_pass() {
    between_machines(|sim, one, _, _, _| {
        sim.cut_off(1, 1_000_000_000);
        let address: Address = "sim:cut".parse().expect("an address");
        let dial = |sim: &Sim| sim.dial(&address, sim.host().now() + 20_000_000);
        let from_other_side = dial(&one.sim);
        assert!(matches!(from_other_side, Err(DialError::TimedOut { .. })), "{from_other_side:?}");
        assert!(dial(&sim.process_on(1)).is_ok(), "the same machine");
        let other: Address = "sim:other".parse().expect("an address");
        let listener = sim.process_on(2).listen(&other).expect("listening");
        assert!(
            one.sim.dial(&other, sim.host().now() + 20_000_000).is_ok(),
            "two machines that are not cut off"
        );
        drop(listener);
        sim.host().sleep(sim.host().now() + 1_000_000_000);
        assert!(dial(&one.sim).is_ok(), "the cut is over");
    });
}
