// SPDX-License-Identifier: Apache-2.0
// One value for all members, fixed by one of them, however many die or stall meanwhile. Passive: no I/O, no threads.
//
// Ballots are numbered; ballot b is led by member b mod n, so a take-over is the next ballot and ballots only rise.
// A member PROMISES the highest ballot it heard of, reports to its leader (with the value it ACCEPTED last, if any),
// and accepts no value of a lower one. The leader gathers the reports of all who take part, proposes the value accepted
// under the highest ballot, else a new one. Once everyone who had reported has acknowledged it, it is DECIDED: the
// leader tells all, and only then anybody shows it to its caller. Who knows a decided value answers everything with it.
// If somebody who had reported falls silent, the leader gathers once more, in its next own ballot.
//
// Guaranteed: all who show a value show the same one, as long as any two gatherings have a member in common. Proof: let
// V be decided in ballot b, and let c > b be the lowest ballot after it that proposes another value. Its leader heard a
// member that had acknowledged V (the two leaders count as such members). That one did so before it promised c, else it
// had refused; so its report to c carried V, or a value accepted between b and c, which is V, too, for c is the lowest.
// Whatever else c heard was accepted before b: so c proposes V.
// Leaders wait for everybody whose connection stands and who is not silent, so two gatherings without a common member
// take connections cut, or silence, that part the members in two. A partition may give one value a side.
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
    std::function<void(const std::string& value)> adopt;  ///< the decided value, once
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
  std::vector<bool> silent_;                   // did not answer: leaders, and my proposal
  std::vector<bool> answered_, acknowledged_;  // leader: of my ballot
  int64_t lead_since_ns_ = 0, beat_ns_ = 0, proposed_ns_ = 0, heard_ns_ = 0;
};

}  // namespace jhetcc::control
