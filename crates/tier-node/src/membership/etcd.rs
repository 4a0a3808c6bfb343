//! etcd as the store of the membership.

use super::store::{Entry, Put, Store, StoreError};
use dunlin_fabric::{Host, Nanos, nanos};
use etcd_client::{
    Certificate, Client, Compare, CompareOp, ConnectOptions, Error, GetOptions, PutOptions, TlsOptions, Txn,
    TxnOp, WatchOptions, WatchStream,
};
use std::fmt;
use std::future::Future;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

/// The time for the socket when the watch is looked at.
const GLANCE: Duration = Duration::from_millis(1);
/// The pause before a request is repeated that another member of etcd may answer.
const AGAIN: Duration = Duration::from_millis(20);

/// The place of an etcd, and how to be let in.
#[derive(Clone, Default)]
pub struct EtcdConfig {
    /// The addresses of its members: `http://HOST:PORT`, or `https://HOST:PORT`.
    pub endpoints: Vec<String>,
    /// A name and a password, if etcd asks for them. Default: none.
    pub user: Option<(String, String)>,
    /// The certificate of the authority that vouches for etcd, as PEM; needed for `https`. Default: none.
    pub authority: Option<Vec<u8>>,
}

impl fmt::Debug for EtcdConfig {
    /// Without the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let user = self.user.as_ref().map(|(name, _)| name);
        f.debug_struct("EtcdConfig").field("endpoints", &self.endpoints).field("user", &user).finish()
    }
}

/// A connection to etcd. Its own thread is the one that calls it: nothing happens between two calls.
pub struct Etcd<H: Host> {
    host: H,
    runtime: Runtime,
    config: EtcdConfig,
    client: Option<Client>,
    watch: Option<WatchStream>,
    /// The revision of the last reading.
    read_at: i64,
}

impl<H: Host> fmt::Debug for Etcd<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Etcd").field("config", &self.config).field("read_at", &self.read_at).finish()
    }
}

impl<H: Host> Etcd<H> {
    /// Makes a connection, without asking anything of etcd yet. `host` is the host of the node.
    ///
    /// # Errors
    /// The system has no room for the sockets' event queue.
    pub fn new(host: &H, config: EtcdConfig) -> std::io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        Ok(Etcd { host: host.clone(), runtime, config, client: None, watch: None, read_at: 0 })
    }

    fn members(&self) -> String {
        self.config.endpoints.join(", ")
    }

    /// Runs a request until `until`. One that changes nothing is repeated meanwhile, since another member may answer.
    fn ask<T, R: Future<Output = Result<T, Error>>>(
        &mut self,
        until: Nanos,
        may_repeat: bool,
        request: impl Fn(Client) -> R,
    ) -> Result<T, StoreError> {
        let left = |host: &H| Duration::from_nanos(until.saturating_sub(host.now()));
        loop {
            let host = &self.host;
            let asked = self.runtime.block_on(async {
                let client = match &self.client {
                    Some(client) => client.clone(),
                    None => connect(&self.config).await?,
                };
                let answer = timeout(left(host), request(client.clone())).await;
                Ok::<_, Error>((client, answer))
            });
            let error = match asked {
                Ok((client, Ok(Ok(answer)))) => {
                    self.client = Some(client);
                    return Ok(answer);
                }
                Ok((_, Err(_))) => {
                    self.client = None;
                    return Err(StoreError::Unavailable(format!("is etcd running at {}?", self.members())));
                }
                Ok((_, Ok(Err(error)))) | Err(error) => store_error(&error, &self.members()),
            };
            self.client = None;
            let again = self.host.now().saturating_add(nanos(AGAIN));
            if !may_repeat || !matches!(error, StoreError::Unavailable(_)) || again >= until {
                return Err(error);
            }
            self.host.sleep(again);
        }
    }
}

async fn connect(config: &EtcdConfig) -> Result<Client, Error> {
    // A member without a leader answers nothing, in place of something old.
    let mut options = ConnectOptions::new().with_require_leader(true);
    if let Some((name, password)) = &config.user {
        options = options.with_user(name, password);
    }
    if let Some(authority) = &config.authority {
        options = options.with_tls(TlsOptions::new().ca_certificate(Certificate::from_pem(authority)));
    }
    Client::connect(&config.endpoints, Some(options)).await
}

/// Says whether etcd did not answer, or refused. `members` are its addresses.
fn store_error(error: &Error, members: &str) -> StoreError {
    let text = match error {
        Error::GRpcStatus(status) => status.message().to_owned(),
        _ => dunlin_fabric::WithSources(error).to_string(),
    };
    let text = format!("etcd at {members}: {text}");
    match error {
        Error::IoError(_) | Error::TransportError(_) | Error::WatchError(_) => StoreError::Unavailable(text),
        // Unavailable, deadline exceeded, cancelled, unknown.
        Error::GRpcStatus(status) if [14, 4, 1, 2].contains(&(status.code() as i32)) => {
            StoreError::Unavailable(text)
        }
        _ => StoreError::Refused(text),
    }
}

impl<H: Host> Store for Etcd<H> {
    fn grant(&mut self, time: Duration, until: Nanos) -> Result<u64, StoreError> {
        // etcd counts in seconds.
        let seconds = time.as_secs().max(1) as i64;
        // A lease whose answer was lost has no keys, and ends by itself.
        let lease =
            self.ask(until, true, |mut client| async move { client.lease_grant(seconds, None).await })?;
        Ok(lease.id() as u64)
    }

    fn keep_alive(&mut self, lease: u64, until: Nanos) -> Result<bool, StoreError> {
        self.ask(until, true, |mut client| async move {
            match client.lease_keep_alive(lease as i64).await {
                Ok(_) => Ok(true),
                Err(Error::LeaseKeepAliveError(_)) => Ok(false),
                Err(error) => Err(error),
            }
        })
    }

    fn revoke(&mut self, lease: u64, until: Nanos) -> Result<(), StoreError> {
        self.ask(until, true, |mut client| async move {
            match client.lease_revoke(lease as i64).await {
                // It has ended.
                Err(Error::GRpcStatus(status)) if status.code() as i32 == 5 => Ok(()),
                other => other.map(drop),
            }
        })
    }

    fn read(&mut self, prefix: &str, until: Nanos) -> Result<Vec<Entry>, StoreError> {
        let all = Some(GetOptions::new().with_prefix());
        let found = self.ask(until, true, |mut client| {
            let (prefix, all) = (prefix.to_owned(), all.clone());
            async move { client.get(prefix, all).await }
        })?;
        self.read_at = found.header().map_or(0, |header| header.revision());
        let entry = |pair: &etcd_client::KeyValue| {
            // A key that is no text is none of ours.
            let key = pair.key_str().ok()?.to_owned();
            Some(Entry { key, value: pair.value().to_vec(), changed: pair.mod_revision() as u64 })
        };
        Ok(found.kvs().iter().filter_map(entry).collect())
    }

    fn swap(
        &mut self,
        unchanged: &[(String, u64)],
        puts: Vec<Put>,
        until: Nanos,
    ) -> Result<bool, StoreError> {
        let same = |(key, revision): &(String, u64)| {
            Compare::mod_revision(key.as_str(), CompareOp::Equal, *revision as i64)
        };
        let put = |put: Put| {
            let lease = put.lease.map(|lease| PutOptions::new().with_lease(lease as i64));
            TxnOp::put(put.key, put.value, lease)
        };
        let conditions: Vec<Compare> = unchanged.iter().map(same).collect();
        let puts: Vec<TxnOp> = puts.into_iter().map(put).collect();
        let transaction = Txn::new().when(conditions).and_then(puts);
        // A transaction that was made once cannot be made again: it has changed a key of its condition.
        let done = self.ask(until, true, |mut client| {
            let transaction = transaction.clone();
            async move { client.txn(transaction).await }
        })?;
        Ok(done.succeeded())
    }

    fn has_changed(&mut self, prefix: &str) -> Result<bool, StoreError> {
        let Some(mut watch) = self.watch.take() else {
            let from = WatchOptions::new().with_prefix().with_start_revision(self.read_at + 1);
            let until = self.host.now().saturating_add(nanos(50 * GLANCE));
            let opened = self.ask(until, false, |mut client| {
                let (prefix, from) = (prefix.to_owned(), from.clone());
                async move { client.watch(prefix, Some(from)).await }
            });
            self.watch = opened.ok();
            // Until there is a watch, each look reads.
            return Ok(self.watch.is_none());
        };
        loop {
            match self.runtime.block_on(async { timeout(GLANCE, watch.message()).await }) {
                Err(_) => {
                    self.watch = Some(watch);
                    return Ok(false);
                }
                Ok(Ok(Some(news))) if !news.canceled() => {
                    let is_new = |revision| revision > self.read_at;
                    let mut changes = news.events().iter().filter_map(|event| event.kv());
                    if changes.any(|pair| is_new(pair.mod_revision())) {
                        self.watch = Some(watch);
                        return Ok(true);
                    }
                }
                // The revisions from which it began were compacted, or the member has ended: the next watch begins
                // after a reading.
                Ok(_) => return Ok(true),
            }
        }
    }
}
