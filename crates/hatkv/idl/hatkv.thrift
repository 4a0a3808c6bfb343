namespace * hatkv

/** No such key. */
exception NotFound {
  1: required binary key
}

/** A request that no store can follow: a key that is empty or too long, as many values as there are not keys. */
exception BadRequest {
  1: required string why
}

/** The store's memory map is full: nothing of the call was stored. */
exception MapFull {
  /** The size of the map in bytes; start the server with more. */
  1: required i64 limit
}

/** As many reads are under way as the store has slots for. */
exception ReadersFull {
  /** The number of slots. */
  1: required i32 limit
}

/** What there is under a key. */
struct Found {
  /** The value, if there is one. */
  1: optional binary value
}

/**
 * HatRPC's key-value service (section 4.4, figure 10): records of 1000 bytes, ten to a batch.
 *
 * The store goes by these hints, too: as many reader slots as clients, and for the goal throughput one transaction for all writes that wait
 * at the same time. With priority = low for both functions that write, they would be answered before the disk has them.
 */
service HatKV {
  hint: perf_goal = throughput, concurrency = 128;

  /** The value of a key. */
  binary get(1: binary key) throws (1: NotFound missing, 2: BadRequest bad, 3: ReadersFull readers)
    [ c_hint: payload_size = 24B; s_hint: payload_size = 1KB; ]

  /** Stores a value. */
  void put(1: binary key, 2: binary value) throws (1: BadRequest bad, 2: MapFull full)
    [ c_hint: payload_size = 1KB; s_hint: payload_size = 4B; ]

  /** The values of many keys, in one view of the store. */
  list<Found> multiget(1: list<binary> keys) throws (1: BadRequest bad, 2: ReadersFull readers)
    [ c_hint: payload_size = 240B; s_hint: payload_size = 10KB; ]

  /** Stores many values, all of them or none. */
  void multiput(1: list<binary> keys, 2: list<binary> values) throws (1: BadRequest bad, 2: MapFull full)
    [ c_hint: payload_size = 10KB; s_hint: payload_size = 4B; ]
}
