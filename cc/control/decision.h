// SPDX-License-Identifier: Apache-2.0
// One value for all members, fixed by one of them, however many die or stall meanwhile. Passive: no I/O, no threads.
//
// Ballots are numbered; ballot b is led by member b mod n, so a take-over is the next ballot and ballots only rise.
// A member PROMISES the highest ballot it heard of, reports to its leader (with any value it accepted), and takes no
// value of a lower one. The leader gathers the reports of all who take part, proposes the value accepted under the
// highest ballot, else a new one, and shows it to itself only after everyone who had reported has acknowledged; if one
// of them falls silent, it gathers once more, in its next own ballot.
//
// Guaranteed: among members that answer each other in time, one value. Proof: let d propose V at ballot b, and d' > d
// in ballot b'. A member m that reported in both: if it took V before it promised b', its report carries V and d'
// proposes V (or a value of a ballot between, for which the same holds); else it refuses V, for b < b'. d itself
// answers b' in the same way, carries V, and never shows V to its caller once it promised b'. So two values need a
// member that took one and then stayed silent for the whole gathering of the other: that member is named lost by the
// other value. A partition gives one value a side, and each names the other side lost.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace jhetcc::control {

class Decision {
 public:
  struct Hooks {
    std::function<void(int to, std::string message)> send;
    std::function<bool(int member)> is_gone;     ///< its connection ended
    std::function<bool(int member)> takes_part;  ///< may lead and be waited for
    std::function<std::string()> report;         ///< this member's contribution, now
    /// A member's contribution arrived (self included). False: malformed.
    std::function<bool(int from, std::string_view report, int64_t now_ns)> on_report;
    std::function<bool(int member)> is_complete;  ///< leader: its report is all it will ever say
    /// Leader: do not wait much for this one, somebody saw its connection end.
    std::function<bool(int member)> is_doubtful;
    std::function<int64_t(int64_t lead_since_ns)> gather_until;
    std::function<std::string(const std::vector<bool>& answered, int64_t gathered_ns)> decide;
    std::function<bool(std::string_view value)> is_valid;
    std::function<void(const std::string& value)> adopt;  ///< once
  };
  Decision(int self, int size, int64_t silence_ns, Hooks hooks);

  /// This member wants a value. First ballot: led by `first_leader`, unless a higher one is known.
  void start(int first_leader, bool tell_all, int64_t now_ns);
  /// This member no longer waits; it goes on answering.
  void stop() { waiting_ = false; }
  /// The own report changed.
  void refresh(int64_t now_ns);
  void onGone(int member, int64_t now_ns);
  /// False: malformed, nothing changed.
  bool onMessage(int from, std::string_view message, int64_t now_ns);
  void tick(int64_t now_ns);
  int64_t nextTickNs() const;
  /// This process was stopped for a while: its own timers did not run.
  void shift(int64_t ns);
  /// Sends the value to one member, if there is one.
  void tell(int member);

  bool hasValue() const { return has_value_; }
  bool isWaiting() const { return waiting_ && !has_value_; }
  bool isLeading() const { return leading_ && !has_value_; }

 private:
  enum class Type : uint8_t { kReport = 1, kGather, kPropose, kAck, kKnown };
  int leaderOf(uint32_t ballot) const { return static_cast<int>(ballot % static_cast<uint32_t>(size_)); }
  bool isWaitedFor(int member) const;
  void send(int to, Type type, uint32_t ballot, uint32_t value_ballot, std::string_view body);
  void sendReport(int to);
  void promise(uint32_t ballot, int64_t now_ns);
  void nextBallot(int64_t now_ns);
  void ownBallot(int64_t now_ns);
  void lead(int64_t now_ns);
  void beat(int64_t now_ns);
  void tryPropose(int64_t now_ns);
  void tryShow();
  void take(uint32_t ballot, std::string_view value);
  void onReport(int from, uint32_t ballot, uint32_t accepted_ballot, std::string_view body, int64_t now_ns);
  void onPropose(int from, uint32_t ballot, std::string_view value, int64_t now_ns);

  const int self_, size_;
  const int64_t silence_ns_;
  const Hooks hooks_;
  bool waiting_ = false, leading_ = false, proposed_ = false, has_value_ = false, has_promise_ = false;
  bool repeated_ = false;         // my report was sent a second time
  uint32_t promised_ = 0;         // highest ballot heard of
  uint32_t accepted_ballot_ = 0;  // 1 + ballot of accepted_; 0: none
  std::string accepted_;
  std::vector<bool> silent_;                   // leaders that did not answer
  std::vector<bool> answered_, acknowledged_;  // leader: of my ballot
  int64_t lead_since_ns_ = 0, beat_ns_ = 0, proposed_ns_ = 0, heard_ns_ = 0;
};

}  // namespace jhetcc::control
