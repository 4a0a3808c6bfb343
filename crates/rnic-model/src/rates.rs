//! Operation rates of a cluster's NIC: by size, RF-RPC's one-time benchmark (section 3.2, figure 1), and by the number
//! of connections (ScaleRPC figure 1(b)), run on the model.

use crate::driver::{Connection, Pick, Places, Signaling, Test, TestError, Thread, run};
use crate::figure::FIGURES;
use crate::network::Cluster;
use crate::profile::Profile;
use crate::request::{Opcode, Transport};
use crate::sweep::Effort;
use dunlin_fabric::{BadRates, ConnectionRow, RateRow, Rates, RatesSource};

/// Payload sizes of the table, in bytes.
pub const SIZES: [u32; 9] = [32, 64, 128, 256, 512, 1024, 2048, 4096, 8192];
/// Numbers of connections of the table: dense where the caches of NICs end.
pub const CONNECTIONS: [u32; 12] = [8, 16, 24, 32, 48, 64, 80, 96, 128, 192, 256, 512];
/// Size of the memory that is read, as in the tests of figure 1, and the number of the reader's own region.
const BUFFER: u64 = 1 << 16;
const LOCAL: u32 = 1 << 20;

/// An error of [`rates`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RatesError {
    /// A test cannot be run on the profile.
    #[error(transparent)]
    Test(#[from] TestError),
    /// The results form no valid table.
    #[error("the model's rates form no table")]
    Bad(#[from] BadRates),
}

/// Computes the rates of a profile's NIC as RF-RPC measured its own: in-bound READs of 28 clients on seven
/// hosts, out-bound WRITEs of 16 threads to as many clients, each thread with one operation at a time; and
/// the latency of a lone READ. The rates by connections are ScaleRPC's out-bound WRITEs of 10 threads to 11 hosts.
/// Takes some tenths of a second.
///
/// # Errors
/// Returns an error if the tests cannot be run on the profile.
pub fn rates(profile: &Profile, effort: Effort) -> Result<Rates, RatesError> {
    let row = |bytes: &u32| {
        Ok(RateRow {
            bytes: *bytes,
            reads: point(("rf-rpc-1", "in-bound READ"), *bytes, profile, effort)?,
            writes: point(("rf-rpc-1", "out-bound WRITE"), *bytes, profile, effort)?,
            read_nanos: lone_read(*bytes, profile)?,
        })
    };
    let rows: Result<Vec<RateRow>, RatesError> = SIZES.iter().map(row).collect();
    let row = |connections: &u32| {
        let writes = point(("scalerpc-1b", "out-bound WRITE"), *connections, profile, effort)?;
        Ok(ConnectionRow { connections: *connections, writes })
    };
    let connections: Result<Vec<ConnectionRow>, RatesError> = CONNECTIONS.iter().map(row).collect();
    let source = RatesSource::Modelled { profile: profile.name().to_owned() };
    Ok(Rates::new(rows?, source)?.with_connections(connections?)?)
}

/// Returns a point of a figure's series on another profile, in operations per second.
fn point(
    (figure, series): (&str, &str),
    x: u32,
    profile: &Profile,
    effort: Effort,
) -> Result<f64, TestError> {
    let figure = FIGURES.iter().find(|known| known.id == figure);
    let series = figure.and_then(|figure| figure.series.iter().find(|known| known.name == series));
    let mops = series.ok_or(TestError::Nothing { what: "series" })?.predict(x, profile, effort)?;
    Ok(mops * 1e6)
}

/// Returns the latency of a READ on an idle network, in nanoseconds.
fn lone_read(bytes: u32, profile: &Profile) -> Result<f64, TestError> {
    let connections = vec![Connection { queue_pair: 0, peer: 1, peer_queue_pair: 0 }];
    let remote = Places::Anywhere { first: 0, regions: 1, bytes: BUFFER };
    let outcome = run(&Test {
        cluster: Cluster::uniform(profile, 2),
        threads: vec![Thread { host: 0, connections, region: LOCAL, remote }],
        opcode: Opcode::Read,
        transport: Transport::ReliableConnection,
        bytes,
        inline: false,
        window: 1,
        signaling: Signaling::All,
        pick: Pick::InTurn,
        warm_up: 100,
        measured: 1_000,
    })?;
    Ok(outcome.latency_ns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Parameter;
    use dunlin_fabric::Nic;
    use dunlin_fabric::nic::MELLANOX;

    fn of(profile: &str) -> Rates {
        rates(&Profile::built_in(profile).unwrap(), Effort::Quick).unwrap()
    }

    /// The profile is fitted to figure 1, so its table matches the paper's.
    #[test]
    fn the_papers_nic_has_the_papers_rates() {
        let rates = of("rf-rpc");
        assert_eq!(rates, of("rf-rpc"), "the same each time");
        assert_eq!(rates.source().to_string(), "of the model of rf-rpc");
        let near = |value: f64, said: f64| assert!((value / said - 1.0).abs() < 0.1, "{value} for {said}");
        near(rates.at(32, |row| row.reads), 11.26e6);
        near(rates.at(32, |row| row.writes), 2.11e6);
        // The paper gives no READ latency; a round trip takes longer than its one-way WRITE (2.4).
        assert!((1_400.0..3_000.0).contains(&rates.at(32, |row| row.read_nanos)));
    }

    /// ScaleRPC figure 1(b): about 20 million WRITEs a second over 10 connections, 2 million over more than 200.
    #[test]
    fn rates_by_connections_fall_where_contexts_do_not_fit() {
        let rates = of("scalerpc");
        let at = |wanted| {
            let row = rates.connections().iter().find(|row| row.connections == wanted);
            row.unwrap().writes
        };
        assert_eq!(rates.connections().len(), CONNECTIONS.len());
        assert!(at(16) > 15e6 && at(256) < 4e6, "{:?}", rates.connections());
        for (before, after) in rates.connections().iter().zip(&rates.connections()[1..]) {
            assert!(after.writes < before.writes * 1.1, "{:?}", rates.connections());
        }
    }

    /// The fabric's table of known NICs has the queue pairs of the profiles.
    #[test]
    fn known_nics_hold_the_queue_pairs_of_the_profiles() {
        for (profile, part) in [("rf-rpc", 4099), ("rf-rpc-connectx4", 4115), ("hatrpc", 4119)] {
            let profile = Profile::built_in(profile).unwrap();
            let modelled = profile.value(Parameter::InitiatorQueuePairs).number;
            let Some(Nic::Hardware { name, queue_pairs }) = Nic::by_part(MELLANOX, part) else {
                panic!("{part}")
            };
            assert_eq!(f64::from(queue_pairs), modelled, "{name}");
        }
    }

    #[test]
    fn other_nics_have_others() {
        let ours = of("rf-rpc");
        for other in ["rf-rpc-connectx4", "rf-rpc-roce", "rf-rpc-20g", "hatrpc"] {
            assert_ne!(of(other).rows(), ours.rows(), "{other}");
        }
    }
}
