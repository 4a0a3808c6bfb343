service Hello {
  /** Returns a greeting for a name. */
  string greet(1: string name) (perf_goal = "latency", payload_size = "64B")
} (concurrency = "8")
