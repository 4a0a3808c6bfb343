// Apache's side in Node: `side.js client PORT WIRE` or `side.js server WIRE`.
"use strict";

const assert = require("assert");
const thrift = require("thrift");
const Int64 = require("node-int64");
const Everything = require("Everything");
const Wider = require("Wider");
const { Colour, Overflow, Point, Record, Refused, Shape } = require("everything_types");

const { TApplicationExceptionType } = thrift.Thrift;

function options(wire) {
  const [framing, encoding] = wire.split("-");
  return {
    transport: framing === "framed" ? thrift.TFramedTransport : thrift.TBufferedTransport,
    protocol: encoding === "binary" ? thrift.TBinaryProtocol : thrift.TCompactProtocol,
  };
}

function serve(wire) {
  const same = (value, result) => result(null, value);
  let sum = 0;
  const handler = {
    ping: (result) => result(null),
    echoRecord: same,
    echoBool: same,
    echoByte: same,
    echoShort: same,
    echoInt: same,
    echoLong: same,
    echoDouble: same,
    echoString: same,
    echoBinary: same,
    echoList: same,
    echoSet: same,
    echoMap: same,
    echoColour: same,
    echoShape: same,
    divide(dividend, divisor, result) {
      if (divisor === 0) return result(new Refused({ code: 22, why: "division by zero" }));
      const quotient = Math.trunc(dividend / divisor);
      if (quotient > 2 ** 31 - 1) return result(new Overflow({ calculation: `${dividend} / ${divisor}` }));
      return result(null, quotient);
    },
    tell(number) {
      sum += number;
    },
    told(result) {
      const told = sum;
      sum = 0;
      result(null, new Int64(told));
    },
    scaled: (value, factor, result) => result(null, value * factor),
    fail: (why, result) => result(new Error(why)),
  };
  const server = thrift.createServer(Everything, handler, options(wire));
  server.listen(0, "127.0.0.1", () => console.log("port", server.address().port));
}

// Apache's reader of the compact protocol takes each bool in a container for false (0.17 to 0.24 at least:
// `readBool` asks the byte that it has read for its `value`). So with it all of them are false.
function record(wire) {
  const flags = (n) => n % 3 === 0 && !wire.endsWith("compact");
  return new Record({
    truth: true,
    lie: false,
    tiny: -128,
    small: -32768,
    medium: -(2 ** 31),
    large: new Int64(0x40000000, 1),
    real: -0.125,
    text: "Grüße, 世界 🐦",
    bytes: Buffer.from([0, 255, 128, 1]),
    numbers: Array.from({ length: 1100 }, (_, n) => (n - 100) * 1000003),
    names: ["one", "two", "three"],
    counts: { a: 1, b: -2 },
    point: new Point({ x: 3, y: -4 }),
    colour: Colour.BLUE,
    shape: new Shape({ path: [new Point({ x: 0, y: 0 }), new Point({ x: 2 ** 31 - 1, y: -(2 ** 31) })] }),
    flags: Array.from({ length: 20 }, (_, n) => flags(n)),
    nested: { 7: [new Point({ x: 1, y: 2 })], "-7": [] },
    reals: [0.0, 1e300, -1e-300, Infinity],
    far: 200,
  });
}

// What can be compared: numbers of 64 bits as text, sets in order.
function plain(value, key) {
  if (value instanceof Int64) return value.toOctetString();
  if (Buffer.isBuffer(value)) return value.toString("hex");
  if (Array.isArray(value)) {
    const list = value.map((element) => plain(element));
    return key === "names" || key === "set" ? list.sort() : list;
  }
  if (value !== null && typeof value === "object") {
    const present = Object.entries(value).filter(([, field]) => field !== null && field !== undefined);
    return Object.fromEntries(present.map(([name, field]) => [name, plain(field, name)]).sort());
  }
  return value;
}

async function call(port, wire) {
  const connection = thrift.createConnection("127.0.0.1", port, options(wire));
  connection.on("error", (error) => {
    throw error;
  });
  const client = thrift.createClient(Wider, connection);
  let count = 0;
  const expect = (found, wanted, key) => {
    assert.deepStrictEqual(plain(found, key), plain(wanted, key));
    count += 1;
  };
  const thrown = async (promise) => {
    try {
      await promise;
    } catch (error) {
      return error;
    }
    throw new Error("nothing was thrown");
  };

  await client.ping();
  const sparse = record(wire);
  [sparse.absent, sparse.far, sparse.shape] = ["there", undefined, new Shape({ name: "n" })];
  const bytes = (length) => Buffer.from(Array.from({ length }, (_, n) => n % 251));
  const list = (length) => Array.from({ length }, (_, n) => new Int64(n << 8, 0));
  const cases = {
    echoRecord: [record(wire), sparse],
    echoBool: [true, false],
    echoByte: [0, 127, -128],
    echoShort: [1, 2 ** 15 - 1, -(2 ** 15)],
    echoInt: [-1, 2 ** 31 - 1, -(2 ** 31)],
    echoLong: [new Int64(5), new Int64(0x7fffffff, 0xffffffff), new Int64(0x80000000, 0)],
    echoDouble: [0.1, -1e308],
    echoString: ["", "Löffler 🥄"],
    echoBinary: [0, 1, 300, 70000, 2000000].map(bytes),
    echoList: [0, 14, 15, 10000].map(list),
    echoMap: [{}, { k: "v", "": "é" }],
    echoColour: [Colour.RED, Colour.BLUE],
    echoShape: [
      new Shape({ point: new Point({ x: 1, y: 2 }) }),
      new Shape({ name: "circle" }),
      new Shape({ path: [] }),
    ],
  };
  for (const [name, values] of Object.entries(cases)) {
    for (const value of values) expect(await client[name](value), value);
  }
  for (const value of [[], [3, -1, 2]]) expect(await client.echoSet(value), value, "set");

  expect(await client.divide(7, 2), 3);
  const refused = await thrown(client.divide(1, 0));
  assert(refused instanceof Refused);
  expect([refused.code, refused.why], [22, "division by zero"]);
  const overflow = await thrown(client.divide(-(2 ** 31), -1));
  assert(overflow instanceof Overflow);
  expect(overflow.calculation, "-2147483648 / -1");
  expect((await thrown(client.missing("x"))).type, TApplicationExceptionType.UNKNOWN_METHOD);
  client.tell(20);
  client.tell(22);
  expect((await client.told()).toNumber(), 42);
  expect(await client.scaled(6, 2), 12);
  const failed = await thrown(client.fail("because"));
  expect([failed.type, failed.message], [TApplicationExceptionType.INTERNAL_ERROR, "because"]);
  expect((await thrown(client.fail("panic"))).type, TApplicationExceptionType.INTERNAL_ERROR);
  // All at once.
  const numbers = Array.from({ length: 500 }, (_, n) => n);
  expect(await Promise.all(numbers.map((n) => client.echoInt(n))), numbers);
  await client.ping();
  connection.end();
  console.log(count, "calls as expected");
}

if (process.argv[2] === "client") {
  call(Number(process.argv[3]), process.argv[4]).catch((error) => {
    console.error(error);
    process.exit(1);
  });
} else {
  serve(process.argv[3]);
}
