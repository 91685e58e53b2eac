// SPDX-License-Identifier: Apache-2.0
#include "control/membership_wire.h"

#include <algorithm>

namespace jhetcc::control {

namespace {
constexpr size_t kCodeBytesMax = 40;
constexpr size_t kReasonsMax = 3;
}  // namespace

std::string truncated(std::string_view text, size_t max) {
  if (text.size() <= max) return std::string(text);
  return std::string(text.substr(0, max - 3)) + "...";
}

void Writer::text(std::string_view value, size_t max) {
  const std::string kept = truncated(value, max);
  integer(kept.size(), 2);
  text_ += kept;
}

void Writer::bits(const std::vector<bool>& set) {
  for (size_t begin = 0; begin < set.size(); begin += 8) {
    uint8_t byte = 0;
    for (size_t i = begin; i < std::min(begin + 8, set.size()); ++i)
      byte |= static_cast<uint8_t>(set[i] << (i - begin));
    u8(byte);
  }
}

void Writer::status(const Status& status, size_t message_max) {
  u8(static_cast<uint8_t>(status.kind()));
  if (status.isOk()) return;
  u8(static_cast<uint8_t>(status.scope()));
  text(status.code(), kCodeBytesMax);
  text(status.message(), message_max);
  const size_t count = std::min(status.ranks().size(), kBlamedMax);
  integer(count, 2);
  for (size_t i = 0; i < count; ++i) u32(static_cast<uint32_t>(status.ranks()[i]));
}

uint64_t Reader::integer(size_t bytes) {
  if (!ok_ || data_.size() < bytes) {
    ok_ = false;
    return 0;
  }
  uint64_t value = 0;
  for (size_t i = 0; i < bytes; ++i) value |= static_cast<uint64_t>(static_cast<uint8_t>(data_[i])) << (8 * i);
  data_.remove_prefix(bytes);
  return value;
}

std::string Reader::text(size_t max) {
  const size_t size = integer(2);
  if (!ok_ || size > max || size > data_.size()) {
    ok_ = false;
    return {};
  }
  std::string value(data_.substr(0, size));
  data_.remove_prefix(size);
  return value;
}

std::vector<bool> Reader::bits(size_t size) {
  std::vector<bool> set(size);
  if (!ok_ || data_.size() < (size + 7) / 8) {
    ok_ = false;
    return set;
  }
  for (size_t i = 0; i < size; ++i) set[i] = (static_cast<uint8_t>(data_[i / 8]) >> (i % 8)) & 1;
  data_.remove_prefix((size + 7) / 8);
  return set;
}

Status Reader::status(size_t message_max) {
  const uint8_t kind = u8();
  if (!ok_ || kind == 0) return {};
  const uint8_t scope = u8();
  std::string code = text(kCodeBytesMax);
  std::string message = text(message_max);
  const size_t count = integer(2);
  if (kind > static_cast<uint8_t>(Kind::kInternal) || scope > static_cast<uint8_t>(Scope::kProcess) ||
      count > kBlamedMax || data_.size() < 4 * count) {
    ok_ = false;
  }
  if (!ok_) return {};
  std::vector<int32_t> ranks(count);
  for (int32_t& rank : ranks) rank = static_cast<int32_t>(u32());
  return Status(static_cast<Kind>(kind), static_cast<Scope>(scope), std::move(code), std::move(message),
                std::move(ranks));
}

std::string_view Reader::rest() {
  std::string_view all = ok_ ? data_ : std::string_view();
  data_ = {};
  return all;
}

std::string encodeEvidence(const Evidence& evidence) {
  Writer writer;
  writer.u64(evidence.report.started);
  writer.u64(evidence.report.finished);
  writer.text(evidence.report.operation, kOperationBytesMax);
  writer.text(evidence.report.elsewhere, kOperationBytesMax);
  writer.status(evidence.cause, kCauseBytesMax);
  writer.bits(evidence.accused);
  writer.bits(evidence.gone);
  const size_t count = std::min(evidence.reasons.size(), kReasonsMax);
  writer.u8(static_cast<uint8_t>(count));
  for (size_t i = 0; i < count; ++i) writer.text(evidence.reasons[i], kOperationBytesMax);
  return writer.take();
}

std::optional<Evidence> decodeEvidence(std::string_view data, size_t members) {
  Reader reader(data);
  Evidence evidence;
  evidence.report.started = reader.u64();
  evidence.report.finished = reader.u64();
  evidence.report.operation = reader.text(kOperationBytesMax);
  evidence.report.elsewhere = reader.text(kOperationBytesMax);
  evidence.cause = reader.status(kCauseBytesMax);
  evidence.accused = reader.bits(members);
  evidence.gone = reader.bits(members);
  const size_t count = reader.u8();
  if (count > kReasonsMax) return std::nullopt;
  for (size_t i = 0; i < count; ++i) evidence.reasons.push_back(reader.text(kOperationBytesMax));
  if (!reader.done()) return std::nullopt;
  return evidence;
}

std::string encodeVerdict(const Verdict& verdict, size_t members) {
  Writer writer;
  writer.u8(verdict.confirmed ? 1 : 0);
  writer.status(verdict.status, kVerdictBytesMax);
  std::vector<bool> lost(members);
  for (const int32_t member : verdict.lost) lost[static_cast<size_t>(member)] = true;
  writer.bits(lost);
  return writer.take();
}

std::optional<Verdict> decodeVerdict(std::string_view data, size_t members) {
  Reader reader(data);
  Verdict verdict;
  verdict.confirmed = reader.u8() != 0;
  verdict.status = reader.status(kVerdictBytesMax);
  const std::vector<bool> lost = reader.bits(members);
  if (!reader.done() || verdict.status.isOk()) return std::nullopt;
  for (size_t i = 0; i < members; ++i) {
    if (lost[i]) verdict.lost.push_back(static_cast<int32_t>(i));
  }
  return verdict;
}

}  // namespace jhetcc::control
