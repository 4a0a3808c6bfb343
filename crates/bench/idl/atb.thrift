namespace * atb

/** What every function answers. */
struct Answer {
  /** Of the request: of its ends; of every byte from the functions that work on it. */
  1: required i64 checksum

  /** As many bytes as were asked for. */
  2: required binary payload
}

/** The Apache Thrift Benchmarks of HatRPC (sections 5.2 and 5.3). */
service Atb {
  hint: perf_goal = latency, concurrency = 1;

  /** Does nothing: latency and throughput. */
  Answer echo(1: binary payload, 2: i32 answer_bytes) [ hint: payload_size = 512B; ]

  /** Sums the request: the function of the mix whose latency counts. */
  Answer quick(1: binary payload, 2: i32 answer_bytes) [ hint: perf_goal = latency, payload_size = 512B; ]

  /** Sums the request: the function of the mix whose throughput counts. */
  Answer bulk(1: binary payload, 2: i32 answer_bytes) [ hint: perf_goal = throughput, payload_size = 512B; ]
}
