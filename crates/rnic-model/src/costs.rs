//! The costs of a profile in whole picoseconds, as the model adds them.

use crate::profile::{Parameter, Profile};
use crate::station::{PICOS, Picos};

/// Bytes of a work request without payload, of a completion, and of a cache line.
pub(crate) const LINE: u64 = 64;
/// Bytes before an inline payload in a work request.
const WORK_REQUEST_HEAD: u64 = 36;
/// Bytes of an acknowledgement or READ request in addition to the packet's headers.
const REQUEST_HEADER: u64 = 16;

#[derive(Clone, Debug)]
pub(crate) struct Costs {
    pub(crate) request_out: Picos,
    pub(crate) request_in: Picos,
    pub(crate) read_serve: Picos,
    pub(crate) read_answer: Picos,
    pub(crate) ack_out: Picos,
    pub(crate) ack_in: Picos,
    pub(crate) completion: Picos,
    pub(crate) receive: Picos,
    chunk_bytes: u64,
    chunk: Picos,
    payload_byte: f64,
    pub(crate) pipeline: Picos,
    pub(crate) inline_limit: u32,
    pub(crate) push_limit: u64,
    pub(crate) miss: Picos,
    pub(crate) initiator_miss: Picos,
    pub(crate) answer_miss: Picos,
    pub(crate) outstanding_miss: Picos,
    pub(crate) responder_miss: Picos,
    pub(crate) switch: Picos,
    link_byte: f64,
    link_mtu: u64,
    link_header: u64,
    pcie_byte: f64,
    pcie_payload: u64,
    pcie_header: u64,
    /// A RECV's share of a fetch that reads several.
    pub(crate) receive_on_pcie: Picos,
    /// A work request's share of the read request that fetches several.
    pub(crate) bare_shared: Picos,
    /// A packet without payload (a read request) on PCIe.
    pub(crate) bare: Picos,
    /// A line (a completion, a work request) on PCIe.
    pub(crate) line: Picos,
    pub(crate) mmio: Picos,
    pub(crate) dma_read: Picos,
    /// Time of a DMA read on the station of reads: its latency over the number of reads in flight.
    pub(crate) dma_slot: Picos,
    /// The same for a read that fetches several work requests or RECVs, per item.
    pub(crate) dma_slot_shared: Picos,
    pub(crate) dma_write: Picos,
    pub(crate) page_shift: u32,
    pub(crate) io_ways: usize,
    pub(crate) allocate: Picos,
    pub(crate) memory: Picos,
    memory_byte: f64,
    pub(crate) post: Picos,
    pub(crate) ring: Picos,
}

fn picos(nanoseconds: f64) -> Picos {
    // Rounds half up, not to even: one rule on every machine.
    (nanoseconds * PICOS as f64 + 0.5) as Picos
}

/// Returns the number of pieces of a payload, at least 1. Most payloads are one piece and avoid the division.
fn pieces(bytes: u64, of: u64) -> u64 {
    if bytes <= of { 1 } else { bytes.div_ceil(of) }
}

impl Costs {
    pub(crate) fn of(profile: &Profile) -> Costs {
        let number = |parameter| profile.number(parameter);
        let time = |parameter| picos(profile.number(parameter));
        let miss = number(Parameter::MissLatency);
        let dma_read = number(Parameter::DmaRead);
        let pcie_byte = PICOS as f64 / number(Parameter::PcieRate);
        let header = number(Parameter::PcieHeader);
        let prefetch = number(Parameter::Prefetch);
        let line = (LINE as f64 + header) * pcie_byte;
        Costs {
            bare: (header * pcie_byte) as Picos,
            bare_shared: (header * pcie_byte / prefetch) as Picos,
            line: line as Picos,
            receive_on_pcie: (line / prefetch) as Picos,
            request_out: time(Parameter::RequestOut),
            request_in: time(Parameter::RequestIn),
            read_serve: time(Parameter::ReadServe),
            read_answer: time(Parameter::ReadAnswer),
            ack_out: time(Parameter::AckOut),
            ack_in: time(Parameter::AckIn),
            completion: time(Parameter::CompletionOut),
            receive: time(Parameter::ReceiveIn),
            chunk_bytes: number(Parameter::ChunkBytes) as u64,
            chunk: time(Parameter::Chunk),
            payload_byte: number(Parameter::PayloadByte) * PICOS as f64,
            pipeline: time(Parameter::Pipeline),
            inline_limit: number(Parameter::InlineLimit) as u32,
            push_limit: number(Parameter::PushLimit) as u64,
            miss: picos(miss),
            initiator_miss: picos(miss / number(Parameter::InitiatorMissParallel)),
            answer_miss: picos(miss / number(Parameter::AnswerMissParallel)),
            outstanding_miss: picos(miss / number(Parameter::OutstandingMissParallel)),
            responder_miss: picos(miss / number(Parameter::ResponderMissParallel)),
            switch: time(Parameter::SwitchLatency),
            link_byte: 8.0 / (number(Parameter::LinkRate) * number(Parameter::Ports)) * PICOS as f64,
            link_mtu: number(Parameter::LinkMtu) as u64,
            link_header: number(Parameter::LinkHeader) as u64,
            pcie_byte,
            pcie_payload: number(Parameter::PciePayload) as u64,
            pcie_header: number(Parameter::PcieHeader) as u64,
            mmio: time(Parameter::Mmio),
            dma_read: picos(dma_read),
            dma_slot: picos(dma_read / number(Parameter::DmaReadParallel)),
            dma_slot_shared: picos(dma_read / number(Parameter::DmaReadParallel) / prefetch),
            dma_write: time(Parameter::DmaWrite),
            page_shift: (number(Parameter::PageBytes) as u64).max(1).ilog2(),
            io_ways: number(Parameter::CacheIoWays) as usize,
            allocate: time(Parameter::CacheAllocate),
            memory: time(Parameter::MemoryLatency),
            memory_byte: PICOS as f64 / number(Parameter::MemoryRate),
            post: time(Parameter::PricePost),
            ring: time(Parameter::PriceRing),
        }
    }

    /// Returns the time of a message on a link: payload, and the headers of each packet.
    pub(crate) fn on_link(&self, bytes: u64) -> Picos {
        let packets = pieces(bytes, self.link_mtu);
        ((bytes + REQUEST_HEADER + packets * self.link_header) as f64 * self.link_byte) as Picos
    }

    /// Returns the time of a message's first packet on a link.
    pub(crate) fn first_packet(&self, bytes: u64) -> Picos {
        self.on_link(bytes.min(self.link_mtu))
    }

    /// Returns the time of a message on a link, and that of its first packet.
    pub(crate) fn on_link_and_first(&self, bytes: u64) -> (Picos, Picos) {
        let all = self.on_link(bytes);
        (all, if bytes <= self.link_mtu { all } else { self.first_packet(bytes) })
    }

    /// Returns the time of a transfer in one direction of PCIe.
    pub(crate) fn on_pcie(&self, bytes: u64) -> Picos {
        let packets = pieces(bytes, self.pcie_payload);
        ((bytes + packets * self.pcie_header) as f64 * self.pcie_byte) as Picos
    }

    /// Returns the time of a write on the memory bus.
    pub(crate) fn in_memory(&self, bytes: u64) -> Picos {
        (bytes as f64 * self.memory_byte) as Picos
    }

    /// Returns the processing-unit time of a payload: its bytes, and its pieces after the first.
    pub(crate) fn payload(&self, bytes: u64) -> Picos {
        let behind_first = pieces(bytes, self.chunk_bytes) - 1;
        behind_first * self.chunk + (bytes as f64 * self.payload_byte) as Picos
    }

    /// Returns the size of a work request in the send queue, in whole lines.
    pub(crate) fn work_request(&self, bytes: u64, inline: bool) -> u64 {
        if inline { (WORK_REQUEST_HEAD + bytes).div_ceil(LINE) * LINE } else { LINE }
    }
}
