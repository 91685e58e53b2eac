// SPDX-License-Identifier: Apache-2.0
// From what all members know to one error text: who is to blame, what each did last, what to do. Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "control/membership_wire.h"

namespace jhetcc::control {

/// What the decider gathered.
struct Gathered {
  const MembershipConfig& config;
  const std::vector<std::optional<Evidence>>& evidence;  ///< by index
  const std::vector<bool>& answered;                     ///< by index; the decider included
  const std::vector<Status>& gone_reasons;               ///< the decider's own; ok where connected
  int64_t gathered_ns = 0;
};

Verdict composeVerdict(const Gathered& gathered);

/// Which of two causes tells more about the root: smaller wins. A mismatch explains timeouts, not the other way round.
int causeOrder(const Status& cause);

/// A peer is gone, as opposed to late.
bool isLoss(const Status& cause);

/// "rank 3", "ranks 0-2, 5": world ranks, ascending, at most a few ranges.
std::string ranksText(std::vector<int32_t> world_ranks);

/// The cause of a member that nobody answered.
Status unconfirmedStatus(const MembershipConfig& config, const Status& cause);
/// A verdict as the members it gave up on see it.
Status givenUpStatus(const MembershipConfig& config, const Status& verdict);

}  // namespace jhetcc::control
