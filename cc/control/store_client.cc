// SPDX-License-Identifier: Apache-2.0
// The client of the store. It has no thread: of the threads that wait, one reads the socket and hands replies to the
// others.
#include <poll.h>

#include <algorithm>
#include <charconv>
#include <chrono>

#include "control/store_protocol.h"
#include "net/socket.h"

namespace jhetcc::control {

struct StoreClient::Request {
  StoreOp op;
  std::string what;  ///< "store get of 'key'"
  std::string_view key;
  std::string_view value = {};
  int64_t delta = 0;
};

struct StoreClient::Reply {
  StoreAnswer answer;
  std::string value;
};

namespace {

constexpr int64_t kForgetNs = 100 * kNsPerMs;

std::string quoted(std::string_view key) {
  std::string text = "'";
  text += key.substr(0, 80);
  text += "'";
  return text;
}

Status checkKey(std::string_view key, std::string_view value) {
  if (key.empty() || key.size() > kStoreKeyBytesMax) {
    return Status(Kind::kBadArgument, Scope::kCall, "store_key",
                  "store key " + quoted(key) + " has " + std::to_string(key.size()) + " bytes; it must have 1 to 256");
  }
  if (value.size() > kStoreValueBytesMax) {
    return Status(Kind::kBadArgument, Scope::kCall, "store_value",
                  "the value for store key " + quoted(key) + " has " + std::to_string(value.size()) +
                      " bytes; at most 1 MiB is stored");
  }
  return Status::ok();
}

}  // namespace

StoreClient::StoreClient(net::Connection connection) : connection_(std::move(connection)), reader_(kStoreReplyMax) {}
StoreClient::~StoreClient() = default;

Result<std::unique_ptr<StoreClient>> StoreClient::connect(const net::Address& address, const net::Secret& secret,
                                                          const net::Identity& mine, const net::Deadline& deadline,
                                                          int32_t wanted_rank,
                                                          const std::shared_ptr<const net::Tls>& tls) {
  net::Identity control = mine;
  control.role = net::Role::kControl;
  Result<net::Connection> connection = net::connect(address, secret, control, wanted_rank, deadline, std::nullopt, tls);
  if (!connection.isOk()) return connection.status().withContext("reaching the store");
  return std::unique_ptr<StoreClient>(new StoreClient(std::move(connection).value()));
}

void StoreClient::breakWith(const Status& cause) {
  if (broken_.isOk()) {
    broken_ = Status(Kind::kDisconnected, Scope::kProcess, "store_gone",
                     "the store at " + connection_.remote.text() + " is gone: " + cause.message() +
                         "; operations under way are not affected, but nobody can join, split or shrink");
  }
  changed_.notify_all();
}

Status StoreClient::sendRequest(uint64_t id, const Request& request, const net::Deadline& deadline) {
  const std::string message = net::framed(encodeRequest({id, request.op, request.delta, request.key, request.value}));
  std::lock_guard send_lock(send_mutex_);
  const Status sent = net::sendAll(connection_, message.data(), message.size(), deadline, "sending");
  if (sent.isOk()) return sent;
  std::lock_guard lock(mutex_);
  breakWith(sent);  // also after a timeout: half a request spoils the stream
  return broken_;
}

void StoreClient::readReplies(std::unique_lock<std::mutex>& lock, const net::Deadline& deadline) {
  is_reading_ = true;
  lock.unlock();
  pollfd entry{connection_.fd.get(), POLLIN, 0};
  const int ready = ::poll(&entry, 1, net::pollTimeoutMs(deadline.clock, deadline.at_ns, net::kSliceNs));
  Status status = ready > 0 ? reader_.readSome(connection_, "receiving") : Status::ok();
  lock.lock();
  for (;;) {
    Result<std::optional<std::string>> message = reader_.next();
    if (!message.isOk()) status = message.status();
    if (!message.isOk() || !message.value()) break;
    const auto found = awaited_.find(ByteReader(*message.value()).u64());
    if (found != awaited_.end()) found->second = std::move(message.value());  // others nobody awaits any more
  }
  if (!status.isOk()) breakWith(status);
  is_reading_ = false;
  changed_.notify_all();
}

Result<StoreClient::Reply> StoreClient::await(uint64_t id, const std::string& what, const net::Deadline& deadline) {
  std::unique_lock lock(mutex_);
  for (;;) {
    std::optional<std::string>& slot = awaited_.at(id);
    if (slot) {
      ByteReader reader(*slot);
      reader.u64();
      const auto answer = static_cast<StoreAnswer>(reader.u8());
      if (answer == StoreAnswer::kError) {
        const auto kind = static_cast<Kind>(reader.u8());
        const std::string code(reader.text(kStoreReplyMax));
        return Status(kind, Scope::kCall, code, what + ": " + std::string(reader.text(kStoreReplyMax)));
      }
      return Reply{answer, std::string(reader.text(kStoreReplyMax))};
    }
    if (!broken_.isOk()) return broken_.withContext(what);
    lock.unlock();  // cancelled() is the caller's code
    const Status time = net::checkDeadline(deadline, what + " at " + connection_.remote.text());
    if (!time.isOk()) {
      const bool is_timeout = time.kind() == Kind::kTimeout;
      return Status(time.kind(), Scope::kCall, is_timeout ? "store_timeout" : time.code(), time.message());
    }
    lock.lock();
    if (awaited_.at(id) || !broken_.isOk()) continue;
    if (!is_reading_) {
      readReplies(lock, deadline);
    } else {
      changed_.wait_for(lock, std::chrono::nanoseconds(std::clamp<int64_t>(deadline.remainingNs(), 0, net::kSliceNs)));
    }
  }
}

Result<StoreClient::Reply> StoreClient::call(const Request& request, const net::Deadline& deadline) {
  uint64_t id = 0;
  {
    std::lock_guard lock(mutex_);
    if (!broken_.isOk()) return broken_.withContext(request.what);
    id = next_id_++;
    awaited_[id] = std::nullopt;
  }
  const Status sent = sendRequest(id, request, deadline);
  Result<Reply> reply = sent.isOk() ? await(id, request.what, deadline) : Result<Reply>(sent.withContext(request.what));
  bool is_alive = false;
  {
    std::lock_guard lock(mutex_);
    awaited_.erase(id);
    is_alive = broken_.isOk();
  }
  if (!reply.isOk() && request.op == StoreOp::kGet && is_alive) {
    // The server need not hold the wait of a caller that gave up; if this fails, later calls will say so.
    (void)sendRequest(0, {StoreOp::kForget, "", "", "", static_cast<int64_t>(id)},
                      net::Deadline::after(deadline.clock, kForgetNs));
  }
  return reply;
}

Status StoreClient::set(const std::string& key, const std::string& value, const net::Deadline& deadline) {
  JHETCC_RETURN_IF_ERROR(checkKey(key, value));
  return call({StoreOp::kSet, "store set of " + quoted(key), key, value}, deadline).status();
}

Result<std::optional<std::string>> StoreClient::setIfAbsent(const std::string& key, const std::string& value,
                                                            const net::Deadline& deadline) {
  JHETCC_RETURN_IF_ERROR(checkKey(key, value));
  Result<Reply> reply = call({StoreOp::kSetIfAbsent, "store set-if-absent of " + quoted(key), key, value}, deadline);
  if (!reply.isOk()) return reply.status();
  if (reply.value().answer == StoreAnswer::kAbsent) return std::optional<std::string>();
  return std::optional<std::string>(std::move(reply.value().value));
}

Status StoreClient::will(const std::string& key, const std::string& value, const net::Deadline& deadline) {
  if (key.size() + value.size() > kStoreWillBytesMax) {
    return Status(
        Kind::kBadArgument, Scope::kCall, "store_value",
        "the will for store key " + quoted(key) + " is longer than " + std::to_string(kStoreWillBytesMax) + " bytes");
  }
  return call({StoreOp::kWill, "store will for " + quoted(key), key, value}, deadline).status();
}

Result<std::string> StoreClient::get(const std::string& key, const net::Deadline& deadline) {
  JHETCC_RETURN_IF_ERROR(checkKey(key, {}));
  Result<Reply> reply = call({StoreOp::kGet, "store get of " + quoted(key), key}, deadline);
  if (!reply.isOk()) return reply.status();
  return std::move(reply.value().value);
}

Result<std::optional<std::string>> StoreClient::tryGet(const std::string& key, const net::Deadline& deadline) {
  JHETCC_RETURN_IF_ERROR(checkKey(key, {}));
  Result<Reply> reply = call({StoreOp::kTryGet, "store look-up of " + quoted(key), key}, deadline);
  if (!reply.isOk()) return reply.status();
  if (reply.value().answer == StoreAnswer::kAbsent) return std::optional<std::string>();
  return std::optional<std::string>(std::move(reply.value().value));
}

Result<std::vector<std::string>> StoreClient::list(const std::string& prefix, const net::Deadline& deadline) {
  if (!prefix.empty()) JHETCC_RETURN_IF_ERROR(checkKey(prefix, {}));
  Result<Reply> reply = call({StoreOp::kList, "store list of " + quoted(prefix), prefix}, deadline);
  if (!reply.isOk()) return reply.status();
  std::vector<std::string> keys;
  ByteReader reader(reply.value().value);
  while (reader.ok() && !reader.atEnd()) keys.emplace_back(reader.text(kStoreKeyBytesMax));
  return keys;
}

Result<int64_t> StoreClient::add(const std::string& key, int64_t delta, const net::Deadline& deadline) {
  JHETCC_RETURN_IF_ERROR(checkKey(key, {}));
  Result<Reply> reply = call({StoreOp::kAdd, "store add to " + quoted(key), key, {}, delta}, deadline);
  if (!reply.isOk()) return reply.status();
  int64_t sum = 0;
  const std::string& text = reply.value().value;
  (void)std::from_chars(text.data(), text.data() + text.size(), sum);
  return sum;
}

}  // namespace jhetcc::control
