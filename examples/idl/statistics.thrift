/** Nothing was recorded under that key. */
exception NoSuchKey {
  1: required string key
}

/** What is known of the values of a key. The percentiles are up to an eighth too low. */
struct Summary {
  1: required i64 count
  2: required i64 least
  3: required i64 most
  4: required double mean
  5: required i64 median
  6: required i64 p99
}

/**
 * Counters, and values over keys. Each call reads and writes what others do at the same time, which one-sided READs and WRITEs would need
 * locks, layouts and retries for (RF-RPC section 1); as a service it is a map.
 */
service Statistics {
  hint: concurrency = 4, payload_size = 64B;

  /** Adds to a counter; gives what it has become. */
  i64 add(1: string counter, 2: i64 by) [ hint: perf_goal = latency; ]

  /** Takes a value down. */
  void record(1: string key, 2: i64 value) [ hint: perf_goal = throughput; ]

  /** What the values of a key come to. */
  Summary summary(1: string key) throws (1: NoSuchKey missing) [ hint: perf_goal = latency; ]
}
