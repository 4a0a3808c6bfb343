//! A custom RPC on RF-RPC's messages (its table 2): this program dispatches and serializes, and Dunlin
//! transports the bytes. The server leaves each answer in memory for the client to READ, until that takes too
//! long.
//!
//! `cargo run --release --example messages` serves and calls over shared memory. With `serve` or `call` and
//! an address (`shm:NAME`, `rdma:HOST:PORT`) it does only one of these.

use dunlin::plan::{CompletionMode, Protocol};
use dunlin::rfp::{ClientId, MessageBuffer, MessageClient, MessageServer};
use dunlin::{ClientConfig, Fabrics};
use std::error::Error;
use std::time::Duration;

/// The maximum message size of this protocol, in bytes.
const LONGEST: usize = 4096;

/// A request: a number of one byte, then its arguments.
enum Question<'a> {
    Add(u32, u32),
    Reverse(&'a str),
}

impl<'a> Question<'a> {
    /// Encodes the question at the beginning of a buffer and returns its length.
    fn encode(&self, into: &mut [u8]) -> usize {
        match self {
            Question::Add(one, other) => {
                into[0] = 1;
                into[1..5].copy_from_slice(&one.to_le_bytes());
                into[5..9].copy_from_slice(&other.to_le_bytes());
                9
            }
            Question::Reverse(text) => {
                into[0] = 2;
                into[1..=text.len()].copy_from_slice(text.as_bytes());
                1 + text.len()
            }
        }
    }

    /// Parses a question; `None` if it is invalid. The bytes are untrusted.
    fn parse(bytes: &'a [u8]) -> Option<Self> {
        match bytes.split_first()? {
            (1, numbers) => {
                let (one, other) = numbers.split_first_chunk::<4>()?;
                let other = other.first_chunk::<4>()?;
                Some(Question::Add(u32::from_le_bytes(*one), u32::from_le_bytes(*other)))
            }
            (2, text) => Some(Question::Reverse(std::str::from_utf8(text).ok()?)),
            _ => None,
        }
    }

    fn answer(&self) -> String {
        match self {
            Question::Add(one, other) => one.wrapping_add(*other).to_string(),
            Question::Reverse(text) => text.chars().rev().collect(),
        }
    }
}

/// Receives and answers all messages from one client. If the client disconnects, only its own messages are
/// affected.
fn answer_all(
    thread: &mut MessageServer,
    client: ClientId,
    buffer: &mut MessageBuffer,
) -> Result<(), Box<dyn Error>> {
    while let Some(size) = thread.server_recv(client, buffer)? {
        let answer = match Question::parse(&buffer[..size]) {
            Some(question) => question.answer(),
            None => "what?".to_owned(),
        };
        let size = answer.len().min(buffer.len());
        buffer[..size].copy_from_slice(&answer.as_bytes()[..size]);
        thread.server_send(client, buffer, size)?;
    }
    Ok(())
}

fn serve(mut thread: MessageServer) {
    while !thread.is_ended() {
        let Some(client) = thread.next_client(Duration::MAX) else { continue };
        let Ok(mut buffer) = thread.malloc_buf(client, LONGEST) else { continue };
        if let Err(error) = answer_all(&mut thread, client, &mut buffer) {
            eprintln!("a client's messages end: {error}");
        }
    }
}

fn ask(
    client: &mut MessageClient,
    buffer: &mut MessageBuffer,
    question: &Question<'_>,
) -> Result<String, Box<dyn Error>> {
    let size = question.encode(buffer);
    client.client_send(0, buffer, size)?;
    let size = client.client_recv(0, buffer)?;
    Ok(String::from_utf8_lossy(&buffer[..size]).into_owned())
}

fn call(address: &str) -> Result<(), Box<dyn Error>> {
    let plan = Protocol::by_name("RF-RPC").ok_or("no such protocol")?.plan(CompletionMode::Busy);
    let config = ClientConfig::with_plan(plan);
    let mut client = MessageClient::connect_with(Fabrics::global(), address, config)?;
    let mut buffer = client.malloc_buf(0, LONGEST)?;
    println!("20 + 22 = {}", ask(&mut client, &mut buffer, &Question::Add(20, 22))?);
    println!("dunlin backwards: {}", ask(&mut client, &mut buffer, &Question::Reverse("dunlin"))?);
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let what = arguments.next().unwrap_or_default();
    let own = || format!("shm:messages-{}", std::process::id());
    let address = arguments.next().unwrap_or_else(own);
    if what == "call" {
        return call(&address);
    }
    let (server, threads) = MessageServer::listen(&address)?;
    let threads: Vec<_> = threads.into_iter().map(|t| std::thread::spawn(move || serve(t))).collect();
    let called = if what == "serve" { Ok(()) } else { call(&address) };
    if what != "serve" {
        server.shutdown(Duration::from_secs(1));
    }
    for thread in threads {
        thread.join().map_err(|_| "a thread of the server panicked")?;
    }
    called
}
