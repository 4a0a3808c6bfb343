// The service for the measurement of typed calls: arguments of 32 bytes, and results of up to 32 bytes, of several types.
namespace * typed

exception Refused {
  1: required i32 code
}

struct Point {
  1: required i64 x
  2: required i64 y
  3: required i64 z
  4: required i64 w
}

service Typed {
  hint: perf_goal = latency;

  /** Answers with the data. */
  binary echo(1: binary data)

  /** As `echo`, and may refuse. */
  binary look(1: binary data) throws (1: Refused refused)

  /** Answers with the text. */
  string say(1: string text)

  /** Answers with the sum, which wraps. */
  i64 sum(1: i64 a, 2: i64 b, 3: i64 c, 4: i64 d)

  /** Answers with the point. */
  Point turn(1: Point point)
}
