//! Records that several nodes keep (LITE section 4.1: several masters; the machine is `dunlin_tier::record::keepers`): the
//! first keeper that lives orders the changes and tells the others, any maps the region. A node becomes a keeper when a
//! master maps the region there.

use crate::error::RequestError;
use crate::node::Node;
use dunlin_fabric::{Fabric, Host, Nanos, Signal, nanos};
use dunlin_tier::message::{Refusal, Reply, Request};
use dunlin_tier::record::MAX_KEEPERS;
use dunlin_tier::{AdoptError, Epoch, Heard, Keepers, LmrId, Name, NodeId, RecordError, Standing};
use std::collections::BTreeSet;

/// The time for one message between keepers, in nanoseconds.
const MESSAGE: Nanos = 500_000_000;
/// The time that a keeper has to map a region before another one is asked, in nanoseconds.
const ATTEMPT: Nanos = 500_000_000;
/// The pause before a record that is not settled is asked for again, in nanoseconds.
const SETTLES_SOON: Nanos = 1_000_000;

/// The answer of another keeper.
#[derive(Debug)]
pub(crate) enum Told {
    /// It has the record, and has mapped the region for these nodes.
    Kept(Vec<NodeId>),
    /// It has ended, or has lost the record.
    Lost,
    /// It says that another node orders the changes.
    Deposed,
    /// No answer.
    Silent,
}

/// The answers of all other keepers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AllTold {
    /// They have the record, in this version.
    Yes(u64),
    /// This one does not answer.
    No(NodeId),
    /// One of them says that another node orders the changes.
    Deposed,
}

impl<F: Fabric> Node<F> {
    /// Refuses a change of a record unless this node orders its changes. Asks the first keeper, if that is another node,
    /// whether it still has the record.
    pub(crate) fn check_orders(&self, id: LmrId) -> Result<(), Refusal> {
        loop {
            let (first, keepers, standing) = {
                let directory = &self.state().directory;
                // The change itself says that there is no such region.
                let Some(keepers) = directory.keepers(id) else { return Ok(()) };
                (directory.version(id).map_or(id, |(id, _)| id), keepers, directory.standing(id))
            };
            if keepers.first() == self.me {
                return Ok(());
            }
            if matches!(standing, Some(Standing::Doubted | Standing::New)) {
                self.settle_later([first]);
                return Err(RecordError::Unsettled.into());
            }
            let request = Request::Exists { id: first };
            match self.ask(keepers.first(), request, self.soon()) {
                // That node has restarted without its memory, and so without its records.
                Ok(Reply::Flag(false)) => _ = self.lose_keeper(first, keepers.first()),
                _ => return Err(Refusal::Elsewhere(keepers.first())),
            }
            // The change itself says that the record is not settled yet.
            let _ = self.settle_record(first, self.fabric.host().now());
        }
    }

    fn soon(&self) -> Nanos {
        self.fabric.host().now().saturating_add(MESSAGE)
    }

    /// Has the cleaner tell the other keepers of a record, or ask them.
    pub(crate) fn settle_later(&self, ids: impl IntoIterator<Item = LmrId>) {
        self.todo().records.extend(ids);
        self.cleaner.raise();
    }

    /// A user meets a record here whose free or move has not ended. In a fixed list, nobody says that the keeper which has
    /// begun it has lost the record: this one asks it.
    pub(crate) fn ask_for_its_end(&self, id: LmrId) {
        if self.roster.is_dynamic {
            return;
        }
        let first = {
            let directory = &self.state().directory;
            directory.changed_by(id).and_then(|_| directory.version(id))
        };
        if let Some((first, _)) = first {
            self.settle_later([first]);
        }
    }

    /// Strikes a keeper that has lost a record. Returns whether it is struck: not by a node that may have been taken for
    /// dead itself, or is a new keeper.
    fn lose_keeper(&self, id: LmrId, gone: NodeId) -> bool {
        let now = self.fabric.host().now();
        let (lost, is_kept) = {
            let directory = &mut self.state().directory;
            let lost = directory.lose_keeper(id, gone, now);
            (lost, directory.keepers(id).is_some_and(|keepers| keepers.contains(gone)))
        };
        self.settle_later(lost);
        !is_kept
    }

    /// Has another keeper take over the record of a region, whose changes this node orders.
    pub(crate) fn tell_keeper(&self, id: LmrId, keeper: NodeId, is_new: bool) -> Told {
        if self.roster.dead_in(keeper).is_some() {
            return Told::Lost;
        }
        let current = self.roster.get();
        // A node that was declared dead joins again first.
        if self.roster.is_dynamic && current.own.is_none() {
            return Told::Silent;
        }
        let epoch = current.view.epoch;
        loop {
            let known = {
                let directory = &self.state().directory;
                directory.version(id).zip(directory.record_for(id))
            };
            let Some(((id, version), record)) = known else { return Told::Deposed };
            let request = Request::Keep { id, version, epoch, from: self.me, is_new, record };
            return match self.ask(keeper, request, self.soon()) {
                Ok(Reply::Kept(mappers)) => Told::Kept(mappers),
                Ok(Reply::Refused(Refusal::Record(RecordError::NoSuch))) => Told::Lost,
                Ok(Reply::Refused(Refusal::Elsewhere(_))) => {
                    // Another thread of this node may have told it of a later version.
                    let now = self.state().directory.version(id).map(|(_, version)| version);
                    if now > Some(version) {
                        continue;
                    }
                    Told::Deposed
                }
                _ => Told::Silent,
            };
        }
    }

    /// Has all other keepers take the record over as it is. Waits [`MESSAGE`] for each of them at most.
    pub(crate) fn tell_keepers(&self, id: LmrId) -> AllTold {
        'again: loop {
            let known = {
                let directory = &self.state().directory;
                directory.version(id).zip(directory.keepers(id))
            };
            let Some(((id, version), keepers)) = known else { return AllTold::Deposed };
            let mut silent = None;
            for keeper in keepers.iter().filter(|keeper| *keeper != self.me) {
                match self.tell_keeper(id, keeper, false) {
                    Told::Kept(_) => {}
                    Told::Lost if self.lose_keeper(id, keeper) => continue 'again,
                    // This node asks the others first whether it orders the changes still.
                    Told::Lost => {
                        self.settle_later([id]);
                        silent = Some(keeper);
                    }
                    Told::Deposed => {
                        self.deposed(id);
                        return AllTold::Deposed;
                    }
                    Told::Silent => silent = Some(keeper),
                }
            }
            return silent.map_or(AllTold::Yes(version), AllTold::No);
        }
    }

    /// Another node orders the changes of a record, it seems.
    pub(crate) fn deposed(&self, id: LmrId) {
        self.state().directory.doubt_of(id);
        self.settle_later([id]);
    }

    /// Tells the other keepers of a change that this node has made.
    pub(crate) fn spread(&self, id: LmrId) -> Result<(), Refusal> {
        if self.state().directory.keepers(id).is_none_or(|keepers| keepers.count() == 1) {
            return Ok(());
        }
        match self.tell_keepers(id) {
            AllTold::Yes(_) => Ok(()),
            AllTold::No(keeper) => {
                self.settle_later([id]);
                Err(Refusal::Untold(keeper))
            }
            AllTold::Deposed => Err(RecordError::Unsettled.into()),
        }
    }

    /// Brings a record and its other keepers together, which is tried since `since`. The error is a node that does not
    /// answer: it is left for later.
    pub(crate) fn settle_record(&self, id: LmrId, since: Nanos) -> Result<(), NodeId> {
        let standing = self.state().directory.standing(id);
        match standing {
            None => return Ok(()),
            Some(Standing::Doubted | Standing::New) => self.agree_on(id, since)?,
            Some(_) => {}
        }
        let known = {
            let directory = &self.state().directory;
            directory.standing(id).zip(directory.keepers(id))
        };
        // It is forgotten, or another node's to tell.
        let Some((standing, keepers)) = known else { return Ok(()) };
        if standing == Standing::Settled && keepers.first() != self.me {
            if self.roster.is_dynamic || self.state().directory.changed_by(id).is_none() {
                return Ok(());
            }
            return match self.ask(keepers.first(), Request::Exists { id }, self.soon()) {
                Ok(Reply::Flag(true)) => Ok(()),
                // It has restarted without its records, and does not go on.
                Ok(Reply::Flag(false)) => {
                    self.lose_keeper(id, keepers.first());
                    Ok(())
                }
                _ => Err(keepers.first()),
            };
        }
        match self.tell_keepers(id) {
            AllTold::Yes(version) => {
                if self.state().directory.settle(id, version) {
                    self.resume_free(id);
                }
                Ok(())
            }
            AllTold::No(keeper) => Err(keeper),
            // It is doubted by now.
            AllTold::Deposed => Ok(()),
        }
    }

    /// Asks all other keepers of a doubted record whether this node is a keeper still, and of a new one whether it is one. The
    /// error is one that does not say. One that is dead may have ordered changes, which nobody knows any more, unless it
    /// comes back.
    fn agree_on(&self, id: LmrId, since: Nanos) -> Result<(), NodeId> {
        let current = self.roster.get();
        if self.roster.is_dynamic && current.own.is_none() {
            return Err(self.me);
        }
        let known = {
            let directory = &self.state().directory;
            directory.keepers(id).zip(directory.standing(id)).zip(directory.version(id))
        };
        let Some(((keepers, standing), (_, version))) = known else { return Ok(()) };
        let is_new = standing == Standing::New;
        // Whoever has not heard of the death of this node does not know yet that it orders the changes.
        let request = Request::Record { epoch: current.view.epoch, id };
        for keeper in keepers.iter().filter(|keeper| *keeper != self.me) {
            let is_lost = if self.roster.dead_in(keeper).is_some() {
                if self.fabric.host().now() < since.saturating_add(nanos(self.config.timeout)) {
                    return Err(keeper);
                }
                true
            } else {
                match self.ask(keeper, request.clone(), self.soon()) {
                    Ok(Reply::Record(theirs)) => {
                        let now = self.fabric.host().now();
                        let own = self.state().directory.version(id);
                        // The answer may be older than a record which replaced the one that was asked for.
                        if is_new && own.is_some_and(|(_, own)| own != version) {
                            return Err(keeper);
                        }
                        match self.state().directory.agree(id, &theirs, now) {
                            Ok(true) => continue,
                            Ok(false) => return Ok(()),
                            Err(_) => return Err(keeper),
                        }
                    }
                    Ok(Reply::Refused(Refusal::Record(RecordError::NoSuch))) => true,
                    _ => return Err(keeper),
                }
            };
            // In a fixed list, a node is first until it has lost the record itself.
            if is_lost && (is_new || self.roster.is_dynamic) {
                if !self.state().directory.lost_as_of(id, version) {
                    return Err(keeper);
                }
                tracing::warn!(target: "dunlin::tier", node = self.name_of(keeper), "the record of a region is lost with another node, which may have changed it");
                return Ok(());
            }
        }
        let version = self.state().directory.version(id).map_or(version, |(_, version)| version);
        if !self.have_stores(id, since)? {
            if !self.state().directory.lost_as_of(id, version) {
                return Err(self.me);
            }
            tracing::warn!(target: "dunlin::tier", "the memory of a region was taken back while this node was taken for dead");
            return Ok(());
        }
        self.state().directory.agreed(id);
        Ok(())
    }

    /// Asks the other stores of a region whether they have its memory still: they may have
    /// [taken it back](crate::orphans) while this node was taken for dead. The error is one that does not say. If it is dead
    /// for long, the region is given up.
    fn have_stores(&self, id: LmrId, since: Nanos) -> Result<bool, NodeId> {
        let Some((owner, stores)) = self.state().directory.stores(id) else { return Ok(true) };
        if !self.roster.is_dynamic {
            return Ok(true);
        }
        let epoch = self.roster.get().view.epoch;
        for store in stores {
            if self.roster.dead_in(store).is_some() {
                let is_gone = self.fabric.host().now() >= since.saturating_add(self.orphan_time());
                return if is_gone { Ok(false) } else { Err(store) };
            }
            match self.ask(store, Request::Stores { epoch, owner }, self.soon()) {
                Ok(Reply::Flag(true)) => {}
                Ok(Reply::Flag(false)) => return Ok(false),
                _ => return Err(store),
            }
        }
        Ok(true)
    }

    /// Answers the first keeper: takes the record over; returns the nodes that have mapped the region here.
    pub(crate) fn keep(
        &self,
        id: LmrId,
        (version, epoch): (u64, Epoch),
        (from, is_new): (NodeId, bool),
        record: &[u8],
    ) -> Result<Vec<NodeId>, Refusal> {
        let own_epoch = self.roster.get().view.epoch;
        let is_later = !self.roster.is_dynamic || epoch > own_epoch;
        if epoch > own_epoch {
            self.ask_for_view();
        }
        // Another node has taken over, and may have told this one to forget the record.
        if self.roster.dead_in(from).is_some() && !is_later {
            return Err(Refusal::Elsewhere(self.me));
        }
        let heard = self.state().directory.hear(id, version, from, [is_later, is_new]);
        match heard {
            Heard::Elsewhere(first) => return Err(Refusal::Elsewhere(first)),
            Heard::Lost => return Err(RecordError::NoSuch.into()),
            Heard::Has | Heard::Older => {}
        }
        if heard == Heard::Older {
            let now = self.fabric.host().now();
            self.state().directory.adopt(id, record, now).map_err(|error| match error {
                AdoptError::Full => Refusal::from(RecordError::Full),
                _ => Refusal::Malformed,
            })?;
        }
        if self.state().directory.standing(id) == Some(Standing::New) {
            self.settle_later([id]);
        }
        Ok(self.state().directory.mappers(id))
    }

    /// Answers a node that wants to be a keeper: adds it, and returns when it has the record.
    pub(crate) fn add_keeper(&self, id: LmrId, node: NodeId) -> Result<(), Refusal> {
        self.check_orders(id)?;
        if !self.state().directory.add_keeper(id, node)? {
            return Ok(());
        }
        match self.tell_keeper(id, node, true) {
            Told::Kept(_) => {}
            Told::Deposed => {
                self.deposed(id);
                return Err(RecordError::Unsettled.into());
            }
            // The cleaner finds out whether it has the record.
            Told::Lost | Told::Silent => {
                self.settle_later([id]);
                return Err(Refusal::Untold(node));
            }
        }
        self.spread(id)?;
        // Another thread of this node may have found the new one without the record, or freed the region.
        match self.state().directory.keepers(id) {
            Some(keepers) if keepers.contains(node) => Ok(()),
            Some(_) => Err(RecordError::Unsettled.into()),
            None => Err(RecordError::NoSuch.into()),
        }
    }

    /// Has this node keep the record of a region, too, of which a master has a handle here. A record that cannot be kept
    /// here stays where it is.
    pub(crate) fn keep_too(&self, name: &Name, id: LmrId, keepers: &Keepers) {
        let is_known = self.state().directory.keepers(id).is_some();
        if is_known || keepers.contains(self.me) || keepers.count() == MAX_KEEPERS {
            return;
        }
        let kept = self.ask_record(id, &Request::AddKeeper { id, node: self.me }, self.soon());
        let told = kept.and_then(|_| {
            // It is a keeper when the caller goes on; otherwise the cleaner asks the others again.
            let _ = self.settle_record(id, self.fabric.host().now());
            self.tell_home(name, id)
        });
        if let Err(error) = told {
            tracing::info!(target: "dunlin::tier", %name, %error, "a record is not kept here, too");
        }
    }

    /// Tells the home of a name that this node keeps the record, too. With the next view, all homes hear it anyway.
    fn tell_home(&self, name: &Name, id: LmrId) -> Result<(), RequestError> {
        let known = self.state().directory.version(id);
        let Some((id, _)) = known else { return Ok(()) };
        self.note_home(name);
        let until = self.soon();
        loop {
            let mut sent = Epoch::default();
            let request = |epoch| {
                sent = epoch;
                let names = vec![(name.clone(), id)];
                Request::Rehome { node: self.me, epoch, names, is_last: false }
            };
            let (home, reply) = self.ask_home(name, request, until)?;
            // If the view has changed since, the names may have been read before, as for a claim.
            if matches!(reply, Reply::Flag(true) | Reply::Known(_)) && self.roster.get().view.epoch == sent {
                return Ok(());
            }
            let again = self.fabric.host().now().saturating_add(SETTLES_SOON);
            if again >= until {
                return Err(self.misfit(home));
            }
            self.fabric.host().sleep(again);
        }
    }

    /// Asks the node that orders the changes of a record to make one. Finds it if it is not the one that made the region.
    pub(crate) fn ask_record(
        &self,
        id: LmrId,
        request: &Request,
        until: Nanos,
    ) -> Result<Reply, RequestError> {
        let (mut at, mut asked) = (id.node, BTreeSet::new());
        let host = self.fabric.host();
        loop {
            let error = match self.demand(at, request.clone(), until) {
                Ok(reply) => return Ok(reply),
                Err(error) => error,
            };
            if error.may_have_executed() || self.is_over() {
                return Err(error);
            }
            asked.insert(at);
            let next = match &error {
                RequestError::Refused { source: Refusal::Elsewhere(first), .. } => Some(*first),
                RequestError::Refused { source: Refusal::Record(RecordError::Unsettled), .. } => {
                    let again = host.now().saturating_add(SETTLES_SOON);
                    if again >= until {
                        return Err(error);
                    }
                    host.sleep(again);
                    asked.remove(&at);
                    Some(at)
                }
                RequestError::Refused { source: Refusal::Record(RecordError::NoSuch), .. } => None,
                RequestError::Refused { .. } => return Err(error),
                _ => None,
            };
            let next = next.filter(|next| !asked.contains(next));
            match next.or_else(|| self.find_keeper(id, &asked, until)) {
                Some(next) => at = next,
                None => return Err(error),
            }
        }
    }

    /// Asks all nodes but those which were asked already for one that keeps a record. None if one of the latter does.
    fn find_keeper(&self, id: LmrId, asked: &BTreeSet<NodeId>, until: Nanos) -> Option<NodeId> {
        let has = |node: NodeId| {
            let until = self.soon().min(until);
            self.roster.dead_in(node).is_none()
                && matches!(self.ask(node, Request::Exists { id }, until), Ok(Reply::Flag(true)))
        };
        // A principal without rights hears of no region: other nodes say the same.
        if asked.iter().any(|node| has(*node)) {
            return None;
        }
        let others = self.roster.others(self.me).into_iter().chain([self.me]);
        others.filter(|node| !asked.contains(node)).find(|node| has(*node))
    }

    /// Asks keepers to map a region, the nearest first, until one does or all have refused.
    pub(crate) fn ask_to_map_at(
        &self,
        id: LmrId,
        keepers: &Keepers,
        request: &Request,
        until: Nanos,
    ) -> Result<(NodeId, Reply), RequestError> {
        let count = keepers.count();
        let nodes: Vec<NodeId> = keepers.iter().collect();
        let first = match nodes.iter().position(|node| *node == self.me) {
            Some(own) => own,
            // They share the work.
            None => usize::from(self.me.0) % count,
        };
        let (mut asked, mut failed) = (BTreeSet::new(), None);
        for node in (0..count).map(|turn| nodes[(first + turn) % count]) {
            let attempt = match asked.len() + 1 < count {
                true => self.fabric.host().now().saturating_add(ATTEMPT).min(until),
                false => until,
            };
            asked.insert(node);
            match self.demand(node, request.clone(), attempt) {
                Ok(reply) => return Ok((node, reply)),
                // There is no such region if all keepers say so.
                Err(error) if is_elsewhere(&error) => {
                    failed = failed.filter(|last| !is_absent(last)).or(Some(error));
                }
                Err(error) => return Err(error),
            }
        }
        if let Some(node) = self.find_keeper(id, &asked, until) {
            return self.demand(node, request.clone(), until).map(|reply| (node, reply));
        }
        Err(failed.unwrap_or_else(|| self.misfit(id.node)))
    }

    /// Leaves the keepers of a record: another node keeps it from here on. A record that `to` does not keep yet gets it as a
    /// keeper first. A region without a name ends with its handles, which are at this node.
    pub(crate) fn hand_record_over(&self, id: LmrId, to: NodeId) -> Result<(), Refusal> {
        if !self.state().directory.keepers(id).is_some_and(|keepers| keepers.contains(to)) {
            self.add_keeper(id, to)?;
        }
        self.check_orders(id)?;
        let first = self.state().directory.version(id).map_or(id, |(id, _)| id);
        if !self.state().directory.hand_over(id)? {
            return Err(Refusal::Untold(to));
        }
        let (since, until) = (self.fabric.host().now(), self.soon());
        loop {
            let settled = self.settle_record(first, since);
            // It is doubted if a message was lost, and the new keeper has changed it since.
            if settled.is_ok() && self.state().directory.keepers(first).is_none() {
                return Ok(());
            }
            let again = self.fabric.host().now().saturating_add(SETTLES_SOON);
            if settled.is_err() || again >= until {
                self.settle_later([first]);
                return Err(Refusal::Untold(settled.err().unwrap_or(to)));
            }
            self.fabric.host().sleep(again);
        }
    }
}

/// Returns whether a node has no record of a region, or says so.
fn is_absent(error: &RequestError) -> bool {
    matches!(error, RequestError::Refused { source: Refusal::Record(RecordError::NoSuch), .. })
}

/// Returns whether another keeper may map the region.
fn is_elsewhere(error: &RequestError) -> bool {
    match error {
        RequestError::Refused { source, .. } => {
            matches!(
                source,
                Refusal::Record(RecordError::NoSuch | RecordError::Moving | RecordError::Unsettled)
            )
        }
        _ => true,
    }
}
