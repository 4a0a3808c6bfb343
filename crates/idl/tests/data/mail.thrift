// HatRPC figure 1: two functions whose hints do not disturb each other, in plain Thrift's annotations.
namespace rs mail

struct Letter {
  1: required string sender;
  2: required list<string> recipients;
  3: binary body;
}

exception Refused {
  1: string reason;
}

service Mail {
  // Takes a letter for delivery; the client waits for it.
  i64 post(1: Letter letter) throws (1: Refused refused) (
    perf_goal = "latency",
    payload_size = "4KB",
    c_hint.polling = "busy",
    s_hint.polling = "adaptive"
  )

  // Hands out all letters of a recipient.
  list<Letter> deliver(1: string recipient) (
    c_hint.payload_size = "64",
    s_hint.payload_size = "128KB",
    process_time = "1ms"
  )
} (perf_goal = "throughput", concurrency = "128")
