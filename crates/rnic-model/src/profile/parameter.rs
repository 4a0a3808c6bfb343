//! The table of parameters: what a profile must say, in which file, in which unit and range.

/// Which file a parameter stands in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The NIC's file, shared by all clusters that have it; a cluster may override it in `[override.*]`, saying why.
    Nic,
    /// The cluster's file.
    Cluster,
}

macro_rules! parameters {
    ($( $(#[doc = $doc:literal])+ $name:ident = $scope:ident $section:literal $key:literal $low:literal ..= $high:literal; )+) => {
        /// A number of a profile. Units are in the key: `_ns`, `_bytes`, `gbit_s`, ...
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Parameter { $( $(#[doc = $doc])+ $name, )+ }

        impl Parameter {
            /// All of them, in the order of the table.
            pub const ALL: &[Parameter] = &[ $( Parameter::$name, )+ ];

            /// The file it stands in.
            #[must_use]
            pub fn scope(self) -> Scope { match self { $( Parameter::$name => Scope::$scope, )+ } }
            /// The section of the file.
            #[must_use]
            pub fn section(self) -> &'static str { match self { $( Parameter::$name => $section, )+ } }
            /// The key within the section.
            #[must_use]
            pub fn key(self) -> &'static str { match self { $( Parameter::$name => $key, )+ } }
            /// The smallest and the largest sensible value.
            #[must_use]
            pub fn range(self) -> (f64, f64) { match self { $( Parameter::$name => ($low as f64, $high as f64), )+ } }
            /// What it is.
            #[must_use]
            pub fn meaning(self) -> &'static str { match self { $( Parameter::$name => concat!($($doc),+).trim_ascii(), )+ } }
        }
    };
}

parameters! {
    /// Time of the processing units for one request sent, as the reciprocal of what all units do together.
    RequestOut = Nic "processing" "request_out_ns" 0 ..= 10000;
    /// The same for one request received.
    RequestIn = Nic "processing" "request_in_ns" 0 ..= 10000;
    /// What a READ adds where it is served: its answer is sent by the units, not by the acknowledgement logic.
    ReadServe = Nic "processing" "read_serve_ns" 0 ..= 10000;
    /// What the answer to a READ or atomic takes where it comes back.
    ReadAnswer = Nic "processing" "read_answer_ns" 0 ..= 10000;
    /// What sending an acknowledgement takes at the responder (RC only).
    AckOut = Nic "processing" "ack_out_ns" 0 ..= 10000;
    /// What receiving an acknowledgement takes at the initiator (RC only).
    AckIn = Nic "processing" "ack_in_ns" 0 ..= 10000;
    /// What writing a completion (CQE) takes.
    CompletionOut = Nic "processing" "completion_ns" 0 ..= 10000;
    /// What taking a posted RECV takes at the responder.
    ReceiveIn = Nic "processing" "receive_ns" 0 ..= 10000;
    /// Size of the pieces in which the DMA engine moves payloads.
    ChunkBytes = Nic "processing" "chunk_bytes" 64 ..= 4096;
    /// What each piece after the first takes, on each side of the wire.
    Chunk = Nic "processing" "chunk_ns" 0 ..= 1000;
    /// What each byte of a payload takes, on each side of the wire.
    PayloadByte = Nic "processing" "byte_ns" 0 ..= 10;
    /// Latency of one passage through the NIC, beside the times above.
    Pipeline = Nic "processing" "pipeline_ns" 0 ..= 10000;
    /// Largest payload that can stand in the work request.
    InlineLimit = Nic "request" "inline_limit_bytes" 0 ..= 4096;
    /// Largest work request (64 bytes, or its head and an inline payload) that the processor pushes with the doorbell
    /// (BlueFlame), so that the NIC does not have to fetch it.
    PushLimit = Nic "request" "push_limit_bytes" 0 ..= 4096;
    /// Work requests that one DMA read brings in where several are linked or waiting.
    Prefetch = Nic "request" "prefetch_requests" 1 ..= 64;
    /// Queue pairs whose state for sending requests the NIC can hold, and as many for placing answers.
    InitiatorQueuePairs = Nic "cache" "initiator_queue_pairs" 1 ..= 1000000;
    /// Queue pairs whose state for serving requests the NIC can hold.
    ResponderQueuePairs = Nic "cache" "responder_queue_pairs" 1 ..= 1000000;
    /// READs whose work requests the NIC can hold until their answers come.
    OutstandingReads = Nic "cache" "outstanding_reads" 1 ..= 1000000;
    /// Latency of fetching what a cache of the NIC misses.
    MissLatency = Nic "cache" "miss_ns" 0 ..= 100000;
    /// How many such fetches the sending side overlaps where it places answers.
    AnswerMissParallel = Nic "cache" "answer_miss_parallel" 0.1 ..= 1000;
    /// How many such fetches the sending side overlaps where an answer needs its work request again.
    OutstandingMissParallel = Nic "cache" "outstanding_miss_parallel" 0.1 ..= 1000;
    /// How many such fetches the sending side overlaps where it sends.
    InitiatorMissParallel = Nic "cache" "initiator_miss_parallel" 0.1 ..= 1000;
    /// How many such fetches the receiving side overlaps.
    ResponderMissParallel = Nic "cache" "responder_miss_parallel" 0.1 ..= 1000;
    /// Address translations (MTT entries, one a page) that the NIC can hold.
    Translations = Nic "cache" "translations" 1 ..= 10000000;
    /// Regions (MPT entries) that the NIC can hold.
    Protections = Nic "cache" "protections" 1 ..= 10000000;
    /// Ports in use.
    Ports = Nic "link" "ports" 1 ..= 4;

    /// Data rate of one port.
    LinkRate = Cluster "link" "gbit_s" 1 ..= 1600;
    /// Largest payload of a packet.
    LinkMtu = Cluster "link" "mtu_bytes" 256 ..= 65536;
    /// Headers and checks of a packet.
    LinkHeader = Cluster "link" "header_bytes" 0 ..= 500;
    /// From NIC to NIC: cables and the switch.
    SwitchLatency = Cluster "link" "switch_ns" 0 ..= 100000;
    /// What PCIe carries each way, after encoding and flow control.
    PcieRate = Cluster "pcie" "gbyte_s" 0.25 ..= 512;
    /// Largest payload of a PCIe packet.
    PciePayload = Cluster "pcie" "payload_bytes" 64 ..= 4096;
    /// Headers of a PCIe packet.
    PcieHeader = Cluster "pcie" "header_bytes" 0 ..= 64;
    /// From the processor's store to the NIC.
    Mmio = Cluster "pcie" "mmio_ns" 0 ..= 10000;
    /// A DMA read, from request to data.
    DmaRead = Cluster "pcie" "read_ns" 0 ..= 10000;
    /// DMA reads in flight.
    DmaReadParallel = Cluster "pcie" "read_parallel" 1 ..= 1024;
    /// A DMA write, until a processor can see it.
    DmaWrite = Cluster "pcie" "write_ns" 0 ..= 10000;
    /// Cores of one host.
    Cores = Cluster "host" "cores" 1 ..= 4096;
    /// Clock of the cores.
    Clock = Cluster "host" "clock_ghz" 0.1 ..= 10;
    /// Lines of memory that a core can wait for at a time.
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
    /// What a write takes that finds its first line in no cache and must make place for it (Write Allocate).
    CacheAllocate = Cluster "llc" "allocate_ns" 0 ..= 10000;
    /// What memory adds to the latency of a DMA that no cache serves.
    MemoryLatency = Cluster "llc" "memory_ns" 0 ..= 10000;
    /// Memory bandwidth for DMA.
    MemoryRate = Cluster "llc" "memory_gbyte_s" 1 ..= 2000;

    /// A look at a mailbox that finds nothing.
    PricePollMiss = Cluster "prices" "poll_miss_ns" 0 ..= 100000;
    /// A look that finds a message: the line comes from where the NIC has put it.
    PricePollHit = Cluster "prices" "poll_hit_ns" 0 ..= 100000;
    /// A message header taken apart and checked.
    PriceParseMessage = Cluster "prices" "parse_message_ns" 0 ..= 100000;
    /// One entry taken apart.
    PriceParseEntry = Cluster "prices" "parse_entry_ns" 0 ..= 100000;
    /// A message header built.
    PriceBuildMessage = Cluster "prices" "build_message_ns" 0 ..= 100000;
    /// One entry built.
    PriceBuildEntry = Cluster "prices" "build_entry_ns" 0 ..= 100000;
    /// One byte copied.
    PriceCopyByte = Cluster "prices" "copy_byte_ns" 0 ..= 100;
    /// The engine's own bookkeeping of a work request; the verbs call itself is `post_ns` and `doorbell_ns`.
    PricePostWork = Cluster "prices" "post_work_ns" 0 ..= 100000;
    /// The engine's own part of a doorbell.
    PriceDoorbell = Cluster "prices" "engine_doorbell_ns" 0 ..= 100000;
    /// The engine's own part of a completion; the verbs call is `poll_found_ns`.
    PricePollCompletion = Cluster "prices" "poll_completion_ns" 0 ..= 100000;
    /// One function handed to its handler.
    PriceDispatch = Cluster "prices" "dispatch_ns" 0 ..= 100000;
    /// Verbs: one work request written to the send queue.
    PricePost = Cluster "prices" "post_ns" 0 ..= 100000;
    /// Verbs: the call and the doorbell (fences, uncached store), once for all work requests linked.
    PriceRing = Cluster "prices" "doorbell_ns" 0 ..= 100000;
    /// Verbs: a poll of a completion queue that finds nothing.
    PricePollEmpty = Cluster "prices" "poll_empty_ns" 0 ..= 100000;
    /// Verbs: a completion found and taken.
    PricePollFound = Cluster "prices" "poll_found_ns" 0 ..= 100000;
    /// Verbs: one RECV posted again.
    PriceReceive = Cluster "prices" "post_receive_ns" 0 ..= 100000;
    /// What one turn of a raw-verbs benchmark's loop takes beside its verbs calls.
    PriceLoop = Cluster "prices" "benchmark_loop_ns" 0 ..= 100000;
    /// A context switch between threads of a core.
    ContextSwitch = Cluster "prices" "context_switch_ns" 0 ..= 1000000;
    /// From an event to the first instruction of the thread that slept on it.
    WakeLatency = Cluster "prices" "wake_ns" 0 ..= 1000000;
    /// How long a thread runs while others wait for its core.
    Quantum = Cluster "prices" "quantum_ns" 1000 ..= 1000000000;

    /// Sockets: processor time of sending one message.
    SocketSend = Cluster "sockets" "send_ns" 0 ..= 1000000;
    /// Sockets: processor time of receiving one message.
    SocketReceive = Cluster "sockets" "receive_ns" 0 ..= 1000000;
    /// Sockets: processor time per byte on each side.
    SocketByte = Cluster "sockets" "byte_ns" 0 ..= 100;
    /// Sockets: from the sender's last instruction to the receiver's wake-up, beside bandwidth.
    SocketLatency = Cluster "sockets" "latency_ns" 0 ..= 10000000;
    /// Sockets: what one host can move, either way.
    SocketRate = Cluster "sockets" "gbit_s" 0.1 ..= 1600;
}

impl Parameter {
    /// `section.key`.
    #[must_use]
    pub fn name(self) -> String {
        format!("{}.{}", self.section(), self.key())
    }

    /// The parameter of that `section.key`.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Parameter> {
        Parameter::ALL.iter().copied().find(|parameter| parameter.name() == name)
    }
}
