//! A process of one node serves a function, and a process of another node calls it through both nodes (LITE section 5.1).
//! Here both nodes are in this process; each could be a process of its own, or a host.
//!
//! `cargo run --release --example services`

use dunlin::fabric::{Scheme, ShmFabric, shm};
use dunlin::tier::{Calls, Peer, RequestError, Tier, TierConfig};
use std::thread;
use std::time::Duration;

const NAMES: [&str; 2] = ["one", "two"];

fn join(cluster: &str, name: &str) -> anyhow::Result<Tier<ShmFabric>> {
    let peer = |name: &str| Peer::named(Scheme::Shm, &format!("{cluster}-{name}"));
    let nodes = NAMES.iter().map(|name| peer(name)).collect::<Result<_, _>>()?;
    Ok(Tier::within(&shm()?, TierConfig::new(nodes, &format!("{cluster}-{name}")))?)
}

/// Answers each request with the sum of its bytes, until one is empty.
fn serve(calls: &Calls<ShmFabric>) -> anyhow::Result<()> {
    let mut buffer = [0; 256];
    let mut request = calls.receive(&mut buffer)?;
    loop {
        let sum: u8 = buffer[..request.len()].iter().fold(0, |sum, byte| sum.wrapping_add(*byte));
        if request.is_empty() {
            request.reply(b"bye");
            return Ok(());
        }
        request = request.reply_and_receive(&[sum], &mut buffer)?;
    }
}

fn main() -> anyhow::Result<()> {
    let cluster = format!("services-{}", std::process::id());
    let [one, two] = [join(&cluster, NAMES[0])?, join(&cluster, NAMES[1])?];
    let calls = two.register("example/sums", 7)?;
    let server = one.servers("example/sums")?.join(", ");
    println!("served by {}", if server == two.name() { "the second node" } else { "another" });
    thread::scope(|scope| -> anyhow::Result<()> {
        let serving = scope.spawn(|| serve(&calls));
        let mut answer = [0; 16];
        for last in 1..=100u8 {
            let request: Vec<u8> = (1..=last).collect();
            one.call(&server, "example/sums", 7, &request, &mut answer)?;
        }
        println!("1 + 2 + ... + 100 = {} modulo 256", answer[0]);
        let short = one.call(&server, "example/sums", 7, &[1], &mut []);
        if let Err(error @ RequestError::AnswerTooLong { .. }) = short {
            println!("without a buffer: {error}; executed: {}", error.may_have_executed());
        }
        let length = one.call(&server, "example/sums", 7, &[], &mut answer)?;
        println!("the server says {}", String::from_utf8_lossy(&answer[..length]));
        serving.join().expect("no panic")
    })?;
    drop(calls);
    let time = Duration::from_millis(100);
    let nobody = one.call_within(time, (&server, b"example/sums", 7), &[1], &mut [0; 16]).unwrap_err();
    println!("afterwards: executed: {}", nobody.may_have_executed());
    Ok(())
}
