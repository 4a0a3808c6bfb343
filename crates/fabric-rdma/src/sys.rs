//! The verbs ABI as in `infiniband/verbs.h` of rdma-core, as far as it is used here. Types and constants
//! only; the calls are in `library`. A test compares every size, offset and constant with `abi.txt`, which a
//! C compiler checks against the headers.

use std::ffi::{c_int, c_uint, c_void};

/// Structures that are used only through pointers.
macro_rules! opaque {
    ($($(#[$doc:meta])* $name:ident)*) => { $(
        $(#[$doc])*
        #[repr(C)]
        pub(crate) struct $name {
            _private: [u8; 0],
        }
    )* };
}
opaque! {
    /// `rdma_cm_id`.
    ConnectionId
    /// `ibv_pd`.
    ProtectionDomain
    /// `ibv_ah`.
    AddressHandle
}

/// `ibv_device`, its first fields.
#[repr(C)]
pub(crate) struct DeviceEntry {
    _operations: [*mut c_void; 2],
    pub(crate) node: c_int,
    pub(crate) transport: c_int,
}

/// `ibv_context`, up to the descriptors. The calls of the data path are reached through it instead of
/// symbols.
#[repr(C)]
pub(crate) struct Context {
    pub(crate) device: *mut DeviceEntry,
    pub(crate) operations: ContextOperations,
    pub(crate) command_descriptor: c_int,
    pub(crate) async_descriptor: c_int,
}

/// `ibv_context_ops`.
#[repr(C)]
pub(crate) struct ContextOperations {
    _before: [*mut c_void; 11],
    pub(crate) poll_cq: unsafe extern "C" fn(*mut CompletionQueue, c_int, *mut WorkCompletion) -> c_int,
    pub(crate) request_notification: unsafe extern "C" fn(*mut CompletionQueue, c_int) -> c_int,
    _between: [*mut c_void; 7],
    pub(crate) post_shared_receive: unsafe extern "C" fn(
        *mut SharedReceiveQueue,
        *mut ReceiveWorkRequest,
        *mut *mut ReceiveWorkRequest,
    ) -> c_int,
    _queue_pairs: [*mut c_void; 4],
    pub(crate) post_send:
        unsafe extern "C" fn(*mut QueuePair, *mut SendWorkRequest, *mut *mut SendWorkRequest) -> c_int,
    pub(crate) post_receive:
        unsafe extern "C" fn(*mut QueuePair, *mut ReceiveWorkRequest, *mut *mut ReceiveWorkRequest) -> c_int,
    _after: [*mut c_void; 5],
}

/// `ibv_cq`, its first field.
#[repr(C)]
pub(crate) struct CompletionQueue {
    pub(crate) context: *mut Context,
    _private: [u8; 0],
}

/// `ibv_srq`, its first field.
#[repr(C)]
pub(crate) struct SharedReceiveQueue {
    pub(crate) context: *mut Context,
    _private: [u8; 0],
}

/// `ibv_qp`, its first fields.
#[repr(C)]
pub(crate) struct QueuePair {
    pub(crate) context: *mut Context,
    _private: [*mut c_void; 5],
    pub(crate) handle: u32,
    pub(crate) number: u32,
}

#[cfg(test)]
impl QueuePair {
    /// Makes a value that is only read.
    pub(crate) fn of_number(number: u32) -> Self {
        QueuePair { context: std::ptr::null_mut(), _private: [std::ptr::null_mut(); 5], handle: 0, number }
    }
}

/// `ibv_mr`.
#[repr(C)]
pub(crate) struct MemoryRegion {
    _private: [*mut c_void; 3],
    pub(crate) length: usize,
    pub(crate) handle: u32,
    pub(crate) local_key: u32,
    pub(crate) remote_key: u32,
}

/// `ibv_comp_channel`.
#[repr(C)]
pub(crate) struct CompletionChannel {
    pub(crate) context: *mut Context,
    pub(crate) descriptor: c_int,
    pub(crate) references: c_int,
}

/// `ibv_device_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct DeviceAttributes {
    pub(crate) firmware: [u8; 64],
    pub(crate) node_guid: u64,
    pub(crate) system_image_guid: u64,
    pub(crate) max_mr_size: u64,
    pub(crate) page_size_capabilities: u64,
    pub(crate) vendor_id: u32,
    pub(crate) vendor_part_id: u32,
    pub(crate) hardware_version: u32,
    pub(crate) max_qp: c_int,
    pub(crate) max_qp_wr: c_int,
    pub(crate) capability_flags: c_uint,
    pub(crate) max_sge: c_int,
    pub(crate) max_sge_read: c_int,
    pub(crate) max_cq: c_int,
    pub(crate) max_cqe: c_int,
    pub(crate) max_mr: c_int,
    pub(crate) max_pd: c_int,
    pub(crate) max_qp_read_atomic: c_int,
    _max_ee_read_atomic: c_int,
    pub(crate) max_responder_resources: c_int,
    pub(crate) max_qp_initiator_read_atomic: c_int,
    _max_ee_initiator_read_atomic: c_int,
    pub(crate) atomic_capability: c_uint,
    _rarely_used: [c_int; 8],
    pub(crate) max_ah: c_int,
    _fast_memory_regions: [c_int; 2],
    pub(crate) max_srq: c_int,
    pub(crate) max_srq_wr: c_int,
    pub(crate) max_srq_sge: c_int,
    pub(crate) max_partition_keys: u16,
    pub(crate) local_ack_delay: u8,
    pub(crate) ports: u8,
}

/// `ibv_port_attr`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct PortAttributes {
    pub(crate) state: c_uint,
    pub(crate) max_mtu: c_uint,
    pub(crate) active_mtu: c_uint,
    pub(crate) gid_table_length: c_int,
    pub(crate) capability_flags: u32,
    pub(crate) max_message: u32,
    _counters: [u32; 2],
    _partition_table_length: u16,
    pub(crate) lid: u16,
    _subnet_manager_lid: u16,
    _lmc: u8,
    _max_virtual_lanes: u8,
    pub(crate) subnet_manager_service_level: u8,
    _subnet_timeout: u8,
    _init_type_reply: u8,
    pub(crate) active_width: u8,
    pub(crate) active_speed: u8,
    _physical_state: u8,
    pub(crate) link_layer: u8,
    _flags: u8,
    _capability_flags_2: u16,
}

/// `ibv_gid_entry`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct GidEntry {
    pub(crate) gid: Gid,
    pub(crate) index: u32,
    pub(crate) port: u32,
    pub(crate) kind: u32,
    pub(crate) interface: u32,
}

/// `ibv_gid`, which is aligned to 8.
#[repr(C, align(8))]
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Gid(pub(crate) [u8; 16]);

/// `ibv_global_route`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct GlobalRoute {
    pub(crate) destination: Gid,
    pub(crate) flow_label: u32,
    pub(crate) source_index: u8,
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: u8,
}

/// `ibv_ah_attr`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct AddressAttributes {
    pub(crate) route: GlobalRoute,
    pub(crate) destination_lid: u16,
    pub(crate) service_level: u8,
    pub(crate) source_path_bits: u8,
    pub(crate) static_rate: u8,
    pub(crate) is_global: u8,
    pub(crate) port: u8,
}

/// `ibv_qp_cap`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct QueuePairCapacity {
    pub(crate) max_send_wr: u32,
    pub(crate) max_receive_wr: u32,
    pub(crate) max_send_sge: u32,
    pub(crate) max_receive_sge: u32,
    pub(crate) max_inline: u32,
}

/// `ibv_qp_init_attr`.
#[repr(C)]
pub(crate) struct QueuePairInit {
    pub(crate) user: *mut c_void,
    pub(crate) send_completions: *mut CompletionQueue,
    pub(crate) receive_completions: *mut CompletionQueue,
    pub(crate) shared_receive: *mut SharedReceiveQueue,
    pub(crate) capacity: QueuePairCapacity,
    pub(crate) transport: c_uint,
    pub(crate) all_signaled: c_int,
}

/// `ibv_qp_attr`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct QueuePairAttributes {
    pub(crate) state: c_uint,
    pub(crate) current_state: c_uint,
    pub(crate) path_mtu: c_uint,
    pub(crate) path_migration: c_uint,
    pub(crate) qkey: u32,
    pub(crate) receive_psn: u32,
    pub(crate) send_psn: u32,
    pub(crate) destination: u32,
    pub(crate) access: c_uint,
    pub(crate) capacity: QueuePairCapacity,
    pub(crate) address: AddressAttributes,
    pub(crate) alternate_address: AddressAttributes,
    pub(crate) partition_index: u16,
    pub(crate) alternate_partition_index: u16,
    pub(crate) notify_when_drained: u8,
    pub(crate) draining: u8,
    pub(crate) max_read_atomic: u8,
    pub(crate) max_destination_read_atomic: u8,
    pub(crate) min_rnr_timer: u8,
    pub(crate) port: u8,
    pub(crate) timeout: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) alternate_port: u8,
    pub(crate) alternate_timeout: u8,
    pub(crate) rate_limit: u32,
}

/// `ibv_srq_init_attr`.
#[repr(C)]
pub(crate) struct SharedReceiveInit {
    pub(crate) user: *mut c_void,
    pub(crate) max_wr: u32,
    pub(crate) max_sge: u32,
    pub(crate) limit: u32,
}

/// `ibv_sge`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ScatterGather {
    pub(crate) address: u64,
    pub(crate) length: u32,
    pub(crate) local_key: u32,
}

/// `ibv_send_wr`. [`Remote`] is the first of its unions; those after it are never used.
#[repr(C)]
pub(crate) struct SendWorkRequest {
    pub(crate) id: u64,
    pub(crate) next: *mut SendWorkRequest,
    pub(crate) parts: *mut ScatterGather,
    pub(crate) part_count: c_int,
    pub(crate) opcode: c_uint,
    pub(crate) flags: c_uint,
    /// In network byte order.
    pub(crate) immediate: u32,
    pub(crate) remote: Remote,
    _extended: [u64; 7],
}

/// The union `wr` of `ibv_send_wr`: the variants that are used.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) union Remote {
    pub(crate) memory: RemoteMemory,
    pub(crate) atomic: RemoteAtomic,
    pub(crate) datagram: RemoteDatagram,
}

/// `wr.rdma`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct RemoteMemory {
    pub(crate) address: u64,
    pub(crate) key: u32,
}

/// `wr.atomic`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct RemoteAtomic {
    pub(crate) address: u64,
    pub(crate) compare_or_add: u64,
    pub(crate) swap: u64,
    pub(crate) key: u32,
}

/// `wr.ud`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct RemoteDatagram {
    pub(crate) handle: *mut AddressHandle,
    pub(crate) number: u32,
    pub(crate) qkey: u32,
}

impl SendWorkRequest {
    /// Makes a request of zeros.
    pub(crate) fn empty() -> Self {
        SendWorkRequest {
            id: 0,
            next: std::ptr::null_mut(),
            parts: std::ptr::null_mut(),
            part_count: 0,
            opcode: 0,
            flags: 0,
            immediate: 0,
            remote: Remote { atomic: RemoteAtomic { address: 0, compare_or_add: 0, swap: 0, key: 0 } },
            _extended: [0; 7],
        }
    }
}

/// `ibv_recv_wr`.
#[repr(C)]
pub(crate) struct ReceiveWorkRequest {
    pub(crate) id: u64,
    pub(crate) next: *mut ReceiveWorkRequest,
    pub(crate) parts: *mut ScatterGather,
    pub(crate) part_count: c_int,
}

/// `ibv_wc`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WorkCompletion {
    pub(crate) id: u64,
    pub(crate) status: c_uint,
    pub(crate) opcode: c_uint,
    pub(crate) vendor_error: u32,
    pub(crate) length: u32,
    /// In network byte order.
    pub(crate) immediate: u32,
    pub(crate) queue_pair: u32,
    pub(crate) source: u32,
    pub(crate) flags: c_uint,
    pub(crate) partition_index: u16,
    pub(crate) source_lid: u16,
    pub(crate) service_level: u8,
    pub(crate) path_bits: u8,
}

/// `ibv_async_event`. It begins with a union: a pointer, or for ports an `int` in its first four bytes.
#[repr(C)]
pub(crate) struct AsyncEvent {
    pub(crate) element: *mut c_void,
    pub(crate) kind: c_uint,
}

/// `rdma_event_channel`.
#[repr(C)]
pub(crate) struct EventChannel {
    pub(crate) descriptor: c_int,
}

/// `rdma_conn_param`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ConnectionParameters {
    pub(crate) private_data: *const c_void,
    pub(crate) private_length: u8,
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
    pub(crate) flow_control: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry_count: u8,
    pub(crate) shared_receive: u8,
    pub(crate) queue_pair: u32,
}

/// `rdma_cm_event`, without the datagram variant of its union.
#[repr(C)]
pub(crate) struct ConnectionEvent {
    pub(crate) id: *mut ConnectionId,
    pub(crate) listener: *mut ConnectionId,
    pub(crate) kind: c_uint,
    pub(crate) status: c_int,
    pub(crate) connection: ConnectionParameters,
}

/// Returns the code of a transport.
pub(crate) fn transport(transport: dunlin_fabric::Transport) -> c_uint {
    match transport {
        dunlin_fabric::Transport::ReliableConnection => TRANSPORT_RC,
        dunlin_fabric::Transport::UnreliableConnection => TRANSPORT_UC,
        dunlin_fabric::Transport::UnreliableDatagram => TRANSPORT_UD,
    }
}

/// Defines constants, with their names in C for the test.
macro_rules! numbers {
    ($($name:ident: $type:ty = $value:expr, $c:literal;)*) => {
        $(#[doc = concat!("`", $c, "`.")] pub(crate) const $name: $type = $value;)*
        #[cfg(test)]
        const NUMBERS: &[(&str, u64)] = &[$(($c, $value as u64),)*];
    };
}
numbers! {
    PORT_ACTIVE: c_uint = 4, "IBV_PORT_ACTIVE";
    LINK_LAYER_ETHERNET: u8 = 2, "IBV_LINK_LAYER_ETHERNET";
    MTU_4096: c_uint = 5, "IBV_MTU_4096";
    GID_INFINIBAND: u32 = 0, "IBV_GID_TYPE_IB";
    GID_ROCE_V1: u32 = 1, "IBV_GID_TYPE_ROCE_V1";
    GID_ROCE_V2: u32 = 2, "IBV_GID_TYPE_ROCE_V2";
    DEVICE_IWARP: c_int = 1, "IBV_TRANSPORT_IWARP";
    ATOMICS_NONE: c_uint = 0, "IBV_ATOMIC_NONE";
    ATOMICS_GLOBAL: c_uint = 2, "IBV_ATOMIC_GLOB";
    ACCESS_LOCAL_WRITE: c_int = 1, "IBV_ACCESS_LOCAL_WRITE";
    ACCESS_REMOTE_WRITE: c_int = 2, "IBV_ACCESS_REMOTE_WRITE";
    ACCESS_REMOTE_READ: c_int = 4, "IBV_ACCESS_REMOTE_READ";
    ACCESS_REMOTE_ATOMIC: c_int = 8, "IBV_ACCESS_REMOTE_ATOMIC";
    TRANSPORT_RC: c_uint = 2, "IBV_QPT_RC";
    TRANSPORT_UC: c_uint = 3, "IBV_QPT_UC";
    TRANSPORT_UD: c_uint = 4, "IBV_QPT_UD";
    STATE_INIT: c_uint = 1, "IBV_QPS_INIT";
    STATE_READY_TO_RECEIVE: c_uint = 2, "IBV_QPS_RTR";
    STATE_READY_TO_SEND: c_uint = 3, "IBV_QPS_RTS";
    STATE_ERROR: c_uint = 6, "IBV_QPS_ERR";
    SET_STATE: c_int = 0x1, "IBV_QP_STATE";
    SET_ACCESS: c_int = 0x8, "IBV_QP_ACCESS_FLAGS";
    SET_PARTITION: c_int = 0x10, "IBV_QP_PKEY_INDEX";
    SET_PORT: c_int = 0x20, "IBV_QP_PORT";
    SET_QKEY: c_int = 0x40, "IBV_QP_QKEY";
    SET_ADDRESS: c_int = 0x80, "IBV_QP_AV";
    SET_PATH_MTU: c_int = 0x100, "IBV_QP_PATH_MTU";
    SET_TIMEOUT: c_int = 0x200, "IBV_QP_TIMEOUT";
    SET_RETRY_COUNT: c_int = 0x400, "IBV_QP_RETRY_CNT";
    SET_RNR_RETRY: c_int = 0x800, "IBV_QP_RNR_RETRY";
    SET_RECEIVE_PSN: c_int = 0x1000, "IBV_QP_RQ_PSN";
    SET_MAX_READ_ATOMIC: c_int = 0x2000, "IBV_QP_MAX_QP_RD_ATOMIC";
    SET_MIN_RNR_TIMER: c_int = 0x8000, "IBV_QP_MIN_RNR_TIMER";
    SET_SEND_PSN: c_int = 0x1_0000, "IBV_QP_SQ_PSN";
    SET_MAX_DESTINATION_READ_ATOMIC: c_int = 0x2_0000, "IBV_QP_MAX_DEST_RD_ATOMIC";
    SET_DESTINATION: c_int = 0x10_0000, "IBV_QP_DEST_QPN";
    OPCODE_WRITE: c_uint = 0, "IBV_WR_RDMA_WRITE";
    OPCODE_WRITE_IMMEDIATE: c_uint = 1, "IBV_WR_RDMA_WRITE_WITH_IMM";
    OPCODE_SEND: c_uint = 2, "IBV_WR_SEND";
    OPCODE_SEND_IMMEDIATE: c_uint = 3, "IBV_WR_SEND_WITH_IMM";
    OPCODE_READ: c_uint = 4, "IBV_WR_RDMA_READ";
    OPCODE_COMPARE_SWAP: c_uint = 5, "IBV_WR_ATOMIC_CMP_AND_SWP";
    OPCODE_FETCH_ADD: c_uint = 6, "IBV_WR_ATOMIC_FETCH_AND_ADD";
    SEND_FENCE: c_uint = 1, "IBV_SEND_FENCE";
    SEND_SIGNALED: c_uint = 2, "IBV_SEND_SIGNALED";
    SEND_INLINE: c_uint = 8, "IBV_SEND_INLINE";
    COMPLETION_IMMEDIATE: c_uint = 2, "IBV_WC_WITH_IMM";
    COMPLETION_RECEIVE_WRITE: c_uint = 129, "IBV_WC_RECV_RDMA_WITH_IMM";
    PORT_SPACE_TCP: c_uint = 0x106, "RDMA_PS_TCP";
    MANAGER_ADDRESS_RESOLVED: c_uint = 0, "RDMA_CM_EVENT_ADDR_RESOLVED";
    MANAGER_ROUTE_RESOLVED: c_uint = 2, "RDMA_CM_EVENT_ROUTE_RESOLVED";
    MANAGER_CONNECT_REQUEST: c_uint = 4, "RDMA_CM_EVENT_CONNECT_REQUEST";
    MANAGER_ESTABLISHED: c_uint = 9, "RDMA_CM_EVENT_ESTABLISHED";
    MANAGER_DISCONNECTED: c_uint = 10, "RDMA_CM_EVENT_DISCONNECTED";
    EVENT_COMPLETION_QUEUE_ERROR: c_uint = 0, "IBV_EVENT_CQ_ERR";
    EVENT_QUEUE_PAIR_FATAL: c_uint = 1, "IBV_EVENT_QP_FATAL";
    EVENT_QUEUE_PAIR_REQUEST_ERROR: c_uint = 2, "IBV_EVENT_QP_REQ_ERR";
    EVENT_QUEUE_PAIR_ACCESS_ERROR: c_uint = 3, "IBV_EVENT_QP_ACCESS_ERR";
    EVENT_DEVICE_FATAL: c_uint = 8, "IBV_EVENT_DEVICE_FATAL";
    EVENT_PORT_ACTIVE: c_uint = 9, "IBV_EVENT_PORT_ACTIVE";
    EVENT_PORT_ERROR: c_uint = 10, "IBV_EVENT_PORT_ERR";
    EVENT_SHARED_RECEIVE_ERROR: c_uint = 14, "IBV_EVENT_SRQ_ERR";
    STATUS_SUCCESS: c_uint = 0, "IBV_WC_SUCCESS";
    STATUS_LOCAL_LENGTH: c_uint = 1, "IBV_WC_LOC_LEN_ERR";
    STATUS_LOCAL_OPERATION: c_uint = 2, "IBV_WC_LOC_QP_OP_ERR";
    STATUS_LOCAL_PROTECTION: c_uint = 4, "IBV_WC_LOC_PROT_ERR";
    STATUS_FLUSHED: c_uint = 5, "IBV_WC_WR_FLUSH_ERR";
    STATUS_LOCAL_ACCESS: c_uint = 8, "IBV_WC_LOC_ACCESS_ERR";
    STATUS_REMOTE_INVALID_REQUEST: c_uint = 9, "IBV_WC_REM_INV_REQ_ERR";
    STATUS_REMOTE_ACCESS: c_uint = 10, "IBV_WC_REM_ACCESS_ERR";
    STATUS_RETRY_EXCEEDED: c_uint = 12, "IBV_WC_RETRY_EXC_ERR";
    STATUS_RNR_RETRY_EXCEEDED: c_uint = 13, "IBV_WC_RNR_RETRY_EXC_ERR";
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::{offset_of, size_of};

    /// Returns the C expressions of sizes, offsets and constants, with their values here.
    fn claims() -> Vec<(String, u64)> {
        let mut claims: Vec<_> = NUMBERS.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        macro_rules! layout {
            ($ours:ident $c:literal size) => { claims.push((format!("sizeof(struct {})", $c), size_of::<$ours>() as u64)) };
            ($ours:ident $c:literal $($field:ident $c_field:literal),*) => { $(
                claims.push((format!("offsetof(struct {}, {})", $c, $c_field), offset_of!($ours, $field) as u64));
            )* };
        }
        layout!(Context "ibv_context" operations "ops", command_descriptor "cmd_fd", async_descriptor "async_fd");
        layout!(DeviceEntry "ibv_device" node "node_type", transport "transport_type");
        layout!(ContextOperations "ibv_context_ops" size);
        layout!(ContextOperations "ibv_context_ops" poll_cq "poll_cq", request_notification "req_notify_cq",
            post_shared_receive "post_srq_recv", post_send "post_send", post_receive "post_recv");
        layout!(CompletionQueue "ibv_cq" context "context");
        layout!(SharedReceiveQueue "ibv_srq" context "context");
        layout!(QueuePair "ibv_qp" context "context", handle "handle", number "qp_num");
        layout!(MemoryRegion "ibv_mr" size);
        layout!(MemoryRegion "ibv_mr" length "length", handle "handle", local_key "lkey", remote_key "rkey");
        layout!(CompletionChannel "ibv_comp_channel" size);
        layout!(CompletionChannel "ibv_comp_channel" context "context", descriptor "fd", references "refcnt");
        layout!(DeviceAttributes "ibv_device_attr" size);
        layout!(DeviceAttributes "ibv_device_attr" firmware "fw_ver", node_guid "node_guid", max_mr_size "max_mr_size",
            vendor_id "vendor_id", vendor_part_id "vendor_part_id", max_qp "max_qp",
            max_qp_wr "max_qp_wr", capability_flags "device_cap_flags", max_sge "max_sge", max_cqe "max_cqe",
            max_qp_read_atomic "max_qp_rd_atom", max_responder_resources "max_res_rd_atom",
            max_qp_initiator_read_atomic "max_qp_init_rd_atom", atomic_capability "atomic_cap", max_ah "max_ah",
            max_srq "max_srq", max_srq_wr "max_srq_wr", max_srq_sge "max_srq_sge",
            local_ack_delay "local_ca_ack_delay", ports "phys_port_cnt");
        layout!(PortAttributes "ibv_port_attr" size);
        layout!(PortAttributes "ibv_port_attr" state "state", active_mtu "active_mtu", gid_table_length "gid_tbl_len",
            max_message "max_msg_sz", lid "lid", subnet_manager_service_level "sm_sl",
            active_width "active_width", active_speed "active_speed", link_layer "link_layer");
        layout!(GidEntry "ibv_gid_entry" size);
        layout!(GidEntry "ibv_gid_entry" gid "gid", index "gid_index", port "port_num", kind "gid_type",
            interface "ndev_ifindex");
        layout!(AddressAttributes "ibv_ah_attr" size);
        layout!(AddressAttributes "ibv_ah_attr" route "grh", destination_lid "dlid", service_level "sl",
            static_rate "static_rate", is_global "is_global", port "port_num");
        layout!(GlobalRoute "ibv_global_route" size);
        layout!(GlobalRoute "ibv_global_route" destination "dgid", flow_label "flow_label", source_index "sgid_index",
            hop_limit "hop_limit", traffic_class "traffic_class");
        layout!(QueuePairCapacity "ibv_qp_cap" size);
        layout!(QueuePairCapacity "ibv_qp_cap" max_send_wr "max_send_wr", max_receive_wr "max_recv_wr",
            max_send_sge "max_send_sge", max_receive_sge "max_recv_sge", max_inline "max_inline_data");
        layout!(QueuePairInit "ibv_qp_init_attr" size);
        layout!(QueuePairInit "ibv_qp_init_attr" send_completions "send_cq", receive_completions "recv_cq",
            shared_receive "srq", capacity "cap", transport "qp_type", all_signaled "sq_sig_all");
        layout!(QueuePairAttributes "ibv_qp_attr" size);
        layout!(QueuePairAttributes "ibv_qp_attr" state "qp_state", path_mtu "path_mtu", qkey "qkey",
            receive_psn "rq_psn", send_psn "sq_psn", destination "dest_qp_num", access "qp_access_flags",
            address "ah_attr", partition_index "pkey_index", max_read_atomic "max_rd_atomic",
            max_destination_read_atomic "max_dest_rd_atomic", min_rnr_timer "min_rnr_timer", port "port_num",
            timeout "timeout", retry_count "retry_cnt", rnr_retry "rnr_retry", rate_limit "rate_limit");
        layout!(SharedReceiveInit "ibv_srq_init_attr" size);
        layout!(SharedReceiveInit "ibv_srq_init_attr" max_wr "attr.max_wr", max_sge "attr.max_sge", limit "attr.srq_limit");
        layout!(ScatterGather "ibv_sge" size);
        layout!(ScatterGather "ibv_sge" address "addr", length "length", local_key "lkey");
        layout!(SendWorkRequest "ibv_send_wr" size);
        layout!(SendWorkRequest "ibv_send_wr" id "wr_id", next "next", parts "sg_list", part_count "num_sge",
            opcode "opcode", flags "send_flags", immediate "imm_data", remote "wr", remote "wr.rdma.remote_addr",
            remote "wr.atomic.remote_addr", remote "wr.ud.ah");
        let remote = offset_of!(SendWorkRequest, remote);
        for (field, offset) in [
            ("wr.rdma.rkey", offset_of!(RemoteMemory, key)),
            ("wr.atomic.compare_add", offset_of!(RemoteAtomic, compare_or_add)),
            ("wr.atomic.swap", offset_of!(RemoteAtomic, swap)),
            ("wr.atomic.rkey", offset_of!(RemoteAtomic, key)),
            ("wr.ud.remote_qpn", offset_of!(RemoteDatagram, number)),
            ("wr.ud.remote_qkey", offset_of!(RemoteDatagram, qkey)),
        ] {
            claims.push((format!("offsetof(struct ibv_send_wr, {field})"), (remote + offset) as u64));
        }
        layout!(ReceiveWorkRequest "ibv_recv_wr" size);
        layout!(ReceiveWorkRequest "ibv_recv_wr" id "wr_id", next "next", parts "sg_list", part_count "num_sge");
        layout!(WorkCompletion "ibv_wc" size);
        layout!(WorkCompletion "ibv_wc" id "wr_id", status "status", opcode "opcode", length "byte_len",
            immediate "imm_data", queue_pair "qp_num", source "src_qp", flags "wc_flags");
        layout!(AsyncEvent "ibv_async_event" size);
        layout!(AsyncEvent "ibv_async_event" element "element", element "element.cq", element "element.qp",
            element "element.srq", element "element.port_num", kind "event_type");
        layout!(EventChannel "rdma_event_channel" size);
        layout!(EventChannel "rdma_event_channel" descriptor "fd");
        layout!(ConnectionParameters "rdma_conn_param" size);
        layout!(ConnectionParameters "rdma_conn_param" private_data "private_data", private_length "private_data_len",
            responder_resources "responder_resources", initiator_depth "initiator_depth", flow_control "flow_control",
            retry_count "retry_count", rnr_retry_count "rnr_retry_count", shared_receive "srq", queue_pair "qp_num");
        layout!(ConnectionEvent "rdma_cm_event" id "id", listener "listen_id", kind "event", status "status",
            connection "param.conn");
        claims
    }

    /// Every layout and constant equals that of rdma-core's headers, which `abi.txt` records;
    /// `tests/guest/abi` compares it with the headers through a C compiler.
    #[test]
    fn the_abi_is_that_of_the_headers() {
        let recorded: Vec<(String, u64)> = include_str!("abi.txt")
            .lines()
            .filter_map(|line| line.split_once(' '))
            .map(|(value, what)| (what.to_owned(), value.parse().expect("a number")))
            .collect();
        let claims = claims();
        for (what, value) in &claims {
            let said = recorded.iter().find(|(recorded, _)| recorded == what).map(|(_, value)| *value);
            assert_eq!(Some(*value), said, "{what}");
        }
        assert!(
            recorded.len() > 150 && recorded.len() == claims.len(),
            "{} recorded, {} used",
            recorded.len(),
            claims.len()
        );
    }
}
