//! Measures a fabric's rates: between threads on shared memory, and in virtual time.

#![allow(missing_docs)]

use dunlin_device_rates::{
    CONNECTIONS, MeasuredRates, RatesError, RatesOptions, SIZES, Step, measure, serve,
};
use dunlin_fabric::{Address, Fabric, Host, Rates, RatesSource};
use dunlin_fabric_shm::{ShmConfig, ShmFabric};
use dunlin_fabric_sim::{ModelTiming, Prices, Settings, Sim, TimingSettings};
use dunlin_rnic_model::{Parameter, Profile};
use dunlin_rpc::tune::grouping::GroupDefaults;
use std::sync::{Arc, Mutex};

fn shm() -> ShmFabric {
    ShmFabric::new(ShmConfig::default()).expect("a fabric")
}

fn address(name: &str) -> Address {
    format!("shm:rates-{name}-{}", std::process::id()).parse().expect("an address")
}

fn quick() -> RatesOptions {
    RatesOptions { rounds: 2, slice: 100_000, ..RatesOptions::default() }
}

type Measured = Result<MeasuredRates, RatesError>;

/// Runs the measurement with peers on separate threads, and returns how the peers ended.
fn on_shm(
    name: &str,
    options: &RatesOptions,
    mut between: impl FnMut(Step<'_>) -> bool,
) -> (Measured, Vec<Result<(), RatesError>>) {
    let (fabric, mut peers) = (shm(), Vec::new());
    let outcome = measure(&fabric, &address(name), options, &mut |step| {
        if let Step::Listening(address) = step {
            peers = (0..options.peers)
                .map(|_| {
                    let address = address.clone();
                    std::thread::spawn(move || serve(&shm(), &address))
                })
                .collect();
        }
        between(step)
    });
    (outcome, peers.into_iter().map(|peer| peer.join().expect("no panic")).collect())
}

#[test]
fn shared_memory_has_rates_that_a_table_takes() {
    for (peers, threads) in [(1, 1), (3, 2)] {
        let options = RatesOptions { peers, threads, ..quick() };
        let mut last = (0, 0);
        let (rows, ended) = on_shm(&format!("all-{peers}"), &options, |step| {
            if let Step::Slices(done, all) = step {
                last = (done, all);
            }
            true
        });
        let MeasuredRates { rows, connections } = rows.expect("rates");
        assert_eq!(connections, [], "no device keeps connections");
        assert_eq!(rows.iter().map(|row| row.bytes).collect::<Vec<_>>(), SIZES);
        Rates::new(rows, RatesSource::Given).expect("possible ones");
        assert_eq!(last, (2 * 9 * 3, 2 * 9 * 3));
        assert!(ended.iter().all(Result::is_ok), "{ended:?}");
    }
}

#[test]
fn who_is_told_to_stop_stops_and_lets_the_peers_go() {
    for stop_at in [0, 7] {
        let (outcome, ended) = on_shm(
            &format!("stop-{stop_at}"),
            &quick(),
            |step| !matches!(step, Step::Slices(done, _) if done == stop_at),
        );
        assert!(matches!(outcome, Err(RatesError::Stopped)));
        assert!(ended.iter().all(Result::is_ok), "{ended:?}");
    }
}

#[test]
fn options_out_of_range_are_refused_before_anything_is_opened() {
    for options in [
        RatesOptions { sizes: vec![64], ..quick() },
        RatesOptions { sizes: vec![64, 64], ..quick() },
        RatesOptions { sizes: vec![0, 64], ..quick() },
        RatesOptions { sizes: vec![64, 1 << 20], ..quick() },
        RatesOptions { connections: vec![8], ..quick() },
        RatesOptions { connections: vec![8, 8], ..quick() },
        RatesOptions { connections: vec![0, 8], ..quick() },
        RatesOptions { connections: vec![8, 5000], ..quick() },
        RatesOptions { peers: 0, ..quick() },
        RatesOptions { threads: 2, ..quick() },
        RatesOptions { window: 65, ..quick() },
        RatesOptions { rounds: 0, ..quick() },
    ] {
        let outcome = measure(&shm(), &address("options"), &options, &mut |_| panic!("nothing was begun"));
        assert!(matches!(outcome, Err(RatesError::Option(_))), "{options:?}");
    }
}

#[test]
fn a_peer_that_is_none_is_an_error() {
    for said in [&b"GET / HTTP/1.1"[..], b"{\"version\":1,\"key\":0,\"endpoint\":[]}", b"{}", &[0; 900]] {
        let (fabric, said) = (shm(), said.to_vec());
        let mut peer = None;
        let outcome = measure(&fabric, &address("foreign"), &quick(), &mut |step| {
            if let Step::Listening(address) = step {
                let (address, said) = (address.clone(), said.clone());
                peer = Some(std::thread::spawn(move || {
                    use dunlin_fabric::Link as _;
                    let fabric = shm();
                    let until = fabric.host().now() + 5_000_000_000;
                    let link = fabric.dial(&address, until).expect("somebody listens");
                    link.send(&said).expect("sent");
                    // Receive until the other side has closed.
                    while link.receive(until).is_ok() {}
                }));
            }
            true
        });
        assert!(matches!(outcome, Err(RatesError::Foreign(_))), "{outcome:?}");
        peer.expect("started").join().expect("no panic");
    }
}

/// Runs the measurement on a simulated cluster, with each peer on its own host.
fn on_model(profile: &str, peers: usize) -> MeasuredRates {
    let profile = Arc::new(Profile::built_in(profile).expect("a profile"));
    let mut settings = Settings { spurious: 0, preemption: 0, ..Settings::default() };
    settings.machines = vec![Default::default(); peers + 1];
    settings.prices = Prices::of(&profile);
    settings.capabilities.max_inline = profile.number(Parameter::InlineLimit) as u32;
    let machines = vec![(profile, 1); peers + 1];
    settings.timing = TimingSettings::Model(ModelTiming { machines, switch_ns: None, control_ns: 5_000 });
    let found = Arc::new(Mutex::new(None));
    let into = Arc::clone(&found);
    let root = move |sim: Sim| {
        let options = RatesOptions { peers, rounds: 2, slice: 300_000, ..RatesOptions::default() };
        let address: Address = "sim:rates".parse().expect("an address");
        let rows = measure(&sim, &address, &options, &mut |step| {
            if let Step::Listening(address) = step {
                for peer in 0..peers {
                    let (sim, address) = (sim.process_on(1 + peer), address.clone());
                    let host = sim.host().clone();
                    let body = Box::new(move || serve(&sim, &address).expect("served"));
                    drop(host.spawn("peer", body).expect("a task"));
                }
            }
            true
        });
        *into.lock().expect("no panic") = Some(rows.expect("rates"));
    };
    Sim::run_with(settings, 1, root).expect("no deadlock");
    found.lock().expect("no panic").take().expect("measured")
}

/// The same code as on a device, in virtual time. There are few connections and the host does not wait for
/// each WRITE, so its NIC issues more of them than in the paper's test.
#[test]
fn in_virtual_time_the_same_comes_out_each_time() {
    let measured = on_model("rf-rpc", 2);
    assert_eq!(measured, on_model("rf-rpc", 2));
    let MeasuredRates { rows, connections } = measured;
    let of = |bytes| *rows.iter().find(|row| row.bytes == bytes).expect("measured");
    assert!((1_000.0..4_000.0).contains(&of(32).read_nanos), "{:?}", of(32));
    // 40 Gb/s minus headers: both READs and WRITEs of 8 KiB saturate the link.
    for rate in [of(8192).reads, of(8192).writes] {
        assert!((0.4e6..0.65e6).contains(&rate), "{rate}");
    }
    assert!(of(32).reads > 4.0 * of(8192).reads, "{rows:?}");
    let rates = Rates::new(rows, RatesSource::Given).expect("possible ones");
    let counts: Vec<u32> = connections.iter().map(|row| row.connections).collect();
    assert_eq!(counts, CONNECTIONS);
    rates.with_connections(connections).expect("possible ones");
}

/// The NIC of ScaleRPC's cluster: the measurement shows how many connections its cache holds, whoever the peers are.
#[test]
fn in_virtual_time_rates_fall_beyond_the_connections_that_a_nic_holds() {
    let MeasuredRates { rows, connections } = on_model("scalerpc", 3);
    let writes = |count| {
        let row = connections.iter().find(|row| row.connections == count);
        row.expect("measured").writes
    };
    assert!(writes(256) < 0.5 * writes(16), "{connections:?}");
    let rates = Rates::new(rows, RatesSource::Given).expect("possible ones");
    let rates = rates.with_connections(connections).expect("possible ones");
    let GroupDefaults { size, slice } = GroupDefaults::of(Some(&rates));
    assert!((8..80).contains(&size) && slice > GroupDefaults::PAPER.slice, "{size} {slice:?}");
}
