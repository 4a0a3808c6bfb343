// Names that the generated error might have used itself.
namespace * clashes

include "shared.thrift"

exception Elsewhere {
  1: required string message
  2: optional string hint
}

exception Call {
  1: required i32 number
}

exception ClashesError {
  1: required string text
}

service Clashes {
  void throw(1: i32 which) throws (1: Elsewhere own, 2: shared.Elsewhere other, 3: Call call, 4: ClashesError same)
}
