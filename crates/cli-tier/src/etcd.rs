//! The options of `dunlin node run` about etcd.

use clap::Args;
use dunlin::fabric::Fabric;
use dunlin_command::arguments;
use dunlin_command::output::Failure;
use dunlin_tier_node::{Tier, TierConfig};
use std::path::PathBuf;
use std::time::Duration;

/// Membership by etcd.
#[derive(Args, Debug)]
pub(crate) struct EtcdArguments {
    /// Members of the etcd by which nodes learn of each other, in place of --peers or --directory: http://HOST:PORT,...
    #[arg(
        long,
        value_name = "URL",
        value_delimiter = ',',
        conflicts_with_all = ["peers", "directory"],
        requires_all = ["name", "listen"]
    )]
    etcd: Vec<String>,
    /// Name of the cluster: etcd has its keys below /dunlin/NAME/
    #[arg(long, default_value = "tier", value_parser = cluster, value_name = "NAME")]
    cluster: String,
    /// Time after which a node is declared dead that etcd does not hear; etcd has leases of 2s and more
    #[arg(long, default_value = "5s", value_parser = lease, value_name = "TIME")]
    lease: Duration,
    /// Name at etcd, if it asks for one
    #[arg(long, value_name = "NAME", requires = "etcd_password_file")]
    etcd_user: Option<String>,
    /// File with the password of --etcd-user; no other user may read it
    #[arg(long, value_name = "FILE", requires = "etcd_user")]
    etcd_password_file: Option<PathBuf>,
    /// Certificate of the authority that vouches for an etcd of https, as PEM
    #[arg(long, value_name = "FILE")]
    etcd_ca: Option<PathBuf>,
}

fn cluster(text: &str) -> Result<String, String> {
    if text.is_empty() || text.contains('/') {
        return Err("the name of a cluster is a word without a slash".to_owned());
    }
    Ok(text.to_owned())
}

fn lease(text: &str) -> Result<Duration, String> {
    let lease = arguments::positive_duration(text)?;
    if lease < Duration::from_secs(1) || lease.subsec_nanos() != 0 {
        return Err("etcd counts leases in seconds: write 2s or more".to_owned());
    }
    Ok(lease)
}

impl EtcdArguments {
    /// Returns whether etcd says which nodes there are.
    pub(crate) fn is_given(&self) -> bool {
        !self.etcd.is_empty()
    }

    /// Starts the node.
    #[cfg(feature = "etcd")]
    pub(crate) fn start<F: Fabric>(&self, fabric: &F, config: TierConfig) -> Result<Tier<F>, Failure> {
        use dunlin_tier_node::{Etcd, EtcdConfig, StoreConfig};
        let read = |path: &PathBuf| {
            std::fs::read(path)
                .map_err(|error| Failure::new(format!("cannot read {}: {error}", path.display())))
        };
        let user = match (&self.etcd_user, &self.etcd_password_file) {
            (Some(name), Some(path)) => {
                let password = String::from_utf8(crate::node::secret(path)?);
                let no_text = |_| Failure::new(format!("{} is not a text", path.display()));
                Some((name.clone(), password.map_err(no_text)?))
            }
            _ => None,
        };
        let authority = self.etcd_ca.as_ref().map(read).transpose()?;
        let place = EtcdConfig { endpoints: self.etcd.clone(), user, authority };
        let settings = StoreConfig {
            cluster: self.cluster.clone(),
            lease: self.lease,
            max_nodes: config.max_nodes,
            ..StoreConfig::default()
        };
        let etcd = Etcd::new(fabric.host(), place).map_err(Failure::new)?;
        Tier::within_store(fabric, config, etcd, settings).map_err(|error| {
            Failure::new(error).help("etcdctl --endpoints URL endpoint health says whether etcd runs")
        })
    }

    /// Says that this build has no etcd.
    #[cfg(not(feature = "etcd"))]
    pub(crate) fn start<F: Fabric>(&self, _: &F, _: TierConfig) -> Result<Tier<F>, Failure> {
        Err(Failure::new("this build has no etcd").help(
            "cargo build --release -p dunlin-cli-tier --features etcd; it needs protoc (Debian: protobuf-compiler)",
        ))
    }
}
