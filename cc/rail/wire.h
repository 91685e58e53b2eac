// SPDX-License-Identifier: Apache-2.0
// What bundles say to each other. A stripe is an ordinary offer of its path: `communicator` is the number of the offer
// it belongs to, `index` its place in it. All else is of type kRail; `flags` say what it is, `cookie` how many numbered
// messages have come here, one after the other.
#pragma once

#include <cstdint>

namespace jhetcc::rail {

// Numbered (`sequence`, from 1) and kept until acknowledged:
constexpr uint8_t kMessage =
    1;  ///< payload: a header and its payload; of an offer, `address`: its number, `tag`: bytes of its stripes
constexpr uint8_t kWithdrawn = 2;  ///< `address`: the offer that is none any more
constexpr uint8_t kLost =
    3;  ///< `tag`: a path, `index`: its generation; payload: numbers of the stripes that came whole
constexpr uint8_t kWanted = 8;  ///< `address`: the offer that has its place now
constexpr uint8_t kWhole = 9;   ///< before a goodbye; as kLost, of a path that is well
// Of the moment, and of the path that carries them:
constexpr uint8_t kAcknowledge = 4;
constexpr uint8_t kOpen = 5;  ///< first over a path that was connected anew; `index`: its generation
constexpr uint8_t kProbe = 6;
constexpr uint8_t kProbeAnswer = 7;

}  // namespace jhetcc::rail
