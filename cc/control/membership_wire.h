// SPDX-License-Identifier: Apache-2.0
// Bytes of the room's messages: little endian, every length checked before use. Values only, any thread.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "control/membership.h"

namespace jhetcc::control {

constexpr size_t kMessageBytesMax = 8192;   ///< of every message of this room
constexpr size_t kOperationBytesMax = 200;  ///< of an operation text within a message
constexpr size_t kCauseBytesMax = 3000;     ///< of a cause's text within a report
constexpr size_t kVerdictBytesMax = 5600;   ///< of a verdict's text
constexpr size_t kBlamedMax = 256;          ///< world ranks a status on the wire names

/// Appends to a string.
class Writer {
 public:
  void u8(uint8_t value) { text_.push_back(static_cast<char>(value)); }
  void u32(uint32_t value) { integer(value, 4); }
  void u64(uint64_t value) { integer(value, 8); }
  /// At most `max` bytes of `value`; a cut is marked by "...".
  void text(std::string_view value, size_t max);
  void bits(const std::vector<bool>& set);
  void status(const Status& status, size_t message_max);
  std::string take() { return std::move(text_); }

 private:
  void integer(uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) u8(static_cast<uint8_t>(value >> (8 * i)));
  }
  std::string text_;
};

/// Reads; after a short or wrong field `ok()` is false and every value is zero or empty.
class Reader {
 public:
  explicit Reader(std::string_view data) : data_(data) {}
  uint8_t u8() { return static_cast<uint8_t>(integer(1)); }
  uint32_t u32() { return static_cast<uint32_t>(integer(4)); }
  uint64_t u64() { return integer(8); }
  std::string text(size_t max);
  std::vector<bool> bits(size_t size);
  Status status(size_t message_max);
  std::string_view rest();
  void fail() { ok_ = false; }
  bool ok() const { return ok_; }
  /// Everything was right and nothing is left over.
  bool done() const { return ok_ && data_.empty(); }

 private:
  uint64_t integer(size_t bytes);
  std::string_view data_;
  bool ok_ = true;
};

std::string truncated(std::string_view text, size_t max);

/// What one member knows when a communicator ends.
struct Evidence {
  Report report;
  Status cause;                      ///< ok where the member only heard of it
  std::vector<bool> accused;         ///< whose connection is said to have broken; not those that are merely late
  std::vector<bool> gone;            ///< whose connection ended here
  std::vector<std::string> reasons;  ///< of the first few in `gone`, ascending; exact texts
};

std::string encodeEvidence(const Evidence& evidence);
std::optional<Evidence> decodeEvidence(std::string_view data, size_t members);
std::string encodeVerdict(const Verdict& verdict, size_t members);
std::optional<Verdict> decodeVerdict(std::string_view data, size_t members);

}  // namespace jhetcc::control
