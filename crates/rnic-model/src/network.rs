//! The cluster: hosts, their NICs, and the three calls by which a simulator moves a message through them.

use crate::cache::{Cache, Found, mix};
use crate::costs::{Costs, LINE};
use crate::profile::{Parameter, Profile};
use crate::request::{Linked, Opcode, Pages, Request, Touch, Transport};
use crate::station::{PICOS, Picos, Station};
use dunlin_fabric::Nanos;
use std::collections::BTreeMap;

/// The hosts of a cluster and the switch between them.
#[derive(Clone, Debug)]
pub struct Cluster<'a> {
    /// The hosts.
    pub hosts: Vec<HostShape<'a>>,
    /// Latency from NIC to NIC in nanoseconds; `None` for that of the sending host's profile.
    pub switch_ns: Option<Nanos>,
}

/// One host.
#[derive(Clone, Copy, Debug)]
pub struct HostShape<'a> {
    /// Its profile.
    pub profile: &'a Profile,
    /// Number of NICs in use.
    pub nics: u16,
}

impl<'a> Cluster<'a> {
    /// Creates a cluster of `hosts` equal hosts with one NIC each.
    #[must_use]
    pub fn uniform(profile: &'a Profile, hosts: usize) -> Cluster<'a> {
        Cluster { hosts: vec![HostShape { profile, nics: 1 }; hosts], switch_ns: None }
    }
}

/// A cluster that the model cannot hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClusterError {
    /// The cluster has no hosts.
    #[error("a cluster needs at least one host")]
    NoHosts,
    /// A host has no NIC.
    #[error("host {host} has no NIC; give it at least one")]
    NoNics {
        /// Index of the host.
        host: usize,
    },
    /// The cluster has more hosts or NICs than the model can number.
    #[error("{nics} NICs are more than the {limit} that the model holds")]
    TooMany {
        /// NICs requested.
        nics: usize,
        /// The limit.
        limit: usize,
    },
}

/// Most NICs of a cluster.
const MOST_NICS: usize = 1 << 16;

/// The cost of posting, and the times of the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Posted {
    /// Time of the posting core: writing the work request, and the doorbell unless an earlier one of the same
    /// list covers it.
    pub processor: Nanos,
    /// When the message's first packet reaches the target's NIC. Call [`Network::arrive`] at that time.
    pub arrives: Nanos,
    /// UC and UD: when the message has left and so is done. Call [`Network::complete`] at that time if it is
    /// signaled. `None` on RC, where the answer completes it.
    pub sent: Option<Nanos>,
}

/// The times of a message at its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// When all bytes are visible in the target's memory; for a READ, when they have been read from it.
    pub visible: Nanos,
    /// When the completion of the target's RECV is visible, if the message consumes one.
    pub receive: Option<Nanos>,
    /// RC: when the acknowledgement or the READ's data reaches the initiator's NIC. Call
    /// [`Network::complete`] at that time.
    pub answer: Option<Nanos>,
}

/// Activity counters of a NIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Requests sent.
    pub requests_out: u64,
    /// Requests received.
    pub requests_in: u64,
    /// Queue-pair contexts fetched by the sending side.
    pub initiator_misses: u64,
    /// Queue-pair contexts fetched by the receiving side.
    pub responder_misses: u64,
    /// Work requests of READs fetched again when their answers arrived.
    pub request_misses: u64,
    /// Address translations fetched.
    pub translation_misses: u64,
    /// Protection entries fetched.
    pub protection_misses: u64,
    /// DMA reads: work requests, payloads, RECVs and cache misses of the NIC.
    pub dma_reads: u64,
    /// Writes to the host whose first line was in the last-level cache.
    pub line_hits: u64,
    /// Writes to the host whose first line evicted another.
    pub line_misses: u64,
    /// The time for which its parts served messages.
    pub busy: Busy,
}

/// The time for which each part of a NIC served messages, in picoseconds, in the order of [`PARTS`](Busy::PARTS). A part
/// that is busy all the time limits the messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Busy(pub [u64; Busy::PARTS.len()]);

impl Busy {
    /// The names of the parts.
    pub const PARTS: [&'static str; 8] = [
        "processing units",
        "PCIe to the device",
        "PCIe to the host",
        "DMA reads",
        "link out",
        "link in",
        "context fetches",
        "memory",
    ];

    /// Returns the busiest part, and the share of `time` nanoseconds for which it was busy.
    #[must_use]
    pub fn busiest(&self, time: Nanos) -> (&'static str, f64) {
        let parts = Busy::PARTS.into_iter().zip(self.0);
        let (name, busy) = parts.max_by_key(|(_, busy)| *busy).unwrap_or_default();
        (name, busy as f64 / (time.max(1) * PICOS) as f64)
    }
}

impl Counters {
    /// Returns the counts since an earlier time.
    #[must_use]
    pub fn since(self, earlier: Counters) -> Counters {
        Counters {
            requests_out: self.requests_out - earlier.requests_out,
            requests_in: self.requests_in - earlier.requests_in,
            initiator_misses: self.initiator_misses - earlier.initiator_misses,
            responder_misses: self.responder_misses - earlier.responder_misses,
            request_misses: self.request_misses - earlier.request_misses,
            translation_misses: self.translation_misses - earlier.translation_misses,
            protection_misses: self.protection_misses - earlier.protection_misses,
            dma_reads: self.dma_reads - earlier.dma_reads,
            line_hits: self.line_hits - earlier.line_hits,
            line_misses: self.line_misses - earlier.line_misses,
            busy: Busy(std::array::from_fn(|part| self.busy.0[part] - earlier.busy.0[part])),
        }
    }
}

struct Nic {
    costs: u32,
    units: Station,
    to_device: Station,
    to_host: Station,
    dma: Station,
    link_out: Station,
    link_in: Station,
    /// Fetches the misses of the NIC's caches, for both sides.
    fetch: Station,
    memory: Station,
    request_contexts: Cache,
    answer_contexts: Cache,
    /// Work requests of outstanding READs.
    outstanding: Cache,
    serve_contexts: Cache,
    translations: Cache,
    protections: Cache,
    /// Index of the host's last-level cache.
    lines: u32,
    /// The page sizes of regions, as shifts, where they are not the profile's; `None` without translations.
    page_shifts: BTreeMap<u32, Option<u32>>,
    counters: Counters,
}

/// The last-level cache of a host, as its NICs see it.
struct Lines {
    cache: Cache,
    sets: u64,
    slices: u64,
    ways: usize,
}

/// Accumulates the latencies of a message, and the time at which the last of its stages is done.
struct Way {
    now: Picos,
    ready: Picos,
    latency: Picos,
}

impl Way {
    fn at(now: Picos) -> Way {
        Way { now, ready: now, latency: 0 }
    }

    fn take(&mut self, station: &mut Station, time: Picos) {
        self.ready = self.ready.max(station.take(self.now, time));
    }

    fn end(&self) -> Picos {
        self.ready + self.latency
    }
}

fn nanos(picos: Picos) -> Nanos {
    picos.div_ceil(PICOS)
}

/// The state of a cluster's NICs. For one thread; no call blocks or allocates.
///
/// A message takes two or three calls: [`Network::post`] on its host; [`Network::arrive`] on the target's
/// host at the time returned by `post`; and, for a completion or data, [`Network::complete`] on the
/// initiator's host at the time returned by `arrive` (RC) or `post` (UC, UD). Calls must be in the order of
/// their times.
pub struct Network {
    costs: Vec<Costs>,
    nics: Vec<Nic>,
    lines: Vec<Lines>,
    /// Number of each host's first NIC.
    first_nic: Vec<u32>,
    switch: Option<Picos>,
}

impl Network {
    /// Creates the NICs of a cluster, idle and with empty caches.
    ///
    /// # Errors
    /// Returns an error if the model cannot hold the cluster.
    pub fn new(cluster: &Cluster<'_>) -> Result<Network, ClusterError> {
        if cluster.hosts.is_empty() {
            return Err(ClusterError::NoHosts);
        }
        let count = cluster.hosts.iter().map(|host| usize::from(host.nics)).sum();
        if count > MOST_NICS {
            return Err(ClusterError::TooMany { nics: count, limit: MOST_NICS });
        }
        let mut hashes: Vec<u64> = Vec::new();
        let mut network = Network {
            costs: Vec::new(),
            nics: Vec::with_capacity(count),
            lines: Vec::with_capacity(cluster.hosts.len()),
            first_nic: Vec::with_capacity(cluster.hosts.len()),
            switch: cluster.switch_ns.map(|nanos| nanos * PICOS),
        };
        for (number, host) in cluster.hosts.iter().enumerate() {
            if host.nics == 0 {
                return Err(ClusterError::NoNics { host: number });
            }
            let profile = host.profile;
            let size = |parameter| profile.number(parameter) as usize;
            let costs = hashes.iter().position(|hash| *hash == profile.hash()).unwrap_or_else(|| {
                hashes.push(profile.hash());
                network.costs.push(Costs::of(profile));
                hashes.len() - 1
            });
            let (sets, slices) = (size(Parameter::CacheSets), size(Parameter::CacheSlices));
            let ways = size(Parameter::CacheWays);
            let cached = network.costs[costs].io_ways > 0;
            network.lines.push(Lines {
                cache: Cache::with_sets(if cached { sets * slices } else { 1 }, ways),
                sets: sets as u64,
                slices: slices as u64,
                ways,
            });
            network.first_nic.push(network.nics.len() as u32);
            for _ in 0..host.nics {
                network.nics.push(Nic {
                    costs: costs as u32,
                    units: Station::default(),
                    to_device: Station::default(),
                    to_host: Station::default(),
                    dma: Station::default(),
                    link_out: Station::default(),
                    link_in: Station::default(),
                    fetch: Station::default(),
                    memory: Station::default(),
                    request_contexts: Cache::hashed(size(Parameter::InitiatorQueuePairs)),
                    answer_contexts: Cache::hashed(size(Parameter::InitiatorQueuePairs)),
                    outstanding: Cache::hashed(size(Parameter::OutstandingReads)),
                    serve_contexts: Cache::hashed(size(Parameter::ResponderQueuePairs)),
                    translations: Cache::hashed(size(Parameter::Translations)),
                    protections: Cache::hashed(size(Parameter::Protections)),
                    lines: number as u32,
                    page_shifts: BTreeMap::new(),
                    counters: Counters::default(),
                });
            }
        }
        Ok(network)
    }

    /// Sets the pages of a region of a host. Regions that are not mentioned have pages of the profile's size. Allocates.
    pub fn register(&mut self, host: usize, region: u32, pages: Pages) {
        let shift = match pages {
            Pages::Profile => None,
            Pages::Bytes(bytes) => Some(Some(bytes.max(1).ilog2())),
            Pages::Physical => Some(None),
        };
        let first = self.first_nic[host] as usize;
        let end = self.first_nic.get(host + 1).map_or(self.nics.len(), |next| *next as usize);
        for nic in &mut self.nics[first..end] {
            match shift {
                Some(shift) => nic.page_shifts.insert(region, shift),
                None => nic.page_shifts.remove(&region),
            };
        }
    }

    fn nic(&mut self, host: usize, nic: usize) -> (&mut Nic, &Costs, &mut Lines) {
        let nic = &mut self.nics[self.first_nic[host] as usize + nic];
        let costs = &self.costs[nic.costs as usize];
        let lines = &mut self.lines[nic.lines as usize];
        (nic, costs, lines)
    }

    /// Returns the counters of a NIC since its creation.
    #[must_use]
    pub fn counters(&self, host: usize, nic: usize) -> Counters {
        let nic = &self.nics[self.first_nic[host] as usize + nic];
        let parts = [
            &nic.units,
            &nic.to_device,
            &nic.to_host,
            &nic.dma,
            &nic.link_out,
            &nic.link_in,
            &nic.fetch,
            &nic.memory,
        ];
        Counters { busy: Busy(parts.map(Station::busy)), ..nic.counters }
    }

    /// Returns the largest inline payload of a work request on a host, in bytes.
    #[must_use]
    pub fn inline_limit(&self, host: usize) -> u32 {
        let nic = &self.nics[self.first_nic[host] as usize];
        self.costs[nic.costs as usize].inline_limit
    }

    /// Posts a work request from a core of a host at time `now`.
    pub fn post(&mut self, now: Nanos, host: usize, nic: usize, request: &Request) -> Posted {
        let switch = self.switch;
        let (nic, costs, _) = self.nic(host, nic);
        let bytes = u64::from(request.bytes);
        let rings = request.linked != Linked::Next;
        let processor = costs.post + if rings { costs.ring } else { 0 };
        let mut way = Way::at(now * PICOS + processor);
        nic.counters.requests_out += 1;
        way.latency += costs.mmio + costs.pipeline;

        let inline = request.inline && !request.opcode.answers_with_data();
        let work_request = costs.work_request(bytes, inline);
        let pushed = request.linked == Linked::Alone && work_request <= costs.push_limit;
        if pushed {
            way.take(&mut nic.to_device, costs.on_pcie(work_request));
        } else {
            // One fetch reads several requests of a list: those after the first share it.
            let (doorbell, slot, read) = match rings {
                true => (costs.bare, costs.dma_slot, costs.bare),
                false => (0, costs.dma_slot_shared, costs.bare_shared),
            };
            nic.counters.dma_reads += u64::from(rings);
            way.take(&mut nic.dma, slot);
            way.take(&mut nic.to_device, doorbell + costs.on_pcie(work_request));
            way.take(&mut nic.to_host, read);
            way.latency += costs.dma_read;
        }
        nic.request_context(costs, &mut way, request.initiator);

        let carries = !request.opcode.answers_with_data();
        if !carries {
            nic.outstanding.touch(outstanding(request));
        }
        if carries && !inline && bytes > 0 {
            nic.translate(costs, &mut way, request.local, true);
            nic.counters.dma_reads += 1;
            way.take(&mut nic.dma, costs.dma_slot);
            way.take(&mut nic.to_host, costs.bare);
            way.take(&mut nic.to_device, costs.on_pcie(bytes));
            way.latency += costs.dma_read;
        }
        let on_wire = if carries { bytes } else { 0 };
        let units = costs.request_out + if carries { costs.payload(bytes) } else { 0 };
        way.take(&mut nic.units, units);
        let (link, first) = costs.on_link_and_first(on_wire);
        way.take(&mut nic.link_out, link);

        // The target accounts for the whole message again, so only the first packet counts on the way there.
        let left = way.end();
        let arrives = left.saturating_sub(link - first) + switch.unwrap_or(costs.switch);
        let reliable = request.transport == Transport::ReliableConnection;
        Posted {
            processor: nanos(processor),
            arrives: nanos(arrives.max(way.now)),
            sent: (!reliable).then(|| nanos(left)),
        }
    }

    /// Processes a request whose first packet reaches its target's NIC at time `now`.
    pub fn arrive(&mut self, now: Nanos, host: usize, nic: usize, request: &Request) -> Arrived {
        let switch = self.switch;
        let (nic, costs, lines) = self.nic(host, nic);
        let bytes = u64::from(request.bytes);
        let reliable = request.transport == Transport::ReliableConnection;
        let mut way = Way::at(now * PICOS);
        nic.counters.requests_in += 1;
        way.latency += costs.pipeline;
        nic.serve_context(costs, &mut way, request.target);
        nic.translate(costs, &mut way, request.remote, false);

        if request.opcode.answers_with_data() {
            nic.receive_from_link(costs, &mut way, 0);
            way.take(&mut nic.units, costs.request_in + costs.read_serve + costs.payload(bytes));
            nic.counters.dma_reads += 1;
            way.take(&mut nic.dma, costs.dma_slot);
            way.take(&mut nic.to_host, costs.bare);
            way.take(&mut nic.to_device, costs.on_pcie(bytes));
            let taken = way.end() + costs.dma_read;
            let (link, first) = costs.on_link_and_first(bytes);
            way.take(&mut nic.link_out, link);
            way.latency += costs.dma_read + costs.pipeline;
            let answer = way.end().saturating_sub(link - first) + switch.unwrap_or(costs.switch);
            return Arrived {
                visible: nanos(taken),
                receive: None,
                answer: Some(nanos(answer.max(way.now))),
            };
        }

        nic.receive_from_link(costs, &mut way, bytes);
        let receives = request.opcode.takes_receive();
        let mut units = costs.request_in + costs.payload(bytes);
        if reliable {
            units += costs.ack_out;
        }
        if receives {
            units += costs.receive + costs.completion;
        }
        way.take(&mut nic.units, units);
        if receives {
            // RECVs are prefetched in groups, so they add load but no latency.
            nic.counters.dma_reads += 1;
            way.take(&mut nic.dma, costs.dma_slot_shared);
            way.take(&mut nic.to_device, costs.receive_on_pcie);
            way.take(&mut nic.to_host, costs.line);
        }
        let before_memory = way.latency;
        nic.write(costs, lines, &mut way, request.remote, bytes);
        // The acknowledgement waits until the payload can be written, but not until it is visible.
        let acknowledged = way.ready + before_memory;
        way.latency += costs.dma_write;
        let visible = way.end();
        let answer = reliable.then(|| {
            let ack = costs.on_link(0);
            let free = nic.link_out.take(way.now, ack);
            nanos(free.max(acknowledged) + switch.unwrap_or(costs.switch))
        });
        Arrived { visible: nanos(visible), receive: receives.then(|| nanos(visible + costs.line)), answer }
    }

    /// Completes a request at its initiator: its answer arrives at time `now` (RC), or it has been sent (UC,
    /// UD). Returns when the completion, and with it a READ's data, is visible in the initiator's memory.
    pub fn complete(&mut self, now: Nanos, host: usize, nic: usize, request: &Request) -> Nanos {
        let (nic, costs, lines) = self.nic(host, nic);
        let mut way = Way::at(now * PICOS);
        way.latency += costs.pipeline;
        let mut units = 0;
        if request.transport == Transport::ReliableConnection {
            if request.opcode.answers_with_data() {
                // Placing the data needs the queue pair's context and the work request again; an
                // acknowledgement only counts.
                nic.answer_context(costs, &mut way, request.initiator);
                nic.outstanding_request(costs, &mut way, request);
                let bytes = if request.opcode == Opcode::Atomic { 8 } else { u64::from(request.bytes) };
                units += costs.read_answer + costs.payload(bytes);
                nic.receive_from_link(costs, &mut way, bytes);
                nic.translate(costs, &mut way, request.local, true);
                nic.write(costs, lines, &mut way, request.local, bytes);
            } else {
                nic.receive_from_link(costs, &mut way, 0);
                units += costs.ack_in;
            }
        }
        if request.signaled {
            units += costs.completion;
            way.take(&mut nic.to_host, costs.line);
        }
        way.take(&mut nic.units, units);
        way.latency += costs.dma_write;
        nanos(way.end())
    }
}

/// Returns the cache key of an outstanding READ, which owns its buffer until it ends. Atomics have none and
/// never miss.
fn outstanding(request: &Request) -> u64 {
    (u64::from(request.local.region) << 40) ^ request.local.offset
}

impl Nic {
    /// Receives a message whose first packet is present now.
    fn receive_from_link(&mut self, costs: &Costs, way: &mut Way, bytes: u64) {
        let (all, first) = costs.on_link_and_first(bytes);
        way.ready = way.ready.max(self.link_in.take(way.now.saturating_sub(first), all));
    }

    /// Loads a queue pair's context for sending.
    fn request_context(&mut self, costs: &Costs, way: &mut Way, queue_pair: u32) {
        if !self.request_contexts.touch(u64::from(queue_pair)) {
            self.fetch_for_initiator(costs, way, costs.initiator_miss);
        }
    }

    /// Loads a queue pair's context for placing an answer.
    fn answer_context(&mut self, costs: &Costs, way: &mut Way, queue_pair: u32) {
        if !self.answer_contexts.touch(u64::from(queue_pair)) {
            self.fetch_for_initiator(costs, way, costs.answer_miss);
        }
    }

    fn fetch_for_initiator(&mut self, costs: &Costs, way: &mut Way, time: Picos) {
        self.counters.initiator_misses += 1;
        self.counters.dma_reads += 1;
        way.take(&mut self.fetch, time);
        way.latency += costs.miss;
    }

    /// Loads the work request of an answer, which holds the destination of its data.
    fn outstanding_request(&mut self, costs: &Costs, way: &mut Way, request: &Request) {
        if !self.outstanding.touch(outstanding(request)) {
            self.counters.request_misses += 1;
            self.counters.dma_reads += 1;
            way.take(&mut self.fetch, costs.outstanding_miss);
            way.latency += costs.miss;
        }
    }

    /// Loads a queue pair's context for serving a request.
    fn serve_context(&mut self, costs: &Costs, way: &mut Way, queue_pair: u32) {
        if !self.serve_contexts.touch(u64::from(queue_pair)) {
            self.counters.responder_misses += 1;
            self.counters.dma_reads += 1;
            way.take(&mut self.fetch, costs.responder_miss);
            way.latency += costs.miss;
        }
    }

    /// Loads the address translation and the protection entry of a memory access.
    fn translate(&mut self, costs: &Costs, way: &mut Way, touch: Touch, initiator: bool) {
        let region = u64::from(touch.region);
        let mut translated = true;
        if let Some(shift) = self.page_shift(costs, touch.region) {
            let page = (region << 40) ^ (touch.offset >> shift);
            translated = self.translations.touch(page ^ 0xaaaa_aaaa_0000_0000);
        }
        let misses = [!self.protections.touch(region), !translated];
        self.counters.protection_misses += u64::from(misses[0]);
        self.counters.translation_misses += u64::from(misses[1]);
        for _ in misses.into_iter().filter(|missed| *missed) {
            self.counters.dma_reads += 1;
            way.take(&mut self.fetch, if initiator { costs.initiator_miss } else { costs.responder_miss });
            way.latency += costs.miss;
        }
    }

    /// Returns the size of a region's pages, as a shift; `None` without translations.
    #[inline]
    fn page_shift(&self, costs: &Costs, region: u32) -> Option<u32> {
        if self.page_shifts.is_empty() {
            return Some(costs.page_shift);
        }
        self.page_shifts.get(&region).copied().unwrap_or(Some(costs.page_shift))
    }

    /// Writes to the host's memory or last-level cache.
    fn write(&mut self, costs: &Costs, lines: &mut Lines, way: &mut Way, touch: Touch, bytes: u64) {
        if bytes == 0 {
            return;
        }
        way.take(&mut self.to_host, costs.on_pcie(bytes));
        if costs.io_ways == 0 {
            way.take(&mut self.memory, costs.in_memory(bytes));
            way.latency += costs.memory;
            return;
        }
        // The line that a processor polls soon belongs to its core and may stay in any way. The lines behind
        // it compete for the ways that NICs may allocate in. A few lines represent a large payload.
        const SAMPLED: u64 = 4;
        let first = touch.offset / LINE;
        let count = (touch.offset.saturating_add(bytes).div_ceil(LINE) - first).min(SAMPLED);
        let behind = lines.ways.saturating_sub(costs.io_ways);
        let mut missed = false;
        for line in 0..count {
            let found = lines.touch(touch.region, first + line, if line == 0 { 0 } else { behind });
            // A way never used before stands for a buffer that its owner has just cleared.
            missed |= line == 0 && found == Found::Evicted;
        }
        if missed {
            self.counters.line_misses += 1;
            way.take(&mut self.memory, costs.allocate);
            way.latency += costs.memory;
        } else {
            self.counters.line_hits += 1;
        }
    }
}

impl Lines {
    fn touch(&mut self, region: u32, line: u64, enters_at: usize) -> Found {
        let hash = mix((u64::from(region) << 40) ^ line);
        let slice = ((hash >> 32) * self.slices) >> 32;
        let set = if self.sets.is_power_of_two() { line & (self.sets - 1) } else { line % self.sets };
        self.cache.touch_in((slice * self.sets + set) as usize, (hash as u32) | 1, enters_at)
    }
}
