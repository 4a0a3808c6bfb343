//! The table of parameters: every number of a profile, with its file, unit and range.

/// The file of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The NIC's file, shared by all clusters with the NIC. A cluster may override it in `[override.*]`, with
    /// a reason.
    Nic,
    /// The cluster's file.
    Cluster,
}

macro_rules! parameters {
    ($( $(#[doc = $doc:literal])+ $name:ident = $scope:ident $section:literal $key:literal $low:literal ..= $high:literal; )+) => {
        /// A number of a profile. The key states the unit: `_ns`, `_bytes`, `gbit_s`, ...
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Parameter { $( $(#[doc = $doc])+ $name, )+ }

        impl Parameter {
            /// All parameters, in the order of the table.
            pub const ALL: &[Parameter] = &[ $( Parameter::$name, )+ ];

            /// Returns the file of the parameter.
            #[must_use]
            pub fn scope(self) -> Scope { match self { $( Parameter::$name => Scope::$scope, )+ } }
            /// Returns the section of the file.
            #[must_use]
            pub fn section(self) -> &'static str { match self { $( Parameter::$name => $section, )+ } }
            /// Returns the key within the section.
            #[must_use]
            pub fn key(self) -> &'static str { match self { $( Parameter::$name => $key, )+ } }
            /// Returns the smallest and the largest sensible value.
            #[must_use]
            pub fn range(self) -> (f64, f64) { match self { $( Parameter::$name => ($low as f64, $high as f64), )+ } }
            /// Returns a description.
            #[must_use]
            pub fn meaning(self) -> &'static str { match self { $( Parameter::$name => concat!($($doc),+).trim_ascii(), )+ } }
        }
    };
}

parameters! {
    /// Processing-unit time of one request sent: the reciprocal of the rate of all units together.
    RequestOut = Nic "processing" "request_out_ns" 0 ..= 10000;
    /// Processing-unit time of one request received.
    RequestIn = Nic "processing" "request_in_ns" 0 ..= 10000;
    /// Additional time to serve a READ: the units send its answer, not the acknowledgement logic.
    ReadServe = Nic "processing" "read_serve_ns" 0 ..= 10000;
    /// Time to receive the answer to a READ or atomic at the initiator.
    ReadAnswer = Nic "processing" "read_answer_ns" 0 ..= 10000;
    /// Time to send an acknowledgement at the responder (RC only).
    AckOut = Nic "processing" "ack_out_ns" 0 ..= 10000;
    /// Time to receive an acknowledgement at the initiator (RC only).
    AckIn = Nic "processing" "ack_in_ns" 0 ..= 10000;
    /// Time to write a completion (CQE).
    CompletionOut = Nic "processing" "completion_ns" 0 ..= 10000;
    /// Time to take a posted RECV at the responder.
    ReceiveIn = Nic "processing" "receive_ns" 0 ..= 10000;
    /// Size of the pieces in which the DMA engine moves payloads.
    ChunkBytes = Nic "processing" "chunk_bytes" 64 ..= 4096;
    /// Time of each piece after the first, on each side of the wire.
    Chunk = Nic "processing" "chunk_ns" 0 ..= 1000;
    /// Time of each payload byte, on each side of the wire.
    PayloadByte = Nic "processing" "byte_ns" 0 ..= 10;
    /// Latency of one passage through the NIC, in addition to the times above.
    Pipeline = Nic "processing" "pipeline_ns" 0 ..= 10000;
    /// Largest payload that can be inline in the work request.
    InlineLimit = Nic "request" "inline_limit_bytes" 0 ..= 4096;
    /// Largest work request (64 bytes, or its head and an inline payload) that the processor pushes with the
    /// doorbell (BlueFlame), so that the NIC need not fetch it.
    PushLimit = Nic "request" "push_limit_bytes" 0 ..= 4096;
    /// Work requests that one DMA read fetches when several are linked or waiting.
    Prefetch = Nic "request" "prefetch_requests" 1 ..= 64;
    /// Queue pairs whose context for sending the NIC can hold; the same number applies to contexts for
    /// placing answers.
    InitiatorQueuePairs = Nic "cache" "initiator_queue_pairs" 1 ..= 1000000;
    /// Queue pairs whose context for serving requests the NIC can hold.
    ResponderQueuePairs = Nic "cache" "responder_queue_pairs" 1 ..= 1000000;
    /// READs whose work requests the NIC can hold until their answers arrive.
    OutstandingReads = Nic "cache" "outstanding_reads" 1 ..= 1000000;
    /// Latency of fetching an entry that a cache of the NIC misses.
    MissLatency = Nic "cache" "miss_ns" 0 ..= 100000;
    /// Number of such fetches that the sending side overlaps when it places answers.
    AnswerMissParallel = Nic "cache" "answer_miss_parallel" 0.1 ..= 1000;
    /// Number of such fetches that the sending side overlaps when an answer needs its work request again.
    OutstandingMissParallel = Nic "cache" "outstanding_miss_parallel" 0.1 ..= 1000;
    /// Number of such fetches that the sending side overlaps when it sends.
    InitiatorMissParallel = Nic "cache" "initiator_miss_parallel" 0.1 ..= 1000;
    /// Number of such fetches that the receiving side overlaps.
    ResponderMissParallel = Nic "cache" "responder_miss_parallel" 0.1 ..= 1000;
    /// Address translations (MTT entries, one per page) that the NIC can hold.
    Translations = Nic "cache" "translations" 1 ..= 10000000;
    /// Regions (MPT entries) that the NIC can hold.
    Protections = Nic "cache" "protections" 1 ..= 10000000;
    /// Ports in use.
    Ports = Nic "link" "ports" 1 ..= 4;

    /// Data rate of one port.
    LinkRate = Cluster "link" "gbit_s" 1 ..= 1600;
    /// Largest payload of a packet.
    LinkMtu = Cluster "link" "mtu_bytes" 256 ..= 65536;
    /// Headers and checksums of a packet.
    LinkHeader = Cluster "link" "header_bytes" 0 ..= 500;
    /// Latency from NIC to NIC: cables and the switch.
    SwitchLatency = Cluster "link" "switch_ns" 0 ..= 100000;
    /// PCIe bandwidth per direction, after encoding and flow control.
    PcieRate = Cluster "pcie" "gbyte_s" 0.25 ..= 512;
    /// Largest payload of a PCIe packet.
    PciePayload = Cluster "pcie" "payload_bytes" 64 ..= 4096;
    /// Headers of a PCIe packet.
    PcieHeader = Cluster "pcie" "header_bytes" 0 ..= 64;
    /// From the processor's store to the NIC.
    Mmio = Cluster "pcie" "mmio_ns" 0 ..= 10000;
    /// Latency of a DMA read, from request to data.
    DmaRead = Cluster "pcie" "read_ns" 0 ..= 10000;
    /// DMA reads in flight.
    DmaReadParallel = Cluster "pcie" "read_parallel" 1 ..= 1024;
    /// Latency of a DMA write, until a processor can see it.
    DmaWrite = Cluster "pcie" "write_ns" 0 ..= 10000;
    /// Cores of one host.
    Cores = Cluster "host" "cores" 1 ..= 4096;
    /// Clock rate of the cores.
    Clock = Cluster "host" "clock_ghz" 0.1 ..= 10;
    /// Cache-line misses that a core can have outstanding.
    FillBuffers = Cluster "host" "fill_buffers" 1 ..= 256;
    /// Page size of registered memory.
    PageBytes = Cluster "host" "page_bytes" 4096 ..= 1073741824;
    /// Slices of the last-level cache near the NIC.
    CacheSlices = Cluster "llc" "slices" 1 ..= 256;
    /// Sets of a slice (lines of 64 bytes).
    CacheSets = Cluster "llc" "sets" 1 ..= 1048576;
    /// Ways of a set.
    CacheWays = Cluster "llc" "ways" 1 ..= 64;
    /// Ways that a NIC's writes may allocate in (DDIO); 0 where NICs write to memory.
    CacheIoWays = Cluster "llc" "io_ways" 0 ..= 64;
    /// Time of a write whose first line is in no cache and must evict another (Write Allocate).
    CacheAllocate = Cluster "llc" "allocate_ns" 0 ..= 10000;
    /// Additional latency of a DMA that no cache serves.
    MemoryLatency = Cluster "llc" "memory_ns" 0 ..= 10000;
    /// Memory bandwidth for DMA.
    MemoryRate = Cluster "llc" "memory_gbyte_s" 1 ..= 2000;

    /// A poll of a mailbox that finds nothing.
    PricePollMiss = Cluster "prices" "poll_miss_ns" 0 ..= 100000;
    /// A poll that finds a message, including the transfer of the line that the NIC wrote.
    PricePollHit = Cluster "prices" "poll_hit_ns" 0 ..= 100000;
    /// Parsing and checking a message header.
    PriceParseMessage = Cluster "prices" "parse_message_ns" 0 ..= 100000;
    /// Parsing one entry.
    PriceParseEntry = Cluster "prices" "parse_entry_ns" 0 ..= 100000;
    /// Building a message header.
    PriceBuildMessage = Cluster "prices" "build_message_ns" 0 ..= 100000;
    /// Building one entry.
    PriceBuildEntry = Cluster "prices" "build_entry_ns" 0 ..= 100000;
    /// Copying one byte.
    PriceCopyByte = Cluster "prices" "copy_byte_ns" 0 ..= 100;
    /// The engine's bookkeeping per work request; the verbs call itself is `post_ns` and `doorbell_ns`.
    PricePostWork = Cluster "prices" "post_work_ns" 0 ..= 100000;
    /// The engine's share of a doorbell.
    PriceDoorbell = Cluster "prices" "engine_doorbell_ns" 0 ..= 100000;
    /// The engine's share of a completion; the verbs call is `poll_found_ns`.
    PricePollCompletion = Cluster "prices" "poll_completion_ns" 0 ..= 100000;
    /// Dispatching one function to its handler.
    PriceDispatch = Cluster "prices" "dispatch_ns" 0 ..= 100000;
    /// Taking a cache line that another core wrote last.
    PriceTakeLine = Cluster "prices" "take_line_ns" 0 ..= 100000;
    /// Verbs: writing one work request to the send queue.
    PricePost = Cluster "prices" "post_ns" 0 ..= 100000;
    /// Verbs: the call and the doorbell (fences, uncached store), once for all linked work requests.
    PriceRing = Cluster "prices" "doorbell_ns" 0 ..= 100000;
    /// Verbs: polling an empty completion queue.
    PricePollEmpty = Cluster "prices" "poll_empty_ns" 0 ..= 100000;
    /// Verbs: finding and taking one completion.
    PricePollFound = Cluster "prices" "poll_found_ns" 0 ..= 100000;
    /// Verbs: posting one RECV again.
    PriceReceive = Cluster "prices" "post_receive_ns" 0 ..= 100000;
    /// One iteration of a raw-verbs benchmark's loop, without its verbs calls.
    PriceLoop = Cluster "prices" "benchmark_loop_ns" 0 ..= 100000;
    /// A context switch between threads of a core.
    ContextSwitch = Cluster "prices" "context_switch_ns" 0 ..= 1000000;
    /// From an event to the first instruction of the thread that slept on it.
    WakeLatency = Cluster "prices" "wake_ns" 0 ..= 1000000;
    /// How long a thread runs while others wait for its core.
    Quantum = Cluster "prices" "quantum_ns" 1000 ..= 1000000000;

    /// Registering memory: system call and firmware command.
    Register = Cluster "kernel" "register_ns" 0 ..= 10000000;
    /// Registering memory: each page that is pinned and translated.
    RegisterPage = Cluster "kernel" "register_page_ns" 0 ..= 100000;
    /// Deregistering memory: system call and firmware command.
    Deregister = Cluster "kernel" "deregister_ns" 0 ..= 10000000;
    /// Deregistering memory: each page that is unpinned.
    DeregisterPage = Cluster "kernel" "deregister_page_ns" 0 ..= 100000;
    /// LITE in the kernel: entering and leaving it for one operation.
    Crossings = Cluster "kernel" "crossings_ns" 0 ..= 100000;
    /// LITE in the kernel: mapping and checking the addresses of one operation.
    Indirection = Cluster "kernel" "indirection_ns" 0 ..= 100000;
    /// A fault of a page that the kernel makes, without the reading of its bytes.
    PageFault = Cluster "kernel" "page_fault_ns" 0 ..= 1000000;

    /// Sockets: processor time of sending one message.
    SocketSend = Cluster "sockets" "send_ns" 0 ..= 1000000;
    /// Sockets: processor time of receiving one message.
    SocketReceive = Cluster "sockets" "receive_ns" 0 ..= 1000000;
    /// Sockets: processor time per byte on each side.
    SocketByte = Cluster "sockets" "byte_ns" 0 ..= 100;
    /// Sockets: from the sender's last instruction to the receiver's wake-up, without bandwidth.
    SocketLatency = Cluster "sockets" "latency_ns" 0 ..= 10000000;
    /// Sockets: bandwidth of one host per direction.
    SocketRate = Cluster "sockets" "gbit_s" 0.1 ..= 1600;
}

impl Parameter {
    /// Returns `section.key`.
    #[must_use]
    pub fn name(self) -> String {
        format!("{}.{}", self.section(), self.key())
    }

    /// Returns the parameter with the given `section.key`.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Parameter> {
        Parameter::ALL.iter().copied().find(|parameter| parameter.name() == name)
    }
}
