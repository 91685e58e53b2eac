// SPDX-License-Identifier: Apache-2.0
// Messages over a stream: u32 length, then the bytes. For control traffic. One thread per socket and direction.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "net/deadline.h"
#include "net/socket.h"

namespace jhetcc::net {

constexpr size_t kMessageHeaderBytes = 4;

/// The message with its length in front. Longer than 4 GiB is a programming error.
std::string framed(std::string_view message);

Status sendMessage(const Stream& stream, std::string_view message, const Deadline& deadline, const std::string& what);
/// A length above `size_max` is an error before anything is allocated; memory grows only as bytes arrive.
Result<std::string> receiveMessage(const Stream& stream, size_t size_max, const Deadline& deadline,
                                   const std::string& what);

/// Cuts a non-blocking stream into messages.
class MessageReader {
 public:
  explicit MessageReader(size_t size_max) : size_max_(size_max) {}
  /// Takes what the socket has now, at most about 256 KiB. An error is final.
  Status readSome(const Stream& stream, const std::string& what);
  /// The next whole message.
  Result<std::optional<std::string>> next();

 private:
  size_t size_max_;
  std::string buffer_;
  size_t begin_ = 0;  ///< of the bytes not handed out yet
};

}  // namespace jhetcc::net
