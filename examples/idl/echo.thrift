/** The smallest service, optimized for latency (HatRPC figure 1). */
service Echo {
  /** Returns the payload. */
  binary ping(1: binary payload) (payload_size = "64B")
} (perf_goal = "latency", concurrency = "1", s_hint.polling = "busy")
