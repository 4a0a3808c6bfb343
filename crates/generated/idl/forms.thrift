// Functions that client and server call in the bare form, and what may be in their way.
namespace * forms

typedef binary Name

enum Kind {
  ROUND = 1
  SQUARE = 4
}

struct Pair {
  1: required i32 left
  2: optional string right
}

typedef Pair Couple
typedef list<Pair> Pairs

struct Nothing {
}

/** A struct that may be within itself: nowhere in the bare form. */
struct Tree {
  1: required i32 leaf
  2: optional list<Tree> branches
}

/** Nor is this. */
union Choice {
  1: i32 number
  2: Pair pair
}

/** What may be in a struct of the bare form. */
struct Mixed {
  1: required bool truth
  2: required Pair pair
  3: required list<Pair> pairs
  4: required map<string, Couple> couples
  5: required set<i64> numbers
  6: required Kind kind
  7: required Choice choice
  8: required Nothing nothing
  9: optional i32 weight = 7
  10: optional Name name
  11: optional Pairs more
  12: optional Tree tree
  13: optional uuid key
  14: optional i8 small
  15: optional i16 medium
  16: optional i64 large
  17: optional map<Kind, list<Pair>> by_kind
}

/** Not that one. */
exception Refused {
  1: required binary why
}

service Forms {
  void nothing()
  binary echo(1: binary data)
  string say(1: string text)
  /** Refuses data that begins with a zero, for that reason. */
  binary look(1: binary data) throws (1: Refused refused)
  /** Refuses everything. */
  void refuse(1: binary data) throws (1: Refused refused)
  i64 sum(1: i8 a, 2: i16 b, 3: i32 c, 5: i64 d, 4: bool negative)
  double middle(1: list<double> values)
  binary join(1: binary first, 2: string second, 3: binary third)
  Pair swap(1: Pair pair, 2: Kind kind)
  list<Kind> kinds(1: Kind kind, 2: i32 count) throws (1: Refused refused)
  /** Its argument has another name in another IDL, and is the same on the wire. */
  Name rename(1: Name name)
  /** Never in the bare form. */
  binary maybe(1: optional binary data)
  /** Goes by TCP. */
  string remote(1: string text) (transport = "tcp")
  /** So does this. */
  oneway void note(1: i32 number) (transport = "tcp")
  /** Answers with what it gets. */
  Mixed mix(1: Mixed mixed)
  /** Answers with the first. */
  Couple first(1: Pairs pairs, 2: Pair otherwise)
}
