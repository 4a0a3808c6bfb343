service KV {
  hint: perf_goal = throughput, concurrency = 64;
  binary get(1: binary key) [ hint: perf_goal = latency, payload_size = 1KB; c_hint: polling = busy; ]
  list<binary> multiget(1: list<binary> keys) [ hint: payload_size = 10KB; ]
  oneway void heartbeat() [ hint: transport = tcp; ]
}
