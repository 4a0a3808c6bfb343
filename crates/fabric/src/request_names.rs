//! The 64-bit ids that back-ends give to work requests at the device: the request's kind, its owner and its
//! number, never a pointer. For back-ends whose devices return such an id.

/// The kinds of work requests that completions distinguish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    /// A request of a send queue.
    Send,
    /// A RECV of a queue pair's own receive queue.
    Receive,
    /// A RECV of a shared receive queue.
    Shared,
    /// A back-end's internal request that reports the number of posted RECVs to the other end.
    Credit,
}

/// Mask of the bits of an owner's number that fit: 29.
pub const REQUEST_OWNER: u32 = 0x1fff_ffff;

/// Encodes a work request's id: its kind in the upper three bits, its owner (a queue pair's generation and
/// slot, or the number of a shared receive queue, cut to [`REQUEST_OWNER`]), and its number in its queue.
/// Never zero, which some devices treat as no id.
pub fn request_name(kind: RequestKind, owner: u32, number: u32) -> u64 {
    let kind = match kind {
        RequestKind::Send => 1,
        RequestKind::Receive => 2,
        RequestKind::Shared => 3,
        RequestKind::Credit => 4,
    };
    kind << 61 | u64::from(owner & REQUEST_OWNER) << 32 | u64::from(number)
}

/// Decodes an id into kind, owner and number; returns `None` for an invalid id.
pub fn parse_request_name(name: u64) -> Option<(RequestKind, u32, u32)> {
    let kind = match name >> 61 {
        1 => RequestKind::Send,
        2 => RequestKind::Receive,
        3 => RequestKind::Shared,
        4 => RequestKind::Credit,
        _ => return None,
    };
    Some((kind, (name >> 32) as u32 & REQUEST_OWNER, name as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_were_given() {
        for kind in [RequestKind::Send, RequestKind::Receive, RequestKind::Shared, RequestKind::Credit] {
            for (owner, number) in [(0, 0), (REQUEST_OWNER, u32::MAX), (0x1_0002, 7)] {
                let name = request_name(kind, owner, number);
                assert_ne!(name, 0);
                assert_eq!(parse_request_name(name), Some((kind, owner, number)));
            }
        }
        for strange in [0, u64::MAX, 5 << 61] {
            assert_eq!(parse_request_name(strange), None);
        }
    }
}
