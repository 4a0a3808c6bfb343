// What others build on.
include "deep.thrift"

enum Color { RED, GREEN }

struct Item {
  1: deep.Key key
}

exception Wrong {
  1: string why
}

service Ping extends deep.Root {
  hint: perf_goal = latency, concurrency = 8;
  c_hint: polling = busy;

  i32 ping(1: i32 number) [ hint: payload_size = 64; ]
}
