namespace * shared

/** Something went wrong elsewhere. */
exception Elsewhere {
  1: i32 code
  2: optional string why
}

enum Color {
  RED = 1
  GREEN = 2
  BLUE = 40
}

service Base {
  /** The version of the server. */
  i32 version()
  void fail(1: i32 code) throws (1: Elsewhere elsewhere)
}
