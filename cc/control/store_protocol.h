// SPDX-License-Identifier: Apache-2.0
// Private to the store: its messages. A request is answered by one reply with its id; kGet may be answered late.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "base/status.h"
#include "control/store.h"

namespace jhetcc::control {

enum class StoreOp : uint8_t { kSet = 1, kSetIfAbsent, kGet, kTryGet, kList, kAdd, kForget, kWill };
enum class StoreAnswer : uint8_t { kOk = 0, kAbsent = 1, kError = 2 };

constexpr size_t kStoreRequestMax = kStoreValueBytesMax + kStoreKeyBytesMax + 64;
constexpr size_t kStoreReplyMax = size_t{16} << 20;

struct StoreRequest {
  uint64_t id = 0;
  StoreOp op = StoreOp::kGet;
  int64_t delta = 0;  ///< kAdd; kForget: the id of a kGet that nobody waits for any more
  std::string_view key, value;
};

inline std::string encodeRequest(const StoreRequest& request) {
  ByteWriter writer;
  writer.u64(request.id);
  writer.u8(static_cast<uint8_t>(request.op));
  writer.i64(request.delta);
  writer.text(request.key);
  writer.text(request.value);
  return writer.take();
}

/// The views point into `bytes`.
inline std::optional<StoreRequest> decodeRequest(std::string_view bytes) {
  ByteReader reader(bytes);
  StoreRequest request;
  request.id = reader.u64();
  const uint8_t op = reader.u8();
  request.op = static_cast<StoreOp>(op);
  request.delta = reader.i64();
  request.key = reader.text(kStoreKeyBytesMax);
  request.value = reader.text(kStoreValueBytesMax);
  if (!reader.atEnd() || op < 1 || op > static_cast<uint8_t>(StoreOp::kWill)) return std::nullopt;
  return request;
}

/// What the table says to a request; an error is told to the caller.
struct StoreOutcome {
  StoreAnswer answer = StoreAnswer::kOk;
  std::string value;
  Status error;
};

inline std::string encodeReply(uint64_t id, const StoreOutcome& outcome) {
  ByteWriter writer;
  writer.u64(id);
  writer.u8(static_cast<uint8_t>(outcome.answer));
  if (outcome.answer == StoreAnswer::kError) {
    writer.u8(static_cast<uint8_t>(outcome.error.kind()));
    writer.text(outcome.error.code());
    writer.text(outcome.error.message());
  } else {
    writer.text(outcome.value);
  }
  return writer.take();
}

}  // namespace jhetcc::control
