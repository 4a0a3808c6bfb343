//! The hint `numa`: the cores on which threads run. The test builds nodes from the available cores and
//! queries the system for affinities.

use dunlin::Address;
use dunlin::errors::BindError;
use dunlin::fabric::Topology;
use dunlin::thrift::{
    ClientOptions, ConnectError, Context, Failure, Never, NumaError, ServeError, ServerOptions, serve_with,
};
use dunlin_generated::numa::*;
use rustix::thread::{CpuSet, sched_getaffinity};

/// Returns the cores that the calling thread may use.
fn allowed() -> Vec<u32> {
    let set = sched_getaffinity(None).unwrap();
    (0..CpuSet::MAX_CPU as u32).filter(|core| set.is_set(*core as usize)).collect()
}

/// Node 0 with all cores, and node 1 with the last one.
fn two_nodes() -> Topology {
    let all = allowed();
    let last = all[all.len() - 1..].to_vec();
    Topology::new([(0, all), (1, last)], 0)
}

fn cores() -> Result<Vec<i32>, Failure<Never>> {
    Ok(allowed().into_iter().map(|core| core as i32).collect())
}

#[derive(Debug)]
struct Handler;

impl Bound for Handler {
    fn cores(&self, _: &Context) -> Result<Vec<i32>, Failure<Never>> {
        cores()
    }

    fn pooled(&self, _: &Context) -> Result<Vec<i32>, Failure<Never>> {
        cores()
    }
}

impl Near for Handler {
    fn cores(&self, _: &Context) -> Result<Vec<i32>, Failure<Never>> {
        cores()
    }
}

impl Lost for Handler {
    fn nothing(&self, _: &Context) -> Result<(), Failure<Never>> {
        Ok(())
    }
}

impl Torn for Handler {
    fn left(&self, _: &Context) -> Result<(), Failure<Never>> {
        Ok(())
    }

    fn right(&self, _: &Context) -> Result<(), Failure<Never>> {
        Ok(())
    }
}

fn address(name: &str) -> Address {
    format!("shm:numa-{name}-{}", std::process::id()).parse().unwrap()
}

fn on(topology: Topology) -> ServerOptions {
    ServerOptions { topology: Some(topology), ..ServerOptions::default() }
}

fn from(topology: Topology) -> ClientOptions {
    ClientOptions { topology: Some(topology), ..ClientOptions::default() }
}

fn same(cores: &[i32], expected: &[u32]) -> bool {
    cores.iter().map(|core| *core as u32).eq(expected.iter().copied())
}

#[test]
fn workers_and_pool_are_bound_and_callers_bind_themselves() {
    let fabric = dunlin::fabric::shm().unwrap();
    let address = address("bound");
    let (all, topology) = (allowed(), two_nodes());
    let last = topology.cores(1).unwrap().to_vec();
    let _server = serve_with(&fabric, &address, BoundProcessor(Handler), on(topology.clone())).unwrap();
    let mut client = BoundClient::connect_with(&fabric, &address, from(topology.clone())).unwrap();
    assert!(same(&client.cores().unwrap(), &last));
    assert!(same(&client.pooled().unwrap(), &last));
    assert_eq!((client.inner().cores(), allowed()), (&last[..], all), "connecting binds nobody for good");
    // On a separate thread, since other tests share this one.
    let bound = std::thread::spawn(move || {
        client.inner().bind_thread().unwrap();
        (allowed(), client.pooled().unwrap())
    });
    let (bound, answer) = bound.join().unwrap();
    assert!(bound == last && same(&answer, &last));
    let hub = dunlin::raw::AsyncHub::new(&fabric).unwrap();
    let futures = BoundAsyncClient::connect_with(&hub, &address, from(topology)).unwrap();
    drop(futures.pooled());
    assert!(!allowed().is_empty());
}

#[test]
fn the_nodes_own_server_takes_the_node_that_it_is_started_on() {
    let fabric = dunlin::fabric::shm().unwrap();
    let all = allowed();
    let first = all[..1].to_vec();
    for (name, here, expected) in [("near-0", 0, &all), ("near-1", 1, &first)] {
        let topology = Topology::new([(0, all.clone()), (1, first.clone())], here);
        let address = address(name);
        let _server = serve_with(&fabric, &address, NearProcessor(Handler), on(topology)).unwrap();
        let mut client = NearClient::connect_with(&fabric, &address, ClientOptions::default()).unwrap();
        assert!(same(&client.cores().unwrap(), expected), "{name}");
        assert_eq!(client.inner().cores(), [0; 0], "the client is not hinted");
    }
}

#[test]
fn one_node_is_nothing_to_bind_to() {
    let fabric = dunlin::fabric::shm().unwrap();
    for (name, topology) in [("single", Topology::single()), ("one", Topology::new([(0, allowed())], 0))] {
        let address = address(name);
        let _server = serve_with(&fabric, &address, LostProcessor(Handler), on(topology.clone())).unwrap();
        let mut client = LostClient::connect_with(&fabric, &address, from(topology)).unwrap();
        client.nothing().unwrap();
        assert_eq!(client.inner().cores(), [0; 0]);
        client.inner().bind_thread().unwrap();
    }
}

#[test]
fn a_node_that_is_not_there_is_refused_on_both_sides() {
    let fabric = dunlin::fabric::shm().unwrap();
    let address = address("lost");
    let refused = serve_with(&fabric, &address, LostProcessor(Handler), on(two_nodes()));
    match refused {
        Err(ServeError::Numa { error: NumaError::Bind { error, function }, .. }) => {
            assert!(matches!(error, BindError::NoSuchNode { node: 700, .. }) && function == "nothing");
            assert!(error.to_string().contains("nodes 0, 1"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    let _server = serve_with(&fabric, &address, LostProcessor(Handler), on(Topology::single())).unwrap();
    let refused = LostClient::connect_with(&fabric, &address, from(two_nodes()));
    let Err(ConnectError::Numa { error: NumaError::Bind { error, .. }, .. }) = refused else {
        panic!("{refused:?}")
    };
    assert!(matches!(error, BindError::NoSuchNode { node: 700, .. }));
}

#[test]
fn what_cannot_be_is_refused() {
    let fabric = dunlin::fabric::shm().unwrap();
    let torn = serve_with(&fabric, address("torn"), TornProcessor(Handler), on(two_nodes()));
    assert!(matches!(torn, Err(ServeError::Numa { error: NumaError::Differ { .. }, .. })), "{torn:?}");
    let without_cores = Topology::new([(0, allowed()), (1, Vec::new())], 0);
    let empty = serve_with(&fabric, address("empty"), BoundProcessor(Handler), on(without_cores));
    let Err(ServeError::Numa { error: NumaError::Bind { error, .. }, .. }) = empty else {
        panic!("{empty:?}")
    };
    assert!(matches!(error, BindError::NoCores { node: 1 }));
}
