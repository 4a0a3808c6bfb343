"""Apache's side in Python: `side.py client PORT WIRE` or `side.py server WIRE`."""

import sys
import threading
import uuid

from thrift.protocol.TBinaryProtocol import TBinaryProtocolFactory
from thrift.protocol.TCompactProtocol import TCompactProtocolFactory
from thrift.server import TServer
from thrift.Thrift import TApplicationException, TMessageType, TType
from thrift.transport.TSocket import TServerSocket, TSocket
from thrift.transport.TTransport import TBufferedTransportFactory, TFramedTransportFactory

from everything import Everything, Wider
from everything.ttypes import Colour, Overflow, Point, Record, Refused, Shape


def factories(wire):
    framing, encoding = wire.split("-")
    transport = TFramedTransportFactory() if framing == "framed" else TBufferedTransportFactory()
    return transport, TBinaryProtocolFactory() if encoding == "binary" else TCompactProtocolFactory()


def write_uuid(out, name, kind, sequence, field, value):
    """A message with a uuid in it, which the compiler does not know how to generate."""
    out.writeMessageBegin(name, kind, sequence)
    out.writeStructBegin("echoUuid")
    out.writeFieldBegin("value", TType.UUID, field)
    out.writeUuid(value)
    out.writeFieldEnd()
    out.writeFieldStop()
    out.writeStructEnd()
    out.writeMessageEnd()
    out.trans.flush()


def read_uuid(source, field):
    source.readStructBegin()
    value = None
    while True:
        (_, kind, number) = source.readFieldBegin()
        if kind == TType.STOP:
            break
        assert (kind, number) == (TType.UUID, field), (kind, number)
        value = source.readUuid()
        source.readFieldEnd()
    source.readStructEnd()
    source.readMessageEnd()
    return value


class Handler:
    def __init__(self):
        self.sum = 0
        self.lock = threading.Lock()

    def ping(self):
        pass

    def same(self, value):
        return value

    echoRecord = echoBool = echoByte = echoShort = echoInt = echoLong = echoDouble = same
    echoString = echoBinary = echoList = echoSet = echoMap = echoColour = echoShape = same

    def divide(self, dividend, divisor):
        if divisor == 0:
            raise Refused(code=22, why="division by zero")
        quotient = int(dividend / divisor)
        if quotient > 2**31 - 1:
            raise Overflow(calculation="%d / %d" % (dividend, divisor))
        return quotient

    def tell(self, number):
        with self.lock:
            self.sum += number

    def told(self):
        with self.lock:
            told, self.sum = self.sum, 0
        return told

    def scaled(self, value, factor):
        return value * factor

    def fail(self, why):
        raise RuntimeError(why)


class Processor(Everything.Processor):
    """With the function of uuid.thrift."""

    def __init__(self, handler):
        super().__init__(handler)
        self._processMap["echoUuid"] = Processor.echo_uuid

    def echo_uuid(self, sequence, source, out):
        write_uuid(out, "echoUuid", TMessageType.REPLY, sequence, 0, read_uuid(source, 1))


def serve(wire):
    listener = TServerSocket(host="127.0.0.1", port=0)
    listener.listen()
    listener.listen = lambda: None
    print("port", listener.handle.getsockname()[1], flush=True)
    TServer.TThreadedServer(Processor(Handler()), listener, *factories(wire)).serve()


def record():
    return Record(
        truth=True,
        lie=False,
        tiny=-128,
        small=-32768,
        medium=-(2**31),
        large=2**62 + 1,
        real=-0.125,
        text="Grüße, 世界 🐦",
        bytes=bytes([0, 255, 128, 1]),
        numbers=[n * 1_000_003 for n in range(-100, 1000)],
        names={"one", "two", "three"},
        counts={"a": 1, "b": -2},
        point=Point(3, -4),
        colour=Colour.BLUE,
        shape=Shape(path=[Point(0, 0), Point(2**31 - 1, -(2**31))]),
        flags=[n % 3 == 0 for n in range(20)],
        nested={7: [Point(1, 2)], -7: []},
        reals=[0.0, 1e300, -1e-300, float("inf")],
        far=200,
    )


def call(port, wire):
    transport_factory, protocol_factory = factories(wire)
    transport = transport_factory.getTransport(TSocket("127.0.0.1", port))
    client = Wider.Client(protocol_factory.getProtocol(transport))
    transport.open()
    count = 0

    def expect(found, wanted):
        nonlocal count
        assert found == wanted, (found, wanted)
        count += 1

    def throws(exception, function, *arguments):
        nonlocal count
        try:
            found = function(*arguments)
        except exception as thrown:
            count += 1
            return thrown
        raise AssertionError("%r instead of %r" % (found, exception))

    expect(client.ping(), None)
    sparse = record()
    sparse.absent, sparse.far, sparse.shape = "there", None, Shape(name="n")
    cases = {
        client.echoRecord: [record(), sparse],
        client.echoBool: [True, False],
        client.echoByte: [0, 127, -128],
        client.echoShort: [1, 2**15 - 1, -(2**15)],
        client.echoInt: [-1, 2**31 - 1, -(2**31)],
        client.echoLong: [5, 2**63 - 1, -(2**63)],
        client.echoDouble: [0.1, -1e308],
        client.echoString: ["", "Löffler 🥄"],
        client.echoBinary: [bytes(n % 251 for n in range(size)) for size in (0, 1, 300, 70_000, 2_000_000)],
        client.echoList: [[n << 40 for n in range(size)] for size in (0, 14, 15, 10_000)],
        client.echoSet: [set(), set(range(-50, 50))],
        client.echoMap: [{}, {"k": "v", "": "é"}],
        client.echoColour: [Colour.RED, Colour.BLUE],
        client.echoShape: [Shape(point=Point(1, 2)), Shape(name="circle"), Shape(path=[])],
    }
    for function, values in cases.items():
        for value in values:
            expect(function(value), value)

    value = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")
    write_uuid(client._oprot, "echoUuid", TMessageType.CALL, 77, 1, value)
    expect(client._iprot.readMessageBegin(), ("echoUuid", TMessageType.REPLY, 77))
    expect(read_uuid(client._iprot, 0), value)

    expect(client.divide(7, 2), 3)
    expect(throws(Refused, client.divide, 1, 0), Refused(22, "division by zero"))
    expect(throws(Overflow, client.divide, -(2**31), -1), Overflow("-2147483648 / -1"))
    expect(throws(TApplicationException, client.missing, "x").type, TApplicationException.UNKNOWN_METHOD)
    client.tell(20)
    client.tell(22)
    expect(client.told(), 42)
    # An argument that has a default, there and left out.
    expect((client.scaled(6, 2), client.scaled(6, None)), (12, 42))
    failed = throws(TApplicationException, client.fail, "because")
    expect((failed.type, failed.message), (TApplicationException.INTERNAL_ERROR, "because"))
    failed = throws(TApplicationException, client.fail, "panic")
    expect(failed.type, TApplicationException.INTERNAL_ERROR)
    # An argument that is not there.
    expect(throws(TApplicationException, client.echoString, None).type, TApplicationException.PROTOCOL_ERROR)
    expect(client.ping(), None)
    transport.close()
    print(count, "calls as expected")


if __name__ == "__main__":
    if sys.argv[1] == "client":
        call(int(sys.argv[2]), sys.argv[3])
    else:
        serve(sys.argv[2])
