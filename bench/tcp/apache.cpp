// Apache's C++ library: `apache server`, or `apache client PORT SIZE CONNECTIONS MILLISECONDS`, which prints the median of a
// call in nanoseconds, and calls a second.

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <thrift/protocol/TBinaryProtocol.h>
#include <thrift/server/TThreadedServer.h>
#include <thrift/transport/TBufferTransports.h>
#include <thrift/transport/TServerSocket.h>
#include <thrift/transport/TSocket.h>

#include "Echo.h"

using namespace apache::thrift;
using namespace apache::thrift::protocol;
using namespace apache::thrift::transport;
using Clock = std::chrono::steady_clock;

// Of 0.17 a connection ends when as many bytes have gone over it as a message may have, 100 MB unless this says more.
static std::shared_ptr<TConfiguration> limits() {
  return std::make_shared<TConfiguration>(std::numeric_limits<int>::max());
}

class Handler : public bench::EchoIf {
  void echo(std::string& result, const std::string& payload) override { result = payload; }
};

class Announce : public server::TServerEventHandler {
  std::shared_ptr<TServerSocket> listener;

 public:
  explicit Announce(std::shared_ptr<TServerSocket> listener) : listener(std::move(listener)) {}
  void preServe() override { std::cout << "port " << listener->getPort() << std::endl; }
};

class Listener : public TServerSocket {
  std::shared_ptr<TSocket> createSocket(THRIFT_SOCKET client) override {
    return std::make_shared<TSocket>(client, pChildInterruptSockReader_, limits());
  }

 public:
  using TServerSocket::TServerSocket;
};

class Framed : public TTransportFactory {
  std::shared_ptr<TTransport> getTransport(std::shared_ptr<TTransport> transport) override {
    return std::make_shared<TFramedTransport>(transport, limits());
  }
};

static void serve() {
  auto listener = std::make_shared<Listener>("127.0.0.1", 0);
  auto processor = std::make_shared<bench::EchoProcessor>(std::make_shared<Handler>());
  server::TThreadedServer server(processor, listener, std::make_shared<Framed>(),
                                 std::make_shared<TBinaryProtocolFactory>());
  server.setServerEventHandler(std::make_shared<Announce>(listener));
  server.serve();
}

static void call(int port, int size, Clock::duration span, std::vector<long>& times) {
  auto transport = std::make_shared<TFramedTransport>(
      std::make_shared<TSocket>("127.0.0.1", port, limits()), limits());
  bench::EchoClientT<TBinaryProtocolT<TFramedTransport>> client(
      std::make_shared<TBinaryProtocolT<TFramedTransport>>(transport));
  transport->open();
  std::string payload(size, 7), back;
  auto end = Clock::now() + span;
  for (auto start = Clock::now(); start < end; start = Clock::now()) {
    client.echo(back, payload);
    times.push_back(std::chrono::nanoseconds(Clock::now() - start).count());
  }
}

int main(int argc, char** argv) {
  if (argc != 6) {
    serve();
    return 0;
  }
  std::chrono::milliseconds span(std::atoi(argv[5]));
  std::vector<std::vector<long>> times(std::atoi(argv[4]));
  std::vector<std::thread> threads;
  for (auto& mine : times)
    threads.emplace_back([&mine, &argv, span] { call(std::atoi(argv[2]), std::atoi(argv[3]), span, mine); });
  for (auto& thread : threads) thread.join();
  std::vector<long> all;
  for (auto& mine : times) all.insert(all.end(), mine.begin(), mine.end());
  std::sort(all.begin(), all.end());
  std::cout << all[all.size() / 2] << " " << all.size() * 1000 / span.count() << std::endl;
}
