//! The settings of a memory, and the place of its pages.

use crate::core::{Member, Page};
use crate::error::MemoryError;
use dunlin_tier::Name;
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_64;

/// The bytes of a page.
pub const PAGE: usize = 4096;
/// The most pages: 1 TiB.
const MAX_PAGES: u32 = 1 << 28;
/// The most members; of a memory whose copies are marked, the bits of a word.
const MAX_MEMBERS: [u16; 2] = [1024, 64];

/// The members that hear of a release.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Told {
    /// All. A page that is not there costs one READ.
    #[default]
    All,
    /// Those that may have a copy. A member marks a page at its home before it reads it for the first time after a
    /// release: one atomic more. At most 64 members.
    Marked,
}

/// The bytes that a release pushes to the homes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Push {
    /// All bytes of each page that was written.
    Whole,
    /// The bytes that differ from those before the first write, for which the page is copied then.
    #[default]
    Changed,
}

/// The description of a memory. All members give the same name, size, number of members, and way to tell of releases.
#[derive(Clone, Debug)]
pub struct MemoryConfig {
    /// The name of the memory, the first part of the names of its regions, services and locks.
    pub name: String,
    /// The size in pages of 4096 bytes. Page N is at home at member N modulo the number of members.
    pub pages: u32,
    /// The number of members.
    pub members: u16,
    /// The number of this member, from 0 on.
    pub member: u16,
    /// The members that hear of a release. Default: all.
    pub told: Told,
    /// The bytes that a release pushes. Default: those that changed.
    pub push: Push,
    /// The address at which all members map the memory, a multiple of 4096: loads and stores of [`Memory::words`] fault,
    /// and the faults are answered. On hosts of the machine only, not in virtual time. Default: none, and programs call
    /// `read` and `write`.
    ///
    /// [`Memory::words`]: crate::Memory::words
    pub address: Option<u64>,
    /// The longest time to wait for other members: for their opening, for pages that they hold, and for their answers. An
    /// operation of the tier has a time of its own. Default: 10 s.
    pub patience: Duration,
}

impl MemoryConfig {
    /// Returns a memory with default settings.
    pub fn new(name: impl Into<String>, pages: u32, members: u16, member: u16) -> MemoryConfig {
        MemoryConfig {
            name: name.into(),
            pages,
            members,
            member,
            told: Told::default(),
            push: Push::default(),
            address: None,
            patience: Duration::from_secs(10),
        }
    }

    pub(crate) fn check(&self) -> Result<(), MemoryError> {
        let most = MAX_MEMBERS[usize::from(self.told == Told::Marked)];
        let fault = if self.pages == 0 || self.pages > MAX_PAGES {
            format!("it has {} pages: set 1 to {MAX_PAGES}", self.pages)
        } else if self.members == 0 || self.members > most {
            format!("it has {} members: set 1 to {most}", self.members)
        } else if self.member >= self.members {
            format!("member {} is not one of {}: members are numbered from 0 on", self.member, self.members)
        } else if self.pages < u32::from(self.members) {
            format!("it has fewer pages than members: set {} pages or more", self.members)
        } else if self.name.is_empty() {
            "it has no name".to_owned()
        } else if Name::new(format!("{}/memory/65535", self.name)).is_err() {
            "its name is too long".to_owned()
        } else if self.patience < Duration::from_millis(1) {
            "its patience is shorter than 1 ms".to_owned()
        } else {
            return Ok(());
        };
        Err(MemoryError::Config(fault))
    }

    /// Returns the size in bytes.
    pub fn size(&self) -> u64 {
        u64::from(self.pages) * PAGE as u64
    }

    /// Returns a number that members with the same settings have in common.
    pub(crate) fn agreement(&self) -> u64 {
        let MemoryConfig { name, pages, members, told, address, .. } = self;
        xxh3_64(format!("{name}\0{pages}\0{members}\0{told:?}\0{address:?}").as_bytes())
    }

    pub(crate) fn region(&self, home: Member) -> String {
        format!("{}/pages/{home}", self.name)
    }

    pub(crate) fn service(&self, member: Member) -> String {
        format!("{}/memory/{member}", self.name)
    }

    pub(crate) fn life(&self, member: Member) -> String {
        format!("{}/life/{member}", self.name)
    }

    pub(crate) fn meeting(&self, what: &str) -> String {
        format!("{}/{what}", self.name)
    }

    /// Returns the member that is the home of a page.
    pub(crate) fn home(&self, page: Page) -> Member {
        (page % u32::from(self.members)) as Member
    }

    /// Returns the place of a page among those of its home.
    fn place(&self, page: Page) -> u64 {
        u64::from(page / u32::from(self.members))
    }

    /// Returns the number of pages of a home.
    fn own(&self, home: Member) -> u64 {
        u64::from(self.pages.saturating_sub(home.into()).div_ceil(self.members.into()))
    }

    /// Returns the offset of the word of a page in the region of its home: a bit for each member that may have a copy.
    pub(crate) fn word(&self, page: Page) -> u64 {
        PAGE as u64 + 8 * self.place(page)
    }

    fn first(&self, home: Member) -> u64 {
        PAGE as u64 + (8 * self.own(home)).next_multiple_of(PAGE as u64)
    }

    /// Returns the offset of a page in the region of its home.
    pub(crate) fn offset(&self, page: Page) -> u64 {
        self.first(self.home(page)) + PAGE as u64 * self.place(page)
    }

    /// Returns the bytes of the region of a home: a page with its header, the words, the pages.
    pub(crate) fn length(&self, home: Member) -> u64 {
        self.first(home) + PAGE as u64 * self.own(home)
    }
}

/// The longest name of a node in a header.
const MAX_NODE: usize = 255;
const MAGIC: u64 = u64::from_le_bytes(*b"dunlinsm");

/// The header of a region: the node at which its member serves.
pub(crate) fn header(agreement: u64, node: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(18 + node.len());
    bytes.extend_from_slice(&MAGIC.to_le_bytes());
    bytes.extend_from_slice(&agreement.to_le_bytes());
    bytes.extend_from_slice(&(node.len() as u16).to_le_bytes());
    bytes.extend_from_slice(node.as_bytes());
    bytes
}

/// The bytes of a header to read.
pub(crate) const HEADER: usize = 18 + MAX_NODE;

/// Returns the node of a header, if it is one of this memory.
pub(crate) fn parse_header(bytes: &[u8; HEADER], agreement: u64) -> Option<String> {
    let length = usize::from(u16::from_le_bytes([bytes[16], bytes[17]]));
    if bytes[..8] != MAGIC.to_le_bytes() || bytes[8..16] != agreement.to_le_bytes() {
        return None;
    }
    Some(std::str::from_utf8(bytes[18..].get(..length)?).ok()?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Each page and each word has a place of its own in the region of its home.
        #[test]
        fn places_are_disjoint_and_fill_the_regions(members in 1u16..9, more in 0u32..2000) {
            let config = MemoryConfig::new("m", u32::from(members) + more, members, 0);
            config.check().unwrap();
            let mut ends: Vec<u64> = (0..members).map(|home| config.first(home)).collect();
            let mut words = vec![PAGE as u64; usize::from(members)];
            for page in 0..config.pages {
                let home = usize::from(config.home(page));
                prop_assert_eq!(config.offset(page), ends[home]);
                prop_assert_eq!(config.word(page), words[home]);
                ends[home] += PAGE as u64;
                words[home] += 8;
            }
            for home in 0..members {
                prop_assert_eq!(ends[usize::from(home)], config.length(home));
                prop_assert!(words[usize::from(home)] <= config.first(home));
            }
        }

        #[test]
        fn headers_are_parsed_without_a_panic(bytes in prop::collection::vec(any::<u8>(), HEADER)) {
            let mut bytes: [u8; HEADER] = bytes.try_into().unwrap();
            bytes[..8].copy_from_slice(&MAGIC.to_le_bytes());
            bytes[8..16].copy_from_slice(&7u64.to_le_bytes());
            let _ = parse_header(&bytes, 7);
        }
    }

    #[test]
    fn a_header_names_its_node() {
        let mut bytes = [0xff; HEADER];
        let written = header(7, "node-2");
        bytes[..written.len()].copy_from_slice(&written);
        assert_eq!(parse_header(&bytes, 7).as_deref(), Some("node-2"));
        assert_eq!(parse_header(&bytes, 8), None);
    }

    #[test]
    fn settings_without_sense_are_refused() {
        let config = MemoryConfig::new("m", 100, 2, 0);
        let marked = MemoryConfig { told: Told::Marked, members: 65, ..config.clone() };
        let bad = [
            MemoryConfig { pages: 0, ..config.clone() },
            MemoryConfig { members: 0, ..config.clone() },
            MemoryConfig { member: 2, ..config.clone() },
            MemoryConfig { members: 101, ..config.clone() },
            MemoryConfig { name: String::new(), ..config.clone() },
            MemoryConfig { name: "x".repeat(250), ..config.clone() },
            MemoryConfig { patience: Duration::ZERO, ..config.clone() },
            marked,
        ];
        for config in bad {
            assert!(matches!(config.check(), Err(MemoryError::Config(_))), "{config:?}");
        }
    }
}
