// Apache's side in Java: `Side client PORT WIRE` or `Side server WIRE`.

import everything.Colour;
import everything.Everything;
import everything.Overflow;
import everything.Point;
import everything.Record;
import everything.Refused;
import everything.Shape;
import everything.Wider;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.TreeSet;
import org.apache.thrift.TApplicationException;
import org.apache.thrift.TException;
import org.apache.thrift.protocol.TBinaryProtocol;
import org.apache.thrift.protocol.TCompactProtocol;
import org.apache.thrift.protocol.TProtocolFactory;
import org.apache.thrift.server.TThreadPoolServer;
import org.apache.thrift.transport.TServerSocket;
import org.apache.thrift.transport.TSocket;
import org.apache.thrift.transport.TTransport;
import org.apache.thrift.transport.TTransportFactory;
import org.apache.thrift.transport.layered.TFramedTransport;

public class Side {
  static TProtocolFactory protocol(String wire) {
    return wire.endsWith("binary") ? new TBinaryProtocol.Factory() : new TCompactProtocol.Factory();
  }

  static class Handler implements Everything.Iface {
    private long sum = 0;

    public void ping() {}
    public Record echoRecord(Record value) { return value; }
    public boolean echoBool(boolean value) { return value; }
    public byte echoByte(byte value) { return value; }
    public short echoShort(short value) { return value; }
    public int echoInt(int value) { return value; }
    public long echoLong(long value) { return value; }
    public double echoDouble(double value) { return value; }
    public String echoString(String value) { return value; }
    public ByteBuffer echoBinary(ByteBuffer value) { return value; }
    public List<Long> echoList(List<Long> value) { return value; }
    public Set<Integer> echoSet(Set<Integer> value) { return value; }
    public Map<String, String> echoMap(Map<String, String> value) { return value; }
    public Colour echoColour(Colour value) { return value; }
    public Shape echoShape(Shape value) { return value; }

    public int divide(int dividend, int divisor) throws Refused, Overflow {
      if (divisor == 0) throw new Refused(22, "division by zero");
      if (dividend == Integer.MIN_VALUE && divisor == -1) throw new Overflow(dividend + " / " + divisor);
      return dividend / divisor;
    }

    public synchronized void tell(int number) { sum += number; }

    public synchronized long told() {
      long told = sum;
      sum = 0;
      return told;
    }

    public int scaled(int value, int factor) { return value * factor; }

    public void fail(String why) throws TException { throw new TException(why); }
  }

  static void serve(String wire) throws Exception {
    TServerSocket listener = new TServerSocket(new InetSocketAddress("127.0.0.1", 0));
    TThreadPoolServer.Args settings =
        new TThreadPoolServer.Args(listener)
            .processor(new Everything.Processor<>(new Handler()))
            .protocolFactory(protocol(wire))
            .transportFactory(wire.startsWith("framed") ? new TFramedTransport.Factory() : new TTransportFactory());
    System.out.println("port " + listener.getServerSocket().getLocalPort());
    new TThreadPoolServer(settings).serve();
  }

  static Record record() {
    List<Integer> numbers = new ArrayList<>();
    for (int n = -100; n < 1000; n++) numbers.add(n * 1_000_003);
    List<Boolean> flags = new ArrayList<>();
    for (int n = 0; n < 20; n++) flags.add(n % 3 == 0);
    Record record = new Record();
    record.setTruth(true).setLie(false).setTiny((byte) -128).setSmall(Short.MIN_VALUE);
    record.setMedium(Integer.MIN_VALUE).setLarge((1L << 62) + 1).setReal(-0.125);
    record.setText("Grüße, 世界 🐦").setBytes(new byte[] {0, -1, -128, 1}).setNumbers(numbers);
    record.setNames(Set.of("one", "two", "three")).setCounts(Map.of("a", 1, "b", -2));
    record.setPoint(new Point(3, -4)).setColour(Colour.BLUE);
    record.setShape(
        Shape.path(List.of(new Point(0, 0), new Point(Integer.MAX_VALUE, Integer.MIN_VALUE))));
    record.setFlags(flags).setNested(Map.of(7, List.of(new Point(1, 2)), -7, List.of()));
    return record.setReals(List.of(0.0, 1e300, -1e-300, Double.POSITIVE_INFINITY)).setFar((short) 200);
  }

  static int count = 0;

  static void expect(Object found, Object wanted) {
    if (!Objects.equals(found, wanted)) throw new AssertionError(found + " instead of " + wanted);
    count++;
  }

  interface Call { void make() throws TException; }

  static <E extends Exception> E thrown(Class<E> kind, Call call) throws TException {
    try {
      call.make();
    } catch (Exception exception) {
      if (kind.isInstance(exception)) return kind.cast(exception);
      throw exception;
    }
    throw new AssertionError("nothing was thrown");
  }

  static void call(int port, String wire) throws Exception {
    TTransport transport = new TSocket("127.0.0.1", port);
    if (wire.startsWith("framed")) transport = new TFramedTransport(transport);
    Wider.Client client = new Wider.Client(protocol(wire).getProtocol(transport));
    transport.open();

    client.ping();
    expect(client.echoRecord(record()), record());
    Record sparse = record().setAbsent("there").setShape(Shape.name("n"));
    sparse.unsetFar();
    expect(client.echoRecord(sparse), sparse);
    for (boolean value : new boolean[] {true, false}) expect(client.echoBool(value), value);
    for (byte value : new byte[] {0, 127, -128}) expect(client.echoByte(value), value);
    for (short value : new short[] {1, Short.MAX_VALUE, Short.MIN_VALUE}) expect(client.echoShort(value), value);
    for (int value : new int[] {-1, Integer.MAX_VALUE, Integer.MIN_VALUE}) expect(client.echoInt(value), value);
    for (long value : new long[] {5, Long.MAX_VALUE, Long.MIN_VALUE}) expect(client.echoLong(value), value);
    for (double value : new double[] {0.1, -1e308}) expect(client.echoDouble(value), value);
    for (String value : new String[] {"", "Löffler 🥄"}) expect(client.echoString(value), value);
    for (int size : new int[] {0, 1, 300, 70_000, 2_000_000}) {
      byte[] bytes = new byte[size];
      for (int n = 0; n < size; n++) bytes[n] = (byte) (n % 251);
      expect(client.echoBinary(ByteBuffer.wrap(bytes)), ByteBuffer.wrap(bytes));
    }
    for (int size : new int[] {0, 14, 15, 10_000}) {
      List<Long> list = new ArrayList<>();
      for (long n = 0; n < size; n++) list.add(n << 40);
      expect(client.echoList(list), list);
    }
    Set<Integer> set = new TreeSet<>();
    expect(client.echoSet(set), set);
    for (int n = -50; n < 50; n++) set.add(n);
    expect(client.echoSet(set), set);
    expect(client.echoMap(Map.of()), Map.of());
    expect(client.echoMap(Map.of("k", "v", "", "é")), Map.of("k", "v", "", "é"));
    expect(client.echoColour(Colour.RED), Colour.RED);
    expect(client.echoColour(Colour.BLUE), Colour.BLUE);
    for (Shape shape : List.of(Shape.point(new Point(1, 2)), Shape.name("circle"), Shape.path(List.of()))) {
      expect(client.echoShape(shape), shape);
    }

    expect(client.divide(7, 2), 3);
    expect(thrown(Refused.class, () -> client.divide(1, 0)), new Refused(22, "division by zero"));
    Overflow overflow = thrown(Overflow.class, () -> client.divide(Integer.MIN_VALUE, -1));
    expect(overflow, new Overflow("-2147483648 / -1"));
    TApplicationException failed = thrown(TApplicationException.class, () -> client.missing("x"));
    expect(failed.getType(), TApplicationException.UNKNOWN_METHOD);
    client.tell(20);
    client.tell(22);
    expect(client.told(), 42L);
    expect(client.scaled(6, 2), 12);
    failed = thrown(TApplicationException.class, () -> client.fail("because"));
    expect(failed.getType(), TApplicationException.INTERNAL_ERROR);
    expect(failed.getMessage(), "because");
    failed = thrown(TApplicationException.class, () -> client.fail("panic"));
    expect(failed.getType(), TApplicationException.INTERNAL_ERROR);
    // An argument that is not there.
    failed = thrown(TApplicationException.class, () -> client.echoString(null));
    expect(failed.getType(), TApplicationException.PROTOCOL_ERROR);
    client.ping();
    transport.close();
    System.out.println(count + " calls as expected");
  }

  public static void main(String[] arguments) throws Exception {
    if (arguments[0].equals("client")) {
      call(Integer.parseInt(arguments[1]), arguments[2]);
    } else {
      serve(arguments[1]);
    }
  }
}
