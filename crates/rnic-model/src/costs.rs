//! A profile, turned into whole picoseconds: what the model adds up.

use crate::profile::{Parameter, Profile};
use crate::station::{PICOS, Picos};

/// Bytes of a work request without payload, of a completion, of a line.
pub(crate) const LINE: u64 = 64;
/// Bytes in front of an inline payload in a work request.
const WORK_REQUEST_HEAD: u64 = 36;
/// Bytes of an acknowledgement or READ request beside the packet's headers.
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
    /// A RECV's share of the fetch that brings in several.
    pub(crate) receive_on_pcie: Picos,
    /// A read request's, of one that fetches several.
    pub(crate) bare_shared: Picos,
    /// A packet without payload (a read request) on PCIe.
    pub(crate) bare: Picos,
    /// A line (a completion, a work request) on PCIe.
    pub(crate) line: Picos,
    pub(crate) mmio: Picos,
    pub(crate) dma_read: Picos,
    /// What one DMA read takes of those that can be in flight.
    pub(crate) dma_slot: Picos,
    /// The same for one that brings in several work requests or RECVs, as the share of each.
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
    // Half up, not to even: one rule on every machine.
    (nanoseconds * PICOS as f64 + 0.5) as Picos
}

/// Pieces that a payload is cut into; nothing is one piece. Most payloads are one: the division is spared them.
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

    /// What a message takes of a link: payload, and headers of each packet.
    pub(crate) fn on_link(&self, bytes: u64) -> Picos {
        let packets = pieces(bytes, self.link_mtu);
        ((bytes + REQUEST_HEADER + packets * self.link_header) as f64 * self.link_byte) as Picos
    }

    /// What a message's first packet takes of a link.
    pub(crate) fn first_packet(&self, bytes: u64) -> Picos {
        self.on_link(bytes.min(self.link_mtu))
    }

    /// What a message takes of a link, and its first packet of that.
    pub(crate) fn on_link_and_first(&self, bytes: u64) -> (Picos, Picos) {
        let all = self.on_link(bytes);
        (all, if bytes <= self.link_mtu { all } else { self.first_packet(bytes) })
    }

    /// What a transfer takes of one direction of PCIe.
    pub(crate) fn on_pcie(&self, bytes: u64) -> Picos {
        let packets = pieces(bytes, self.pcie_payload);
        ((bytes + packets * self.pcie_header) as f64 * self.pcie_byte) as Picos
    }

    /// What writing to memory takes of its bandwidth.
    pub(crate) fn in_memory(&self, bytes: u64) -> Picos {
        (bytes as f64 * self.memory_byte) as Picos
    }

    /// What a payload takes of the processing units: its bytes, and its pieces after the first.
    pub(crate) fn payload(&self, bytes: u64) -> Picos {
        let behind_first = pieces(bytes, self.chunk_bytes) - 1;
        behind_first * self.chunk + (bytes as f64 * self.payload_byte) as Picos
    }

    /// Size of a work request in the send queue, in whole lines.
    pub(crate) fn work_request(&self, bytes: u64, inline: bool) -> u64 {
        if inline { (WORK_REQUEST_HEAD + bytes).div_ceil(LINE) * LINE } else { LINE }
    }
}
