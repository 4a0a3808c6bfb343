//! Quality of service at a node (LITE section 6.2): its settings, and the accounts of principals.

use crate::error::OperationError;
use crate::forward::Link;
use dunlin_fabric::{Host, Nanos, nanos};
use dunlin_tier::qos::{Allowance, Flow, Measure, Pacing, Policy, QosError, Share, check};
use dunlin_tier::{Principal, Priority};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Settings of a node by which principals and priorities share its paths.
#[derive(Clone, Debug)]
pub struct QosConfig {
    /// The rule. Default: [`Policy::Shares`].
    pub policy: Policy,
    /// The share of each principal that `principals` does not name. Default: weight 1, high priority, no limit.
    pub everyone: Share,
    /// The shares of single principals. Default: none.
    pub principals: BTreeMap<String, Share>,
    /// The longest time that an operation waits for the limit of its principal; beyond it the operation is refused.
    /// Default: 100 ms.
    pub patience: Duration,
}

impl Default for QosConfig {
    fn default() -> Self {
        QosConfig {
            policy: Policy::default(),
            everyone: Share::default(),
            principals: BTreeMap::new(),
            patience: Duration::from_millis(100),
        }
    }
}

impl QosConfig {
    fn share(&self, principal: &Principal) -> Share {
        self.principals.get(principal.as_str()).copied().unwrap_or(self.everyone)
    }

    /// Checks the settings for a node with `paths` paths.
    pub(crate) fn check(&self, paths: u16) -> Result<(), QosError> {
        let named = self.principals.iter().map(|(name, share)| (name.as_str(), *share));
        check(self.policy, paths, named.chain([("everyone", self.everyone)]))
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The account of a principal at a node.
#[derive(Debug)]
struct Account {
    number: u32,
    principal: Principal,
    share: Share,
    allowance: Option<Mutex<Allowance>>,
}

/// The account and the priority of operations.
#[derive(Clone, Debug)]
pub(crate) struct Class {
    account: Arc<Account>,
    pub(crate) priority: Priority,
    is_limited: bool,
}

impl Class {
    fn of(account: &Arc<Account>) -> Class {
        Class { account: Arc::clone(account), priority: account.share.priority, is_limited: true }
    }

    pub(crate) fn flow(&self) -> Flow {
        let Account { number, share, .. } = &*self.account;
        Flow { principal: *number, priority: self.priority, weight: share.weight }
    }

    /// Returns whether its operations count against a limit.
    pub(crate) fn has_limit(&self) -> bool {
        self.is_limited && self.account.allowance.is_some()
    }

    /// Returns the highest priority that the share of the principal permits.
    pub(crate) fn highest(&self) -> Priority {
        self.account.share.priority
    }

    /// Returns the class with another priority, which the share of the principal must permit.
    pub(crate) fn with_priority(&self, priority: Priority) -> Result<Class, QosError> {
        if priority > self.account.share.priority {
            let principal = self.account.principal.as_str().to_owned();
            return Err(QosError::Priority { principal });
        }
        Ok(Class { priority, ..self.clone() })
    }

    /// Returns the class with a lower priority, unless it has one already.
    pub(crate) fn at_most(self, priority: Priority) -> Class {
        Class { priority: self.priority.min(priority), ..self }
    }

    /// Returns the class without the limit of the principal.
    pub(crate) fn without_limit(self) -> Class {
        Class { is_limited: false, ..self }
    }
}

/// Counters of the operations of one priority.
#[derive(Debug, Default)]
struct Begun {
    operations: AtomicU64,
    /// Those of them that may go [in steps](crate::steps).
    long: AtomicU64,
    bytes: AtomicU64,
    /// Calls to services.
    calls: AtomicU64,
}

/// The quality of service of a node.
#[derive(Debug)]
pub(crate) struct Qos {
    /// By priority.
    begun: [Begun; 2],
    config: QosConfig,
    /// Accounts by number. An account outlives its last user until its allowance is full again, so a process that comes
    /// back has no new one.
    accounts: Mutex<Vec<Option<Arc<Account>>>>,
    pacing: Option<Mutex<Pacing>>,
    /// Calls to services, whose round trips say something else than those of operations.
    call_pacing: Option<Mutex<Pacing>>,
}

/// A call to a service that may go out.
#[derive(Clone, Copy, Debug)]
#[must_use = "a call that has begun ends"]
pub(crate) struct CallTurn {
    pub(crate) link: Link,
    /// The time at which it goes out; `None` for now.
    pub(crate) from: Option<Nanos>,
    priority: Priority,
    bytes: u64,
}

/// A limit of a principal that was exceeded. Nothing was done.
#[derive(Debug)]
pub(crate) struct OverLimit {
    pub(crate) principal: String,
    pub(crate) measure: Measure,
    pub(crate) limit: u64,
    pub(crate) retry_after: Duration,
}

impl Qos {
    /// Makes the quality of service of a node, and the class of the node's own operations. That class has no limit, since
    /// locks and requests of others depend on it.
    pub(crate) fn new(config: &QosConfig, principal: &Principal) -> (Qos, Class) {
        let pacing = || (config.policy == Policy::Paced).then(Mutex::default);
        let (pacing, call_pacing) = (pacing(), pacing());
        let share = Share { weight: config.share(principal).weight, ..Share::default() };
        let own = Account { number: 0, principal: principal.clone(), share, allowance: None };
        let own = Class { account: Arc::new(own), priority: Priority::High, is_limited: false };
        let accounts = Mutex::new(vec![Some(Arc::clone(&own.account))]);
        (Qos { begun: Default::default(), config: config.clone(), accounts, pacing, call_pacing }, own)
    }

    /// Counts operations that have begun.
    pub(crate) fn count(&self, priority: Priority, operations: u64, bytes: u64) {
        let begun = &self.begun[priority as usize];
        begun.operations.fetch_add(operations, Ordering::Relaxed);
        begun.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts an operation that may go [in steps](crate::steps).
    pub(crate) fn count_long(&self, priority: Priority, bytes: u64) {
        self.begun[priority as usize].long.fetch_add(1, Ordering::Relaxed);
        self.count(priority, 1, bytes);
    }

    /// Returns the number of operations that have begun, except the long ones.
    pub(crate) fn shorts(&self) -> u64 {
        let of = |begun: &Begun| {
            let long = begun.long.load(Ordering::Relaxed);
            begun.operations.load(Ordering::Relaxed).wrapping_sub(long)
        };
        self.begun.iter().map(of).fold(0, u64::wrapping_add)
    }

    /// Begins a call of `bytes` bytes to a service: takes it from the allowance of the principal, counts it, and returns its
    /// link, and the time at which it goes out by that allowance and, under [`Policy::Paced`], by its priority. It waits for
    /// the allowance at most [`QosConfig::patience`], and no longer than `left` says, in nanoseconds.
    pub(crate) fn begin_call<H: Host>(
        &self,
        host: &H,
        class: &Class,
        bytes: u64,
        left: impl FnOnce() -> Nanos,
    ) -> Result<CallTurn, OverLimit> {
        let admitted = match class.has_limit() {
            true => self.take_from(host, class, bytes, nanos(self.config.patience).min(left()))?,
            false => None,
        };
        let priority = class.priority;
        self.begun[priority as usize].calls.fetch_add(1, Ordering::Relaxed);
        let pause = self.call_pacing.as_ref().map_or(0, |pacing| locked(pacing).begin(priority));
        let paused = (pause > 0).then(|| host.now().saturating_add(pause));
        let link = Link::of_calls(self.config.policy, priority);
        Ok(CallTurn { link, from: admitted.max(paused), priority, bytes })
    }

    /// A call that has begun ends. It went out at `since`, if anybody has looked, and has an answer.
    pub(crate) fn end_call<H: Host>(&self, host: &H, turn: CallTurn, since: Option<Nanos>) {
        let Some(pacing) = &self.call_pacing else { return };
        let trip = since.filter(|_| turn.priority == Priority::High).map(|since| (host.now(), since));
        let mut pacing = locked(pacing);
        pacing.end(turn.priority);
        if let Some((now, since)) = trip {
            pacing.note(now, turn.bytes, now.saturating_sub(since));
        }
    }

    /// Returns the time now if the time of a call is of use.
    pub(crate) fn call_goes_out<H: Host>(&self, host: &H) -> Option<Nanos> {
        self.call_pacing.is_some().then(|| host.now())
    }

    /// Returns what has begun with a priority: operations, their bytes, and calls to services.
    pub(crate) fn counted(&self, priority: Priority) -> [u64; 3] {
        let Begun { operations, bytes, calls, .. } = &self.begun[priority as usize];
        [operations, bytes, calls].map(|count| count.load(Ordering::Relaxed))
    }

    /// Returns the class of a principal, with the highest priority that its share permits.
    pub(crate) fn class<H: Host>(&self, host: &H, principal: &Principal) -> Class {
        let mut accounts = locked(&self.accounts);
        // The first account is the node's own.
        let known = accounts.iter().skip(1).flatten().find(|account| account.principal == *principal);
        if let Some(account) = known {
            return Class::of(account);
        }
        let now = host.now();
        for place in accounts.iter_mut().skip(1) {
            let is_unused = place.as_ref().is_some_and(|account| {
                let full = |allowance: &Mutex<Allowance>| locked(allowance).is_full(now);
                Arc::strong_count(account) == 1 && account.allowance.as_ref().is_none_or(full)
            });
            if is_unused {
                *place = None;
            }
        }
        let number = accounts.iter().position(Option::is_none).unwrap_or(accounts.len());
        let share = self.config.share(principal);
        let allowance = Allowance::new(share.limit).map(Mutex::new);
        let account =
            Arc::new(Account { number: number as u32, principal: principal.clone(), share, allowance });
        if number == accounts.len() {
            accounts.push(None);
        }
        accounts[number] = Some(Arc::clone(&account));
        Class::of(&account)
    }

    /// Takes an operation from the principal's allowance; returns the time from which it may begin, if not now.
    fn take<H: Host>(
        &self,
        host: &H,
        class: &Class,
        bytes: u64,
        longest: Nanos,
    ) -> Result<Option<Nanos>, OperationError> {
        let taken = self.take_from(host, class, bytes, nanos(self.config.patience).min(longest));
        taken.map_err(OperationError::from)
    }

    fn take_from<H: Host>(
        &self,
        host: &H,
        class: &Class,
        bytes: u64,
        patience: Nanos,
    ) -> Result<Option<Nanos>, OverLimit> {
        let Some(allowance) = class.account.allowance.as_ref().filter(|_| class.is_limited) else {
            return Ok(None);
        };
        let now = host.now();
        let taken = locked(allowance).take(now, bytes, patience);
        match taken {
            Ok(wait) => Ok((wait > 0).then(|| now.saturating_add(wait))),
            Err(exceeded) => Err(OverLimit {
                principal: class.account.principal.as_str().to_owned(),
                measure: exceeded.measure,
                limit: exceeded.limit,
                retry_after: Duration::from_nanos(exceeded.wait),
            }),
        }
    }

    /// Takes an operation from the principal's allowance, and waits for it at most [`QosConfig::patience`], and no longer
    /// than `longest` nanoseconds.
    #[inline]
    pub(crate) fn admit<H: Host>(
        &self,
        host: &H,
        class: &Class,
        bytes: u64,
        longest: Nanos,
    ) -> Result<(), OperationError> {
        if let Some(from) = self.take(host, class, bytes, longest)? {
            host.sleep(from);
        }
        Ok(())
    }

    /// As [`admit`](Qos::admit), if the operation may begin now; else nothing is taken, and the result is `false`.
    pub(crate) fn try_admit<H: Host>(&self, host: &H, class: &Class, bytes: u64) -> bool {
        matches!(self.take(host, class, bytes, 0), Ok(None))
    }

    /// As [`admit`](Qos::admit), for a thread that must not wait: the operation begins at once, and later ones wait.
    pub(crate) fn admit_now<H: Host>(
        &self,
        host: &H,
        class: &Class,
        bytes: u64,
    ) -> Result<(), OperationError> {
        self.take(host, class, bytes, Nanos::MAX).map(|_| ())
    }

    /// An operation that needs a path begins; returns its pause in nanoseconds. Under [`Policy::Paced`] only.
    pub(crate) fn begin(&self, priority: Priority) -> Nanos {
        self.pacing.as_ref().map_or(0, |pacing| locked(pacing).begin(priority))
    }

    /// An operation that has [begun](Qos::begin) ends.
    pub(crate) fn end(&self, priority: Priority) {
        if let Some(pacing) = &self.pacing {
            locked(pacing).end(priority);
        }
    }

    /// Returns whether pacing needs the round trips of this priority.
    pub(crate) fn wants_trip(&self, priority: Priority) -> bool {
        self.pacing.is_some() && priority == Priority::High
    }

    pub(crate) fn note(&self, now: Nanos, bytes: u64, time: Nanos) {
        if let Some(pacing) = &self.pacing {
            locked(pacing).note(now, bytes, time);
        }
    }
}
