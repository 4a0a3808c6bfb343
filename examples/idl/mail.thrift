/** The mailbox does not exist. */
exception NoMailbox {
  1: required string owner
}

/** A letter. */
struct Letter {
  1: required string sender
  2: required string text
  /** The attachment. */
  3: optional binary attachment
}

/** A mail server (HatRPC figure 1): it receives many small letters and sends few large deliveries. */
service Mail {
  /** Opens a mailbox. */
  void open(1: string owner) (perf_goal = "res_util")

  /** Puts a letter into a mailbox. Returns the number of letters in it. */
  i32 post(1: string owner, 2: Letter letter) throws (1: NoMailbox missing)
    (c_hint.payload_size = "1KB", s_hint.payload_size = "4B")

  /** Removes all letters from a mailbox and returns them. */
  list<Letter> deliver(1: string owner) throws (1: NoMailbox missing)
    (c_hint.payload_size = "64B", s_hint.payload_size = "128KB")

  /** Reports that the owner reads. */
  oneway void reading(1: string owner) (priority = "low")
} (perf_goal = "throughput", concurrency = "32")
