//! Complete tables that clients READ: server, control connection, READs over a fabric, PUTs by RPC; on shared
//! memory and in virtual time.

#![allow(missing_docs, clippy::disallowed_methods, clippy::disallowed_types)]

use dunlin_fabric::{Address, Fabric, Host, Nanos, Scheme, Signal, Task};
use dunlin_fabric_shm::{ShmConfig, ShmFabric};
use dunlin_fabric_sim::{RunReport, Sim};
use dunlin_kv::bypass::{BypassClient, BypassConfig, BypassServer, GetError, Kind, ReadError};
use dunlin_rpc::{ClientConfig, CompletionMode, Protocol, ServerConfig};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const ITEMS: u64 = 500;
/// Value lengths from inside a slot to several READs of lines.
const LENGTHS: [usize; 5] = [16, 32, 100, 900, 3000];

fn addresses() -> [Address; 2] {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    ["puts", "reads"].map(|what| {
        Address::new(Scheme::Shm, &format!("bypass-{what}-{}-{number}", std::process::id())).unwrap()
    })
}

fn config(kind: Kind) -> BypassConfig {
    BypassConfig { data_bytes: 8 << 20, ..BypassConfig::for_items(kind, ITEMS, 48) }
}

fn puts() -> ClientConfig {
    ClientConfig::with_plan(Protocol::by_name("Direct-WriteIMM").unwrap().plan(CompletionMode::Adaptive))
}

fn key_of(number: u64) -> [u8; 16] {
    let mut key = [3; 16];
    key[..8].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    key[8..].copy_from_slice(&number.to_le_bytes());
    key
}

/// Builds a value that identifies its key and round.
fn value_of(number: u64, round: u64) -> Vec<u8> {
    let length = LENGTHS[(number + round) as usize % LENGTHS.len()];
    let mut value: Vec<u8> = (0..length as u64).map(|at| (at * 31 + round * 7 + number) as u8).collect();
    value[..8].copy_from_slice(&number.to_le_bytes());
    value[8..16].copy_from_slice(&round.to_le_bytes());
    value
}

fn round_of(value: &[u8]) -> u64 {
    u64::from_le_bytes(value[8..16].try_into().unwrap())
}

fn fabric() -> ShmFabric {
    ShmFabric::new(ShmConfig::default()).unwrap()
}

#[test]
fn what_is_put_by_rpc_is_read_without_the_server() {
    for kind in Kind::ALL {
        let [puts_at, reads_at] = addresses();
        let engine = ServerConfig { workers: 2, ..ServerConfig::default() };
        let server = BypassServer::serve(&fabric(), [&puts_at, &reads_at], config(kind), engine).unwrap();
        assert_eq!(server.reads_address(), &reads_at);
        let connect = || BypassClient::connect(&fabric(), [&puts_at, &reads_at], puts()).unwrap();
        let (mut client, mut other) = (connect(), connect());
        for number in 0..ITEMS {
            assert!(!client.put(&key_of(number), &value_of(number, 0)).unwrap().replaced);
        }
        let mut value = Vec::new();
        for number in 0..ITEMS {
            assert!(other.get(&key_of(number), &mut value).unwrap());
            assert_eq!(value, value_of(number, 0), "{kind:?}");
        }
        let counts = other.counts();
        assert_eq!((counts.gets, counts.misses, counts.retries), (ITEMS, 0, 0));
        println!("{}: {:.2} READs a GET", kind.name(), counts.reads_per_get());
        assert!(counts.reads_per_get() < 5.0 && counts.reads >= ITEMS);
        // Absent keys, deleted keys, and keys that no table takes.
        assert!(!other.get(b"nobody", &mut value).unwrap());
        assert!(client.delete(&key_of(7)).unwrap() && !client.delete(&key_of(7)).unwrap());
        assert!(!other.get(&key_of(7), &mut value).unwrap());
        assert_eq!(other.counts().misses, 2);
        assert!(matches!(other.get(b"", &mut value), Err(GetError::KeyLength(0))));
        assert!(client.put(&[1; 251], b"").is_err());
        // The client notices that the server has ended once the link's end arrives: the memory is still
        // mapped.
        drop(server);
        let mut outcomes = (0..30_000).map(|_| {
            std::thread::sleep(std::time::Duration::from_millis(1));
            other.get(&key_of(1), &mut value)
        });
        let gone = outcomes.find_map(Result::err).expect("the server is missed at some time");
        let expected = matches!(gone, GetError::Read(ReadError::PeerGone | ReadError::Failed(_)));
        assert!(expected, "{gone}");
        assert!(other.get(&key_of(1), &mut value).is_err());
    }
}

#[test]
fn readers_of_a_table_that_is_written_get_whole_values() {
    for kind in Kind::ALL {
        let [puts_at, reads_at] = addresses();
        let engine = ServerConfig::default();
        let _server = BypassServer::serve(&fabric(), [&puts_at, &reads_at], config(kind), engine).unwrap();
        let connect = || BypassClient::connect(&fabric(), [&puts_at, &reads_at], puts()).unwrap();
        let mut writer = connect();
        for number in 0..ITEMS {
            writer.put(&key_of(number), &value_of(number, 0)).unwrap();
        }
        let over = Arc::new(AtomicBool::new(false));
        let mut reader = connect();
        let told = Arc::clone(&over);
        let reading = std::thread::spawn(move || {
            let (mut last, mut value) = (vec![0; ITEMS as usize], Vec::new());
            let mut gets = 0;
            while !told.load(Ordering::Relaxed) || gets < 5_000 {
                // A few keys, which are written most.
                let number = gets % 20;
                assert!(reader.get(&key_of(number), &mut value).unwrap(), "{kind:?}: {number} is missed");
                let round = round_of(&value);
                assert_eq!(value, value_of(number, round), "{kind:?}");
                assert!(round >= last[number as usize], "{kind:?}: an older value");
                last[number as usize] = round;
                gets += 1;
            }
            reader.counts()
        });
        for round in 1..150 {
            for number in 0..20 {
                writer.put(&key_of(number), &value_of(number, round)).unwrap();
                writer.put(&key_of(1000 + (number * 3 + round) % 50), &[1; 40]).unwrap();
            }
        }
        over.store(true, Ordering::Relaxed);
        println!("{kind:?}: {:?}", reading.join().unwrap());
    }
}

/// Three machines in virtual time: one writes, one reads.
fn simulated(seed: u64, kind: Kind) -> (RunReport, u64) {
    let reads = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&reads);
    let report = Sim::run(seed, move |sim| {
        let [puts_at, reads_at] = ["puts", "reads"].map(|what| Address::new(Scheme::Sim, what).unwrap());
        let engine = ServerConfig::default();
        let server = BypassServer::serve(&sim, [&puts_at, &reads_at], config(kind), engine).unwrap();
        let filled = sim.host().signal();
        let spawn = |body: Box<dyn FnOnce() + Send>| sim.host().spawn("client", body).unwrap();
        let writing = {
            let (sim, filled, at) = (sim.clone(), filled.clone(), [puts_at.clone(), reads_at.clone()]);
            spawn(Box::new(move || {
                let mut client = BypassClient::connect(&sim, [&at[0], &at[1]], puts()).unwrap();
                for number in 0..60 {
                    client.put(&key_of(number), &value_of(number, 0)).unwrap();
                }
                filled.raise();
                for round in 1..20 {
                    for number in 0..60 {
                        client.put(&key_of(number), &value_of(number, round)).unwrap();
                    }
                }
            }))
        };
        let reading = {
            let (sim, at) = (sim.clone(), [puts_at, reads_at]);
            spawn(Box::new(move || {
                let mut client = BypassClient::connect(&sim, [&at[0], &at[1]], puts()).unwrap();
                filled.wait(0, Nanos::MAX);
                let mut value = Vec::new();
                for number in (0..60).cycle().take(2000) {
                    assert!(client.get(&key_of(number), &mut value).unwrap());
                    assert_eq!(value, value_of(number, round_of(&value)));
                }
                count.store(client.counts().reads, Ordering::Relaxed);
            }))
        };
        [writing, reading].into_iter().for_each(Task::join);
        server.shutdown(Duration::from_secs(1));
    })
    .unwrap();
    (report, reads.load(Ordering::Relaxed))
}

#[test]
fn tables_are_read_in_virtual_time_and_runs_replay_from_their_seed() {
    for kind in Kind::ALL {
        let first = simulated(1, kind);
        assert_eq!(first, simulated(1, kind), "{kind:?}");
        assert_ne!(first.0.trace_hash, simulated(2, kind).0.trace_hash, "{kind:?}");
        assert!(first.1 >= 2000, "{kind:?}");
    }
}
