//! Loopback latency and throughput of Dunlin's Thrift over TCP, volo-thrift and Apache's C++ library (`TThreadedServer`), each
//! client against each server, framed and binary, in one run, taking turns. `./run` builds all and starts it.
//!
//! `tcp-bench APACHE [SIZE [ROUNDS]]` with the path of the C++ program; `tcp-bench server dunlin|volo` is how it starts itself.

mod apache;
mod ours;
mod theirs;

use anyhow::{Context, Result, bail, ensure};
use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Connections of a throughput measurement.
pub const CONNECTIONS: usize = 8;
/// How long each measurement takes.
pub const SPAN: Duration = Duration::from_millis(1000);

/// What one client saw of one server.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// Nanoseconds of a call of one connection, the median.
    pub latency: u64,
    /// Calls a second over all connections.
    pub rate: u64,
}

/// The median; it orders the numbers.
pub fn median(numbers: &mut [u64]) -> u64 {
    numbers.sort_unstable();
    numbers.get(numbers.len() / 2).copied().unwrap_or_default()
}

struct Server {
    process: Child,
    port: u16,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Starts a server that says its port.
fn start(command: &mut Command) -> Result<Server> {
    let mut process = command.stdout(Stdio::piped()).spawn().with_context(|| format!("{command:?}"))?;
    let mut line = String::new();
    BufReader::new(process.stdout.take().context("no output")?).read_line(&mut line)?;
    let Some(port) = line.trim().strip_prefix("port ").and_then(|port| port.parse().ok()) else {
        let _ = process.kill();
        bail!("{command:?} says {line:?} and not its port");
    };
    let server = Server { process, port };
    for _ in 0..500 {
        if TcpStream::connect(("127.0.0.1", port)).is_ok() {
            return Ok(server);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    bail!("{command:?} does not listen")
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["server", "dunlin"] => ours::serve(None),
        ["server", "dunlin", threads] => ours::serve(Some(threads.parse()?)),
        ["server", "volo"] => theirs::serve(),
        ["client", "dunlin", port, size] => {
            Ok(println!("{:?}", ours::measure(port.parse()?, size.parse()?)?))
        }
        ["client", "volo", port, size] => {
            Ok(println!("{:?}", theirs::measure(port.parse()?, size.parse()?)?))
        }
        [apache] => compare(apache, 32, 3),
        [apache, size] => compare(apache, size.parse()?, 3),
        [apache, size, rounds] => compare(apache, size.parse()?, rounds.parse()?),
        _ => bail!("tcp-bench APACHE [SIZE [ROUNDS]]"),
    }
}

fn compare(apache: &str, size: usize, rounds: usize) -> Result<()> {
    ensure!(rounds > 0, "no rounds, no medians");
    let here = std::env::current_exe()?;
    let servers = [
        ("dunlin", start(Command::new(&here).args(["server", "dunlin"]))?),
        ("volo", start(Command::new(&here).args(["server", "volo"]))?),
        ("apache", start(Command::new(apache).arg("server"))?),
    ];
    let measure = |client: &str, port: u16| match client {
        "dunlin" => ours::measure(port, size),
        "volo" => theirs::measure(port, size),
        _ => apache::measure(apache, port, size),
    };
    let clients = ["dunlin", "volo", "apache"];
    let mut seen = vec![Vec::new(); clients.len() * servers.len()];
    for _ in 0..rounds {
        for (number, seen) in seen.iter_mut().enumerate() {
            let (client, (name, server)) =
                (clients[number / servers.len()], &servers[number % servers.len()]);
            seen.push(measure(client, server.port).with_context(|| format!("{client} calls {name}"))?);
        }
    }
    println!(
        "{size} bytes, framed and binary, {CONNECTIONS} connections for the rate, medians of {rounds} rounds"
    );
    println!("{:<8} {:<8} {:>10} {:>10} {:>12}", "client", "server", "p50 (us)", "its best", "calls/s");
    for (number, seen) in seen.iter().enumerate() {
        let mut latencies: Vec<_> = seen.iter().map(|seen| seen.latency).collect();
        // Where the system puts the two threads makes a factor of two or three; the best is of the same place.
        let (latency, best) = (median(&mut latencies) as f64 / 1000.0, latencies[0] as f64 / 1000.0);
        let rate = median(&mut seen.iter().map(|seen| seen.rate).collect::<Vec<_>>());
        let (client, server) = (clients[number / servers.len()], servers[number % servers.len()].0);
        println!("{client:<8} {server:<8} {latency:>10.2} {best:>10.2} {rate:>12}");
    }
    Ok(())
}
