// SPDX-License-Identifier: Apache-2.0
// The open offers of one endpoint by cookie: a fixed open-addressing table, so nothing is allocated per offer.
// Belongs to the thread that owns the endpoint.
#pragma once

#include <array>
#include <cstdint>

namespace jhetcc::transport {

constexpr uint32_t kOfferSlots = 1024;

inline uint32_t offerHome(uint64_t cookie) { return static_cast<uint32_t>(cookie ^ (cookie >> 32)) % kOfferSlots; }

struct OpenOffer {
  uint64_t cookie = 0;
  uint64_t address = 0;
  uint64_t length = 0;
  bool is_open = false;
};

class OfferTable {
 public:
  bool isFull() const { return count_ == kOfferSlots; }
  /// Takes a free slot; the table must not be full.
  uint32_t insert(uint64_t cookie, uint64_t address, uint64_t length) {
    uint32_t distance = 0;
    while (slots_[at(cookie, distance)].is_open) ++distance;
    if (distance > distance_max_) distance_max_ = distance;
    ++count_;
    slots_[at(cookie, distance)] = {cookie, address, length, true};
    return at(cookie, distance);
  }
  /// Slot of an open offer, or -1.
  int find(uint64_t cookie) const {
    for (uint32_t distance = 0; distance <= distance_max_; ++distance) {
      const OpenOffer& offer = slots_[at(cookie, distance)];
      if (offer.is_open && offer.cookie == cookie) return static_cast<int>(at(cookie, distance));
    }
    return -1;
  }
  void erase(int slot) {
    slots_[static_cast<uint32_t>(slot)].is_open = false;
    if (--count_ == 0) distance_max_ = 0;
  }
  const OpenOffer& operator[](int slot) const { return slots_[static_cast<uint32_t>(slot)]; }

 private:
  static uint32_t at(uint64_t cookie, uint32_t distance) { return (offerHome(cookie) + distance) % kOfferSlots; }
  std::array<OpenOffer, kOfferSlots> slots_{};
  uint32_t count_ = 0;
  uint32_t distance_max_ = 0;  ///< farthest any open offer may lie from its home
};

}  // namespace jhetcc::transport
