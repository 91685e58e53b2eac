// SPDX-License-Identifier: Apache-2.0
// Private to the handshake: its bodies as values, and its MACs. Lengths are checked before anything is copied.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "net/identity.h"
#include "net/secret.h"

namespace jhetcc::net {

constexpr uint8_t kFlagKeyed = 1;

enum class VerdictCode : uint8_t { kAccepted = 0, kWrongJob, kWrongRole, kWrongRank, kStaleEpoch };

struct Hello {
  uint16_t version = 0;
  bool is_keyed = false;
  Nonce nonce{};
  Identity identity;
  int32_t wanted_rank = kAnyRank;
};
std::string encodeHello(const Hello& hello);
/// A body of another version yields only its version. Nothing: not a hello.
std::optional<Hello> decodeHello(std::string_view body);

struct Challenge {
  uint16_t version = 0;
  bool is_keyed = false;
  Nonce nonce{};
  Identity identity;
  Mac mac{};
};
/// Without the MAC, which covers it.
std::string encodeChallenge(const Challenge& challenge);
std::optional<Challenge> decodeChallenge(std::string_view body);

struct VerdictText {
  VerdictCode code = VerdictCode::kAccepted;
  std::string text;
  Mac mac{};
};
constexpr size_t kVerdictTextMax = 400;
std::optional<VerdictText> decodeVerdict(std::string_view body);

/// What all MACs cover: both bodies, and the binding where there is one, each behind its length.
std::string transcriptOf(std::string_view hello, std::string_view challenge_without_mac, std::string_view binding);
/// `label` separates the directions: "server", "client", "verdict".
Result<Mac> labelledMac(const Secret& secret, std::string_view label, std::string_view transcript,
                        std::string_view more = {});
inline std::string_view view(const Mac& mac) { return {reinterpret_cast<const char*>(mac.data()), mac.size()}; }

}  // namespace jhetcc::net
