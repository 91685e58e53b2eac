// SPDX-License-Identifier: Apache-2.0
// The job's secret, or the statement that there is none. A keyed secret can always compute its MAC. Immutable: any
// thread.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"

namespace jhetcc::net {

using Mac = std::array<uint8_t, 32>;
using Nonce = std::array<uint8_t, 32>;

constexpr size_t kSecretBytesMin = 16;
constexpr size_t kSecretBytesMax = 4096;
/// How a user gives every process the same secret; part of every error about it.
extern const char* const kSecretHint;

class Secret {
 public:
  /// Loads libcrypto (`libcrypto_path` or the usual names): kUnavailable if there is none, kBadArgument if too short.
  static Result<Secret> create(std::string bytes, const std::string& libcrypto_path = {});
  /// Connections are then allowed on loopback and unix sockets only, or everywhere with `allow_insecure`.
  static Secret none(bool allow_insecure = false);

  bool isNone() const { return key_ == nullptr; }
  bool allowsInsecure() const { return allow_insecure_; }
  /// HMAC-SHA256 of `data`; all zeros where there is no secret.
  Result<Mac> mac(std::string_view data) const;

 private:
  struct Key;
  Secret() = default;
  std::shared_ptr<const Key> key_;  ///< wiped when the last copy goes
  bool allow_insecure_ = false;
};

}  // namespace jhetcc::net
