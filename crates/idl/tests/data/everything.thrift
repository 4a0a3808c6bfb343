#!/usr/local/bin/thrift --gen cpp
/*
 * Everything that Thrift has, with comments where one would not look for them.
 */

include "shared/base.thrift" // the base
include "shared/dotted.name.thrift";
cpp_include "<vector>"

namespace rs everything.of.it
namespace * anything
namespace go of.struct.enum;
namespace py.twisted everything

/** A number of an item. */
typedef i64 Id
typedef map<string, list<set<Id>>> Index ( cpp.type = "std::map" );
typedef list< Id > ( cpp.template = "std::deque" ) Ids,

const i32 MAX = 0x10;
const i64 LEAST = -9223372036854775808
const double PI = 3.14159
const double TINY = -1.5e-3
const bool YES = true
const string SINGLE = 'with "double" quotes'
const string ESCAPED = "with \"double\" quotes"
const list<string> LIST = [ "a", 'b'; "c" ]
const map<string, Ids> MAP = { "one": [1], /* two */ "two": [1, 2], }
const base.Color RED = base.Color.RED

/**
 * How it went.
 * In two lines.
 */
enum Status {
  OK = 0, // all well
  SLOW,
  /** Not at all. */
  FAILED = 0x10;
  AGAIN
} ( deprecated, why = "old" );

union Choice {
  1: i32 number
  2: string text = "usual"
  3: uuid identity
}

exception Failure {
  1: optional string reason ( go.tag = "json" ),
  2: base.Color color
} ( cpp.virtual )

struct Everything /* of it */ {
  // the comment of a
  1: required bool a
  2: optional byte b = 1,
  3: i8 c;
  4: i16 d
  5: i32 e = MAX
  6: i64 f ( js.type = "Long" )
  7: double g = 1e3
  8: string h
  9: binary i
  10: uuid j
  11: list<map<i32, set<string>>> k = []
  12: Status l = Status.OK
  13: Choice & m
  14: base.Item n
  15: dotted.name.Thing o
  16: optional Everything p
  -1: map < Id , /* why not */ Index > q = {}
  /* between */ 17: string string_like // behind
  18: /* the type */ i32 /* the name */ r /* the value */ = /* here */ 5 /* and */ ,
}

/** Functions. */
service Calls extends base.Ping {
  void nothing(),
  oneway void forget(1: string what);
  i64 add(1: i64 left, 2: i64 right = 1) throws (1: Failure failure, 2: base.Wrong wrong) ( deprecated = "yes", api.get = "/add" )
  map<Id, Everything> all(
    // of which kind
    1: optional Status status;
    2: required list<Id> ids // which
  ) throws (
    1: Failure failure
  )
  // A type with annotations of its own.
  i32 ( cpp.type = "unsigned" ) typed()
  string quiet() throws ()
  binary /* result */ commented /* name */ ( /* nothing */ ) /* behind */ ,
}

service Empty {}
