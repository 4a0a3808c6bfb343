//! What a provider is like, as data: what is asked of libfabric, in which order, and what follows from its answer. Pure.
//!
//! Where providers differ (from their man pages and from `fi_info`):
//!
//! | | `tcp` | `tcp;ofi_rxm` | `efa` | `cxi` (Slingshot) | `shm` |
//! |---|---|---|---|---|---|
//! | endpoints | connected | datagram | datagram | datagram | datagram |
//! | order of SEND after SEND | yes | yes | yes | yes | yes |
//! | of SEND and READ after WRITE | yes | yes | no | no | no |
//! | keys | ours | ours | its own | ours | ours |
//! | remote addresses | offsets | offsets | virtual | offsets | virtual |
//! | memory belongs to | the domain | the domain | the domain | an endpoint | the domain |
//! | parts of a message | 4 | 4 | 4, of remote memory 1 | 1 | 4 |
//! | tells sleeping threads | yes | badly (below) | no | older versions: no | no |
//! | addresses | Internet | Internet | its own | its own | names |
//!
//! With datagrams no thread sleeps on a descriptor of the provider's: most have none, and version 1.17 of `ofi_rxm` leaves an
//! endpoint that is closed on the list of what its queue waits for, and reads its memory when it is free. Threads nap instead.
//!
//! None of them wants local memory registered (`FI_MR_LOCAL`) or contexts of its own layout (`FI_CONTEXT`, `FI_CONTEXT2`); those
//! that do are not used: they are not offered it, so libfabric does not list them.

use crate::sys;
use std::ffi::c_int;

/// The endpoints that a queue pair is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndpointKind {
    /// `FI_EP_MSG`: a connection.
    Connected,
    /// `FI_EP_RDM`: reliable datagrams to and from anybody.
    Datagram,
}

/// What of a provider is not to be used: to try here how hardware behaves that is not here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Without {
    /// Take it that WRITEs are in no order with what follows them.
    pub order: bool,
    /// Take it that a message has one part.
    pub parts: bool,
    /// Take it that memory belongs to an endpoint.
    pub domain_memory: bool,
}

impl Without {
    /// What EFA lacks.
    pub const EFA: Without = Without { order: true, parts: false, domain_memory: false };
    /// What Slingshot lacks.
    pub const CXI: Without = Without { order: true, parts: true, domain_memory: true };
}

/// One question to libfabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) kind: EndpointKind,
    /// The orders between operations that are needed.
    pub(crate) order: u64,
    /// What of memory registration we are ready for.
    pub(crate) registration: c_int,
}

/// SENDs behind SENDs: nothing works without.
const SENDS: u64 = sys::ORDER_SAS;
/// What is behind a WRITE sees it.
const ALL: u64 = SENDS | sys::ORDER_SAW | sys::ORDER_RAW | sys::ORDER_WAW;
/// Keys are ours still, so that nobody can guess them.
const ADDRESSED: c_int = sys::REGISTER_VIRTUAL_ADDRESSES | sys::REGISTER_ALLOCATED | sys::REGISTER_ENDPOINT;
const ANY: c_int = ADDRESSED | sys::REGISTER_PROVIDERS_KEYS;

/// What is asked for, the best first.
pub(crate) const ASKED: [Asked; 7] = {
    const fn datagram(order: u64, registration: c_int) -> Asked {
        Asked { kind: EndpointKind::Datagram, order, registration }
    }
    [
        Asked { kind: EndpointKind::Connected, order: ALL, registration: 0 },
        datagram(ALL, 0),
        datagram(SENDS, 0),
        datagram(ALL, ADDRESSED),
        datagram(SENDS, ADDRESSED),
        datagram(ALL, ANY),
        datagram(SENDS, ANY),
    ]
};

/// What libfabric answers, as far as it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) order: u64,
    pub(crate) registration: c_int,
    /// Bytes of a key.
    pub(crate) key: usize,
    /// The most parts of a SEND, of a RECV, of a WRITE or READ here, and at the other end.
    pub(crate) parts: [usize; 4],
    pub(crate) max_message: usize,
    /// Bytes of the longest message that it copies when it is posted.
    pub(crate) inject: usize,
    /// The most endpoints of a domain; 0 if it does not say.
    pub(crate) endpoints: usize,
    pub(crate) shared_receives: bool,
    pub(crate) address_format: u32,
}

/// What a provider is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Features {
    pub(crate) kind: EndpointKind,
    /// What is behind a WRITE on a queue pair sees it. Otherwise it waits until the WRITE is delivered.
    pub(crate) ordered: bool,
    /// The most parts of what is sent and of what is received.
    pub(crate) parts: usize,
    pub(crate) receive_parts: usize,
    /// Remote memory is named by its address at its owner, not by offsets.
    pub(crate) virtual_addresses: bool,
    /// The provider chooses keys, and does not choose them so that nobody can guess.
    pub(crate) providers_keys: bool,
    /// The bits of a key.
    pub(crate) key_mask: u64,
    /// Peers reach memory through one endpoint of the device's, which it is bound to.
    pub(crate) memory_endpoint: bool,
    /// That endpoint has to be bound by libfabric's rules, and not only because [`Without`] says so.
    pub(crate) binds_memory: bool,
    /// Endpoints have addresses of the Internet.
    pub(crate) internet: bool,
    /// Bytes of the longest message.
    pub(crate) max_message: usize,
    /// Bytes of the longest message that is handed over for good when it is posted. None of datagrams are: what their target
    /// refuses is told by nothing but their completion.
    pub(crate) inject: usize,
    /// The most queue pairs that the provider says it has, if it says.
    pub(crate) endpoints: Option<usize>,
    pub(crate) shared_receives: bool,
}

impl Features {
    /// What follows from an answer; or why it cannot be used.
    pub(crate) fn of(asked: &Asked, told: &Told, without: Without) -> Result<Self, String> {
        let [send, receive, remote, far] = told.parts;
        if send.min(receive).min(remote).min(far) == 0 {
            return Err(format!("it takes messages of {:?} parts only", told.parts));
        }
        if told.registration & sys::REGISTER_LOCAL != 0 {
            return Err("it wants all memory registered that is sent".into());
        }
        let datagram = asked.kind == EndpointKind::Datagram;
        let has = |bit| told.registration & bit != 0;
        let binds_memory = datagram && has(sys::REGISTER_ENDPOINT);
        let one = |parts: usize| if without.parts && datagram { 1 } else { parts };
        Ok(Features {
            kind: asked.kind,
            ordered: asked.order & ALL == ALL && !(datagram && without.order),
            parts: one(send.min(remote)),
            receive_parts: one(receive),
            virtual_addresses: has(sys::REGISTER_VIRTUAL_ADDRESSES),
            providers_keys: has(sys::REGISTER_PROVIDERS_KEYS),
            key_mask: if told.key >= 8 { u64::MAX } else { (1 << (told.key * 8)) - 1 },
            memory_endpoint: binds_memory || datagram && without.domain_memory,
            binds_memory,
            internet: [sys::FORMAT_INTERNET_4, sys::FORMAT_INTERNET_6].contains(&told.address_format),
            max_message: told.max_message,
            inject: if datagram { 0 } else { told.inject },
            endpoints: (told.endpoints > 0).then_some(told.endpoints),
            // Of datagrams each queue pair has its own: credits go by them.
            shared_receives: told.shared_receives && !datagram,
        })
    }

    /// Whether a queue pair is a connection of the provider's.
    pub(crate) fn is_connected(&self) -> bool {
        self.kind == EndpointKind::Connected
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn datagram(order: u64, registration: c_int) -> Asked {
        Asked { kind: EndpointKind::Datagram, order, registration }
    }

    /// As `fi_info -p 'tcp;ofi_rxm' -v` says it.
    const RXM: Told = Told {
        order: ALL,
        registration: 0,
        key: 8,
        parts: [4, 4, 4, 4],
        max_message: usize::MAX,
        inject: 16320,
        endpoints: 32768,
        shared_receives: false,
        address_format: sys::FORMAT_INTERNET_4,
    };

    /// As EFA's provider describes its RDM endpoints.
    const EFA: Told = Told {
        order: SENDS,
        registration: sys::REGISTER_VIRTUAL_ADDRESSES
            | sys::REGISTER_ALLOCATED
            | sys::REGISTER_PROVIDERS_KEYS,
        key: 4,
        parts: [4, 4, 4, 1],
        max_message: usize::MAX,
        inject: 16320,
        endpoints: 256,
        shared_receives: false,
        address_format: 11,
    };

    /// As Slingshot's provider describes itself.
    const CXI: Told = Told {
        order: SENDS,
        registration: sys::REGISTER_ENDPOINT,
        key: 4,
        parts: [1, 1, 1, 1],
        max_message: 1 << 30,
        inject: 192,
        endpoints: 128,
        shared_receives: false,
        address_format: 14,
    };

    #[test]
    fn layered_tcp_is_ordered_and_keeps_our_keys() {
        let rxm = Features::of(&ASKED[1], &RXM, Without::default()).unwrap();
        assert!(rxm.ordered && rxm.internet && !rxm.providers_keys && !rxm.memory_endpoint);
        assert_eq!((rxm.parts, rxm.receive_parts, rxm.key_mask), (4, 4, u64::MAX));
        assert!(!rxm.virtual_addresses && !rxm.shared_receives && !rxm.is_connected());
    }

    #[test]
    fn efa_has_keys_of_its_own_and_no_order() {
        let efa = Features::of(&datagram(SENDS, ANY), &EFA, Without::default()).unwrap();
        assert!(!efa.ordered && efa.providers_keys && efa.virtual_addresses && !efa.internet);
        assert_eq!((efa.parts, efa.receive_parts, efa.memory_endpoint), (4, 4, false));
        assert_eq!(efa.endpoints, Some(256));
    }

    #[test]
    fn slingshot_has_one_part_and_memory_of_an_endpoint() {
        let cxi = Features::of(&datagram(SENDS, ADDRESSED), &CXI, Without::default()).unwrap();
        assert!(!cxi.ordered && cxi.memory_endpoint && cxi.binds_memory && !cxi.providers_keys);
        assert_eq!((cxi.parts, cxi.receive_parts, cxi.key_mask), (1, 1, u32::MAX.into()));
    }

    #[test]
    fn a_better_provider_can_stand_for_hardware() {
        let as_cxi = Features::of(&ASKED[1], &RXM, Without::CXI).unwrap();
        assert!(!as_cxi.ordered && as_cxi.memory_endpoint && !as_cxi.binds_memory);
        assert_eq!((as_cxi.parts, as_cxi.receive_parts), (1, 1));
        // Connected endpoints are as they are.
        let connected = Features::of(&ASKED[0], &RXM, Without::CXI).unwrap();
        assert!(connected.ordered && connected.parts == 4 && connected.is_connected());
    }

    #[test]
    fn who_wants_all_memory_registered_is_not_used() {
        let told = Told { registration: sys::REGISTER_LOCAL, ..RXM };
        assert!(Features::of(&ASKED[1], &told, Without::default()).is_err());
        let told = Told { parts: [4, 4, 0, 4], ..RXM };
        assert!(Features::of(&ASKED[1], &told, Without::default()).is_err());
    }

    #[test]
    fn connections_are_asked_for_first_and_keys_of_others_last() {
        assert_eq!(ASKED[0].kind, EndpointKind::Connected);
        let keys = ASKED.map(|asked| asked.registration & sys::REGISTER_PROVIDERS_KEYS != 0);
        assert!(keys.is_sorted(), "{keys:?}");
        assert!(ASKED.iter().all(|asked| asked.registration & sys::REGISTER_LOCAL == 0));
    }
}
