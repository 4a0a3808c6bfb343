/** A key that is not there. */
exception Missing {
  1: required binary key
}

/** Key-value pairs in memory. */
service KV {
  hint: perf_goal = throughput, concurrency = 64;

  /** The value of a key. */
  binary get(1: binary key) throws (1: Missing missing)
    [ hint: perf_goal = latency, payload_size = 1KB; c_hint: polling = busy; ]

  /** Stores a value. */
  void put(1: binary key, 2: binary value) [ hint: payload_size = 1KB; ]

  /** The values of many keys; empty where there is none. */
  list<binary> multiget(1: list<binary> keys) [ hint: payload_size = 10KB; ]

  /** Tells that the client lives. */
  oneway void heartbeat() [ hint: transport = tcp; ]
}
