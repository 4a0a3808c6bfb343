//! The features of a provider, as data: the requests to libfabric, in order of preference, and the
//! conclusions from its answer. Pure.
//!
//! Differences between providers (from their man pages and from `fi_info`):
//!
//! | | `tcp` | `tcp;ofi_rxm` | `efa` | `cxi` (Slingshot) | `shm` |
//! |---|---|---|---|---|---|
//! | endpoints | connected | datagram | datagram | datagram | datagram |
//! | order of SEND after SEND | yes | yes | yes | yes | yes |
//! | of SEND and READ after WRITE | yes | yes | no | no | no |
//! | keys chosen by | the user | the user | the provider | the user | the user |
//! | remote addresses | offsets | offsets | virtual | offsets | virtual |
//! | memory belongs to | the domain | the domain | the domain | an endpoint | the domain |
//! | parts of a message | 4 | 4 | 4, of remote memory 1 | 1 | 4 |
//! | wakes sleeping threads | yes | defective (below) | no | older versions: no | no |
//! | addresses | Internet | Internet | its own | its own | names |
//!
//! With datagrams no thread sleeps on a provider's descriptor: most have none, and `ofi_rxm` of version 1.17
//! keeps a closed endpoint on its queue's wait list and later reads its freed memory. Threads nap instead.
//!
//! None of these providers requires registered local memory (`FI_MR_LOCAL`) or contexts of its own layout
//! (`FI_CONTEXT`, `FI_CONTEXT2`). Dunlin does not offer these modes, so libfabric does not list providers
//! that require them.

use crate::sys;
use std::ffi::c_int;

/// The kind of libfabric endpoint that a queue pair uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndpointKind {
    /// `FI_EP_MSG`: a connection.
    Connected,
    /// `FI_EP_RDM`: reliable datagrams to and from any endpoint.
    Datagram,
}

/// Features of a provider that are not used, to simulate hardware that is not available.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Without {
    /// WRITEs are unordered with operations that follow them.
    pub order: bool,
    /// A message has one part.
    pub parts: bool,
    /// Memory belongs to an endpoint.
    pub domain_memory: bool,
}

impl Without {
    /// The features that EFA lacks.
    pub const EFA: Without = Without { order: true, parts: false, domain_memory: false };
    /// The features that Slingshot lacks.
    pub const CXI: Without = Without { order: true, parts: true, domain_memory: true };
}

/// One request to libfabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) kind: EndpointKind,
    /// The required orders between operations.
    pub(crate) order: u64,
    /// The modes of memory registration that this side supports.
    pub(crate) registration: c_int,
}

/// SENDs are ordered after SENDs, which is always required.
const SENDS: u64 = sys::ORDER_SAS;
/// Operations after a WRITE see its data.
const ALL: u64 = SENDS | sys::ORDER_SAW | sys::ORDER_RAW | sys::ORDER_WAW;
/// Keys are still chosen here, so that they cannot be guessed.
const ADDRESSED: c_int = sys::REGISTER_VIRTUAL_ADDRESSES | sys::REGISTER_ALLOCATED | sys::REGISTER_ENDPOINT;
const ANY: c_int = ADDRESSED | sys::REGISTER_PROVIDERS_KEYS;

/// The requests, in order of preference.
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

/// The relevant parts of libfabric's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) order: u64,
    pub(crate) registration: c_int,
    /// The size of a key, in bytes.
    pub(crate) key: usize,
    /// The maximum number of parts of a SEND, of a RECV, and of a WRITE or READ at this and at the other end.
    pub(crate) parts: [usize; 4],
    pub(crate) max_message: usize,
    /// The longest message, in bytes, that the provider can copy when it is posted.
    pub(crate) inject: usize,
    /// The maximum number of endpoints of a domain; 0 if unknown.
    pub(crate) endpoints: usize,
    pub(crate) shared_receives: bool,
    pub(crate) address_format: u32,
}

/// The features of a provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Features {
    pub(crate) kind: EndpointKind,
    /// Whether operations after a WRITE on a queue pair see its data. If not, they wait until the WRITE is
    /// delivered.
    pub(crate) ordered: bool,
    /// The maximum number of parts of an outgoing message; below, of a RECV.
    pub(crate) parts: usize,
    pub(crate) receive_parts: usize,
    /// Whether remote memory is named by its address at its owner instead of by offsets.
    pub(crate) virtual_addresses: bool,
    /// Whether the provider chooses keys, which can then be guessed.
    pub(crate) providers_keys: bool,
    /// Mask of the bits of a key.
    pub(crate) key_mask: u64,
    /// Whether peers reach memory through one endpoint of the device.
    pub(crate) memory_endpoint: bool,
    /// Whether libfabric requires that memory is bound to that endpoint, rather than only [`Without`].
    pub(crate) binds_memory: bool,
    /// Whether endpoints have Internet addresses.
    pub(crate) internet: bool,
    /// The longest message, in bytes.
    pub(crate) max_message: usize,
    /// The longest message, in bytes, that may be copied when posted. 0 for datagrams: a target's refusal is
    /// reported only by their completion.
    pub(crate) inject: usize,
    /// The maximum number of queue pairs, if the provider reports one.
    pub(crate) endpoints: Option<usize>,
    pub(crate) shared_receives: bool,
}

impl Features {
    /// Derives the features from an answer; returns the reason if the provider cannot be used.
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
            // With datagrams each queue pair needs its own RECVs, because of the credits.
            shared_receives: told.shared_receives && !datagram,
        })
    }

    /// Returns whether a queue pair uses a connection of the provider.
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

    /// As reported by `fi_info -p 'tcp;ofi_rxm' -v`.
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

    /// As EFA's provider documents its RDM endpoints.
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

    /// As Slingshot's provider documents itself.
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
        // Connected endpoints are not affected.
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
