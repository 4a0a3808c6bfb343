// Apache's side in C++: `side client PORT WIRE` or `side server WIRE`.

#include <climits>
#include <cstdlib>
#include <iostream>
#include <limits>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>

#include <thrift/TApplicationException.h>
#include <thrift/protocol/TBinaryProtocol.h>
#include <thrift/protocol/TCompactProtocol.h>
#include <thrift/server/TThreadedServer.h>
#include <thrift/transport/TBufferTransports.h>
#include <thrift/transport/TServerSocket.h>
#include <thrift/transport/TSocket.h>

#include "Everything.h"
#include "Wider.h"

using namespace everything;
using namespace apache::thrift;
using namespace apache::thrift::protocol;
using namespace apache::thrift::transport;

static std::shared_ptr<TTransportFactory> transports(const std::string& wire) {
  if (wire.rfind("framed", 0) == 0) return std::make_shared<TFramedTransportFactory>();
  return std::make_shared<TBufferedTransportFactory>();
}

static std::shared_ptr<TProtocolFactory> protocols(const std::string& wire) {
  if (wire.find("binary") != std::string::npos) return std::make_shared<TBinaryProtocolFactory>();
  return std::make_shared<TCompactProtocolFactory>();
}

class Handler : public EverythingIf {
  std::mutex mutex;
  int64_t sum = 0;

 public:
  void ping() override {}
  void echoRecord(Record& result, const Record& value) override { result = value; }
  bool echoBool(const bool value) override { return value; }
  int8_t echoByte(const int8_t value) override { return value; }
  int16_t echoShort(const int16_t value) override { return value; }
  int32_t echoInt(const int32_t value) override { return value; }
  int64_t echoLong(const int64_t value) override { return value; }
  double echoDouble(const double value) override { return value; }
  void echoString(std::string& result, const std::string& value) override { result = value; }
  void echoBinary(std::string& result, const std::string& value) override { result = value; }
  void echoList(std::vector<int64_t>& result, const std::vector<int64_t>& value) override { result = value; }
  void echoSet(std::set<int32_t>& result, const std::set<int32_t>& value) override { result = value; }
  void echoMap(std::map<std::string, std::string>& result,
               const std::map<std::string, std::string>& value) override {
    result = value;
  }
  Colour::type echoColour(const Colour::type value) override { return value; }
  void echoShape(Shape& result, const Shape& value) override { result = value; }

  int32_t divide(const int32_t dividend, const int32_t divisor) override {
    if (divisor == 0) {
      Refused refused;
      refused.code = 22;
      refused.why = "division by zero";
      throw refused;
    }
    if (dividend == INT_MIN && divisor == -1) {
      Overflow overflow;
      overflow.calculation = std::to_string(dividend) + " / " + std::to_string(divisor);
      throw overflow;
    }
    return dividend / divisor;
  }

  void tell(const int32_t number) override {
    std::lock_guard<std::mutex> guard(mutex);
    sum += number;
  }

  int64_t told() override {
    std::lock_guard<std::mutex> guard(mutex);
    int64_t told = sum;
    sum = 0;
    return told;
  }

  int32_t scaled(const int32_t value, const int32_t factor) override { return value * factor; }

  void fail(const std::string& why) override { throw std::runtime_error(why); }
};

// Says the port once it listens.
class Announce : public server::TServerEventHandler {
  std::shared_ptr<TServerSocket> listener;

 public:
  explicit Announce(std::shared_ptr<TServerSocket> listener) : listener(std::move(listener)) {}
  void preServe() override { std::cout << "port " << listener->getPort() << std::endl; }
};

static void serve(const std::string& wire) {
  auto listener = std::make_shared<TServerSocket>("127.0.0.1", 0);
  auto processor = std::make_shared<EverythingProcessor>(std::make_shared<Handler>());
  server::TThreadedServer server(processor, listener, transports(wire), protocols(wire));
  server.setServerEventHandler(std::make_shared<Announce>(listener));
  server.serve();
}

static Point point(int32_t x, int32_t y) {
  Point point;
  point.x = x;
  point.y = y;
  return point;
}

static Record record() {
  Record record;
  record.truth = true;
  record.lie = false;
  record.tiny = -128;
  record.small = SHRT_MIN;
  record.medium = INT_MIN;
  record.large = (int64_t(1) << 62) + 1;
  record.real = -0.125;
  record.text = "Grüße, 世界 🐦";
  record.bytes = std::string("\x00\xff\x80\x01", 4);
  for (int32_t n = -100; n < 1000; n++) record.numbers.push_back(n * 1000003);
  record.names = {"one", "two", "three"};
  record.counts = {{"a", 1}, {"b", -2}};
  record.point = point(3, -4);
  record.colour = Colour::BLUE;
  record.shape.__set_path({point(0, 0), point(INT_MAX, INT_MIN)});
  for (int n = 0; n < 20; n++) record.flags.push_back(n % 3 == 0);
  record.nested = {{7, {point(1, 2)}}, {-7, {}}};
  record.reals = {0.0, 1e300, -1e-300, std::numeric_limits<double>::infinity()};
  record.__set_far(200);
  return record;
}

static int count = 0;

static void expect(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error("not as expected: " + what);
  count++;
}

template <typename Exception, typename Call>
static Exception thrown(Call call) {
  try {
    call();
  } catch (const Exception& exception) {
    return exception;
  }
  throw std::runtime_error("nothing was thrown");
}

static void call(int port, const std::string& wire) {
  auto transport = transports(wire)->getTransport(std::make_shared<TSocket>("127.0.0.1", port));
  WiderClient client(protocols(wire)->getProtocol(transport));
  transport->open();

  client.ping();
  Record sparse = record(), back;
  client.echoRecord(back, sparse);
  expect(back == sparse, "echoRecord");
  sparse.__set_absent("there");
  sparse.__isset.far = false;
  sparse.shape = Shape();
  sparse.shape.__set_name("n");
  back = Record();
  client.echoRecord(back, sparse);
  expect(back == sparse, "echoRecord, sparse");
  for (bool value : {true, false}) expect(client.echoBool(value) == value, "echoBool");
  for (int8_t value : {0, 127, -128}) expect(client.echoByte(value) == value, "echoByte");
  for (int16_t value : {1, SHRT_MAX, SHRT_MIN}) expect(client.echoShort(value) == value, "echoShort");
  for (int32_t value : {-1, INT_MAX, INT_MIN}) expect(client.echoInt(value) == value, "echoInt");
  for (int64_t value : {int64_t(5), std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::min()})
    expect(client.echoLong(value) == value, "echoLong");
  for (double value : {0.1, -1e308}) expect(client.echoDouble(value) == value, "echoDouble");
  std::string text;
  for (std::string value : {"", "Löffler 🥄"}) {
    client.echoString(text, value);
    expect(text == value, "echoString");
  }
  for (int size : {0, 1, 300, 70000, 2000000}) {
    std::string bytes;
    for (int n = 0; n < size; n++) bytes.push_back(char(n % 251));
    client.echoBinary(text, bytes);
    expect(text == bytes, "echoBinary");
  }
  for (int size : {0, 14, 15, 10000}) {
    std::vector<int64_t> list, same;
    for (int64_t n = 0; n < size; n++) list.push_back(n << 40);
    client.echoList(same, list);
    expect(same == list, "echoList");
  }
  std::set<int32_t> set, same_set;
  client.echoSet(same_set, set);
  expect(same_set == set, "echoSet, empty");
  for (int32_t n = -50; n < 50; n++) set.insert(n);
  client.echoSet(same_set, set);
  expect(same_set == set, "echoSet");
  for (std::map<std::string, std::string> map :
       {std::map<std::string, std::string>(), std::map<std::string, std::string>{{"k", "v"}, {"", "é"}}}) {
    std::map<std::string, std::string> same;
    client.echoMap(same, map);
    expect(same == map, "echoMap");
  }
  for (Colour::type value : {Colour::RED, Colour::BLUE}) expect(client.echoColour(value) == value, "echoColour");
  Shape shapes[3], same;
  shapes[0].__set_point(point(1, 2));
  shapes[1].__set_name("circle");
  shapes[2].__set_path({});
  for (const Shape& shape : shapes) {
    same = Shape();
    client.echoShape(same, shape);
    expect(same == shape, "echoShape");
  }

  expect(client.divide(7, 2) == 3, "divide");
  Refused refused = thrown<Refused>([&] { client.divide(1, 0); });
  expect(refused.code == 22 && refused.why == "division by zero", "Refused");
  expect(thrown<Overflow>([&] { client.divide(INT_MIN, -1); }).calculation == "-2147483648 / -1", "Overflow");
  auto failed = thrown<TApplicationException>([&] { client.missing(text, "x"); });
  expect(failed.getType() == TApplicationException::UNKNOWN_METHOD, "missing");
  client.tell(20);
  client.tell(22);
  expect(client.told() == 42, "told");
  expect(client.scaled(6, 2) == 12, "scaled");
  failed = thrown<TApplicationException>([&] { client.fail("because"); });
  expect(failed.getType() == TApplicationException::INTERNAL_ERROR, "fail");
  expect(std::string(failed.what()) == "because", failed.what());
  failed = thrown<TApplicationException>([&] { client.fail("panic"); });
  expect(failed.getType() == TApplicationException::INTERNAL_ERROR, "panic");
  client.ping();
  transport->close();
  std::cout << count << " calls as expected" << std::endl;
}

int main(int argc, char** argv) {
  try {
    if (argc == 4 && std::string(argv[1]) == "client") {
      call(std::atoi(argv[2]), argv[3]);
    } else {
      serve(argv[argc - 1]);
    }
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
}
