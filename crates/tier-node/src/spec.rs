//! The description of a region to make.

use dunlin_fabric::nanos;
use dunlin_tier::{Grantee, Principal, PrincipalError, Rights};
use std::time::Duration;

/// A region to make: its nodes, its name and its grants.
#[derive(Clone, Debug, Default)]
pub struct Spec {
    pub(crate) nodes: Vec<String>,
    pub(crate) name: Option<Vec<u8>>,
    pub(crate) grants: Vec<(Option<String>, Rights)>,
    pub(crate) is_direct: bool,
    /// The user to whom the memory of a direct region belongs, in place of the region's principal.
    pub(crate) tenant: Option<Principal>,
    lease: Option<Duration>,
}

impl Spec {
    /// A region on this process's own node.
    pub fn here() -> Spec {
        Spec::default()
    }

    /// A region on this process's own node, in memory that belongs to one user alone.
    pub(crate) fn owned_by(tenant: Principal) -> Spec {
        Spec { is_direct: true, tenant: Some(tenant), ..Spec::default() }
    }

    /// A region on a node.
    pub fn on(node: &str) -> Spec {
        Spec { nodes: vec![node.to_owned()], ..Spec::default() }
    }

    /// A region whose pieces are spread over nodes, in turns.
    pub fn spread<'a>(nodes: impl IntoIterator<Item = &'a str>) -> Spec {
        Spec { nodes: nodes.into_iter().map(str::to_owned).collect(), ..Spec::default() }
    }

    /// Gives the region a name, `application/name`, 1 to 255 bytes. A region with a name lives until it is freed; one
    /// without ends with its last handle.
    #[must_use]
    pub fn named(mut self, name: impl AsRef<[u8]>) -> Spec {
        self.name = Some(name.as_ref().to_vec());
        self
    }

    /// Gives a region with a name a lease: it is freed when the lease runs out, unless a master has renewed it by
    /// `Lmr::lease`. Without a lease it lives until it is freed.
    #[must_use]
    pub fn leased(mut self, lease: Duration) -> Spec {
        self.lease = Some(lease);
        self
    }

    /// Puts the region in memory of the own node that belongs to its principal alone, so that processes of that principal
    /// can map it directly (`Lmr::direct`). Such memory is given in whole extents.
    #[must_use]
    pub fn direct(mut self) -> Spec {
        self.is_direct = true;
        self
    }

    /// Grants rights to a principal.
    #[must_use]
    pub fn grant(mut self, principal: &str, rights: Rights) -> Spec {
        self.grants.push((Some(principal.to_owned()), rights));
        self
    }

    /// Grants rights to every principal.
    #[must_use]
    pub fn grant_anyone(mut self, rights: Rights) -> Spec {
        self.grants.push((None, rights));
        self
    }

    /// Returns the nodes that store the region; none for the own node.
    pub fn nodes(&self) -> impl Iterator<Item = &str> {
        self.nodes.iter().map(String::as_str)
    }

    /// Returns whether processes of the region's principal can map it [directly](Spec::direct).
    pub fn is_direct(&self) -> bool {
        self.is_direct
    }

    /// Returns the name as given.
    pub fn name(&self) -> Option<&[u8]> {
        self.name.as_deref()
    }

    /// Returns the lease in nanoseconds.
    pub fn lease(&self) -> Option<u64> {
        self.lease.map(nanos)
    }

    /// Returns the grants.
    ///
    /// # Errors
    /// The name of a principal is invalid.
    pub fn grants(&self) -> Result<Vec<(Grantee, Rights)>, PrincipalError> {
        let grant = |(to, rights): &(Option<String>, Rights)| {
            let principal = |to: &String| Principal::new(to).map(Grantee::Principal);
            Ok((to.as_ref().map_or(Ok(Grantee::Anyone), principal)?, *rights))
        };
        self.grants.iter().map(grant).collect()
    }

    /// Returns the nodes alone: those of bytes that get their name later.
    pub(crate) fn places(&self) -> Spec {
        Spec { nodes: self.nodes.clone(), is_direct: self.is_direct, ..Spec::default() }
    }

    /// Returns the name and the grants alone.
    pub(crate) fn anywhere(&self) -> Spec {
        Spec { nodes: Vec::new(), ..self.clone() }
    }
}
