/** The key does not exist. */
exception Missing {
  1: required binary key
}

/** Key-value pairs in memory. */
service KV {
  /** Returns the value of a key. */
  binary get(1: binary key) throws (1: Missing missing)
    (perf_goal = "latency", payload_size = "1KB", c_hint.polling = "busy")

  /** Stores a value. */
  void put(1: binary key, 2: binary value) (payload_size = "1KB")

  /** Returns the values of many keys; an empty value for a key that does not exist. */
  list<binary> multiget(1: list<binary> keys) (payload_size = "10KB")

  /** Reports that the client is alive. */
  oneway void heartbeat() (transport = "tcp")
} (perf_goal = "throughput", concurrency = "64")
