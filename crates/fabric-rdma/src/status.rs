//! The meaning of the NIC's status codes. Pure.

use crate::sys;
use dunlin_fabric::{CompletionStatus, Opcode};

/// Returns the status of a completion with this code, for a request of this kind.
pub(crate) fn status(code: u32, opcode: Opcode) -> CompletionStatus {
    let receives = matches!(opcode, Opcode::Receive | Opcode::ReceiveWriteImmediate);
    match code {
        sys::STATUS_SUCCESS => CompletionStatus::Success,
        sys::STATUS_LOCAL_LENGTH => CompletionStatus::LocalLength,
        // Soft-RoCE's code for a message that does not fit into its RECV; other devices report "local
        // length".
        sys::STATUS_LOCAL_OPERATION if receives => CompletionStatus::LocalLength,
        // Soft-RoCE's code if there is no route to the peer: its interface, and with it the route, is gone.
        sys::STATUS_LOCAL_OPERATION => CompletionStatus::TransportRetry,
        sys::STATUS_LOCAL_PROTECTION | sys::STATUS_LOCAL_ACCESS => CompletionStatus::LocalProtection,
        sys::STATUS_FLUSHED => CompletionStatus::Flushed,
        // A responder reports "invalid request" for a message that is longer than its RECV (InfiniBand
        // specification, 9.7.5.2.8), and for operations that it cannot do, which SEND never is.
        sys::STATUS_REMOTE_INVALID_REQUEST => match opcode {
            Opcode::Send => CompletionStatus::RemoteOperation,
            // Some devices report it at the receiver, too.
            _ if receives => CompletionStatus::LocalLength,
            _ => CompletionStatus::RemoteInvalidRequest,
        },
        // A RECV that ends because of an error in the peer's request (Soft-RoCE: one that a WRITE_WITH_IMM
        // with a bad key had consumed) was not filled.
        _ if receives => CompletionStatus::Flushed,
        sys::STATUS_REMOTE_ACCESS => CompletionStatus::RemoteAccess,
        sys::STATUS_RETRY_EXCEEDED => CompletionStatus::TransportRetry,
        sys::STATUS_RNR_RETRY_EXCEEDED => CompletionStatus::ReceiverNotReady,
        // The other codes are rare, and may have occurred after the target saw the request.
        _ => CompletionStatus::RemoteOperation,
    }
}

/// Returns the opcode of a RECV's completion.
pub(crate) fn receive_opcode(completion: &sys::WorkCompletion) -> Opcode {
    let with_write =
        completion.status == sys::STATUS_SUCCESS && completion.opcode == sys::COMPLETION_RECEIVE_WRITE;
    if with_write { Opcode::ReceiveWriteImmediate } else { Opcode::Receive }
}

/// Returns the immediate data, if the completion has any.
pub(crate) fn immediate(completion: &sys::WorkCompletion) -> Option<u32> {
    let has = completion.status == sys::STATUS_SUCCESS && completion.flags & sys::COMPLETION_IMMEDIATE != 0;
    has.then(|| u32::from_be(completion.immediate))
}

/// Returns the code of the shortest RNR timer that is at least `nanoseconds` long (InfiniBand specification,
/// table 45).
pub(crate) fn rnr_timer(nanoseconds: u64) -> u8 {
    /// In units of 10 us, by code from 1 on; code 0 is the longest timer.
    const TIMES: [u64; 31] = [
        1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072,
        4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];
    let wanted = nanoseconds.div_ceil(10_000);
    TIMES.iter().position(|time| *time >= wanted).map_or(0, |at| at as u8 + 1)
}

/// Returns the code of the shortest acknowledgement timer that is at least `nanoseconds` long; timers are
/// 4.096 us times a power of two. Never 0, which means no time-out.
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
