// Every type of Thrift, and what a call can come to. Without hints, so that Apache's compiler takes it.
// No uuid: the compiler that Debian has does not know it yet; uuid.thrift has it.

namespace java everything
namespace cpp everything
namespace py everything

enum Colour {
  RED = 1
  GREEN = 2
  BLUE = 40
}

struct Point {
  1: required i32 x
  2: required i32 y
}

union Shape {
  1: Point point
  2: string name
  3: list<Point> path
}

struct Record {
  1: required bool truth
  2: required bool lie
  3: required i8 tiny
  4: required i16 small
  5: required i32 medium
  6: required i64 large
  7: required double real
  8: required string text
  9: required binary bytes
  10: required list<i32> numbers
  11: required set<string> names
  12: required map<string, i32> counts
  13: required Point point
  14: required Colour colour
  15: required Shape shape
  16: optional string absent
  17: required list<bool> flags
  18: required map<i32, list<Point>> nested
  19: required list<double> reals
  200: optional i16 far
}

exception Refused {
  1: required i32 code
  2: required string why
}

exception Overflow {
  1: required string calculation
}

service Everything {
  void ping()
  Record echoRecord(1: Record value)
  bool echoBool(1: bool value)
  i8 echoByte(1: i8 value)
  i16 echoShort(1: i16 value)
  i32 echoInt(1: i32 value)
  i64 echoLong(1: i64 value)
  double echoDouble(1: double value)
  string echoString(1: string value)
  binary echoBinary(1: binary value)
  list<i64> echoList(1: list<i64> value)
  set<i32> echoSet(1: set<i32> value)
  map<string, string> echoMap(1: map<string, string> value)
  Colour echoColour(1: Colour value)
  Shape echoShape(1: Shape value)

  // Code 22 for a divisor of zero; Overflow for what has no result of 32 bits.
  i32 divide(1: i32 dividend, 2: i32 divisor) throws (1: Refused refused, 2: Overflow overflow)

  // Adds to a sum; told gives the sum and begins a new one.
  oneway void tell(1: i32 number)
  i64 told()

  // A client may leave the factor out.
  i32 scaled(1: i32 value, 2: i32 factor = 7)

  // Fails with what it does not declare.
  void fail(1: string why)
}

// What no server here serves, for clients to call a function that there is not.
service Wider extends Everything {
  string missing(1: string value)
}
