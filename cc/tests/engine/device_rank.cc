// SPDX-License-Identifier: Apache-2.0
#include "device_rank.h"

#include <algorithm>

#include "base/clock.h"

namespace jhetcc::engine::testing {
namespace {

void must(const Status& status) { JHETCC_CHECK(status.isOk(), status.message()); }
template <typename T>
T must(Result<T> result) {
  must(result.status());
  return std::move(result).value();
}

}  // namespace

DeviceCall::DeviceCall(DeviceRank& rank, device::Stream stream, const std::vector<uint8_t>& input, size_t output_bytes,
                       bool is_in_place, uint8_t poison)
    : rank_(rank),
      stream_(stream),
      input_bytes_(input.size()),
      output_bytes_(output_bytes),
      is_in_place_(is_in_place),
      poison_(poison) {
  there_ = static_cast<char*>(must(rank.device->allocate(total(), device::MemoryKind::kDevice)));
  here_ = static_cast<char*>(must(rank.device->allocate(4 * total(), device::MemoryKind::kPinned)));
  std::memset(here_, kGuardByte, 4 * total());
  std::memset(here_ + outputAt(), 0x5a, output_bytes_);
  if (!input.empty()) std::memcpy(here_ + kGuard, input.data(), input.size());
  std::memset(here_ + 2 * total(), poison_, total());
}

DeviceCall::~DeviceCall() {
  (void)rank_.device->free(there_);  // work of a dead rank may still hold it
  (void)rank_.device->free(here_);
}

Buffers DeviceCall::buffers() const { return {there_ + kGuard, there_ + outputAt(), input_bytes_, output_bytes_}; }

void DeviceCall::queueBefore() { must(rank_.device->copy(there_, here_, total(), stream_)); }

void DeviceCall::queueAfter() {
  must(rank_.device->copy(here_ + total(), there_, total(), stream_));
  must(rank_.device->copy(there_, here_ + 2 * total(), total(), stream_));
}

std::vector<uint8_t> DeviceCall::output() const {
  const char* first = here_ + total() + outputAt();
  return {first, first + output_bytes_};
}

bool DeviceCall::isUntouched() {
  must(rank_.device->copy(here_ + 3 * total(), there_, total(), stream_));
  must(rank_.device->synchronize(stream_, SystemClock().nowNs() + 20'000 * kNsPerMs));
  const char* down = here_ + total();
  const char* up = here_;
  for (size_t k = 0; k < total(); ++k) {
    const bool is_output = k >= outputAt() && k < outputAt() + output_bytes_;
    if (!is_output && down[k] != up[k]) return false;
  }
  const char* end = here_ + 3 * total();
  return std::all_of(end, end + total(), [this](char byte) { return static_cast<uint8_t>(byte) == poison_; });
}

}  // namespace jhetcc::engine::testing
