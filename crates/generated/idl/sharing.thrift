// A service whose clients share connections.
namespace * sharing

service Counted {
  /** The number with one more. */
  i32 next(1: i32 number)
  /** The same for a busy client. */
  i32 busy_next(1: i32 number) (c_hint.polling = "busy")
} (perf_goal = "latency", c_hint.sharing = "combined")
