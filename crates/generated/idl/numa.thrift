// Services whose threads are bound to NUMA nodes.
namespace * numa

service Bound {
  hint: numa = 1;

  /** The cores that the handler may run on. */
  list<i32> cores()
  /** The same, on the pool. */
  list<i32> pooled() [ hint: process_time = long; ]
}

/** Bound to the NIC's node, as long as there are few clients. */
service Near {
  s_hint: numa = on, concurrency = 1;
  list<i32> cores()
}

/** No machine has that node. */
service Lost {
  hint: numa = 700;
  void nothing()
}

/** One thread cannot be at two nodes. */
service Torn {
  void left() [ hint: numa = 0; ]
  void right() [ hint: numa = 1; ]
}
