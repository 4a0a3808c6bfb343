//! Messages of members to each other. All bytes are a member's: they are parsed by total functions.

use crate::core::home::Answer;
use crate::core::{Claim, Grant, Member, Page};

/// The most pages of one acquisition.
pub(crate) const MAX_PAGES: usize = 4096;
/// The longest message in bytes: a release with a version for each page, twice.
pub(crate) const MAX_MESSAGE: usize = 64 + 2 * 12 * MAX_PAGES;

/// A request to a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// Does nothing.
    Ping,
    /// To a home: a claim.
    Acquire { claim: Claim, waits: bool, pages: Vec<Page> },
    /// To a home: a claim is given up.
    Withdraw { claim: Claim, pages: Vec<Page> },
    /// To a home: a claim ends, and its changes are lost.
    Lose { claim: Claim, pages: Vec<Page> },
    /// To a home: pages are given back, each with its version.
    Release { claim: Claim, pages: Vec<(Page, u64)> },
    /// To a home: a member has ended.
    Ended { member: Member },
    /// To a member: pages were released, each with its version.
    Told { pages: Vec<(Page, u64)> },
    /// To a member: a claim that waited has its pages.
    Woken,
}

fn claim_into(claim: Claim, bytes: &mut Vec<u8>) {
    bytes.extend_from_slice(&claim.member.to_le_bytes());
    bytes.extend_from_slice(&claim.number.to_le_bytes());
}

fn pages_into(pages: &[Page], bytes: &mut Vec<u8>) {
    pages.iter().for_each(|page| bytes.extend_from_slice(&page.to_le_bytes()));
}

fn versions_into(pages: &[(Page, u64)], bytes: &mut Vec<u8>) {
    for (page, version) in pages {
        bytes.extend_from_slice(&page.to_le_bytes());
        bytes.extend_from_slice(&version.to_le_bytes());
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*taken)
    }

    fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_le_bytes)
    }

    fn claim(&mut self) -> Option<Claim> {
        Some(Claim { member: self.u16()?, number: self.take().map(u64::from_le_bytes)? })
    }

    /// The rest of the message, as items of `N` bytes.
    fn rest<const N: usize, T>(self, parse: impl Fn(&'a [u8; N]) -> T) -> Option<Vec<T>> {
        let (items, tail) = self.0.as_chunks::<N>();
        (tail.is_empty() && items.len() <= MAX_PAGES).then(|| items.iter().map(parse).collect())
    }

    fn pages(self) -> Option<Vec<Page>> {
        self.rest(|bytes| Page::from_le_bytes(*bytes))
    }

    fn versions(self) -> Option<Vec<(Page, u64)>> {
        self.rest(|bytes: &[u8; 12]| (number(bytes) as Page, number(&bytes[4..])))
    }

    fn end<T>(self, value: T) -> Option<T> {
        self.0.is_empty().then_some(value)
    }
}

/// Returns the number in the first 8 bytes at most.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().take(8).rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

impl Request {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        match self {
            Request::Ping => bytes.push(0),
            Request::Acquire { claim, waits, pages } => {
                bytes.extend_from_slice(&[1, u8::from(*waits)]);
                claim_into(*claim, &mut bytes);
                pages_into(pages, &mut bytes);
            }
            Request::Withdraw { claim, pages } => {
                bytes.push(2);
                claim_into(*claim, &mut bytes);
                pages_into(pages, &mut bytes);
            }
            Request::Lose { claim, pages } => {
                bytes.push(3);
                claim_into(*claim, &mut bytes);
                pages_into(pages, &mut bytes);
            }
            Request::Release { claim, pages } => {
                bytes.push(4);
                claim_into(*claim, &mut bytes);
                versions_into(pages, &mut bytes);
            }
            Request::Ended { member } => {
                bytes.push(5);
                bytes.extend_from_slice(&member.to_le_bytes());
            }
            Request::Told { pages } => {
                bytes.push(6);
                versions_into(pages, &mut bytes);
            }
            Request::Woken => bytes.push(7),
        }
        bytes
    }

    /// Returns `None` for bytes that are no request.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Request> {
        let mut reader = Reader(bytes);
        Some(match reader.take::<1>()?[0] {
            0 => reader.end(Request::Ping)?,
            1 => {
                let waits = flag(reader.take()?)?;
                Request::Acquire { claim: reader.claim()?, waits, pages: reader.pages()? }
            }
            2 => Request::Withdraw { claim: reader.claim()?, pages: reader.pages()? },
            3 => Request::Lose { claim: reader.claim()?, pages: reader.pages()? },
            4 => Request::Release { claim: reader.claim()?, pages: reader.versions()? },
            5 => {
                let member = reader.u16()?;
                reader.end(Request::Ended { member })?
            }
            6 => Request::Told { pages: reader.versions()? },
            7 => reader.end(Request::Woken)?,
            _ => return None,
        })
    }
}

fn flag(byte: [u8; 1]) -> Option<bool> {
    match byte {
        [0] => Some(false),
        [1] => Some(true),
        _ => None,
    }
}

/// The answer to every request but a claim.
pub(crate) const DONE: [u8; 1] = [0];

/// The bytes of a grant: page, version, member that ended or `u32::MAX`.
const GRANT: usize = 4 + 8 + 4;

impl Answer {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let at = |kind: u8, page: &Page, member: &Member| {
            let mut bytes = vec![kind];
            bytes.extend_from_slice(&page.to_le_bytes());
            bytes.extend_from_slice(&member.to_le_bytes());
            bytes
        };
        match self {
            Answer::Granted(grants) => {
                let mut bytes = Vec::with_capacity(1 + GRANT * grants.len());
                bytes.push(1);
                for Grant { page, version, lost } in grants {
                    bytes.extend_from_slice(&page.to_le_bytes());
                    bytes.extend_from_slice(&version.to_le_bytes());
                    bytes.extend_from_slice(&lost.map_or(u32::MAX, u32::from).to_le_bytes());
                }
                bytes
            }
            Answer::Queued(page, member) => at(2, page, member),
            Answer::Held(page, member) => at(3, page, member),
            Answer::Full => vec![4],
            Answer::Withdrawn => vec![5],
            Answer::Malformed => vec![6],
        }
    }

    /// Returns `None` for bytes that are no answer to a claim of these pages.
    pub(crate) fn parse(bytes: &[u8], pages: &[Page]) -> Option<Answer> {
        let mut reader = Reader(bytes);
        let kind = reader.take::<1>()?[0];
        if kind == 1 {
            let grants = reader.rest(|bytes: &[u8; GRANT]| {
                let lost = Member::try_from(number(&bytes[12..])).ok();
                Grant { page: number(&bytes[..4]) as Page, version: number(&bytes[4..12]), lost }
            })?;
            // The same pages, in the same order; versions that can still be counted up.
            let is_fit = grants.len() == pages.len()
                && grants
                    .iter()
                    .zip(pages)
                    .all(|(grant, page)| grant.page == *page && grant.version < 1 << 62);
            return is_fit.then_some(Answer::Granted(grants));
        }
        let mut at = || Some((Page::from_le_bytes(reader.take()?), reader.u16()?));
        let answer = match kind {
            2 => at().map(|(page, member)| Answer::Queued(page, member))?,
            3 => at().map(|(page, member)| Answer::Held(page, member))?,
            4 => Answer::Full,
            5 => Answer::Withdrawn,
            6 => Answer::Malformed,
            _ => return None,
        };
        reader.end(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn claims() -> impl Strategy<Value = Claim> {
        (any::<u16>(), any::<u64>()).prop_map(|(member, number)| Claim { member, number })
    }

    fn requests() -> impl Strategy<Value = Request> {
        let pages = || prop::collection::vec(any::<u32>(), 0..9);
        let versions = || prop::collection::vec(any::<(u32, u64)>(), 0..9);
        prop_oneof![
            Just(Request::Ping),
            (claims(), any::<bool>(), pages()).prop_map(|(claim, waits, pages)| Request::Acquire {
                claim,
                waits,
                pages
            }),
            (claims(), pages()).prop_map(|(claim, pages)| Request::Withdraw { claim, pages }),
            (claims(), pages()).prop_map(|(claim, pages)| Request::Lose { claim, pages }),
            (claims(), versions()).prop_map(|(claim, pages)| Request::Release { claim, pages }),
            any::<u16>().prop_map(|member| Request::Ended { member }),
            versions().prop_map(|pages| Request::Told { pages }),
            Just(Request::Woken),
        ]
    }

    proptest! {
        #[test]
        fn requests_are_parsed_as_they_were_encoded(request in requests()) {
            let bytes = request.encode();
            prop_assert!(bytes.len() <= MAX_MESSAGE);
            prop_assert_eq!(Request::parse(&bytes), Some(request));
        }

        #[test]
        fn grants_are_parsed_as_they_were_encoded(
            grants in prop::collection::vec((any::<u32>(), 0u64..1 << 62, any::<Option<u16>>()), 0..9),
        ) {
            let pages: Vec<_> = grants.iter().map(|(page, ..)| *page).collect();
            let grant = |(page, version, lost)| Grant { page, version, lost };
            let answer = Answer::Granted(grants.into_iter().map(grant).collect());
            prop_assert_eq!(Answer::parse(&answer.encode(), &pages), Some(answer));
        }

        #[test]
        fn any_bytes_are_parsed_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            if let Some(request) = Request::parse(&bytes) {
                prop_assert_eq!(request.encode(), bytes.clone());
            }
            let _ = Answer::parse(&bytes, &[1, 2]);
        }
    }

    #[test]
    fn answers_are_parsed_as_they_were_encoded() {
        let others = [
            Answer::Queued(7, 3),
            Answer::Held(u32::MAX, 0),
            Answer::Full,
            Answer::Withdrawn,
            Answer::Malformed,
        ];
        for answer in others {
            assert_eq!(Answer::parse(&answer.encode(), &[1]), Some(answer));
        }
        let granted = Answer::Granted(vec![Grant { page: 1, version: 0, lost: None }]);
        assert_eq!(Answer::parse(&granted.encode(), &[2]), None);
        assert_eq!(Answer::parse(&granted.encode(), &[1, 2]), None);
    }
}
