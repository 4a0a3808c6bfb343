namespace * hatkv

/** The key does not exist. */
exception NotFound {
  1: required binary key
}

/** An invalid request: a key is empty or too long, or the numbers of keys and values differ. */
exception BadRequest {
  1: required string why
}

/** The store's memory map is full. The call stored nothing. */
exception MapFull {
  /** The size of the map in bytes. Start the server with a larger one. */
  1: required i64 limit
}

/** All reader slots of the store are in use. */
exception ReadersFull {
  /** The number of slots. */
  1: required i32 limit
}

/** The result of looking up a key. */
struct Found {
  /** The value, if the key exists. */
  1: optional binary value
}

/**
 * HatRPC's key-value service (section 4.4, figure 10): records of 1000 bytes, ten to a batch.
 *
 * The hints tune the store too: it has one reader slot per client, and with the goal throughput, concurrent writes share one
 * transaction. With priority = low on both functions that write, writes would be answered before they are on disk.
 */
service HatKV {
  /** Returns the value of a key. */
  binary get(1: binary key) throws (1: NotFound missing, 2: BadRequest bad, 3: ReadersFull readers)
    (c_hint.payload_size = "24B", s_hint.payload_size = "1KB")

  /** Stores a value. */
  void put(1: binary key, 2: binary value) throws (1: BadRequest bad, 2: MapFull full)
    (c_hint.payload_size = "1KB", s_hint.payload_size = "4B")

  /** Returns the values of many keys, from one snapshot of the store. */
  list<Found> multiget(1: list<binary> keys) throws (1: BadRequest bad, 2: ReadersFull readers)
    (c_hint.payload_size = "240B", s_hint.payload_size = "10KB")

  /** Stores many values, all or none. */
  void multiput(1: list<binary> keys, 2: list<binary> values) throws (1: BadRequest bad, 2: MapFull full)
    (c_hint.payload_size = "10KB", s_hint.payload_size = "4B")
} (perf_goal = "throughput", concurrency = "128")
