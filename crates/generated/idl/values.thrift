// Constants, and arguments that a client may leave out.
namespace * values

include "parts.thrift"

typedef string Name

const parts.Part EMPTY = {}
/** Where one part is said. */
const parts.Part SAID = {"near": 2}
const parts.Whole WHOLE = {
  // Of many lines.
  "nothing": "something",
  "parts": [{"text": ""}, SAID]
}
const map<string, parts.Part> BY_NAME = {"first": {"level": 1}, "second": SAID}
const set<i32> NUMBERS = [1, 2]
const i64 FAR = parts.NEAR
const i32 LIMIT = 3
const double HALF = .5

union Both {
  1: parts.Either inner
  2: binary raw
}

const parts.Either TEXT = {"text": "said"}
const parts.Either SAME = TEXT
const parts.Either LEVELS = {"levels": [parts.Level.HIGH]}
const Both NESTED = {"inner": {"part": {"near": 8}}}
const map<string, Both> BOTH = {"raw": {"raw": "bytes"}, "levels": {"inner": LEVELS}}
const parts.Held HELD = {"first": {"number": LIMIT}}

service Values {
  /** What there is of arguments. */
  string say(1: i32 number = 7, 2: string text = GREETING, 3: binary raw = "raw", 4: optional i64 far = FAR,
    5: list<string> words = parts.WORDS, 6: parts.Part part = {"near": 3}, 7: parts.Level level = parts.Level.HIGH,
    8: optional string maybe = "may be", 9: Name name = "name", 10: double real = HALF, 11: bool truth = 1,
    12: optional parts.Whole whole = WHOLE)
  bool hold(1: parts.Either either = {"text": "held"}, 2: parts.Held held = {})
  i32 must(1: i32 number)
}

const string GREETING = "hello"

service Derived extends Values {
  i32 own(1: i32 number = LIMIT)
}
