/** The smallest service, optimized for latency (HatRPC figure 1). */
service Echo {
  hint: perf_goal = latency, concurrency = 1;
  s_hint: polling = busy;

  /** Returns the payload. */
  binary ping(1: binary payload) [ hint: payload_size = 64B; ]
}
