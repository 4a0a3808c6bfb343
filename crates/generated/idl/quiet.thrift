// Functions whose calls need no memory.
namespace * quiet

struct Pair {
  1: required i32 left
  2: required i64 right
  3: optional binary more
}

service Quiet {
  void nothing()
  i64 sum(1: i64 a, 2: i32 b, 3: bool c)
  /** How many bytes there are. */
  i64 take(1: binary data)
  i64 join(1: binary first, 2: string second, 3: binary third)
  Pair swap(1: Pair pair)
  /** How many bytes the pair has more. */
  i64 more(1: Pair pair)
  /** The handler gets them in memory of its own. */
  double middle(1: list<double> values)
}
