// SPDX-License-Identifier: Apache-2.0
// What the members of an MPI world tell each other before they can talk: the PMI-1 protocol, as lines in and lines out.
// No sockets, no threads. A client that breaks the rules is to be dropped; it cannot make this grow or answer for
// others.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace jhetcc::ccl::mpi {

constexpr size_t kPmiLineBytesMax = 8192;
constexpr size_t kPmiKeyBytesMax = 64, kPmiValueBytesMax = 4096;
constexpr size_t kPmiKeysPerRankMax = 64;

/// A line of PMI: "cmd=put kvsname=x key=k value=anything up to the end".
class PmiLine {
 public:
  explicit PmiLine(std::string_view line);
  /// Empty where there is none.
  std::string_view field(std::string_view name) const;

 private:
  std::vector<std::pair<std::string_view, std::string_view>> fields_;
};

class PmiTable {
 public:
  PmiTable(int32_t size, std::string name) : name_(std::move(name)), clients_(static_cast<size_t>(size)) {}

  struct Reply {
    int32_t rank;
    std::string line;  ///< with its end
  };
  /// A line (without its end) of the client of this rank. False: it broke the rules.
  bool onLine(int32_t rank, std::string_view line, std::vector<Reply>* replies);
  /// The client is gone; before everybody joined it may come back.
  void onGone(int32_t rank);
  bool isJoined() const { return is_joined_; }

 private:
  struct Client {
    bool is_joined = false, is_in_barrier = false;
    std::string world, host;
    size_t keys = 0;
  };
  bool join(int32_t rank, const PmiLine& line, std::vector<Reply>* replies);
  bool put(int32_t rank, const PmiLine& line, std::vector<Reply>* replies);
  std::string get(const PmiLine& line) const;
  void enterBarrier(int32_t rank, std::vector<Reply>* replies);
  std::string mapping() const;

  const std::string name_;
  std::vector<Client> clients_;
  std::map<std::string, std::string, std::less<>> values_;
  bool is_joined_ = false;
};

/// The line by which a client of ours joins before it hands its connection to MPI. `world`: the name of the world that
/// it has already, "none", or "lost". The answer comes when all have joined: "cmd=jhetcc_go world=<name or none>", or a
/// refusal "cmd=jhetcc_no why=<text>".
std::string pmiJoinLine(int32_t size, const std::string& world, const std::string& host);

}  // namespace jhetcc::ccl::mpi
