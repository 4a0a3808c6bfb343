// A file that every Thrift compiler takes: hints stand in annotations.
namespace * everything

include "shared.thrift"

const i32 LIMIT = 12
const string GREETING = "hello"
const list<i32> PRIMES = [2, 3, 5]

typedef list<binary> Keys
typedef i64 Moment

/** One or the other. */
union Either {
  1: i32 number
  2: string text
  3: Leaf leaf
}

struct Leaf {
  1: required string name
  2: optional i32 weight = 7
}

/** Every type there is. */
struct Everything {
  1: required bool truth
  2: required i8 small
  3: required i16 medium
  4: required i32 large
  5: required i64 huge
  6: required double real
  7: required string text
  8: required binary raw
  9: required list<i32> numbers
  10: required set<string> words
  11: required map<string, Leaf> leaves
  12: optional shared.Color color
  13: optional Either either
  15: optional Keys keys
  /** Itself, within. */
  16: optional Everything inner
  17: optional list<map<i32, set<i16>>> nested
  18: optional Moment moment
  19: optional list<bool> truths
  20: optional map<shared.Color, list<Either>> eithers
}

/** Not here. */
exception Missing {
  1: required binary key
}

service Everywhere extends shared.Base {
  /** Gives back what it gets. */
  Everything echo(1: Everything value) (perf_goal = "latency")

  /** Of each kind of argument one. */
  string describe(1: bool truth, 2: i8 small, 3: i16 medium, 4: i32 large, 5: i64 huge, 6: double real,
    7: string text, 8: binary raw, 9: shared.Color color, 10: list<string> words, 11: map<string, i32> counts,
    12: set<i64> moments, 13: Either either, 14: Keys keys)

  binary get(1: binary key, 3: optional i32 type) throws (1: Missing missing, 2: shared.Elsewhere elsewhere)
    (perf_goal = "throughput", payload_size = "1KB")

  /** A result of so many bytes, on the pool of threads. */
  binary bulk(1: i64 size) (process_time = "long", payload_size = "1MB")

  void put(1: binary key, 2: binary value)

  oneway void heartbeat(1: i64 number) (priority = "low")

  /** Names that the generated code might have used itself. */
  i32 flush(1: i32 context, 2: i32 input, 3: i32 protocol, 4: i32 id, 5: i32 kind, 6: i32 function, 7: i32 responder,
    8: i32 match, 100: i32 value)

  /** As what adds a call of `flush` to a batch would be called. */
  void push_flush()

  /** The handler panics. */
  void panics()

  /** The handler fails with what it does not declare. */
  i32 fails(1: string message)
}
