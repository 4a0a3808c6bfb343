/** No value was recorded under the key. */
exception NoSuchKey {
  1: required string key
}

/** A summary of a key's values. The percentiles are up to an eighth too low. */
struct Summary {
  1: required i64 count
  2: required i64 least
  3: required i64 most
  4: required double mean
  5: required i64 median
  6: required i64 p99
}

/**
 * Counters, and statistics of values by key. Concurrent calls read and write the same data, for which one-sided READs and WRITEs
 * would need locks, memory layouts and retries (RF-RPC section 1). As a service it is a map.
 */
service Statistics {
  /** Adds to a counter. Returns its new value. */
  i64 add(1: string counter, 2: i64 by) (perf_goal = "latency")

  /** Records a value. */
  void record(1: string key, 2: i64 value) (perf_goal = "throughput")

  /** Returns the summary of a key's values. */
  Summary summary(1: string key) throws (1: NoSuchKey missing) (perf_goal = "latency")
} (concurrency = "4", payload_size = "64B")
