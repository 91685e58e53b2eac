// SPDX-License-Identifier: Apache-2.0
// Serves the PMI-1 lines of one MPI world over the authenticated connections of the net room, so that no mpirun is
// needed. One thread of its own besides the acceptor's; public calls from any thread.
#pragma once

#include <atomic>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "ccl/mpi/pmi_table.h"
#include "net/acceptor.h"
#include "net/wakeup.h"

namespace jhetcc::ccl::mpi {

class PmiServer {
 public:
  struct Config {
    net::Address address;  ///< one interface's; port 0 for any
    net::Secret secret = net::Secret::none();
    int32_t size = 0;
    int64_t line_ns = 10'000 * kNsPerMs;  ///< a line that has begun, and a client that reads nothing, get this long
  };
  static Result<std::unique_ptr<PmiServer>> create(Config config);
  /// Ends the threads and closes every connection.
  ~PmiServer();

  const net::Address& address() const { return acceptor_->address(); }  ///< with the real port
  /// A name of its own; clients come as ranks of the job of this name.
  const std::string& name() const { return name_; }
  /// Clients that were dropped because they broke the rules or vanished.
  int64_t dropped() const { return dropped_.load(); }

 private:
  struct Client {
    net::Connection connection;
    std::string received, to_send;
    int64_t stuck_since_ns = 0;  ///< a half line or unread answers since then; 0: neither
  };
  PmiServer(Config config, std::string name, net::Wakeup wakeup);
  void run();
  void runUntilStopped();
  void takeArrived();
  Client* clientOf(int32_t rank);
  bool advance(Client& client, short events);
  bool flush(Client& client);
  bool takeLines(Client& client);

  const Config config_;
  const std::string name_;
  SystemClock clock_;
  net::Wakeup wakeup_;
  PmiTable table_;             ///< the thread's only
  std::list<Client> clients_;  ///< the thread's only
  std::atomic<bool> stop_{false};
  std::atomic<int64_t> dropped_{0};
  std::mutex mutex_;  ///< guards what follows
  std::vector<net::Connection> arrived_;
  std::thread thread_;
  std::unique_ptr<net::Acceptor> acceptor_;  ///< last: ends first
};

}  // namespace jhetcc::ccl::mpi
