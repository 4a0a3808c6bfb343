//! Work-request ids: kind, lane and slot. An id never holds a pointer, so a stray completion is harmless.

use dunlin_fabric::WorkId;

/// The purpose of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// An outgoing message; its completion matters only if it failed.
    Outgoing { lane: u16 },
    /// A RECV of a lane, or of the shared receive queue (lane [`SHARED`]).
    Receive { lane: u16 },
    /// A READ of the response ring (`fetch`).
    Fetch { lane: u16 },
    /// A READ of a large payload.
    Rendezvous { lane: u16, slot: u32 },
    /// An operation on the server's memory, for the caller with this call id.
    Memory { lane: u16, slot: u32 },
}

/// The lane number of RECVs that serve all lanes.
pub(crate) const SHARED: u16 = u16::MAX;

const OUTGOING: u64 = 1;
const RECEIVE: u64 = 2;
const FETCH: u64 = 3;
const RENDEZVOUS: u64 = 4;
const MEMORY: u64 = 5;

const fn id(kind: u64, lane: u16, slot: u32) -> WorkId {
    WorkId(kind << 56 | (lane as u64) << 32 | slot as u64)
}

pub(crate) const fn outgoing(lane: u16) -> WorkId {
    id(OUTGOING, lane, 0)
}

pub(crate) const fn receive(lane: u16) -> WorkId {
    id(RECEIVE, lane, 0)
}

pub(crate) const fn fetch(lane: u16) -> WorkId {
    id(FETCH, lane, 0)
}

pub(crate) const fn rendezvous(lane: u16, slot: u32) -> WorkId {
    id(RENDEZVOUS, lane, slot)
}

pub(crate) const fn memory(lane: u16, slot: u32) -> WorkId {
    id(MEMORY, lane, slot)
}

/// Decodes an id; `None` if this module did not make it.
pub(crate) const fn parse(id: WorkId) -> Option<Route> {
    let (lane, slot) = ((id.0 >> 32) as u16, id.0 as u32);
    Some(match id.0 >> 56 {
        OUTGOING => Route::Outgoing { lane },
        RECEIVE => Route::Receive { lane },
        FETCH => Route::Fetch { lane },
        RENDEZVOUS => Route::Rendezvous { lane, slot },
        MEMORY => Route::Memory { lane, slot },
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_in_comes_out() {
        assert_eq!(parse(outgoing(7)), Some(Route::Outgoing { lane: 7 }));
        assert_eq!(parse(receive(SHARED)), Some(Route::Receive { lane: SHARED }));
        assert_eq!(parse(fetch(0)), Some(Route::Fetch { lane: 0 }));
        assert_eq!(
            parse(rendezvous(65_000, u32::MAX)),
            Some(Route::Rendezvous { lane: 65_000, slot: u32::MAX })
        );
        assert_eq!(parse(memory(9, 3)), Some(Route::Memory { lane: 9, slot: 3 }));
        assert_eq!(parse(WorkId(0)), None);
    }
}
