//! The protocol without I/O: the home's side, the member's side, and all runs of small memories.

pub(crate) mod home;
pub(crate) mod member;

#[cfg(test)]
mod explore;

/// The number of a page, from 0 on.
pub(crate) type Page = u32;
/// The number of a member, from 0 on.
pub(crate) type Member = u16;

/// The number of one acquisition of one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Claim {
    pub(crate) member: Member,
    /// A member uses each number once.
    pub(crate) number: u64,
}

/// A page that its home has given to a member for writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Grant {
    pub(crate) page: Page,
    /// The version at the home; a release counts it up.
    pub(crate) version: u64,
    /// The last member that held the page ended without a release.
    pub(crate) lost: Option<Member>,
}
