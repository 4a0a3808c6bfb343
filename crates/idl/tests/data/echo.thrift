// HatRPC figure 1: hints of a service and of its function, for both sides and for each.
namespace rs echo

service Echo {
  hint: perf_goal = latency, concurrency = 1;
  s_hint: polling = adaptive;
  c_hint: polling = busy;

  /** Gives back what it got. */
  binary ping(1: binary payload) [ hint: payload_size = 512; s_hint: priority = high; c_hint: numa = on; ]
}
