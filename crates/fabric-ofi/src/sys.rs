//! libfabric's structures and constants, as in `<rdma/fabric.h>` and its related headers at version 1.17 of
//! the interface. A test compares all of them with `abi.txt`, and `tests/ofi/abi` compares that with the C
//! headers.
//!
//! Most of libfabric's functions are inline in C: each calls through a table of an object. Only entries that
//! are called have their type here; the others are [`Unused`]. Objects that the library makes (`fi_info` and
//! its attributes) are never made here, so versions with more fields are compatible.

use std::ffi::{c_char, c_int, c_void};

/// The version of the interface that is requested.
pub(crate) const VERSION: u32 = 1 << 16 | 17;

pub(crate) const MSG: u64 = 1 << 1;
pub(crate) const RMA: u64 = 1 << 2;
pub(crate) const READ: u64 = 1 << 8;
pub(crate) const WRITE: u64 = 1 << 9;
pub(crate) const RECV: u64 = 1 << 10;
pub(crate) const SEND: u64 = 1 << 11;
pub(crate) const REMOTE_READ: u64 = 1 << 12;
pub(crate) const REMOTE_WRITE: u64 = 1 << 13;
pub(crate) const COMPLETION: u64 = 1 << 24;
pub(crate) const INJECT: u64 = 1 << 25;
pub(crate) const DELIVERY_COMPLETE: u64 = 1 << 28;
pub(crate) const NUMERIC_HOST: u64 = 1 << 55;
pub(crate) const SOURCE: u64 = 1 << 57;
pub(crate) const SELECTIVE_COMPLETION: u64 = 1 << 59;

pub(crate) const ORDER_SAW: u64 = 1 << 7;
pub(crate) const ORDER_SAS: u64 = 1 << 8;
pub(crate) const ORDER_RAW: u64 = 1 << 1;
pub(crate) const ORDER_WAW: u64 = 1 << 4;

pub(crate) const ENDPOINT_MSG: c_int = 1;
pub(crate) const ENDPOINT_RDM: c_int = 3;
/// The provider prevents overruns of its queues.
pub(crate) const RESOURCES_MANAGED: c_int = 2;
pub(crate) const ADDRESS_TABLE: c_int = 2;
pub(crate) const FORMAT_INTERNET_4: u32 = 2;
pub(crate) const FORMAT_INTERNET_6: u32 = 3;
pub(crate) const REGISTER_LOCAL: c_int = 1 << 2;
pub(crate) const REGISTER_VIRTUAL_ADDRESSES: c_int = 1 << 4;
pub(crate) const REGISTER_ALLOCATED: c_int = 1 << 5;
pub(crate) const REGISTER_PROVIDERS_KEYS: c_int = 1 << 6;
pub(crate) const REGISTER_ENDPOINT: c_int = 1 << 9;
pub(crate) const THREAD_SAFE: c_int = 1;
pub(crate) const PROGRESS_MANUAL: c_int = 2;
pub(crate) const SHARED_CONTEXT: usize = usize::MAX;
pub(crate) const ADDRESS_UNSPECIFIED: u64 = u64::MAX;

pub(crate) const CQ_FORMAT_MSG: c_int = 2;
pub(crate) const WAIT_NONE: c_int = 0;
pub(crate) const WAIT_DESCRIPTOR: c_int = 3;
/// Commands of `control`.
pub(crate) const GET_WAIT: c_int = 5;
pub(crate) const ENABLE: c_int = 6;

pub(crate) const EVENT_CONNECTION_REQUEST: u32 = 1;
pub(crate) const EVENT_CONNECTED: u32 = 2;
pub(crate) const EVENT_SHUTDOWN: u32 = 3;

/// `FI_EAGAIN` and similar are system error numbers; these are libfabric's own.
pub(crate) const ERROR_AVAILABLE: isize = 259;
pub(crate) const ERROR_TRUNCATED: c_int = 265;

/// An entry of a table that is not called.
pub(crate) type Unused = Option<unsafe extern "C" fn()>;

macro_rules! structures {
    ($($(#[$doc:meta])* $name:ident = $c:literal { $($field:ident $(= $c_field:literal)?: $type:ty,)* })*) => {
        $(
            $(#[$doc])*
            #[repr(C)]
            #[derive(Clone, Copy, Debug)]
            pub(crate) struct $name {
                $(pub(crate) $field: $type,)*
            }
        )*

        /// Returns for each structure and field: its name in C, and its offset and size here (for a
        /// structure, 0 and its size).
        #[cfg(test)]
        fn layout() -> Vec<(&'static str, &'static str, usize, usize)> {
            let mut all = Vec::new();
            $(
                all.push(($c, "", 0, size_of::<$name>()));
                $(
                    let name = [$($c_field,)? stringify!($field)][0];
                    let size = {
                        const fn size<T>(_: *const T) -> usize { size_of::<T>() }
                        let place = std::mem::MaybeUninit::<$name>::uninit();
                        // SAFETY: only the address of a field is taken, and the value exists.
                        size(unsafe { &raw const (*place.as_ptr()).$field })
                    };
                    all.push(($c, name, std::mem::offset_of!($name, $field), size));
                )*
            )*
            all
        }
    };
}

structures! {
    /// The first field of every object.
    Object = "struct fid" {
        class = "fclass": usize,
        context: *mut c_void,
        operations = "ops": *mut ObjectOperations,
    }
    ObjectOperations = "struct fi_ops" {
        size: usize,
        close: unsafe extern "C" fn(*mut Object) -> c_int,
        bind: unsafe extern "C" fn(*mut Object, *mut Object, u64) -> c_int,
        control: unsafe extern "C" fn(*mut Object, c_int, *mut c_void) -> c_int,
        ops_open: Unused,
        tostr: Unused,
        ops_set: Unused,
    }
    TransmitAttributes = "struct fi_tx_attr" {
        caps: u64,
        mode: u64,
        op_flags: u64,
        msg_order: u64,
        comp_order: u64,
        inject_size: usize,
        size: usize,
        iov_limit: usize,
        rma_iov_limit: usize,
        tclass: u32,
    }
    ReceiveAttributes = "struct fi_rx_attr" {
        caps: u64,
        mode: u64,
        op_flags: u64,
        msg_order: u64,
        comp_order: u64,
        total_buffered_recv: usize,
        size: usize,
        iov_limit: usize,
    }
    EndpointAttributes = "struct fi_ep_attr" {
        kind = "type": c_int,
        protocol: u32,
        protocol_version: u32,
        max_msg_size: usize,
        msg_prefix_size: usize,
        max_order_raw_size: usize,
        max_order_war_size: usize,
        max_order_waw_size: usize,
        mem_tag_format: u64,
        tx_ctx_cnt: usize,
        rx_ctx_cnt: usize,
        auth_key_size: usize,
        auth_key: *mut u8,
    }
    DomainAttributes = "struct fi_domain_attr" {
        domain: *mut Domain,
        name: *mut c_char,
        threading: c_int,
        control_progress: c_int,
        data_progress: c_int,
        resource_mgmt: c_int,
        av_type: c_int,
        mr_mode: c_int,
        mr_key_size: usize,
        cq_data_size: usize,
        cq_cnt: usize,
        ep_cnt: usize,
        tx_ctx_cnt: usize,
        rx_ctx_cnt: usize,
        max_ep_tx_ctx: usize,
        max_ep_rx_ctx: usize,
        max_ep_stx_ctx: usize,
        max_ep_srx_ctx: usize,
        cntr_cnt: usize,
        mr_iov_limit: usize,
        caps: u64,
        mode: u64,
        auth_key: *mut u8,
        auth_key_size: usize,
        max_err_data: usize,
        mr_cnt: usize,
        tclass: u32,
    }
    FabricAttributes = "struct fi_fabric_attr" {
        fabric: *mut Fabric,
        name: *mut c_char,
        prov_name: *mut c_char,
        prov_version: u32,
        api_version: u32,
    }
    Info = "struct fi_info" {
        next: *mut Info,
        caps: u64,
        mode: u64,
        addr_format: u32,
        src_addrlen: usize,
        dest_addrlen: usize,
        src_addr: *mut c_void,
        dest_addr: *mut c_void,
        handle: *mut Object,
        tx_attr: *mut TransmitAttributes,
        rx_attr: *mut ReceiveAttributes,
        ep_attr: *mut EndpointAttributes,
        domain_attr: *mut DomainAttributes,
        fabric_attr: *mut FabricAttributes,
        nic: *mut c_void,
    }
    Fabric = "struct fid_fabric" {
        object = "fid": Object,
        operations = "ops": *mut FabricOperations,
        api_version: u32,
    }
    FabricOperations = "struct fi_ops_fabric" {
        size: usize,
        domain: unsafe extern "C" fn(*mut Fabric, *mut Info, *mut *mut Domain, *mut c_void) -> c_int,
        passive_ep: unsafe extern "C" fn(*mut Fabric, *mut Info, *mut *mut PassiveEndpoint, *mut c_void) -> c_int,
        eq_open: unsafe extern "C" fn(*mut Fabric, *mut EventQueueAttributes, *mut *mut EventQueue, *mut c_void) -> c_int,
        wait_open: Unused,
        trywait: unsafe extern "C" fn(*mut Fabric, *mut *mut Object, c_int) -> c_int,
        domain2: Unused,
    }
    Domain = "struct fid_domain" {
        object = "fid": Object,
        operations = "ops": *mut DomainOperations,
        memory = "mr": *mut MemoryOperations,
    }
    DomainOperations = "struct fi_ops_domain" {
        size: usize,
        av_open: unsafe extern "C" fn(*mut Domain, *mut AddressVectorAttributes, *mut *mut AddressVector, *mut c_void) -> c_int,
        cq_open: unsafe extern "C" fn(*mut Domain, *mut CompletionQueueAttributes, *mut *mut CompletionQueue, *mut c_void) -> c_int,
        endpoint: unsafe extern "C" fn(*mut Domain, *mut Info, *mut *mut Endpoint, *mut c_void) -> c_int,
        scalable_ep: Unused,
        cntr_open: Unused,
        poll_open: Unused,
        stx_ctx: Unused,
        srx_ctx: unsafe extern "C" fn(*mut Domain, *mut ReceiveAttributes, *mut *mut Endpoint, *mut c_void) -> c_int,
        query_atomic: Unused,
        query_collective: Unused,
        endpoint2: Unused,
    }
    AddressVectorAttributes = "struct fi_av_attr" {
        kind = "type": c_int,
        rx_ctx_bits: c_int,
        count: usize,
        ep_per_node: usize,
        name: *const c_char,
        map_addr: *mut c_void,
        flags: u64,
    }
    AddressVector = "struct fid_av" {
        object = "fid": Object,
        operations = "ops": *mut AddressVectorOperations,
    }
    AddressVectorOperations = "struct fi_ops_av" {
        size: usize,
        // Arguments: addresses, their number, the resulting names, flags, context.
        insert: unsafe extern "C" fn(*mut AddressVector, *const c_void, usize, *mut u64, u64, *mut c_void) -> c_int,
        insertsvc: Unused,
        insertsym: Unused,
        remove: unsafe extern "C" fn(*mut AddressVector, *mut u64, usize, u64) -> c_int,
        lookup: Unused,
        straddr: Unused,
        av_set: Unused,
    }
    MemoryOperations = "struct fi_ops_mr" {
        size: usize,
        // Arguments: domain object, address, length, access, offset, key, flags, result, context.
        reg: unsafe extern "C" fn(*mut Object, *const c_void, usize, u64, u64, u64, u64, *mut *mut MemoryRegion, *mut c_void) -> c_int,
        regv: Unused,
        regattr: Unused,
    }
    MemoryRegion = "struct fid_mr" {
        object = "fid": Object,
        mem_desc: *mut c_void,
        key: u64,
    }
    EventQueueAttributes = "struct fi_eq_attr" {
        size: usize,
        flags: u64,
        wait_obj: c_int,
        signaling_vector: c_int,
        wait_set: *mut c_void,
    }
    EventQueue = "struct fid_eq" {
        object = "fid": Object,
        operations = "ops": *mut EventQueueOperations,
    }
    EventQueueOperations = "struct fi_ops_eq" {
        size: usize,
        read: unsafe extern "C" fn(*mut EventQueue, *mut u32, *mut c_void, usize, u64) -> isize,
        readerr: unsafe extern "C" fn(*mut EventQueue, *mut EventError, u64) -> isize,
        write: Unused,
        sread: Unused,
        strerror: Unused,
    }
    /// Followed by the data of the peer's request.
    ConnectionEvent = "struct fi_eq_cm_entry" {
        object = "fid": *mut Object,
        info: *mut Info,
    }
    EventError = "struct fi_eq_err_entry" {
        object = "fid": *mut Object,
        context: *mut c_void,
        data: u64,
        error = "err": c_int,
        prov_errno: c_int,
        err_data: *mut c_void,
        err_data_size: usize,
    }
    CompletionQueueAttributes = "struct fi_cq_attr" {
        size: usize,
        flags: u64,
        format: c_int,
        wait_obj: c_int,
        signaling_vector: c_int,
        wait_cond: c_int,
        wait_set: *mut c_void,
    }
    CompletionQueue = "struct fid_cq" {
        object = "fid": Object,
        operations = "ops": *mut CompletionQueueOperations,
    }
    CompletionQueueOperations = "struct fi_ops_cq" {
        size: usize,
        read: unsafe extern "C" fn(*mut CompletionQueue, *mut c_void, usize) -> isize,
        readfrom: Unused,
        readerr: unsafe extern "C" fn(*mut CompletionQueue, *mut CompletionError, u64) -> isize,
        sread: Unused,
        sreadfrom: Unused,
        signal: Unused,
        strerror: Unused,
    }
    Completion = "struct fi_cq_msg_entry" {
        context = "op_context": *mut c_void,
        flags: u64,
        length = "len": usize,
    }
    CompletionError = "struct fi_cq_err_entry" {
        context = "op_context": *mut c_void,
        flags: u64,
        length = "len": usize,
        buf: *mut c_void,
        data: u64,
        tag: u64,
        olen: usize,
        error = "err": c_int,
        prov_errno: c_int,
        err_data: *mut c_void,
        err_data_size: usize,
    }
    Endpoint = "struct fid_ep" {
        object = "fid": Object,
        operations = "ops": *mut c_void,
        manager = "cm": *mut ManagerOperations,
        messages = "msg": *mut MessageOperations,
        memory = "rma": *mut RemoteOperations,
        tagged: *mut c_void,
        atomic: *mut c_void,
        collective: *mut c_void,
    }
    PassiveEndpoint = "struct fid_pep" {
        object = "fid": Object,
        operations = "ops": *mut c_void,
        manager = "cm": *mut ManagerOperations,
    }
    ManagerOperations = "struct fi_ops_cm" {
        size: usize,
        setname: Unused,
        getname: unsafe extern "C" fn(*mut Object, *mut c_void, *mut usize) -> c_int,
        getpeer: Unused,
        connect: unsafe extern "C" fn(*mut Endpoint, *const c_void, *const c_void, usize) -> c_int,
        listen: unsafe extern "C" fn(*mut PassiveEndpoint) -> c_int,
        accept: unsafe extern "C" fn(*mut Endpoint, *const c_void, usize) -> c_int,
        reject: unsafe extern "C" fn(*mut PassiveEndpoint, *mut Object, *const c_void, usize) -> c_int,
        shutdown: unsafe extern "C" fn(*mut Endpoint, u64) -> c_int,
        join: Unused,
    }
    MessageOperations = "struct fi_ops_msg" {
        size: usize,
        recv: Unused,
        // Arguments: endpoint, parts, descriptors, number of parts, source, context.
        recvv: unsafe extern "C" fn(*mut Endpoint, *const libc::iovec, *mut *mut c_void, usize, u64, *mut c_void) -> isize,
        recvmsg: Unused,
        send: Unused,
        sendv: Unused,
        sendmsg: unsafe extern "C" fn(*mut Endpoint, *const Message, u64) -> isize,
        inject: Unused,
        senddata: Unused,
        injectdata: Unused,
    }
    RemoteOperations = "struct fi_ops_rma" {
        size: usize,
        read: Unused,
        readv: Unused,
        readmsg: unsafe extern "C" fn(*mut Endpoint, *const RemoteMessage, u64) -> isize,
        write: Unused,
        writev: Unused,
        writemsg: unsafe extern "C" fn(*mut Endpoint, *const RemoteMessage, u64) -> isize,
        inject: Unused,
        writedata: Unused,
        injectdata: Unused,
    }
    Message = "struct fi_msg" {
        parts = "msg_iov": *const libc::iovec,
        descriptors = "desc": *mut *mut c_void,
        count = "iov_count": usize,
        address = "addr": u64,
        context: *mut c_void,
        data: u64,
    }
    RemoteMessage = "struct fi_msg_rma" {
        parts = "msg_iov": *const libc::iovec,
        descriptors = "desc": *mut *mut c_void,
        count = "iov_count": usize,
        address = "addr": u64,
        remote = "rma_iov": *const RemotePart,
        remote_count = "rma_iov_count": usize,
        context: *mut c_void,
        data: u64,
    }
    RemotePart = "struct fi_rma_iov" {
        address = "addr": u64,
        length = "len": usize,
        key: u64,
    }
}

/// Returns for each constant: its name in C, and its value here.
#[cfg(test)]
fn numbers() -> Vec<(&'static str, u64)> {
    vec![
        ("FI_VERSION(1, 17)", VERSION.into()),
        ("FI_MSG", MSG),
        ("FI_RMA", RMA),
        ("FI_READ", READ),
        ("FI_WRITE", WRITE),
        ("FI_RECV", RECV),
        ("FI_SEND", SEND),
        ("FI_REMOTE_READ", REMOTE_READ),
        ("FI_REMOTE_WRITE", REMOTE_WRITE),
        ("FI_COMPLETION", COMPLETION),
        ("FI_INJECT", INJECT),
        ("FI_DELIVERY_COMPLETE", DELIVERY_COMPLETE),
        ("FI_NUMERICHOST", NUMERIC_HOST),
        ("FI_SOURCE", SOURCE),
        ("FI_SELECTIVE_COMPLETION", SELECTIVE_COMPLETION),
        ("FI_ORDER_SAW", ORDER_SAW),
        ("FI_ORDER_SAS", ORDER_SAS),
        ("FI_ORDER_RAW", ORDER_RAW),
        ("FI_ORDER_WAW", ORDER_WAW),
        ("FI_EP_MSG", ENDPOINT_MSG as u64),
        ("FI_EP_RDM", ENDPOINT_RDM as u64),
        ("FI_RM_ENABLED", RESOURCES_MANAGED as u64),
        ("FI_AV_TABLE", ADDRESS_TABLE as u64),
        ("FI_SOCKADDR_IN", FORMAT_INTERNET_4.into()),
        ("FI_SOCKADDR_IN6", FORMAT_INTERNET_6.into()),
        ("FI_MR_LOCAL", REGISTER_LOCAL as u64),
        ("FI_MR_VIRT_ADDR", REGISTER_VIRTUAL_ADDRESSES as u64),
        ("FI_MR_ALLOCATED", REGISTER_ALLOCATED as u64),
        ("FI_MR_PROV_KEY", REGISTER_PROVIDERS_KEYS as u64),
        ("FI_MR_ENDPOINT", REGISTER_ENDPOINT as u64),
        ("FI_THREAD_SAFE", THREAD_SAFE as u64),
        ("FI_PROGRESS_MANUAL", PROGRESS_MANUAL as u64),
        ("FI_SHARED_CONTEXT", SHARED_CONTEXT as u64),
        ("FI_ADDR_UNSPEC", ADDRESS_UNSPECIFIED),
        ("FI_CQ_FORMAT_MSG", CQ_FORMAT_MSG as u64),
        ("FI_WAIT_NONE", WAIT_NONE as u64),
        ("FI_WAIT_FD", WAIT_DESCRIPTOR as u64),
        ("FI_GETWAIT", GET_WAIT as u64),
        ("FI_ENABLE", ENABLE as u64),
        ("FI_CONNREQ", EVENT_CONNECTION_REQUEST.into()),
        ("FI_CONNECTED", EVENT_CONNECTED.into()),
        ("FI_SHUTDOWN", EVENT_SHUTDOWN.into()),
        ("FI_EAVAIL", ERROR_AVAILABLE as u64),
        ("FI_ETRUNC", ERROR_TRUNCATED as u64),
        ("FI_EAGAIN", libc::EAGAIN as u64),
        ("FI_ECANCELED", libc::ECANCELED as u64),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the lines that `tests/ofi/abi` gives to a C compiler: a value, and its expression.
    fn lines() -> Vec<String> {
        let layouts = layout().into_iter().flat_map(|(structure, field, offset, size)| match field {
            "" => vec![format!("{size} sizeof({structure})")],
            _ => vec![
                format!("{offset} offsetof({structure}, {field})"),
                format!("{size} sizeof((({structure} *) 0)->{field})"),
            ],
        });
        let numbers =
            numbers().into_iter().map(|(name, value)| format!("{value} (unsigned long long) {name}"));
        layouts.chain(numbers).collect()
    }

    #[test]
    fn layouts_and_numbers_are_those_that_are_held_against_the_headers() {
        let known: Vec<&str> = include_str!("abi.txt").lines().collect();
        let lines = lines();
        for (line, known) in lines.iter().zip(&known) {
            assert_eq!(line, known);
        }
        assert_eq!(lines.len(), known.len(), "all:\n{}", lines.join("\n"));
    }
}
