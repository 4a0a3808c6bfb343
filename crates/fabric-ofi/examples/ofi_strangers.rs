//! Tests messages from an unknown sender to a datagram endpoint, and a peer that exceeds its credits.
//! Messages that do not belong to a queue pair are dropped and counted, and its own messages continue. A
//! sender that knows the secret and sends too much loses its queue pair. The environment variable
//! `DUNLIN_OFI_PROVIDER` is the provider (default `tcp;ofi_rxm`). `tests/ofi/suite` runs it.

use dunlin_fabric::{
    Access, Arena, Completion, CompletionQueueId, CompletionStatus, Data, Endpoint, Fabric, Host, Link,
    Listener, Operation, QueuePairConfig, QueuePairId, QueuePairState, RealHost, ReceiveTarget, ThreadDomain,
    WorkId, WorkRequest,
};
use dunlin_fabric_ofi::{OfiConfig, OfiDomain, OfiFabric, OfiLink, OfiMemory};
use std::net::{IpAddr, Ipv4Addr};

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// The maximum number of polls for any expected event.
const LOOKS: u32 = 200_000;
const RECEIVES: u64 = 4;

struct Side {
    domain: OfiDomain,
    arena: Arena<OfiMemory>,
    sends: CompletionQueueId,
    receives: CompletionQueueId,
    queue_pair: QueuePairId,
    endpoint: Endpoint,
}

impl Side {
    fn new(fabric: &OfiFabric, link: &OfiLink) -> Self {
        let mut domain = fabric.domain().expect("a domain");
        let sends = domain.create_completion_queue(64, true).expect("a queue");
        let receives = domain.create_completion_queue(64, true).expect("a queue");
        let config = QueuePairConfig { max_receive: 16, ..QueuePairConfig::reliable(sends, receives) };
        let queue_pair = domain.create_queue_pair(&config).expect("a queue pair");
        let endpoint = domain.endpoint(queue_pair, link).expect("an endpoint");
        let arena = Arena::new(fabric.register(1 << 16, Access::READ).expect("memory")).expect("an arena");
        Side { domain, arena, sends, receives, queue_pair, endpoint }
    }

    fn receive(&mut self, id: u64) {
        let buffer = self.arena.reserve(64).expect("a buffer");
        let target = ReceiveTarget::QueuePair(self.queue_pair);
        self.domain.post_receive(target, WorkId(id), Some(buffer)).expect("a RECV is taken");
    }

    fn send(&mut self, bytes: &[u8]) {
        let operation = Operation::Send { data: Data::Inline(&[bytes]), immediate: None, to: None };
        let request = WorkRequest { id: WorkId(1), operation, signaled: false };
        self.domain.post(self.queue_pair, request).expect("a SEND is taken");
    }

    fn look(&mut self, queue: CompletionQueueId) -> Vec<Completion<OfiMemory>> {
        let mut found = Vec::new();
        self.domain.poll(queue, &mut found, 1);
        found
    }
}

/// Polls on both sides until `done` returns a value.
fn until<T>(
    what: &str,
    (near, far): (&mut Side, &mut Side),
    mut done: impl FnMut(&mut Side, &mut Side) -> Option<T>,
) -> T {
    for _ in 0..LOOKS {
        near.look(near.sends);
        far.look(far.sends);
        if let Some(found) = done(near, far) {
            return found;
        }
        RealHost.sleep(RealHost.now() + 50_000);
    }
    panic!("{what} did not come");
}

fn got(side: &mut Side) -> Option<Vec<u8>> {
    let completion = side.look(side.receives).into_iter().next()?;
    assert_eq!(completion.status, CompletionStatus::Success);
    let buffer = completion.buffer.expect("a RECV gives its buffer back");
    Some(buffer[..completion.bytes as usize].to_vec())
}

/// Encodes a header as in `header.rs`.
fn header(number: u32, secret: u64, sequence: u32) -> Vec<u8> {
    let words = [number, sequence << 2, 0, 0].map(u32::to_le_bytes);
    [&secret.to_le_bytes()[..], &words.concat()].concat()
}

fn main() {
    let provider = std::env::var("DUNLIN_OFI_PROVIDER").unwrap_or_else(|_| "tcp;ofi_rxm".into());
    let fabric = OfiFabric::new(&provider, OfiConfig::default()).expect("the provider is there");
    let address = format!("ofi:{provider}:{HERE}:7960").parse().expect("an address");
    let listener = fabric.listen(&address).expect("it listens");
    let soon = RealHost.now() + 10_000_000_000;
    let link = fabric.dial(&address, soon).expect("a link");
    let far_link = listener.accept(soon).expect("the other end of the link");
    let (mut near, mut far) = (Side::new(&fabric, &link), Side::new(&fabric, &far_link));
    let (there, here) = (far.endpoint.clone(), near.endpoint.clone());
    for end in 0..there.0.len() {
        let cut = Endpoint(there.0[..end].to_vec());
        assert!(near.domain.connect(near.queue_pair, &link, &cut).is_err(), "an endpoint cut to {end} bytes");
    }
    near.domain.connect(near.queue_pair, &link, &there).expect("it connects");
    far.domain.connect(far.queue_pair, &far_link, &here).expect("it connects");
    (0..RECEIVES).for_each(|id| far.receive(id));
    near.send(b"first");
    assert_eq!(until("the first message", (&mut near, &mut far), |_, far| got(far)), b"first");

    // The content of an endpoint is known on its link only; other senders can only guess.
    let number = u32::from_le_bytes(there.0[1..5].try_into().expect("four bytes"));
    let secret = u64::from_le_bytes(there.0[5..13].try_into().expect("eight bytes"));
    let strange = vec![
        Vec::from([0; 3]),
        header(number, secret, 1)[..23].to_vec(),
        header(number, secret ^ 1, 1),
        header(number + 1, secret, 1),
        header(0, 0, 0),
        Vec::from([0xff; 60]),
    ];
    let count = strange.len() as u64;
    let stranger = {
        let (fabric, there) = (fabric.clone(), there.clone());
        std::thread::spawn(move || fabric.send_as_stranger(HERE, &there, &strange))
    };
    until("the strange messages", (&mut near, &mut far), |_, far| {
        assert!(got(far).is_none(), "a strange message got through");
        (fabric.strays() == count).then_some(())
    });
    stranger.join().expect("it ends").expect("it can send");
    let messages: [&[u8]; 3] = [b"second", b"third", b"fourth"];
    messages.iter().for_each(|message| near.send(message));
    for message in messages {
        assert_eq!(until("a message behind strange ones", (&mut near, &mut far), |_, far| got(far)), message);
    }
    assert_eq!(far.domain.state(far.queue_pair), Some(QueuePairState::Ready));
    println!(
        "{provider}: {count} strange messages were dropped and counted, and none was lost of its peer's"
    );

    // A sender that knows everything counts as the peer: an impossible message number breaks the queue pair.
    far.receive(9);
    let (fabric_there, wrong) = (fabric.clone(), vec![header(number, secret, 1000)]);
    let peer = std::thread::spawn(move || fabric_there.send_as_stranger(HERE, &there, &wrong));
    until("the end of both queue pairs", (&mut near, &mut far), |near, far| {
        let broken = |side: &Side| {
            side.domain.state(side.queue_pair).is_none_or(|state| state == QueuePairState::Error)
        };
        (broken(near) && broken(far)).then_some(())
    });
    // A send to a closed endpoint may or may not fail.
    let _ = peer.join().expect("it ends");
    assert!(link.is_alive());
    println!("{provider}: a peer with a message out of its turn lost its queue pair");
}
