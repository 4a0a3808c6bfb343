//! What the NIC's status codes mean. Pure.

use crate::sys;
use dunlin_fabric::{CompletionStatus, Opcode};

/// The meaning of a failed or successful completion of a work request of that kind.
pub(crate) fn status(code: u32, opcode: Opcode) -> CompletionStatus {
    let receives = matches!(opcode, Opcode::Receive | Opcode::ReceiveWriteImmediate);
    match code {
        sys::STATUS_SUCCESS => CompletionStatus::Success,
        sys::STATUS_LOCAL_LENGTH => CompletionStatus::LocalLength,
        // What Soft-RoCE says of a RECV that the message does not fit into, where others say "local length".
        sys::STATUS_LOCAL_OPERATION if receives => CompletionStatus::LocalLength,
        // What Soft-RoCE says when no way leads to the peer: its interface, and with it the route, is gone.
        sys::STATUS_LOCAL_OPERATION => CompletionStatus::TransportRetry,
        sys::STATUS_LOCAL_PROTECTION | sys::STATUS_LOCAL_ACCESS => CompletionStatus::LocalProtection,
        sys::STATUS_FLUSHED => CompletionStatus::Flushed,
        // "Invalid request" is what a responder answers to a message that is longer than its RECV (InfiniBand
        // specification, 9.7.5.2.8), and to operations that it cannot do. A SEND that it cannot do there is none.
        sys::STATUS_REMOTE_INVALID_REQUEST => match opcode {
            Opcode::Send => CompletionStatus::RemoteOperation,
            // Some say so at the receiver, too.
            _ if receives => CompletionStatus::LocalLength,
            _ => CompletionStatus::RemoteInvalidRequest,
        },
        // A RECV that ends for what was wrong with the peer's request (Soft-RoCE: one that a WRITE_WITH_IMM with a bad key
        // had taken) was not filled.
        _ if receives => CompletionStatus::Flushed,
        sys::STATUS_REMOTE_ACCESS => CompletionStatus::RemoteAccess,
        sys::STATUS_RETRY_EXCEEDED => CompletionStatus::TransportRetry,
        sys::STATUS_RNR_RETRY_EXCEEDED => CompletionStatus::ReceiverNotReady,
        // What is left is rare, and may have happened after the target saw the request.
        _ => CompletionStatus::RemoteOperation,
    }
}

/// The kind of a RECV's completion.
pub(crate) fn receive_opcode(completion: &sys::WorkCompletion) -> Opcode {
    let with_write =
        completion.status == sys::STATUS_SUCCESS && completion.opcode == sys::COMPLETION_RECEIVE_WRITE;
    if with_write { Opcode::ReceiveWriteImmediate } else { Opcode::Receive }
}

/// Immediate data, if it came with some.
pub(crate) fn immediate(completion: &sys::WorkCompletion) -> Option<u32> {
    let has = completion.status == sys::STATUS_SUCCESS && completion.flags & sys::COMPLETION_IMMEDIATE != 0;
    has.then(|| u32::from_be(completion.immediate))
}

/// The code of the shortest RNR timer that is not shorter than so many nanoseconds (InfiniBand specification, table 45).
pub(crate) fn rnr_timer(nanoseconds: u64) -> u8 {
    /// In units of 10 us, by code; code 0 is the longest.
    const TIMES: [u64; 31] = [
        1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072,
        4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];
    let wanted = nanoseconds.div_ceil(10_000);
    TIMES.iter().position(|time| *time >= wanted).map_or(0, |at| at as u8 + 1)
}

/// The code of the shortest acknowledgement timer that is not shorter than so many nanoseconds: a power of two of
/// 4.096 us. Never 0, which would be for ever.
pub(crate) fn acknowledgement_timer(nanoseconds: u64) -> u8 {
    (1..31).find(|code| 4096u64 << code >= nanoseconds).unwrap_or(31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acknowledgement_timers_are_not_shorter_than_asked_for() {
        for (nanoseconds, code) in
            [(0, 1), (8192, 1), (8193, 2), (67_108_864, 14), (250_000_000, 16), (u64::MAX, 31)]
        {
            assert_eq!(acknowledgement_timer(nanoseconds), code, "{nanoseconds}");
        }
    }

    #[test]
    fn rnr_timers_are_not_shorter_than_asked_for() {
        for (nanoseconds, code) in [
            (0, 1),
            (10_000, 1),
            (10_001, 2),
            (1_000_000, 14),
            (10_240_000, 20),
            (491_520_000, 31),
            (500_000_000, 0),
        ] {
            assert_eq!(rnr_timer(nanoseconds), code, "{nanoseconds}");
        }
    }

    #[test]
    fn a_message_longer_than_its_recv_is_told_alike_on_both_sides() {
        let code = sys::STATUS_REMOTE_INVALID_REQUEST;
        assert_eq!(status(code, Opcode::Send), CompletionStatus::RemoteOperation);
        assert_eq!(status(code, Opcode::Receive), CompletionStatus::LocalLength);
        assert_eq!(status(sys::STATUS_LOCAL_OPERATION, Opcode::Receive), CompletionStatus::LocalLength);
        assert_eq!(status(code, Opcode::FetchAdd), CompletionStatus::RemoteInvalidRequest);
        assert_eq!(status(sys::STATUS_REMOTE_ACCESS, Opcode::Receive), CompletionStatus::Flushed);
        assert_eq!(status(sys::STATUS_REMOTE_ACCESS, Opcode::Read), CompletionStatus::RemoteAccess);
        assert_eq!(status(sys::STATUS_LOCAL_OPERATION, Opcode::Write), CompletionStatus::TransportRetry);
        assert_eq!(status(0, Opcode::Send), CompletionStatus::Success);
        assert_eq!(status(99, Opcode::Write), CompletionStatus::RemoteOperation);
    }
}
