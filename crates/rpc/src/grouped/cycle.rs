//! The schedule that several servers share, and the messages by which they agree on it (ScaleRPC section 4.2).
//!
//! A cycle is a list of groups with their slices, which repeats from a common time on. The common time alone says which
//! group is served, so servers switch together without a message for each switch. The time server makes a new cycle when
//! its schedule has other groups, and lets it begin when all followers have heard of it.
//!
//! A client that no cycle names yet, since it has just connected, is in the group that its identity gives: all servers
//! choose the same one.

use super::leadership::Claim;
use super::schedule::ClientId;
use dunlin_fabric::Nanos;
use std::sync::Arc;

/// The most clients whose requests one message counts.
pub(crate) const MAX_COUNTS: usize = 1024;
/// The most groups of a cycle, and the most clients that it names.
pub(crate) const MAX_GROUPS: usize = 1024;
pub(crate) const MAX_CLIENTS: usize = 16_384;
/// The slices of a group, in nanoseconds.
const SLICES: std::ops::RangeInclusive<Nanos> = 1..=10_000_000_000;
/// The bytes of an answer before its cycle.
const ANSWER_HEAD: usize = 1 + 6 + 16 + 8;

/// A group of a cycle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CycleGroup {
    /// The time for which it is served, in nanoseconds.
    pub(crate) slice: Nanos,
    pub(crate) clients: Vec<ClientId>,
}

/// A schedule of several servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cycle {
    /// Tells cycles apart; never 0.
    pub(crate) number: u64,
    /// The common time at which the cycle begins.
    pub(crate) from: Nanos,
    groups: Vec<CycleGroup>,
    /// The named clients with their groups, in order.
    named: Vec<(ClientId, u16)>,
    /// The time of all slices.
    length: Nanos,
}

impl Cycle {
    /// Makes a cycle of at least one group. Groups and clients beyond the limits are left out.
    pub(crate) fn new(number: u64, from: Nanos, mut groups: Vec<CycleGroup>) -> Option<Cycle> {
        groups.truncate(MAX_GROUPS);
        let mut left = MAX_CLIENTS;
        for group in &mut groups {
            group.clients.truncate(left);
            left -= group.clients.len();
            group.slice = group.slice.clamp(*SLICES.start(), *SLICES.end());
        }
        let clients =
            (0..).zip(&groups).flat_map(|(at, group)| group.clients.iter().map(move |one| (*one, at)));
        let mut named: Vec<(ClientId, u16)> = clients.collect();
        named.sort_unstable();
        named.dedup_by_key(|(client, _)| *client);
        let length = groups.iter().map(|group| group.slice).sum();
        (!groups.is_empty() && number != 0).then_some(Cycle { number, from, groups, named, length })
    }

    /// Returns the groups.
    pub(crate) fn groups(&self) -> &[CycleGroup] {
        &self.groups
    }

    /// Returns the group of a client.
    pub(crate) fn group_of(&self, client: ClientId) -> usize {
        match self.named.binary_search_by_key(&client, |(named, _)| *named) {
            Ok(at) => usize::from(self.named[at].1),
            // Identities may be small numbers. The multiplication spreads them.
            Err(_) => (client.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % self.groups.len(),
        }
    }

    /// Returns the group that is served at a common time, and the common time at which its slice ends.
    pub(crate) fn at(&self, common: Nanos) -> (usize, Nanos) {
        let passed = common.wrapping_sub(self.from) as i64;
        let mut left = passed.rem_euclid(self.length as i64) as Nanos;
        for (at, group) in self.groups.iter().enumerate() {
            if left < group.slice {
                return (at, common.wrapping_add(group.slice - left));
            }
            left -= group.slice;
        }
        (0, common)
    }
}

/// The requests of a client that a server has counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) client: ClientId,
    pub(crate) calls: u32,
    pub(crate) bytes: u64,
}

/// The question of a server to another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Question {
    /// The secret of the deployment, at most 255 bytes.
    pub(crate) secret: Vec<u8>,
    /// The number of the last cycle that the server knows; 0 without one.
    pub(crate) cycle: u64,
    pub(crate) counts: Vec<Count>,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) claim: Option<Claim>,
    /// T2 and T3, in common time.
    pub(crate) stamps: [Nanos; 2],
    /// A cycle that the server that asks does not know.
    pub(crate) cycle: Option<Arc<Cycle>>,
}

/// A message that no server sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

fn put_claim(bytes: &mut Vec<u8>, claim: Option<Claim>) {
    let claim = claim.unwrap_or(Claim { term: 0, server: 0 });
    bytes.extend_from_slice(&claim.term.to_le_bytes());
    bytes.extend_from_slice(&claim.server.to_le_bytes());
}

/// The version of both messages: their first byte.
const VERSION: u8 = 1;

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (first, rest) = self.0.split_first_chunk::<N>().ok_or(Malformed)?;
        self.0 = rest;
        Ok(*first)
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Malformed> {
        self.take().map(u64::from_le_bytes)
    }

    /// Reads a number of things that follow, of at least `each` bytes.
    fn count(&mut self, most: usize, each: usize) -> Result<usize, Malformed> {
        let count = self.u32()? as usize;
        if count > most || count * each > self.0.len() { Err(Malformed) } else { Ok(count) }
    }

    fn version(&mut self) -> Result<(), Malformed> {
        if self.take()? == [VERSION] { Ok(()) } else { Err(Malformed) }
    }

    fn claim(&mut self) -> Result<Option<Claim>, Malformed> {
        let (term, server) = (self.u32()?, u16::from_le_bytes(self.take()?));
        Ok((term != 0).then_some(Claim { term, server }))
    }

    fn end(&self) -> Result<(), Malformed> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed) }
    }
}

impl Question {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![VERSION, self.secret.len() as u8];
        bytes.extend_from_slice(&self.secret);
        bytes.extend_from_slice(&self.cycle.to_le_bytes());
        bytes.extend_from_slice(&(self.counts.len() as u32).to_le_bytes());
        for count in &self.counts {
            bytes.extend_from_slice(&count.client.to_le_bytes());
            bytes.extend_from_slice(&count.calls.to_le_bytes());
            bytes.extend_from_slice(&count.bytes.to_le_bytes());
        }
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Question, Malformed> {
        let mut reader = Reader(bytes);
        reader.version()?;
        let [secret] = reader.take()?;
        let (secret, rest) = reader.0.split_at_checked(secret.into()).ok_or(Malformed)?;
        reader.0 = rest;
        let cycle = reader.u64()?;
        let counts = reader.count(MAX_COUNTS, 20)?;
        let counts = (0..counts)
            .map(|_| Ok(Count { client: reader.u64()?, calls: reader.u32()?, bytes: reader.u64()? }))
            .collect::<Result<_, _>>()?;
        reader.end()?;
        Ok(Question { secret: secret.to_vec(), cycle, counts })
    }
}

impl Answer {
    /// Encodes the answer. `stamp` gives T3 at the last moment.
    pub(crate) fn encode(&self, stamp: impl FnOnce() -> Nanos) -> Vec<u8> {
        let mut bytes = vec![VERSION];
        put_claim(&mut bytes, self.claim);
        let stamps_at = bytes.len();
        bytes.resize(stamps_at + 16, 0);
        bytes.extend_from_slice(&self.cycle.as_ref().map_or(0, |cycle| cycle.number).to_le_bytes());
        if let Some(cycle) = &self.cycle {
            bytes.extend_from_slice(&cycle.from.to_le_bytes());
            bytes.extend_from_slice(&(cycle.groups.len() as u32).to_le_bytes());
            for group in &cycle.groups {
                bytes.extend_from_slice(&group.slice.to_le_bytes());
                bytes.extend_from_slice(&(group.clients.len() as u32).to_le_bytes());
                group.clients.iter().for_each(|client| bytes.extend_from_slice(&client.to_le_bytes()));
            }
        }
        let [taken, answered] = [self.stamps[0], stamp()].map(Nanos::to_le_bytes);
        bytes[stamps_at..stamps_at + 8].copy_from_slice(&taken);
        bytes[stamps_at + 8..stamps_at + 16].copy_from_slice(&answered);
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Answer, Malformed> {
        let mut reader = Reader(bytes);
        reader.version()?;
        let (claim, stamps, number) = (reader.claim()?, [reader.u64()?, reader.u64()?], reader.u64()?);
        let cycle = match number {
            0 => None,
            _ => Some(Arc::new(Answer::read_cycle(&mut reader, number)?)),
        };
        reader.end()?;
        Ok(Answer { claim, stamps, cycle })
    }

    fn read_cycle(reader: &mut Reader<'_>, number: u64) -> Result<Cycle, Malformed> {
        let (from, count) = (reader.u64()?, reader.count(MAX_GROUPS, 12)?);
        let (mut groups, mut left) = (Vec::with_capacity(count), MAX_CLIENTS);
        for _ in 0..count {
            let slice = reader.u64()?;
            let clients = reader.count(left, 8)?;
            left -= clients;
            let clients = (0..clients).map(|_| reader.u64()).collect::<Result<_, _>>()?;
            if !SLICES.contains(&slice) {
                return Err(Malformed);
            }
            groups.push(CycleGroup { slice, clients });
        }
        Cycle::new(number, from, groups).ok_or(Malformed)
    }

    /// Returns how many clients a cycle may name if its answer must not be longer than `bytes`.
    pub(crate) fn most_clients(bytes: u64, groups: usize) -> usize {
        let rest = bytes.saturating_sub((ANSWER_HEAD + 12 + 12 * groups) as u64);
        usize::try_from(rest / 8).unwrap_or(MAX_CLIENTS).min(MAX_CLIENTS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cycle() -> Cycle {
        let group = |slice, clients: &[u64]| CycleGroup { slice, clients: clients.to_vec() };
        Cycle::new(7, 1_000_000, vec![group(100, &[5, 3]), group(50, &[9]), group(150, &[])]).unwrap()
    }

    #[test]
    fn the_common_time_says_which_group_is_served() {
        let cycle = cycle();
        for (passed, group, left) in [
            (0, 0, 100),
            (99, 0, 1),
            (100, 1, 50),
            (149, 1, 1),
            (150, 2, 150),
            (299, 2, 1),
            (300, 0, 100),
            (3_120, 1, 30),
        ] {
            let at = cycle.from + passed;
            assert_eq!(cycle.at(at), (group, at + left), "{passed}");
        }
        assert_eq!(cycle.at(cycle.from - 1), (2, cycle.from), "it repeats before its beginning too");
        let wrapped = Cycle { from: u64::MAX - 49, ..cycle };
        assert_eq!([wrapped.at(u64::MAX), wrapped.at(0), wrapped.at(50)], [(0, 50), (0, 50), (1, 100)]);
    }

    #[test]
    fn every_client_has_a_group() {
        let cycle = cycle();
        assert_eq!([3, 5, 9].map(|client| cycle.group_of(client)), [0, 0, 1]);
        let mut sizes = [0; 3];
        (100..3_100).for_each(|client| sizes[cycle.group_of(client)] += 1);
        assert!(sizes.iter().all(|size| (900..1_100).contains(size)), "{sizes:?}");
    }

    #[test]
    fn messages_survive_the_way() {
        for claim in [None, Some(Claim { term: 3, server: 2 })] {
            let counts = vec![
                Count { client: u64::MAX, calls: 3, bytes: 96 },
                Count { client: 1, calls: 0, bytes: 0 },
            ];
            let question = Question { secret: vec![7; 255], cycle: 9, counts };
            assert_eq!(Question::decode(&question.encode()), Ok(question));
            for cycle in [None, Some(Arc::new(cycle()))] {
                let answer = Answer { claim, stamps: [5, 8], cycle };
                assert_eq!(Answer::decode(&answer.encode(|| 8)), Ok(answer));
            }
        }
        assert!(
            cycle().named.len()
                <= Answer::most_clients(
                    Answer { claim: None, stamps: [0; 2], cycle: Some(Arc::new(cycle())) }.encode(|| 0).len()
                        as u64,
                    3
                )
        );
    }

    /// Bytes of any content give a message or an error, and what is taken is within all limits.
    #[test]
    fn damaged_messages_are_refused_or_legal() {
        let question = Question {
            secret: vec![1, 2],
            cycle: 9,
            counts: vec![Count { client: 1, calls: 1, bytes: 1 }; 3],
        }
        .encode();
        let answer = Answer { claim: None, stamps: [5, 8], cycle: Some(Arc::new(cycle())) }.encode(|| 8);
        for length in 0..answer.len() {
            assert_eq!(Answer::decode(&answer[..length]), Err(Malformed));
        }
        for length in 0..question.len() {
            assert_eq!(Question::decode(&question[..length]), Err(Malformed));
        }
        for at in 0..answer.len() {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut bytes = answer.clone();
                bytes[at] = value;
                if let Ok(Answer { cycle: Some(cycle), .. }) = Answer::decode(&bytes) {
                    assert!(cycle.groups.iter().all(|group| SLICES.contains(&group.slice)));
                    for common in [0, 1, u64::MAX / 2, u64::MAX] {
                        assert!(cycle.at(common).0 < cycle.groups.len());
                    }
                }
                let mut bytes = question.clone();
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = value;
                }
                if let Ok(question) = Question::decode(&bytes) {
                    assert!(question.counts.len() <= MAX_COUNTS);
                }
            }
        }
        assert_eq!(Answer::decode(&[&answer[..], &[0]].concat()), Err(Malformed));
    }
}
