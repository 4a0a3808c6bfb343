//! Names: a region gets its own when it is made, or later, when its bytes are there (`publish`).

use crate::any::{AnyLmr, AnyTier};
use crate::error::{OperationError, PublishError, RequestError};
use crate::lmr::Lmr;
use crate::node::Node;
use crate::spec::Spec;
use crate::tier::{Tier, open_name};
use dunlin_fabric::{Fabric, Host, Nanos, Signal};
use dunlin_tier::message::{Refusal, Reply, Request};
use dunlin_tier::{Epoch, LmrId, Name, NodeId, RecordError};

/// The bytes to publish.
#[derive(Debug)]
pub enum Source<'a, L> {
    /// Those of a region without a name, which lie in the arena of a node.
    Region(&'a L),
    /// Those of any memory of this process.
    Bytes(&'a [u8]),
}

impl<L> Clone for Source<'_, L> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<L> Copy for Source<'_, L> {}

impl<'a, L> From<&'a L> for Source<'a, L> {
    fn from(region: &'a L) -> Self {
        Source::Region(region)
    }
}

impl<'a, L> From<&'a [u8]> for Source<'a, L> {
    fn from(bytes: &'a [u8]) -> Self {
        Source::Bytes(bytes)
    }
}

/// The result of [`Tier::publish`].
#[derive(Debug)]
#[must_use = "a publication says whether the bytes were copied"]
pub enum Published<L> {
    /// The region itself has the name. No byte was copied.
    InPlace,
    /// This new region has the name, and a copy of the bytes. Changes of the source do not show in it.
    Copied(L),
}

impl<L> Published<L> {
    /// Returns whether the bytes were copied.
    pub fn is_copied(&self) -> bool {
        matches!(self, Published::Copied(_))
    }
}

/// Publishes bytes by the operations of any tier: `name` gives a region its name, or returns `false` if its bytes are on
/// other nodes than the spec says; `copy` copies a whole region.
#[doc(hidden)]
pub fn publish_by<T: AnyTier>(
    tier: &T,
    source: Source<'_, T::Lmr>,
    spec: &Spec,
    name: impl Fn(&T::Lmr, &Spec) -> Result<bool, RequestError>,
    copy: impl FnOnce(&T::Lmr, &T::Lmr) -> Result<(), OperationError>,
) -> Result<Published<T::Lmr>, PublishError> {
    if spec.name().is_none() {
        return Err(PublishError::NoName);
    }
    let made = match source {
        Source::Region(region) => {
            if name(region, spec)? {
                return Ok(Published::InPlace);
            }
            let made = tier.malloc(region.len(), spec.places())?;
            copy(region, &made)?;
            made
        }
        Source::Bytes(bytes) => {
            let made = tier.malloc(bytes.len() as u64, spec.places())?;
            made.write(0, bytes)?;
            made
        }
    };
    // The name comes last: nobody maps the region before its bytes are there.
    name(&made, &spec.anywhere())?;
    Ok(Published::Copied(made))
}

impl<F: Fabric> Tier<F> {
    /// Makes bytes that exist known under the name of `spec`, with its grants: those of a region without a name
    /// (`&Lmr`), or of any memory (`&[u8]`). Nobody can map the name before all bytes are there.
    ///
    /// The bytes of a region stay where they are, and its handles stay valid, if the spec has no nodes, or has those that
    /// store its pieces, in turns: [`Published::InPlace`]. Otherwise they are copied into a new region: [`Published::Copied`]. The source is
    /// unchanged then, and whatever is written to it meanwhile may be in the copy or not.
    ///
    /// Blocks until [`TierConfig::timeout`](crate::TierConfig::timeout) at most for each step: memory, copy, name.
    ///
    /// # Errors
    /// [`RecordError::Named`] if the region has a name, [`RecordError::Taken`] if another region has this one. Unless
    /// [`PublishError::may_have_executed`], the region has no name and its former grants.
    pub fn publish<'a>(
        &self,
        source: impl Into<Source<'a, Lmr<F>>>,
        spec: Spec,
    ) -> Result<Published<Lmr<F>>, PublishError> {
        let source = source.into();
        if let Source::Region(region) = source {
            self.check_own(region).map_err(RequestError::Access)?;
        }
        let copy = |from: &Lmr<F>, to: &Lmr<F>| self.memcpy(to.at(0), from.at(0), from.len());
        publish_by(self, source, &spec, Lmr::publish_in_place, copy)
    }
}

impl<F: Fabric> Lmr<F> {
    /// Gives this region a name, and grants; returns `false`, and changes nothing, if its bytes are on other nodes than
    /// the spec says.
    pub(crate) fn publish_in_place(&self, spec: &Spec) -> Result<bool, RequestError> {
        let (node, id) = (&*self.running.node, self.id);
        let name = spec.name().map(|name| open_name(name, &self.principal)).transpose()?;
        let Some(name) = name else { return Ok(false) };
        let (stores, grants, until) = (node.numbers_of(spec)?, spec.grants()?, node.until());
        let refused = |source: RecordError| RequestError::Refused {
            node: node.name_of(id.node),
            source: source.into(),
        };
        self.check_master()?;
        // A region without a name is known to the node alone that made it.
        if id.node != node.me {
            return Err(refused(RecordError::Named));
        }
        let published = {
            let (now, directory) = (node.fabric.host().now(), &mut node.state().directory);
            let published = directory.publish(id, &self.principal, &stores, &name, &grants);
            if let (Ok(Some(_)), lease @ Some(_)) = (&published, spec.lease()) {
                directory.lease(id, &self.principal, lease, now).map_err(refused)?;
            }
            published
        };
        let Some(before) = published.map_err(refused)? else { return Ok(false) };
        match node.claim_name(&name, id, until) {
            Ok(()) => {
                node.cleaner.raise();
                Ok(true)
            }
            Err(error) => {
                // The home may have given the name all the same.
                let home = node.home_of(&name);
                if let Err(error) = node.ask(home, Request::Forget { name, id }, until) {
                    tracing::debug!(target: "dunlin::tier", %error, "a name is not forgotten yet");
                }
                node.state().directory.unpublish(id, before);
                Err(error)
            }
        }
    }
}

impl<F: Fabric> Node<F> {
    /// Returns the numbers of the nodes of a spec.
    pub(crate) fn numbers_of(&self, spec: &Spec) -> Result<Vec<NodeId>, RequestError> {
        let number = |name: &str| self.roster.number_of(name).ok_or(RequestError::NoNode(name.to_owned()));
        spec.nodes().map(number).collect()
    }

    /// Claims a name at its home. A name whose region is gone, because its master's node ended, is taken over.
    pub(crate) fn claim_name(&self, name: &Name, id: LmrId, until: Nanos) -> Result<(), RequestError> {
        let node = self;
        let claim = || {
            loop {
                let mut sent = Epoch::default();
                let request = |epoch| {
                    sent = epoch;
                    Request::Claim { name: name.clone(), id, epoch }
                };
                node.note_home(name);
                node.ask_home(name, request, until)?;
                node.state().directory.named(id);
                // If the view has changed since, nobody may have told the next home: its names were read before.
                if node.roster.get().view.epoch == sent {
                    return Ok(());
                }
            }
        };
        let taken = match claim() {
            Err(RequestError::Refused { source: Refusal::Record(RecordError::Taken), node }) => {
                RequestError::Refused { node, source: RecordError::Taken.into() }
            }
            claimed => return claimed,
        };
        let found = node.ask_home(name, |_| Request::Lookup { name: name.clone() }, until)?;
        let (home, Reply::Found(other, keepers)) = found else { return Err(node.misfit(found.0)) };
        let is_lost = |keeper| {
            let request = Request::Exists { id: other };
            matches!(node.ask(keeper, request, until), Ok(Reply::Flag(false)))
        };
        if !keepers.iter().all(is_lost) {
            return Err(taken);
        }
        node.demand(home, Request::Forget { name: name.clone(), id: other }, until)?;
        claim()
    }
}
