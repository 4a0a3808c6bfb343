//! A process's face of the tier.

use crate::attachment::{AttachConfig, AttachError, Attachment, default_address};
use crate::calls::Calls;
use crate::lmr::Lmr;
use crate::locks::Guard;
use crate::within::nothing;
use dunlin_fabric::{Address, Fabric};
use dunlin_fabric_shm::{ShmConfig, ShmFabric};
use dunlin_tier::message::Malformed;
use dunlin_tier::process::operator::OperatorRequest;
use dunlin_tier::process::{
    Description, HandedOver, Holdings, LIST, Lent, LentRegion, MALLOC, MAP, NodeStatus, Opened, PUBLISH,
    ProcessRequest, STATUS, parse_listing,
};
use dunlin_tier::qos::QosError;
use dunlin_tier::{Listing, Name, Priority, Rights};
use dunlin_tier_node::{
    AnyTier, AsyncConfig, Asynchronous, PublishError, Published, RequestError, Source, Spec, publish_by,
};
use std::sync::Arc;

/// This process's attachment to the node of its host. Clones are the same attachment; all methods may be called from any
/// thread. As many threads as the node allows have a request under way at the same time; further ones wait.
///
/// The handles of the process are closed when the last clone and the last region are dropped, and when the process ends
/// in any way. When the node has ended, all methods fail: attach again to the next one. If a keeper holds the memory of
/// the node, requests wait for its next life instead, where all handles are valid, until their time is over. A request
/// that was under way at the end fails, and may have been executed: it is never repeated.
#[derive(Debug)]
pub struct Tier<P: Fabric = ShmFabric> {
    attachment: Arc<Attachment<P>>,
    priority: Priority,
}

impl<P: Fabric> Clone for Tier<P> {
    fn clone(&self) -> Self {
        Tier { attachment: Arc::clone(&self.attachment), priority: self.priority }
    }
}

impl Tier<ShmFabric> {
    /// Attaches to the node of this host (`LT_join`), at the [`default_address`]. Blocks for 5 s at most.
    pub fn join() -> Result<Self, AttachError> {
        Self::attach(&default_address()?)
    }

    /// Attaches to the node that serves processes at `address`. Blocks for 5 s at most.
    pub fn attach(address: &Address) -> Result<Self, AttachError> {
        let fabric = ShmFabric::new(ShmConfig::default())?;
        Self::attach_with(&fabric, AttachConfig::new(address.clone()))
    }
}

impl<P: Fabric> Tier<P> {
    /// Attaches with settings.
    pub fn attach_with(fabric: &P, config: AttachConfig) -> Result<Self, AttachError> {
        let attachment = Arc::new(Attachment::new(fabric, config)?);
        let priority = attachment.priority();
        Ok(Tier { attachment, priority })
    }

    pub(crate) fn attachment(&self) -> &Arc<Attachment<P>> {
        &self.attachment
    }

    /// Returns the same attachment with another priority: that of the regions that it makes and maps from then on, and of
    /// its calls to services (LITE section 6.2). The default is that of the process ([`AttachConfig::priority`]).
    ///
    /// # Errors
    /// The share of the principal permits only low priority.
    pub fn with_priority(&self, priority: Priority) -> Result<Self, QosError> {
        self.attachment.check_priority(priority)?;
        Ok(Tier { attachment: Arc::clone(&self.attachment), priority })
    }

    /// Returns the priority.
    pub fn priority(&self) -> Priority {
        self.priority
    }

    /// Returns the name of the node.
    pub fn node(&self) -> &str {
        &self.attachment.attached.node
    }

    /// Returns the principal that the node takes this process for.
    pub fn principal(&self) -> &str {
        &self.attachment.attached.principal
    }

    /// Allocates a zeroed region of `length` bytes (`LT_malloc`); this process's principal becomes its master. Blocks
    /// until [`AttachConfig::timeout`] at most.
    pub fn malloc(&self, length: u64, spec: Spec) -> Result<Lmr<P>, RequestError> {
        let (nodes, name, grants, lease) = described(&spec)?;
        let is_direct = spec.is_direct();
        let request = ProcessRequest::Malloc { length, nodes, name, grants, lease, is_direct };
        let opened = self.attachment.call(MALLOC, &request, Opened::parse)?;
        Ok(Lmr::new(self, opened, Rights::ALL))
    }

    /// Makes bytes that exist known under the name of `spec`, with its grants: those of a region without a name
    /// (`&Lmr`), which stay where they are if the spec has no nodes, or has those that store it; or those of any memory
    /// of this process (`&[u8]`), which are always copied. As [`dunlin_tier_node::Tier::publish`]. Blocks until
    /// [`AttachConfig::timeout`] at most for each step: memory, copy, name.
    ///
    /// # Errors
    /// [`RecordError::Named`](dunlin_tier::RecordError::Named) if the region has a name. Unless
    /// [`PublishError::may_have_executed`], the region has no name and its former grants.
    pub fn publish<'a>(
        &self,
        source: impl Into<Source<'a, Lmr<P>>>,
        spec: Spec,
    ) -> Result<Published<Lmr<P>>, PublishError> {
        let source = source.into();
        if let Source::Region(region) = source {
            self.check_own(region).map_err(RequestError::Access)?;
        }
        let name = |region: &Lmr<P>, spec: &Spec| {
            let (nodes, name, grants, lease) = described(spec)?;
            let Some(name) = name else { return Ok(false) };
            let handle = region.opened.handle;
            let request = ProcessRequest::Publish { handle, nodes, name, grants, lease };
            Ok(self.attachment.call(PUBLISH, &request, |answer| match answer {
                [in_place @ 0..=1] => Ok(*in_place == 1),
                _ => Err(Malformed),
            })?)
        };
        let copy = |from: &Lmr<P>, to: &Lmr<P>| self.memcpy(to.at(0), from.at(0), from.len());
        publish_by(self, source, &spec, name, copy)
    }

    /// Starts threads for asynchronous operations on regions of this attachment: futures for any executor. The node
    /// serves as many at the same time as it allows a process; [`AsyncConfig::threads`] beyond that wait.
    ///
    /// # Errors
    /// A thread cannot be started, or their number is not 1 to 64.
    pub fn asynchronous(&self, config: AsyncConfig) -> std::io::Result<Asynchronous<Lmr<P>, P::Host>> {
        Asynchronous::start(self.attachment.fabric.host(), config, self.attachment.config.timeout)
    }

    /// Maps a region by its name with exactly these rights (`LT_map`). Each call gives a new handle. Blocks until
    /// [`AttachConfig::timeout`] at most.
    ///
    /// # Errors
    /// A region to which this process's principal has no right looks like an absent one.
    pub fn map(&self, name: impl AsRef<[u8]>, rights: Rights) -> Result<Lmr<P>, RequestError> {
        let name = Name::new(name)?;
        let opened = self.attachment.call(MAP, &ProcessRequest::Map { name, rights }, Opened::parse)?;
        Ok(Lmr::new(self, opened, rights))
    }

    /// Describes the node and its processes.
    pub fn status(&self) -> Result<NodeStatus, RequestError> {
        Ok(self.attachment.call(STATUS, &ProcessRequest::Status, NodeStatus::parse)?)
    }

    /// Asks the node to leave the cluster and to end, which the program that runs it does soon. Regions that were made at
    /// the node, or have bytes in its memory, end with it: unless `force`, it does not leave as long as there are any.
    ///
    /// # Errors
    /// Only processes of the user who runs the node, and of root, may ask.
    pub fn leave(&self, force: bool) -> Result<Holdings, RequestError> {
        self.operate(OperatorRequest::Leave { force }, Holdings::parse)
    }

    /// Lists the regions that end with the node of this host, which does not leave.
    ///
    /// # Errors
    /// As [`leave`](Tier::leave).
    pub fn held(&self) -> Result<Holdings, RequestError> {
        self.operate(OperatorRequest::Held, Holdings::parse)
    }

    /// Frees a region that was made at the node of this host, whoever is its master. As [`Lmr::free`].
    ///
    /// # Errors
    /// [`RequestError::NotOperator`]: only processes of the user who runs the node, and of root, may.
    /// [`RequestError::MadeAt`]: the region was made at another node.
    pub fn free_named(&self, name: impl AsRef<[u8]>) -> Result<(), RequestError> {
        self.operate(OperatorRequest::FreeNamed { name: Name::new(name)? }, nothing)
    }

    /// Lists regions of other nodes that have bytes in the memory of the node of this host: `after` is the last one of
    /// the answer before.
    ///
    /// # Errors
    /// [`RequestError::NotOperator`]: only processes of the user who runs the node, and of root, may.
    pub fn lent(&self, after: Option<&LentRegion>) -> Result<Lent, RequestError> {
        self.operate(OperatorRequest::Lent { after: after.map(|region| region.id) }, Lent::parse)
    }

    /// Moves a region of another node out of the memory of the node of this host, to the memory of another node. As
    /// [`Lmr::move_to`], whoever is its master.
    ///
    /// # Errors
    /// [`RequestError::NotOperator`]: only processes of the user who runs the node, and of root, may. Unless
    /// [`RequestError::may_have_executed`], the region stays where it is: it has no name, a node does not stop to use
    /// it, or the other node has no room.
    pub fn move_away(&self, region: &LentRegion, to: &str) -> Result<(), RequestError> {
        if to.len() > 255 {
            return Err(RequestError::NoNode(to.to_owned()));
        }
        self.operate(OperatorRequest::MoveAway { id: region.id, to: to.to_owned() }, nothing)
    }

    /// Hands records of regions with a name to another node, at most 64 with one request: those regions do not end with the
    /// node of this host. Their bytes stay where they are; [`lent`](Tier::lent) lists them.
    ///
    /// # Errors
    /// [`RequestError::NotOperator`]: only processes of the user who runs the node, and of root, may.
    pub fn hand_over(&self, to: &str) -> Result<HandedOver, RequestError> {
        if to.len() > 255 {
            return Err(RequestError::NoNode(to.to_owned()));
        }
        self.operate(OperatorRequest::HandOver { to: to.to_owned() }, HandedOver::parse)
    }

    fn operate<T>(
        &self,
        request: OperatorRequest,
        take: impl FnMut(&[u8]) -> Result<T, Malformed>,
    ) -> Result<T, RequestError> {
        let request = ProcessRequest::Operate(request);
        Ok(self.attachment.call(request.function(), &request, take)?)
    }

    /// Lists regions with a name that were made at a node and to which this process's principal has a right: `from` is
    /// 0, then [`Listing::next`]. An empty name is that of this host's node.
    pub fn list(&self, node: &str, from: u32) -> Result<Listing, RequestError> {
        if node.len() > 255 {
            return Err(RequestError::NoNode(node.to_owned()));
        }
        let request = ProcessRequest::List { node: node.to_owned(), from };
        Ok(self.attachment.call(LIST, &request, parse_listing)?)
    }
}

/// Returns the nodes, the name and the grants of a spec.
fn described(spec: &Spec) -> Result<Description, RequestError> {
    let (name, grants) = (spec.name().map(Name::new).transpose()?, spec.grants()?);
    let nodes = spec.nodes().map(str::to_owned).collect::<Vec<_>>();
    let too_many = |what, limit: usize| RequestError::Limit { what, limit: limit as u64 };
    if nodes.len() > dunlin_tier::process::MAX_STORES {
        return Err(too_many("nodes of one region", dunlin_tier::process::MAX_STORES));
    }
    if let Some(long) = nodes.iter().find(|node| node.len() > 255) {
        return Err(RequestError::NoNode(long.clone()));
    }
    if grants.len() > dunlin_tier::MAX_GRANTS {
        return Err(too_many("grants of one region", dunlin_tier::MAX_GRANTS));
    }
    Ok((nodes, name, grants, spec.lease()))
}

impl<P: Fabric> AnyTier for Tier<P> {
    type Lmr = Lmr<P>;
    type Guard = Guard<P>;
    type Host = P::Host;

    fn host(&self) -> &P::Host {
        self.attachment().fabric.host()
    }

    fn node_name(&self) -> &str {
        self.node()
    }

    fn node_names(&self) -> Result<Vec<String>, RequestError> {
        Ok(self.status()?.nodes)
    }

    fn lock_home(&self, name: &[u8]) -> Result<String, RequestError> {
        self.lock_home(name)
    }

    fn malloc(&self, length: u64, spec: Spec) -> Result<Lmr<P>, RequestError> {
        self.malloc(length, spec)
    }

    fn map(&self, name: &[u8], rights: Rights) -> Result<Lmr<P>, RequestError> {
        self.map(name, rights)
    }

    dunlin_tier_node::any_locks!(Guard<P>);
}

dunlin_tier_node::any_services!(Tier, Calls, Fabric);
