// SPDX-License-Identifier: Apache-2.0
// The server of the store: a poll loop on its own thread over proven connections.
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <thread>

#include "base/log.h"
#include "base/thread.h"
#include "control/store_protocol.h"
#include "control/store_table.h"
#include "net/socket.h"
#include "net/wakeup.h"

namespace jhetcc::control {
namespace {

/// A caller that does not read its replies is not listened to either.
constexpr size_t kUnsentMax = size_t{4} << 20;

}  // namespace

class StoreServer::Loop {
 public:
  explicit Loop(net::Wakeup wakeup) : wakeup_(std::move(wakeup)) {}
  Status start() {
    Result<std::thread> thread = startThread("jhetcc-store", [this] { run(); });
    if (!thread.isOk()) return thread.status();
    thread_ = std::move(thread).value();
    return Status::ok();
  }
  ~Loop() {
    stop_.store(true);
    wakeup_.signal();
    if (thread_.joinable()) thread_.join();
  }
  /// The acceptor's thread.
  void add(net::Connection connection) {
    {
      std::lock_guard lock(mutex_);
      if (has_ended_) return;  // closes it: the caller learns that the store is gone
      arrivals_.push_back(std::move(connection));
    }
    wakeup_.signal();
  }

 private:
  struct Caller {
    net::Connection connection;
    net::MessageReader reader{kStoreRequestMax};
    std::string will_key, will_value;
    std::string unsent;
    size_t sent = 0;
    bool is_lost = false;
  };

  void run();
  void admitArrivals();
  void receive(uint64_t id, Caller& caller);
  void serve(uint64_t id, Caller& caller);
  void handle(uint64_t id, Caller& caller, const std::string& message);
  void answer(uint64_t id, Caller& caller, const StoreRequest& request, bool is_told);
  void reply(Caller& caller, uint64_t request, const StoreOutcome& outcome);
  void flush(Caller& caller);
  void lose(Caller& caller, const std::string& why);
  void dropLost();

  net::Wakeup wakeup_;
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::vector<net::Connection> arrivals_;  ///< guarded by mutex_
  bool has_ended_ = false;                 ///< guarded by mutex_
  std::map<uint64_t, Caller> callers_;     ///< the loop's thread only, as all below
  uint64_t next_caller_ = 1;
  StoreTable table_;
  std::thread thread_;
};

void StoreServer::Loop::run() {
  std::vector<pollfd> entries;
  std::vector<uint64_t> ids;
  try {
    while (!stop_.load()) {
      entries.assign(1, {wakeup_.descriptor(), POLLIN, 0});
      ids.assign(1, 0);
      for (const auto& [id, caller] : callers_) {
        const size_t unsent = caller.unsent.size() - caller.sent;
        short events = unsent > 0 ? POLLOUT : 0;
        if (unsent < kUnsentMax) events |= POLLIN;
        entries.push_back({caller.connection.fd.get(), events, 0});
        ids.push_back(id);
      }
      ::poll(entries.data(), entries.size(), -1);
      if (entries[0].revents != 0) wakeup_.clear();
      for (size_t i = 1; i < entries.size(); ++i) {
        Caller& caller = callers_.at(ids[i]);
        if ((entries[i].revents & POLLOUT) != 0) {
          flush(caller);
          serve(ids[i], caller);
        }
        if ((entries[i].revents & ~POLLOUT) != 0 && !caller.is_lost) receive(ids[i], caller);
      }
      dropLost();
      admitArrivals();
    }
  } catch (const std::exception& error) {
    JHETCC_LOG(kError, "control", std::string("the store ended: ") + error.what());
  }
  callers_.clear();  // whoever calls learns that the store is gone
  std::lock_guard lock(mutex_);
  has_ended_ = true;
  arrivals_.clear();
}

void StoreServer::Loop::admitArrivals() {
  std::lock_guard lock(mutex_);
  for (net::Connection& connection : arrivals_) {
    JHETCC_LOG(kDebug, "control", "the store serves " + connection.description);
    callers_[next_caller_++].connection = std::move(connection);
  }
  arrivals_.clear();
}

void StoreServer::Loop::receive(uint64_t id, Caller& caller) {
  const Status status = caller.reader.readSome(caller.connection, "store");
  serve(id, caller);
  if (!status.isOk() && !caller.is_lost) lose(caller, status.message());
}

/// Requests that are here, as long as their replies find room; the rest when the caller has read some.
void StoreServer::Loop::serve(uint64_t id, Caller& caller) {
  while (!caller.is_lost && caller.unsent.size() - caller.sent < kUnsentMax) {
    Result<std::optional<std::string>> message = caller.reader.next();
    if (!message.isOk()) return lose(caller, message.status().message());
    if (!message.value()) return;
    handle(id, caller, *message.value());
  }
}

void StoreServer::Loop::handle(uint64_t id, Caller& caller, const std::string& message) {
  const std::optional<StoreRequest> request = decodeRequest(message);
  if (!request) return lose(caller, "it sent what is no request");
  if (request->op != StoreOp::kWill) return answer(id, caller, *request, true);
  if (request->key.size() + request->value.size() > kStoreWillBytesMax) return lose(caller, "its will is too long");
  caller.will_key = request->key;
  caller.will_value = request->value;
  reply(caller, request->id, {});
}

void StoreServer::Loop::answer(uint64_t id, Caller& caller, const StoreRequest& request, bool is_told) {
  std::vector<StoreWaiter> woken;
  std::string woken_value;
  const std::optional<StoreOutcome> outcome = table_.handle(id, request, &woken, &woken_value);
  if (outcome && is_told) reply(caller, request.id, *outcome);
  for (const StoreWaiter& waiter : woken) {
    const auto found = callers_.find(waiter.caller);
    if (found != callers_.end()) reply(found->second, waiter.request, {StoreAnswer::kOk, woken_value, {}});
  }
}

void StoreServer::Loop::reply(Caller& caller, uint64_t request, const StoreOutcome& outcome) {
  if (caller.is_lost) return;
  caller.unsent += net::framed(encodeReply(request, outcome));
  flush(caller);
}

void StoreServer::Loop::flush(Caller& caller) {
  while (caller.sent < caller.unsent.size()) {
    const ssize_t sent =
        net::Stream(caller.connection).send(caller.unsent.data() + caller.sent, caller.unsent.size() - caller.sent);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      if (caller.sent > kUnsentMax / 4) {
        caller.unsent.erase(0, caller.sent);
        caller.sent = 0;
      }
      return;
    }
    if (sent < 0) return lose(caller, net::disconnected("sending", errno).message());
    caller.sent += static_cast<size_t>(sent);
  }
  caller.unsent.clear();
  caller.sent = 0;
}

void StoreServer::Loop::lose(Caller& caller, const std::string& why) {
  JHETCC_LOG(kDebug, "control", "the store lost " + caller.connection.description + ": " + why);
  caller.is_lost = true;
}

void StoreServer::Loop::dropLost() {
  for (auto entry = callers_.begin(); entry != callers_.end();) {
    Caller& caller = entry->second;
    if (caller.is_lost) {
      table_.forgetCaller(entry->first);
      StoreRequest will;
      will.op = StoreOp::kSetIfAbsent;
      will.key = caller.will_key;
      will.value = caller.will_value;
      if (!caller.will_key.empty()) answer(entry->first, caller, will, false);
    }
    entry = caller.is_lost ? callers_.erase(entry) : std::next(entry);
  }
}

StoreServer::StoreServer() = default;
StoreServer::~StoreServer() = default;
const net::Address& StoreServer::address() const { return acceptors_.front()->address(); }

Result<std::unique_ptr<StoreServer>> StoreServer::create(StoreServerConfig config) {
  Result<net::Wakeup> wakeup = net::Wakeup::create();
  if (!wakeup.isOk()) return wakeup.status();
  std::unique_ptr<StoreServer> server(new StoreServer);
  server->loop_ = std::make_unique<Loop>(std::move(wakeup).value());
  Loop* loop = server->loop_.get();
  net::AcceptorConfig acceptor;
  acceptor.secret = config.secret;
  acceptor.mine = config.mine;
  acceptor.mine.role = net::Role::kControl;
  acceptor.tls = config.tls;
  acceptor.clock = config.clock;
  acceptor.on_connection = [loop](net::Connection connection) { loop->add(std::move(connection)); };
  std::vector<net::Address> addresses{config.address};
  for (const net::Address& address : config.more) {  // resolvers repeat themselves
    if (std::find(addresses.begin(), addresses.end(), address) == addresses.end()) addresses.push_back(address);
  }
  Status missing;
  for (const net::Address& address : addresses) {
    acceptor.address = address;
    Result<std::unique_ptr<net::Acceptor>> created = net::Acceptor::create(acceptor);
    if (!created.isOk() && created.status().kind() != Kind::kUnavailable) {
      return created.status().withContext("starting the store");
    }
    if (created.isOk()) server->acceptors_.push_back(std::move(created).value());
    if (!created.isOk() && missing.isOk()) missing = created.status().withContext("starting the store");
  }
  if (server->acceptors_.empty()) return missing;
  JHETCC_RETURN_IF_ERROR(loop->start());
  return server;
}

}  // namespace jhetcc::control
