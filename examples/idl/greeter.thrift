/** The name is empty. */
exception NoName {
  1: required string advice
}

/** Greets people. */
service Greeter {
  /** Returns a greeting for one person. */
  string greet(1: string name) throws (1: NoName refused)
    (perf_goal = "latency", payload_size = "64B")

  /** Returns a greeting for each of many people. */
  list<string> greet_all(1: list<string> names)
    (perf_goal = "throughput", c_hint.payload_size = "4KB", s_hint.payload_size = "16KB")

  /** Returns the number of greetings so far. Slow functions say so, and run in the pool. */
  i64 total() (perf_goal = "res_util", s_hint.process_time = "100us")
} (concurrency = "16")
