//! The rates of a cluster's NIC by size: RF-RPC's one-time benchmark (section 3.2, figure 1) run on the model.

use crate::driver::{Connection, Pick, Places, Signaling, Test, TestError, Thread, run};
use crate::figure::FIGURES;
use crate::network::Cluster;
use crate::profile::Profile;
use crate::request::{Opcode, Transport};
use crate::sweep::Effort;
use dunlin_fabric::{BadRates, RateRow, Rates, RatesSource};

/// The sizes of the table.
pub const SIZES: [u32; 9] = [32, 64, 128, 256, 512, 1024, 2048, 4096, 8192];
/// Memory that is read, as in the tests of figure 1, and the number of its reader's own region.
const BUFFER: u64 = 1 << 16;
const LOCAL: u32 = 1 << 20;

/// Why a profile has no rates.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RatesError {
    /// A test cannot be run on it.
    #[error(transparent)]
    Test(#[from] TestError),
    /// What came of them is no table.
    #[error("the model's rates are no table: {0}")]
    Bad(#[from] BadRates),
}

/// The rates of a profile's NIC as RF-RPC measured its own: in-bound READs of 28 clients on seven hosts, out-bound WRITEs of 16 threads
/// to as many clients, each thread with one operation at a time; and how long a READ takes that is alone. Takes some tenths of a second.
///
/// # Errors
/// A profile on which these cannot be run.
pub fn rates(profile: &Profile, effort: Effort) -> Result<Rates, RatesError> {
    let row = |bytes: &u32| {
        Ok(RateRow {
            bytes: *bytes,
            reads: figure_1("in-bound READ", *bytes, profile, effort)?,
            writes: figure_1("out-bound WRITE", *bytes, profile, effort)?,
            read_nanos: lone_read(*bytes, profile)?,
        })
    };
    let rows: Result<Vec<RateRow>, RatesError> = SIZES.iter().map(row).collect();
    let source = RatesSource::Modelled { profile: profile.name().to_owned() };
    Ok(Rates::new(rows?, source)?)
}

/// A series of figure 1 on another profile, a second.
fn figure_1(series: &str, bytes: u32, profile: &Profile, effort: Effort) -> Result<f64, TestError> {
    let figure = FIGURES.iter().find(|figure| figure.id == "rf-rpc-1");
    let series = figure.and_then(|figure| figure.series.iter().find(|known| known.name == series));
    let mops = series.ok_or(TestError::Nothing { what: "series" })?.predict(bytes, profile, effort)?;
    Ok(mops * 1e6)
}

/// The time of a READ that has the network to itself, in nanoseconds.
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

    fn of(profile: &str) -> Rates {
        rates(&Profile::built_in(profile).unwrap(), Effort::Quick).unwrap()
    }

    /// The profile is fitted to figure 1, so its own table is that of the paper.
    #[test]
    fn the_papers_nic_has_the_papers_rates() {
        let rates = of("rf-rpc");
        assert_eq!(rates, of("rf-rpc"), "the same each time");
        assert_eq!(rates.source().to_string(), "of the model of rf-rpc");
        let near = |value: f64, said: f64| assert!((value / said - 1.0).abs() < 0.1, "{value} for {said}");
        near(rates.at(32, |row| row.reads), 11.26e6);
        near(rates.at(32, |row| row.writes), 2.11e6);
        // The paper has no time of a READ; a round trip is more than one way (its 2.4: a WRITE).
        assert!((1_400.0..3_000.0).contains(&rates.at(32, |row| row.read_nanos)));
    }

    #[test]
    fn other_nics_have_others() {
        let ours = of("rf-rpc");
        for other in ["rf-rpc-connectx4", "rf-rpc-roce", "rf-rpc-20g", "hatrpc"] {
            assert_ne!(of(other).rows(), ours.rows(), "{other}");
        }
    }
}
