//! Views from a store with transactions, leases and watches: etcd, or a stand-in for it. The store has one record, the
//! view, which the nodes change themselves ([`dunlin_tier::membership::shared`]), and a key for each node, which ends with
//! its lease.

use super::{Membership, MembershipError, Own};
use dunlin_fabric::{Host, Nanos, nanos};
use dunlin_tier::membership::message::{MemberReply, MemberRequest};
use dunlin_tier::membership::shared::{self, Step, Stored};
use dunlin_tier::membership::{Identity, MembershipEvent, Standing, View};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;

/// The most attempts of one renewal: each is lost only to a change by another node.
const ATTEMPTS: u32 = 16;

/// The reason why a store did not answer.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The store cannot be reached, or did not answer in time. A change may have been made.
    #[error("no answer in time: {0}")]
    Unavailable(String),
    /// The store answered with an error.
    #[error("refused: {0}")]
    Refused(String),
}

/// A key of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// Its value.
    pub value: Vec<u8>,
    /// The revision of the store in which it was changed last; at least 1.
    pub changed: u64,
}

/// A key to be written by a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Put {
    /// The key.
    pub key: String,
    /// Its value.
    pub value: Vec<u8>,
    /// The lease with whose end the key ends; `None` for none.
    pub lease: Option<u64>,
}

/// A store of keys with transactions, leases and watches. Every method blocks until `until` at most.
///
/// Each change has a revision, which counts up. A transaction is made by all or none of its changes.
pub trait Store: Send + 'static {
    /// Makes a lease that ends after `time` without [`keep_alive`](Store::keep_alive).
    fn grant(&mut self, time: Duration, until: Nanos) -> Result<u64, StoreError>;

    /// Renews a lease. Returns `false` if the lease has ended.
    fn keep_alive(&mut self, lease: u64, until: Nanos) -> Result<bool, StoreError>;

    /// Ends a lease and its keys. A lease that has ended is no error.
    fn revoke(&mut self, lease: u64, until: Nanos) -> Result<(), StoreError>;

    /// Reads all keys that begin with `prefix`, as of one revision.
    fn read(&mut self, prefix: &str, until: Nanos) -> Result<Vec<Entry>, StoreError>;

    /// Writes all of `puts` if each key of `unchanged` was last changed in the revision given; 0 for a key that is
    /// missing. Returns whether it did.
    fn swap(&mut self, unchanged: &[(String, u64)], puts: Vec<Put>, until: Nanos)
    -> Result<bool, StoreError>;

    /// Returns whether a key that begins with `prefix` may have changed since the last
    /// [`read`](Store::read). Does not wait.
    fn has_changed(&mut self, prefix: &str) -> Result<bool, StoreError>;
}

/// Settings of the membership by a store.
#[derive(Clone, Debug)]
pub struct StoreConfig {
    /// The name of the cluster. Its keys begin with `/dunlin/NAME/`. Default: `tier`.
    pub cluster: String,
    /// A node that does not renew its lease for as long is declared dead. etcd makes leases of at least 1.5 times its
    /// time of an election, by default 2 s. Default: 5 s.
    pub lease: Duration,
    /// The time between two looks at the watch. Default: 100 ms.
    pub period: Duration,
    /// The most names of nodes, 1 to 1024. Default: 64.
    pub max_nodes: u16,
}

impl Default for StoreConfig {
    fn default() -> Self {
        StoreConfig {
            cluster: "tier".to_owned(),
            lease: Duration::from_secs(5),
            period: Duration::from_millis(100),
            max_nodes: 64,
        }
    }
}

/// Learns views from a store, and changes them.
#[derive(Debug)]
pub struct StoreMembership<H: Host, S: Store> {
    host: H,
    store: S,
    config: StoreConfig,
    prefix: String,
    life: u64,
    name: String,
    standing: Standing,
    lease: Option<u64>,
    /// The time at which the lease was renewed last.
    renewed: Nanos,
    /// The own key is missing, or the view has to be read for another reason.
    is_stale: bool,
}

impl<H: Host, S: Store> StoreMembership<H, S> {
    /// Makes the membership of a node. Nothing is asked of the store before the first renewal.
    pub fn new(host: &H, store: S, identity: Identity, config: StoreConfig) -> Self {
        // A name with a slash would be a part of another cluster's keys.
        let prefix = format!("/dunlin/{}/", config.cluster.replace('/', "%2F"));
        let (life, name) = (identity.life, identity.name.clone());
        let (host, standing) = (host.clone(), Standing::new(identity));
        StoreMembership {
            host,
            store,
            config,
            prefix,
            life,
            name,
            standing,
            lease: None,
            renewed: 0,
            is_stale: true,
        }
    }

    fn view_key(&self) -> String {
        format!("{}view", self.prefix)
    }

    fn node_key(&self, name: &str) -> String {
        format!("{}nodes/{name}", self.prefix)
    }

    /// Makes or renews the lease. Without one the own key has to be written again.
    fn hold_lease(&mut self, until: Nanos) -> Result<u64, StoreError> {
        let now = self.host.now();
        if let Some(lease) = self.lease {
            if now < self.renewed.saturating_add(nanos(self.config.lease) / 3) {
                return Ok(lease);
            }
            if self.store.keep_alive(lease, until)? {
                self.renewed = now;
                return Ok(lease);
            }
            tracing::warn!(target: "dunlin::tier", "the store has forgotten the lease of this node");
        }
        self.lease = None;
        self.is_stale = true;
        let lease = self.store.grant(self.config.lease, until)?;
        (self.lease, self.renewed) = (Some(lease), now);
        Ok(lease)
    }

    /// Reads the store. Returns its content, and the revision of each key.
    fn read(&mut self, until: Nanos) -> Result<(Stored, BTreeMap<String, u64>), MembershipError> {
        let nodes = self.node_key("");
        let (mut stored, mut changed) = (Stored::default(), BTreeMap::new());
        for entry in self.store.read(&self.prefix, until)? {
            if entry.key == self.view_key() {
                let broken = |_| MembershipError::Record { key: entry.key.clone() };
                stored.view = shared::parse(&entry.value).map_err(broken)?;
            } else if let Some(name) = entry.key.strip_prefix(&nodes) {
                // A key of another length is that of no life.
                if let Ok(life) = entry.value.as_slice().try_into() {
                    stored.present.insert(name.to_owned(), u64::from_le_bytes(life));
                }
            }
            changed.insert(entry.key, entry.changed);
        }
        Ok((stored, changed))
    }

    /// Makes the node's next step. Returns `None` if another node was quicker.
    fn step(
        &mut self,
        request: &MemberRequest,
        until: Nanos,
    ) -> Result<Option<MemberReply>, MembershipError> {
        let lease = self.hold_lease(until)?;
        let (stored, changed) = self.read(until)?;
        let revision = |key: String| {
            let at = changed.get(&key).copied().unwrap_or(0);
            (key, at)
        };
        let own = Put {
            key: self.node_key(&self.name),
            value: self.life.to_le_bytes().to_vec(),
            lease: Some(lease),
        };
        match shared::step(&stored, request, self.life, self.config.max_nodes) {
            Step::Answer(reply) => {
                let lives = matches!(reply, MemberReply::Current | MemberReply::View(_));
                let leaves = matches!(request, MemberRequest::Leave { .. });
                if lives && !leaves && stored.present.get(&self.name) != Some(&self.life) {
                    // The key has ended with its lease, and no other node has noticed yet.
                    let unchanged = [revision(self.view_key()), revision(own.key.clone())];
                    if !self.store.swap(&unchanged, vec![own], until)? {
                        return Ok(None);
                    }
                }
                Ok(Some(reply))
            }
            Step::Write { view, missing, joins } => {
                let mut unchanged = vec![revision(self.view_key())];
                unchanged.extend(missing.iter().map(|name| revision(self.node_key(name))));
                let mut puts = vec![Put { key: self.view_key(), value: shared::encode(&view), lease: None }];
                if joins {
                    puts.push(own);
                }
                if !self.store.swap(&unchanged, puts, until)? {
                    return Ok(None);
                }
                let alive: Vec<&str> = view.alive().map(|one| one.identity.name.as_str()).collect();
                tracing::info!(target: "dunlin::tier", epoch = %view.epoch, alive = alive.join(", "), "a new view");
                Ok(Some(MemberReply::View(view)))
            }
        }
    }

    fn ask(&mut self, request: &MemberRequest, until: Nanos) -> Result<MemberReply, MembershipError> {
        for _ in 0..ATTEMPTS {
            if let Some(reply) = self.step(request, until)? {
                return Ok(reply);
            }
            if self.host.now() >= until {
                break;
            }
        }
        Ok(MemberReply::Wait)
    }
}

impl<H: Host, S: Store> Membership for StoreMembership<H, S> {
    fn period(&self) -> Option<Duration> {
        Some(self.config.period)
    }

    fn renew(&mut self, until: Nanos) -> Result<MembershipEvent, MembershipError> {
        self.hold_lease(until)?;
        let is_member = self.standing.joined().is_some();
        if is_member && !self.is_stale && !self.store.has_changed(&self.prefix)? {
            return Ok(MembershipEvent::Unchanged);
        }
        // Until the answer is taken, the next renewal reads again.
        self.is_stale = true;
        let reply = self.ask(&self.standing.request(), until)?;
        self.is_stale = matches!(reply, MemberReply::Wait | MemberReply::Gone);
        Ok(self.standing.take(reply))
    }

    fn view(&self) -> Arc<View> {
        Arc::clone(self.standing.view())
    }

    fn own(&self) -> Option<Own> {
        self.standing.joined().map(|(number, incarnation)| Own { number, incarnation })
    }

    fn leave(&mut self, until: Nanos) -> Result<(), MembershipError> {
        let Some(request) = self.standing.leave() else { return Ok(()) };
        let reply = self.ask(&request, until)?;
        if let Some(lease) = self.lease.take() {
            self.store.revoke(lease, until)?;
        }
        if reply == MemberReply::Wait { Err(MembershipError::Waiting) } else { Ok(()) }
    }
}
