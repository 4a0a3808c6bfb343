/** No such mailbox. */
exception NoMailbox {
  1: required string owner
}

/** A letter. */
struct Letter {
  1: required string sender
  2: required string text
  /** What is sent along. */
  3: optional binary attachment
}

/** A mail server (HatRPC figure 1): many small letters come in, few deliveries go out, and those are large. */
service Mail {
  hint: perf_goal = throughput, concurrency = 32;

  /** Opens a mailbox. */
  void open(1: string owner) [ hint: perf_goal = res_util; ]

  /** Puts a letter into a mailbox; gives the number of letters in it. */
  i32 post(1: string owner, 2: Letter letter) throws (1: NoMailbox missing)
    [ c_hint: payload_size = 1KB; s_hint: payload_size = 4B; ]

  /** Takes all letters out of a mailbox. */
  list<Letter> deliver(1: string owner) throws (1: NoMailbox missing)
    [ c_hint: payload_size = 64B; s_hint: payload_size = 128KB; ]

  /** Tells that the owner reads; nobody waits for it. */
  oneway void reading(1: string owner) [ hint: priority = low; ]
}
