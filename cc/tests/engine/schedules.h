// SPDX-License-Identifier: Apache-2.0
// The planner's schedules that the tests run, and what every operation must put out.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace jhetcc::engine::testing {

/// One operation as all members of a communicator call it.
struct Planned {
  struct Member {
    std::string text;    ///< empty: takes no part
    std::string binary;  ///< the schedule, as it came
    std::shared_ptr<const Program> program;
  };
  std::string label, algorithm;
  std::vector<Member> members;

  int size() const { return static_cast<int>(members.size()); }
  bool isPointToPoint() const;
  bool takesPart(int member) const { return !members[static_cast<size_t>(member)].text.empty(); }
};

/// All that make_schedules.py wrote.
const std::vector<Planned>& allPlanned();
/// Those for communicators of this size; `short_only`: no more than 1 KiB a member.
std::vector<const Planned*> plannedFor(int size, bool short_only);
const Planned* planned(int size, const std::string& label, const std::string& algorithm = "");

std::shared_ptr<Command> commandOf(const Planned& planned, int member);

/// "psum(u64[8,4], root=1)" taken apart.
struct Call {
  std::string name, type;
  std::map<std::string, std::string> keys;
  explicit Call(const std::string& text);
  int number(const std::string& key) const { return keys.count(key) ? std::stoi(keys.at(key)) : -1; }
};

/// Every contribution can be told from every other: even elements are one bit of the member, odd ones a mix of all.
std::vector<uint8_t> inputOf(const Planned& planned, int member, uint64_t salt);
std::vector<uint8_t> outputOf(const Planned& planned, int member, uint64_t salt);

}  // namespace jhetcc::engine::testing
