// SPDX-License-Identifier: Apache-2.0
#include "control/store_table.h"

#include <charconv>

namespace jhetcc::control {
namespace {

StoreOutcome refused(Kind kind, const std::string& code, const std::string& message) {
  return {StoreAnswer::kError, {}, Status(kind, Scope::kCall, code, message)};
}

}  // namespace

std::optional<StoreOutcome> StoreTable::handle(uint64_t caller, const StoreRequest& request,
                                               std::vector<StoreWaiter>* woken, std::string* woken_value) {
  if (request.op == StoreOp::kForget) {
    for (auto wait = waits_.begin(); wait != waits_.end(); ++wait) {
      if (wait->second.caller == caller && wait->second.request == static_cast<uint64_t>(request.delta)) {
        --waits_of_[caller];
        waits_.erase(wait);
        break;
      }
    }
    return std::nullopt;
  }
  if (request.op == StoreOp::kList) return list(request.key);
  if (request.key.empty()) return refused(Kind::kBadArgument, "store_key", "a store key must have 1 to 256 bytes");
  const auto found = values_.find(request.key);
  switch (request.op) {
    case StoreOp::kSet:
      return store(request, std::string(request.value), woken, woken_value);
    case StoreOp::kSetIfAbsent:
      if (found != values_.end()) return StoreOutcome{StoreAnswer::kOk, found->second, {}};
      {
        StoreOutcome outcome = store(request, std::string(request.value), woken, woken_value);
        if (outcome.answer == StoreAnswer::kOk) outcome.answer = StoreAnswer::kAbsent;
        return outcome;
      }
    case StoreOp::kTryGet:
      if (found == values_.end()) return StoreOutcome{StoreAnswer::kAbsent, {}, {}};
      return StoreOutcome{StoreAnswer::kOk, found->second, {}};
    case StoreOp::kAdd:
      return add(request, woken, woken_value);
    default:
      return get(caller, request);
  }
}

std::optional<StoreOutcome> StoreTable::get(uint64_t caller, const StoreRequest& request) {
  const auto found = values_.find(request.key);
  if (found != values_.end()) return StoreOutcome{StoreAnswer::kOk, found->second, {}};
  size_t& waits = waits_of_[caller];
  if (waits >= kStoreWaitsPerCallerMax) {
    return refused(
        Kind::kResource, "store_waits",
        "one process waits for more than " + std::to_string(kStoreWaitsPerCallerMax) + " store keys at once");
  }
  ++waits;
  waits_.emplace(request.key, StoreWaiter{caller, request.id});
  return std::nullopt;
}

StoreOutcome StoreTable::store(const StoreRequest& request, std::string value, std::vector<StoreWaiter>* woken,
                               std::string* woken_value) {
  const auto found = values_.find(request.key);
  const size_t old_bytes = found == values_.end() ? 0 : found->first.size() + found->second.size();
  const size_t new_bytes = request.key.size() + value.size();
  if (bytes_ - old_bytes + new_bytes > limits_.bytes_max || (old_bytes == 0 && values_.size() >= limits_.keys_max)) {
    return refused(Kind::kResource, "store_full",
                   "the store is full (" + std::to_string(values_.size()) + " keys, " + std::to_string(bytes_) +
                       " bytes); key '" + std::string(request.key) + "' was not stored");
  }
  bytes_ = bytes_ - old_bytes + new_bytes;
  if (found != values_.end()) {
    found->second = std::move(value);
    return {};
  }
  const auto [begin, end] = waits_.equal_range(request.key);
  if (begin != end) *woken_value = value;
  for (auto wait = begin; wait != end; ++wait) {
    woken->push_back(wait->second);
    --waits_of_[wait->second.caller];
  }
  waits_.erase(begin, end);
  values_.emplace(request.key, std::move(value));
  return {};
}

StoreOutcome StoreTable::add(const StoreRequest& request, std::vector<StoreWaiter>* woken, std::string* woken_value) {
  int64_t number = 0;
  const auto found = values_.find(request.key);
  if (found != values_.end()) {
    const std::string& text = found->second;
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc() || stop != text.data() + text.size()) {
      return refused(Kind::kBadArgument, "store_number", "store key '" + found->first + "' holds no number to add to");
    }
  }
  int64_t sum = 0;
  if (__builtin_add_overflow(number, request.delta, &sum)) {
    return refused(Kind::kBadArgument, "store_number", "store key '" + std::string(request.key) + "' would overflow");
  }
  StoreOutcome outcome = store(request, std::to_string(sum), woken, woken_value);
  if (outcome.answer == StoreAnswer::kOk) outcome.value = std::to_string(sum);
  return outcome;
}

StoreOutcome StoreTable::list(std::string_view prefix) const {
  ByteWriter writer;
  for (auto entry = values_.lower_bound(prefix); entry != values_.end() && entry->first.starts_with(prefix); ++entry) {
    writer.text(entry->first);
    if (writer.bytes().size() > kStoreReplyMax - 64) {
      return refused(Kind::kResource, "store_list",
                     "too many store keys begin with '" + std::string(prefix) + "'; ask for a longer prefix");
    }
  }
  return {StoreAnswer::kOk, writer.take(), {}};
}

void StoreTable::forgetCaller(uint64_t caller) {
  std::erase_if(waits_, [&](const auto& wait) { return wait.second.caller == caller; });
  waits_of_.erase(caller);
}

}  // namespace jhetcc::control
