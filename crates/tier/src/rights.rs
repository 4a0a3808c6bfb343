//! Rights, the principals that have them, and the grants of one region.

use std::fmt;
use thiserror::Error;

/// A set of rights (section 4.1: read, write, master).
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rights(u8);

impl Rights {
    /// No right.
    pub const NONE: Rights = Rights(0);
    /// `read`.
    pub const READ: Rights = Rights(1);
    /// `write`, `memset` and atomics.
    pub const WRITE: Rights = Rights(2);
    /// To learn places, to grant, revoke, move and free.
    pub const MASTER: Rights = Rights(4);
    /// All rights, which the creator has.
    pub const ALL: Rights = Rights(7);

    /// Returns the union.
    #[must_use]
    pub const fn with(self, other: Rights) -> Rights {
        Rights(self.0 | other.0)
    }

    /// Returns the rights of `self` that are not in `other`.
    #[must_use]
    pub const fn without(self, other: Rights) -> Rights {
        Rights(self.0 & !other.0)
    }

    /// Returns whether `self` has every right in `other`.
    pub const fn contains(self, other: Rights) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns the rights as bits: 1 READ, 2 WRITE, 4 MASTER.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Parses the bits of [`bits`](Rights::bits); `None` for unknown bits.
    pub const fn from_bits(bits: u8) -> Option<Rights> {
        if bits & !7 == 0 { Some(Rights(bits)) } else { None }
    }
}

impl fmt::Display for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [(Rights::READ, "READ"), (Rights::WRITE, "WRITE"), (Rights::MASTER, "MASTER")];
        let mut separator = "";
        for (right, name) in names {
            if self.contains(right) {
                write!(f, "{separator}{name}")?;
                separator = "+";
            }
        }
        if separator.is_empty() { f.write_str("no right") } else { Ok(()) }
    }
}

impl fmt::Debug for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// The longest name of a principal, in bytes.
pub const MAX_PRINCIPAL: usize = 64;

/// The reason why a text is not a principal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a principal's name has {0} bytes, but must have 1 to {MAX_PRINCIPAL}")]
pub struct PrincipalError(pub usize);

/// A user of regions, as the node that it is attached to vouches for it: 1 to 64 bytes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Principal(Box<str>);

impl Principal {
    /// Checks the length and makes a principal.
    pub fn new(name: &str) -> Result<Principal, PrincipalError> {
        match name.len() {
            1..=MAX_PRINCIPAL => Ok(Principal(name.into())),
            length => Err(PrincipalError(length)),
        }
    }

    /// Makes a principal that stands for no user, with a space in its name: one of a kind with two numbers. The kind is
    /// cut to 16 bytes.
    pub fn numbered(kind: &str, [high, low]: [u64; 2]) -> Principal {
        let kind = &kind[..kind.floor_char_boundary(16)];
        Principal(format!("{kind} {high:016x}{low:016x}").into())
    }

    /// Returns the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The receiver of a grant.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Grantee {
    /// Every principal.
    Anyone,
    /// One principal.
    Principal(Principal),
}

/// The most grants of one region.
pub const MAX_GRANTS: usize = 64;

/// The reason why a grant, or taking one back, is refused. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum GrantError {
    /// The granting principal is not a master.
    #[error("only a master of the region can grant and revoke")]
    NotMaster,
    /// The granting principal lacks a right that it wants to grant.
    #[error("a master can grant only its own rights: it has {has}, and grants {grants}")]
    Exceeds {
        /// The master's rights.
        has: Rights,
        /// The rights to grant.
        grants: Rights,
    },
    /// The region has as many grants as it can have.
    #[error("the region has {MAX_GRANTS} grants already: grant to fewer principals, or to anyone")]
    TooMany,
    /// Nobody would be a master any more: nobody could grant, move or free the region.
    #[error(
        "that is the last master of the region: grant MASTER to another principal first, or free the region"
    )]
    LastMaster,
}

/// The grants of one region, at most [`MAX_GRANTS`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Grants(Vec<(Grantee, Rights)>);

impl Grants {
    /// Makes the grants of a new region: all rights for its creator.
    pub fn of_creator(creator: Principal) -> Grants {
        Grants(vec![(Grantee::Principal(creator), Rights::ALL)])
    }

    /// Makes the grants that an earlier life of the node has made.
    pub(crate) fn recovered(grants: Vec<(Grantee, Rights)>) -> Grants {
        Grants(grants)
    }

    /// Returns the rights of a principal: its own and those of anyone.
    pub fn of(&self, principal: &Principal) -> Rights {
        self.0.iter().fold(Rights::NONE, |rights, (grantee, granted)| match grantee {
            Grantee::Anyone => rights.with(*granted),
            Grantee::Principal(one) if one == principal => rights.with(*granted),
            Grantee::Principal(_) => rights,
        })
    }

    /// Adds rights in the name of `by`, who must be a master and have them (section 4.1).
    pub fn grant(&mut self, by: &Principal, to: Grantee, rights: Rights) -> Result<(), GrantError> {
        let has = self.of(by);
        if !has.contains(Rights::MASTER) {
            return Err(GrantError::NotMaster);
        }
        if !has.contains(rights) {
            return Err(GrantError::Exceeds { has, grants: rights });
        }
        if let Some((_, granted)) = self.0.iter_mut().find(|(grantee, _)| *grantee == to) {
            *granted = granted.with(rights);
            return Ok(());
        }
        if self.0.len() >= MAX_GRANTS {
            return Err(GrantError::TooMany);
        }
        self.0.push((to, rights));
        Ok(())
    }

    /// Takes rights away in the name of `by`, a master; returns those that `from` has left, by a grant of its own or by
    /// one for anyone. Rights that it does not have change nothing.
    pub fn revoke(&mut self, by: &Principal, from: &Grantee, rights: Rights) -> Result<Rights, GrantError> {
        if !self.of(by).contains(Rights::MASTER) {
            return Err(GrantError::NotMaster);
        }
        let left = self.0.iter().map(|(grantee, granted)| match grantee == from {
            true => (grantee.clone(), granted.without(rights)),
            false => (grantee.clone(), *granted),
        });
        let left: Vec<_> = left.filter(|(_, granted)| *granted != Rights::NONE).collect();
        if !left.iter().any(|(_, granted)| granted.contains(Rights::MASTER)) {
            return Err(GrantError::LastMaster);
        }
        self.0 = left;
        Ok(match from {
            Grantee::Principal(principal) => self.of(principal),
            Grantee::Anyone => self.of_anyone(),
        })
    }

    /// Returns the rights of every principal.
    fn of_anyone(&self) -> Rights {
        let anyone = self.0.iter().find(|(grantee, _)| *grantee == Grantee::Anyone);
        anyone.map_or(Rights::NONE, |(_, granted)| *granted)
    }

    /// Returns the grants in the order in which they were made.
    pub fn iter(&self) -> impl Iterator<Item = (&Grantee, Rights)> {
        self.0.iter().map(|(grantee, rights)| (grantee, *rights))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn principal(name: &str) -> Principal {
        Principal::new(name).unwrap()
    }

    #[test]
    fn rights_are_a_set_with_known_bits() {
        assert_eq!(Rights::from_bits(8), None);
        for bits in 0..8 {
            assert_eq!(Rights::from_bits(bits).unwrap().bits(), bits);
        }
        assert!(!Rights::READ.contains(Rights::READ.with(Rights::WRITE)));
        assert_eq!(Rights::ALL.without(Rights::WRITE).to_string(), "READ+MASTER");
        assert_eq!(Rights::NONE.to_string(), "no right");
    }

    #[test]
    fn only_masters_grant_and_only_their_own_rights() {
        let (alice, bob, carol) = (principal("alice"), principal("bob"), principal("carol"));
        let mut grants = Grants::of_creator(alice.clone());
        let to = |who: &Principal| Grantee::Principal(who.clone());
        assert_eq!(grants.grant(&bob, to(&bob), Rights::READ), Err(GrantError::NotMaster));
        grants.grant(&alice, to(&bob), Rights::READ.with(Rights::MASTER)).unwrap();
        let has = Rights::READ.with(Rights::MASTER);
        let exceeds = Err(GrantError::Exceeds { has, grants: Rights::WRITE });
        assert_eq!(grants.grant(&bob, to(&carol), Rights::WRITE), exceeds);
        assert_eq!(grants.of(&carol), Rights::NONE);
        grants.grant(&bob, Grantee::Anyone, Rights::READ).unwrap();
        assert_eq!(grants.of(&carol), Rights::READ);
        assert_eq!(grants.of(&alice), Rights::ALL);
    }

    #[test]
    fn grants_are_bounded_and_join() {
        let alice = principal("alice");
        let mut grants = Grants::of_creator(alice.clone());
        for number in 1..MAX_GRANTS {
            let to = Grantee::Principal(principal(&number.to_string()));
            grants.grant(&alice, to, Rights::READ).unwrap();
        }
        assert_eq!(grants.grant(&alice, Grantee::Anyone, Rights::READ), Err(GrantError::TooMany));
        grants.grant(&alice, Grantee::Principal(principal("3")), Rights::WRITE).unwrap();
        assert_eq!(grants.of(&principal("3")), Rights::READ.with(Rights::WRITE));
        assert_eq!(grants.iter().count(), MAX_GRANTS);
    }

    #[test]
    fn rights_are_taken_away_one_by_one_and_the_last_master_stays() {
        let (alice, bob) = (principal("alice"), principal("bob"));
        let to = |who: &Principal| Grantee::Principal(who.clone());
        let mut grants = Grants::of_creator(alice.clone());
        grants.grant(&alice, to(&bob), Rights::ALL).unwrap();
        grants.grant(&alice, Grantee::Anyone, Rights::READ).unwrap();
        let left = grants.revoke(&alice, &to(&bob), Rights::READ.with(Rights::MASTER)).unwrap();
        assert_eq!(left, Rights::READ.with(Rights::WRITE), "READ is that of anyone");
        assert_eq!(grants.revoke(&bob, &to(&alice), Rights::READ), Err(GrantError::NotMaster));
        // A revocation can be repeated, and be of a principal without grants.
        assert_eq!(grants.revoke(&alice, &to(&bob), Rights::MASTER), Ok(left));
        assert_eq!(grants.revoke(&alice, &to(&principal("carol")), Rights::ALL), Ok(Rights::READ));
        assert_eq!(grants.revoke(&alice, &Grantee::Anyone, Rights::ALL), Ok(Rights::NONE));
        assert_eq!(grants.of(&bob), Rights::WRITE);
        let before = grants.clone();
        assert_eq!(grants.revoke(&alice, &to(&alice), Rights::ALL), Err(GrantError::LastMaster));
        assert_eq!(grants, before);
        assert_eq!(grants.revoke(&alice, &to(&alice), Rights::READ), Ok(Rights::WRITE.with(Rights::MASTER)));
        assert_eq!(grants.revoke(&alice, &to(&bob), Rights::WRITE), Ok(Rights::NONE));
        assert_eq!(grants.iter().count(), 1, "an empty grant takes no place");
        // Any master may be revoked as long as another one is left.
        grants.grant(&alice, Grantee::Anyone, Rights::MASTER).unwrap();
        assert_eq!(grants.revoke(&bob, &to(&alice), Rights::ALL), Ok(Rights::MASTER));
    }

    #[test]
    fn principals_have_1_to_64_bytes() {
        assert_eq!(Principal::new(""), Err(PrincipalError(0)));
        assert_eq!(Principal::new(&"x".repeat(65)), Err(PrincipalError(65)));
        assert!(Principal::new(&"x".repeat(64)).is_ok());
    }
}
