/** The smallest service, for who wants its answer as soon as can be (HatRPC figure 1). */
service Echo {
  hint: perf_goal = latency, concurrency = 1;
  s_hint: polling = busy;

  /** Gives back what it gets. */
  binary ping(1: binary payload) [ hint: payload_size = 64B; ]
}
