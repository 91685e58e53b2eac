// SPDX-License-Identifier: Apache-2.0
// A small shared map by which the processes of a job find each other. Its loss fails later calls of the store and
// nothing else. The server has a thread of its own, and one an address; a client may be used by any threads at once
// and has none.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "net/acceptor.h"
#include "net/connect.h"
#include "net/framing.h"

namespace jhetcc::control {

constexpr size_t kStoreKeyBytesMax = 256;
constexpr size_t kStoreValueBytesMax = 1 << 20;
constexpr size_t kStoreWillBytesMax = 4096;
constexpr size_t kStoreKeysMax = 1'000'000;
constexpr size_t kStoreBytesMax = size_t{1} << 30;  ///< all keys and values together

struct StoreServerConfig {
  net::Address address;  ///< one interface's; port 0 for any
  net::Secret secret = net::Secret::none();
  net::Identity mine;  ///< role is control
  const Clock* clock = nullptr;
  std::shared_ptr<const net::Tls> tls = nullptr;  ///< set: everything is encrypted, and clients need it too
  std::vector<net::Address> more = {};            ///< further ones; those that are not this machine's are left out
};

class StoreServer {
 public:
  static Result<std::unique_ptr<StoreServer>> create(StoreServerConfig config);
  /// Ends the threads and closes every connection.
  ~StoreServer();
  const net::Address& address() const;  ///< the first, with the real port

 private:
  class Loop;
  StoreServer();
  std::unique_ptr<Loop> loop_;
  std::vector<std::unique_ptr<net::Acceptor>> acceptors_;  ///< after the loop, so that they end first
};

/// Every call takes a deadline (kTimeout "store_timeout", kAborted "cancelled"). Once the server is gone every call
/// ends at once with kDisconnected "store_gone". Keys have 1 to 256 bytes.
class StoreClient : public std::enable_shared_from_this<StoreClient> {
 public:
  static Result<std::unique_ptr<StoreClient>> connect(const net::Address& address, const net::Secret& secret,
                                                      const net::Identity& mine, const net::Deadline& deadline,
                                                      int32_t wanted_rank = net::kAnyRank,
                                                      const std::shared_ptr<const net::Tls>& tls = nullptr);
  ~StoreClient();

  Status set(const std::string& key, const std::string& value, const net::Deadline& deadline);
  /// Nothing: `value` was stored. Else the value that was there, untouched.
  Result<std::optional<std::string>> setIfAbsent(const std::string& key, const std::string& value,
                                                 const net::Deadline& deadline);
  /// Waits until the key exists.
  Result<std::string> get(const std::string& key, const net::Deadline& deadline);
  Result<std::optional<std::string>> tryGet(const std::string& key, const net::Deadline& deadline);
  /// Keys with this prefix (it may be empty), ascending.
  Result<std::vector<std::string>> list(const std::string& prefix, const net::Deadline& deadline);
  /// Adds to a decimal number (0 where there is no key yet) and returns the sum. Overflow is an error.
  Result<int64_t> add(const std::string& key, int64_t delta, const net::Deadline& deadline);

  /// What the server sets, if it is absent, when this client's connection ends, in whatever way; an empty key: nothing
  /// any more. Key and value together have at most kStoreWillBytesMax.
  Status will(const std::string& key, const std::string& value, const net::Deadline& deadline);

  const net::Identity& server() const { return connection_.peer; }
  const net::Address& localAddress() const { return connection_.local; }

 private:
  struct Request;
  struct Reply;
  explicit StoreClient(net::Connection connection);
  Result<Reply> call(const Request& request, const net::Deadline& deadline);
  Result<Reply> await(uint64_t id, const std::string& what, const net::Deadline& deadline);
  Status sendRequest(uint64_t id, const Request& request, const net::Deadline& deadline);
  void readReplies(std::unique_lock<std::mutex>& lock, const net::Deadline& deadline);
  void breakWith(const Status& cause);

  net::Connection connection_;
  std::mutex send_mutex_;  ///< one request on the wire at a time
  std::mutex mutex_;       ///< guards what follows
  std::condition_variable changed_;
  net::MessageReader reader_;  ///< of whoever set is_reading_
  bool is_reading_ = false;
  uint64_t next_id_ = 1;
  std::map<uint64_t, std::optional<std::string>> awaited_;
  Status broken_;
};

}  // namespace jhetcc::control
