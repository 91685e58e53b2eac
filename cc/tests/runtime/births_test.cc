// SPDX-License-Identifier: Apache-2.0
// What identifies a communicator on the wire: the same on all its members, never that of an earlier one.
#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "runtime/process.h"

using namespace jhetcc;
using namespace jhetcc::runtime;

namespace {

/// The ids of so many lives of one communicator, each the same on its two members.
std::set<uint64_t> idsOfLives(int lives, uint64_t births_before) {
  std::vector<std::shared_ptr<Process>> processes;
  for (int32_t rank : {0, 1}) {
    auto process = Process::create({}, {rank}, {0}, births_before);
    REQUIRE(process.isOk());
    processes.push_back(process.value());
  }
  std::set<uint64_t> ids;
  for (int life = 0; life < lives; ++life) {
    std::set<uint64_t> of_this_life;
    for (auto& process : processes) {
      REQUIRE(process->createCommunicator("pair", 0, {0, 1}, {"host:1", "host:2"}).isOk());
      of_this_life.insert(process->find("pair")->id);
      process->destroyCommunicator("pair");
    }
    REQUIRE(of_this_life.size() == 1);
    ids.insert(*of_this_life.begin());
  }
  return ids;
}

}  // namespace

TEST_CASE("ids do not run out: across the limits of 16, 32 and 64 bits a thousand lives have a thousand ids") {
  const std::set<uint64_t> first = idsOfLives(1000, 0);
  REQUIRE(first.size() == 1000);
  for (const int bits : {16, 32, 64}) {
    CAPTURE(bits);
    const uint64_t limit = bits == 64 ? 0 : uint64_t{1} << bits;
    const std::set<uint64_t> ids = idsOfLives(1000, limit - 500);
    CHECK(ids.size() == 1000);
    // Past the limit of a narrower number the first ids would come again; past 2^64 they may.
    const bool again = std::any_of(ids.begin(), ids.end(), [&](uint64_t id) { return first.count(id) > 0; });
    CHECK(again == (bits == 64));
  }
}

TEST_CASE("a communicator that is made again is another one, and the same one on all members") {
  std::vector<std::shared_ptr<Process>> processes;
  for (int32_t rank : {0, 1}) {
    auto process = Process::create({}, {rank}, {0});
    REQUIRE(process.isOk());
    processes.push_back(process.value());
  }
  std::set<uint64_t> ids;
  for (int life = 0; life < 3; ++life) {
    std::set<uint64_t> of_this_life;
    for (auto& process : processes) {
      REQUIRE(process->createCommunicator("pair", 0, {0, 1}, {"host:1", "host:2"}).isOk());
      of_this_life.insert(process->find("pair")->id);
      CHECK(process->createCommunicator("pair", 0, {0, 1}, {"host:1", "host:2"}).kind() == Kind::kBadArgument);
      process->destroyCommunicator("pair");
    }
    CHECK(of_this_life.size() == 1);
    ids.insert(of_this_life.begin(), of_this_life.end());
  }
  CHECK(ids.size() == 3);
}
