// Values that others have within theirs.
namespace * parts

enum Level {
  LOW = 1
  HIGH = 9
}

const i32 NEAR = 4

/** Two of them, and more. */
const list<string> WORDS = ["one", "two"]

struct Part {
  1: optional Level level = Level.HIGH
  2: required i32 near = NEAR
  3: optional string text = "a \"text\"\nin two lines"
}

struct Whole {
  1: required Part part = {"near": 1}
  2: optional list<Part> parts = [{}, {"level": Level.LOW}]
  3: optional string nothing
}

union Either {
  1: i32 number
  2: string text
  3: list<Level> levels
  4: Part part
}

struct Held {
  1: required Either first = {"text": "by default"}
  2: optional list<Either> others = [{"number": 1}, {"levels": [Level.LOW, Level.HIGH]}]
}
