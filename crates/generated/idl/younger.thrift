// `everything` some versions later: a function more, one less, an argument and fields more.
namespace * younger

exception Missing {
  1: required binary key
  2: optional string hint
}

struct Leaf {
  1: required string name
  2: optional i32 weight
  3: optional list<string> colors
}

service Everywhere {
  binary get(1: binary key, 2: required string reason, 3: optional i32 type) throws (1: Missing missing)
  void put(1: binary key, 2: binary value, 3: optional Leaf leaf)
  i32 added(1: i32 number)
}

enum Kind {
  ROUND = 1
}

struct Pair {
  1: required i32 left
  2: optional string right
  3: optional i32 height
}

/** As `forms` has the pair, under another name. */
struct Two {
  1: required i32 one
  2: optional string other
}

/** As `forms` has the pair, but for what must be there. */
struct Strict {
  1: required i32 left
  2: required string right
}

/** As `forms` has it, with other arguments and values. */
service Forms {
  i64 nothing()
  binary echo(1: binary data, 2: optional i32 times)
  string say(2: string text)
  binary rename(1: binary name)
  i64 sum(1: i8 a, 2: i16 b, 3: i32 c, 5: i64 d, 4: bool negative)
  Pair swap(1: Pair pair, 2: Kind kind)
  Two first(1: list<Two> pairs, 2: Two otherwise)
  Strict mix(1: Strict mixed)
}

service Stricter {
  Strict first(1: list<Strict> pairs, 2: Strict otherwise)
}

/** As `values` had it when functions took nothing. */
service Values {
  string say()
  bool hold()
  i32 must()
}

service Derived extends Values {
  i32 own()
}
