//! The description of a region to make.

use dunlin_tier::{Grantee, Principal, PrincipalError, Rights};

/// A region to make: its nodes, its name and its grants.
#[derive(Clone, Debug, Default)]
pub struct Spec {
    pub(crate) nodes: Vec<String>,
    pub(crate) name: Option<Vec<u8>>,
    pub(crate) grants: Vec<(Option<String>, Rights)>,
}

impl Spec {
    /// A region on this process's own node.
    pub fn here() -> Spec {
        Spec::default()
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

    /// Returns the name as given.
    pub fn name(&self) -> Option<&[u8]> {
        self.name.as_deref()
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
        Spec { nodes: self.nodes.clone(), ..Spec::default() }
    }

    /// Returns the name and the grants alone.
    pub(crate) fn anywhere(&self) -> Spec {
        Spec { nodes: Vec::new(), ..self.clone() }
    }
}
