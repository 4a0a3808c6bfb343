// A service to be reached in every way.
namespace * asked

exception Silent {
  1: required string why
}

service Asked {
  /** Gives back what it gets, and nothing for nothing. */
  string say(1: string text) throws (1: Silent silent)
  /** Whether it came by stock Thrift. */
  bool by_tcp()
  oneway void note(1: i32 number)
  /** Goes by TCP wherever the rest goes. */
  bool remote() (transport = "tcp")
}
