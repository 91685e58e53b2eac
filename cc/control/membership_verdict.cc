// SPDX-License-Identifier: Apache-2.0
#include "control/membership_verdict.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace jhetcc::control {

namespace {

constexpr size_t kGroupsMax = 8;
constexpr size_t kRangesMax = 8;
constexpr size_t kReasonBytesMax = 300;
constexpr const char* kOver =
    "the communicator has ended: call shrink() to go on with whoever is left, or init() again";

using Members = std::vector<int32_t>;

/// Members grouped by a text, in order of first appearance.
struct Groups {
  std::vector<std::pair<std::string, Members>> all;
  void add(const std::string& text, int32_t member) {
    for (auto& [known, members] : all) {
      if (known == text) return members.push_back(member);
    }
    all.push_back({text, {member}});
  }
};

/// 12 of "#12 psum(...)"; -1 without a number.
int64_t numberOf(const std::string& operation) {
  if (operation.size() < 2 || operation[0] != '#') return -1;
  char* end = nullptr;
  const int64_t number = std::strtoll(operation.c_str() + 1, &end, 10);
  return end == operation.c_str() + 1 ? -1 : number;
}

std::string callOf(const std::string& operation) {
  const size_t space = operation.find(' ');
  return numberOf(operation) < 0 || space == std::string::npos ? operation : operation.substr(space + 1);
}

std::string seconds(int64_t ns) {
  const int64_t ms = (ns + 500'000) / 1'000'000;
  return ms % 1000 == 0 ? std::to_string(ms / 1000) + " s" : std::to_string(ms) + " ms";
}

class Composer {
 public:
  explicit Composer(const Gathered& gathered) : in_(gathered), size_(gathered.answered.size()), lost_(size_) {}

  Verdict compose() {
    findLost();
    findCause();
    Verdict verdict;
    const std::string& code = cause_.code();
    if (code == "mismatch") {
      verdict.status = mismatch();
    } else if (code == "aborted") {
      verdict.status = ended(Kind::kAborted, "was aborted by ");
    } else if (code == "wait_cycle") {
      verdict.status =
          Status(Kind::kMismatch, Scope::kCommunicator, code, cause_.message() + "; " + kOver, cause_.ranks());
    } else if (isLoss(cause_) ||
               ((code == "operation_timeout" || code == "library_failed") && !lostMembers().empty())) {
      verdict.status = peerLost();
      verdict.lost = lostMembers();
    } else if (code == "operation_timeout") {
      verdict.status = timeout();
    } else {
      verdict.status = ended(cause_.kind(), "was ended by a failure of ");
      verdict.lost = lostMembers();
    }
    verdict.status = Status(verdict.status.kind(), verdict.status.scope(), verdict.status.code(),
                            truncated(verdict.status.message(), kVerdictBytesMax), verdict.status.ranks());
    const auto heard = std::count(in_.answered.begin(), in_.answered.end(), true) - 1;
    bool all_gone = true;
    for (size_t i = 0; i < size_; ++i) all_gone &= in_.answered[i] || !in_.gone_reasons[i].isOk();
    verdict.confirmed = heard > 0 || all_gone || size_ <= 2;
    return verdict;
  }

 private:
  int32_t rank(size_t member) const { return in_.config.world_ranks[member]; }
  std::string named(size_t member) const {
    return "rank " + std::to_string(rank(member)) + " (" + in_.config.places[member] + ")";
  }
  std::vector<int32_t> ranksOf(const Members& members) const {
    std::vector<int32_t> ranks;
    for (const int32_t member : members) ranks.push_back(rank(static_cast<size_t>(member)));
    return ranks;
  }
  std::string named(const Members& members) const {
    return members.size() == 1 ? named(static_cast<size_t>(members[0])) : ranksText(ranksOf(members));
  }
  Members lostMembers() const {
    Members members;
    for (size_t i = 0; i < size_; ++i) {
      if (lost_[i]) members.push_back(static_cast<int32_t>(i));
    }
    return members;
  }
  std::string joined(const Groups& groups, const char* between, bool with_places) const {
    std::string text;
    for (size_t i = 0; i < groups.all.size(); ++i) {
      const auto& [state, members] = groups.all[i];
      if (i > 0) text += "; ";
      if (i + 1 == kGroupsMax && groups.all.size() > kGroupsMax) {
        size_t more = 0;
        for (size_t k = i; k < groups.all.size(); ++k) more += groups.all[k].second.size();
        return text + std::to_string(more) + " more ranks, each different";
      }
      text += (with_places ? named(members) : ranksText(ranksOf(members))) + between + state;
    }
    return text;
  }

  // Who did not answer is lost. Two that answered but whose connection broke cannot both go on: the one with more
  // broken connections is lost, then the accused (it may have died since it answered), then the higher index.
  void findLost() {
    std::vector<std::pair<size_t, size_t>> broken;
    for (size_t a = 0; a < size_; ++a) {
      lost_[a] = !in_.answered[a];
      if (!in_.answered[a] || !in_.evidence[a]) continue;
      for (size_t b = 0; b < size_; ++b) {
        const Evidence& evidence = *in_.evidence[a];
        if ((evidence.gone[b] || evidence.accused[b]) && b != a && in_.answered[b]) broken.push_back({a, b});
      }
    }
    for (;;) {
      std::vector<std::pair<size_t, size_t>> degree(size_);  // all, and those where it is the accused
      for (const auto& [a, b] : broken) {
        if (!lost_[a] && !lost_[b]) ++degree[a].first, ++degree[b].first, ++degree[b].second;
      }
      size_t worst = 0;
      for (size_t i = 0; i < size_; ++i) worst = degree[i] >= degree[worst] ? i : worst;
      if (degree[worst].first == 0) return;
      lost_[worst] = true;
    }
  }

  void findCause() {
    for (size_t i = 0; i < size_; ++i) {
      if (!in_.evidence[i] || in_.evidence[i]->cause.isOk()) continue;
      if (cause_.isOk() || causeOrder(in_.evidence[i]->cause) < causeOrder(cause_)) {
        cause_ = in_.evidence[i]->cause;
        reporter_ = i;
      }
    }
    for (size_t i = 0; i < size_; ++i) {
      if (in_.evidence[i]) number_ = std::max(number_, numberOf(in_.evidence[i]->report.operation));
    }
    if (cause_.isOk()) {  // whoever raised it died before its cause arrived
      cause_ = Status(Kind::kDisconnected, Scope::kRank, "peer_lost", "it ended the communicator and did not say why");
      reporter_ = size_;
    } else if (const int64_t own = numberOf(in_.evidence[reporter_]->report.operation); own >= 0) {
      number_ = own;
    }
  }

  // "finished #11, not in #12"; the operation of the cause is number_.
  std::string stateOf(size_t member) const {
    if (lost_[member] || !in_.evidence[member]) return "lost";
    const Report& report = in_.evidence[member]->report;
    const int64_t number = numberOf(report.operation);
    std::string state;
    if (report.operation.empty()) {
      state = "before its first operation";
    } else if (report.started > report.finished) {
      state = "in " + report.operation;
    } else if (number >= 0) {
      state = "finished #" + std::to_string(number);
      if (number_ > number) state += ", not in #" + std::to_string(number_);
    } else {
      state = "finished " + report.operation;
    }
    if (!report.elsewhere.empty()) state += ", is in " + report.elsewhere;
    return state;
  }
  std::string progress() const {
    Groups groups;
    for (size_t i = 0; i < size_; ++i) groups.add(stateOf(i), static_cast<int32_t>(i));
    return "progress: " + joined(groups, ": ", false);
  }
  std::string inFlight() const {
    std::string operation;
    for (size_t i = 0; i < size_; ++i) {
      if (in_.evidence[i] && numberOf(in_.evidence[i]->report.operation) == number_ &&
          in_.evidence[i]->report.started > in_.evidence[i]->report.finished) {
        operation = in_.evidence[i]->report.operation;
        break;
      }
    }
    return operation.empty() ? "no operation was in flight" : "in flight was " + operation;
  }
  std::string communicator() const {
    return std::string("\"").append(truncated(in_.config.communicator, 100)).append("\"");
  }

  Status mismatch() const {
    Groups calls;
    for (size_t i = 0; i < size_; ++i) {
      if (!in_.evidence[i]) {
        calls.add("did not answer", static_cast<int32_t>(i));
        continue;
      }
      const Report& report = in_.evidence[i]->report;
      std::string call = "called " + callOf(report.operation);
      if (report.operation.empty()) call = "called nothing yet";
      if (!report.operation.empty() && numberOf(report.operation) != number_) {
        call = (report.started > report.finished ? "was still in " : "had last called ") + report.operation;
      }
      if (!report.elsewhere.empty()) call += " while in " + report.elsewhere;
      calls.add(call, static_cast<int32_t>(i));
    }
    std::string text = "collective mismatch on " + communicator();
    if (number_ >= 0) text += " at #" + std::to_string(number_);
    text += ": " + joined(calls, " ", true);
    if (calls.all.size() == 1)
      text += "; " + named(reporter_) + " found: " + truncated(cause_.message(), kReasonBytesMax);
    text += "; every rank must issue the same operations in the same order; " + std::string(kOver);
    std::vector<int32_t> blamed = cause_.ranks();
    if (blamed.empty()) blamed = minority(calls);
    return Status(Kind::kMismatch, Scope::kCommunicator, "mismatch", text, blamed);
  }
  // Everybody outside the largest group; all of them where the groups are equally large.
  std::vector<int32_t> minority(const Groups& calls) const {
    size_t largest = 0;
    for (const auto& [text, members] : calls.all) largest = std::max(largest, members.size());
    const auto ties = std::count_if(calls.all.begin(), calls.all.end(),
                                    [&](const auto& group) { return group.second.size() == largest; });
    std::vector<int32_t> ranks;
    for (const auto& [text, members] : calls.all) {
      if (members.size() == largest && ties == 1) continue;
      for (const int32_t rank : ranksOf(members)) ranks.push_back(rank);
    }
    return ranks;
  }

  Status ended(Kind kind, const char* verb) const {
    const std::string text = "communicator " + communicator() + " " + verb + named(reporter_) + ": " +
                             cause_.message() + "; " + inFlight() + "; " + progress() + "; " + kOver;
    return Status(kind, Scope::kCommunicator, cause_.code(), text, {rank(reporter_)});
  }

  std::string reasonOf(size_t member) const {
    if (!in_.gone_reasons[member].isOk()) return truncated(in_.gone_reasons[member].message(), kReasonBytesMax);
    for (size_t i = 0; i < size_; ++i) {
      if (i == member || !in_.evidence[i]) continue;
      const Evidence& evidence = *in_.evidence[i];
      const std::vector<int32_t>& named = evidence.cause.ranks();
      if (isLoss(evidence.cause) && evidence.accused[member] &&
          (named.empty() || std::count(named.begin(), named.end(), rank(member)))) {
        return truncated(evidence.cause.message(), kReasonBytesMax) + " (seen by rank " + std::to_string(rank(i)) + ")";
      }
      size_t position = 0;
      for (size_t b = 0; b < member; ++b) position += evidence.gone[b];
      if (evidence.gone[member] && position < evidence.reasons.size()) {
        return evidence.reasons[position] + " (seen by rank " + std::to_string(rank(i)) + ")";
      }
      if (evidence.gone[member] || evidence.accused[member])
        return "its connection to rank " + std::to_string(rank(i)) + " broke";
    }
    return "did not answer within " + seconds(in_.gathered_ns) +
           ", though its connection is up (stopped, or out of reach)";
  }

  Status peerLost() const {
    Groups reasons;
    const Members lost = lostMembers();
    for (const int32_t member : lost) reasons.add(reasonOf(static_cast<size_t>(member)), member);
    const bool left = cause_.code() == "left";
    std::string text = (left ? "peer left " : "peer lost on ") + communicator() + ": ";
    if (lost.empty() && reporter_ < size_) {
      text += "as seen by " + named(reporter_) + ": " + truncated(cause_.message(), kReasonBytesMax);
    } else {
      text += joined(reasons, ": ", true);
    }
    if (cause_.code() == "operation_timeout") {
      text += "; noticed when the limit passed: " + truncated(cause_.message(), kReasonBytesMax) +
              " (setting operation_timeout, JHETCC_OPERATION_TIMEOUT)";
    }
    text += "; " + inFlight() + "; " + progress() + "; the communicator has ended: call shrink() to go on without " +
            (lost.empty() ? "it" : ranksText(ranksOf(lost))) + ", or init() again";
    return Status(Kind::kDisconnected, Scope::kCommunicator, left ? "left" : "peer_lost", text,
                  lost.empty() ? cause_.ranks() : ranksOf(lost));
  }

  Status timeout() const {
    Members missing, unfinished;
    for (size_t i = 0; i < size_; ++i) {
      const Report& report = in_.evidence[i]->report;
      if (numberOf(report.operation) < number_) {
        missing.push_back(static_cast<int32_t>(i));
      } else if (report.started > report.finished) {
        unfinished.push_back(static_cast<int32_t>(i));
      }
    }
    std::string text =
        "operation timeout on " + communicator() + " in " + in_.evidence[reporter_]->report.operation + ": ";
    if (!missing.empty()) {
      text += named(missing) + " did not arrive, though " +
              (missing.size() == 1 ? "its connection is" : "their connections are") + " up; ";
    }
    if (!unfinished.empty()) text += ranksText(ranksOf(unfinished)) + " started it and did not finish; ";
    text += truncated(cause_.message(), kReasonBytesMax) + "; " + progress() +
            "; if a rank was only slow, raise operation_timeout (JHETCC_OPERATION_TIMEOUT), else find out why it did "
            "not come; " +
            kOver;
    std::vector<int32_t> blamed = missing.empty() ? cause_.ranks() : ranksOf(missing);
    return Status(Kind::kTimeout, Scope::kCommunicator, "operation_timeout", text, blamed);
  }

  const Gathered& in_;
  const size_t size_;
  std::vector<bool> lost_;
  Status cause_;
  size_t reporter_ = 0;
  int64_t number_ = -1;
};

}  // namespace

bool isLoss(const Status& cause) { return cause.code() == "peer_lost" || cause.code() == "left"; }

std::string ranksText(std::vector<int32_t> ranks) {
  std::sort(ranks.begin(), ranks.end());
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  size_t ranges = 0;
  for (size_t begin = 0; begin < ranks.size();) {
    size_t end = begin + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    if (ranges++ == kRangesMax) return text + ", ... (" + std::to_string(ranks.size()) + " ranks)";
    if (begin > 0) text += ", ";
    text += std::to_string(ranks[begin]);
    if (end - begin > 1) text += (end - begin == 2 ? ", " : "-") + std::to_string(ranks[end - 1]);
    begin = end;
  }
  return text;
}

int causeOrder(const Status& cause) {
  static const char* const kCodes[] = {"mismatch",  "wait_cycle", "aborted",          "",
                                       "peer_lost", "left",       "operation_timeout"};
  // Offers are withdrawn where a rank gives up an operation: whatever made it do so is the cause, and this a symptom.
  constexpr int kSymptom = 7;
  if (cause.code() == "offer_revoked") return kSymptom;
  constexpr int kOther = 3;
  for (int i = 0; i < static_cast<int>(std::size(kCodes)); ++i) {
    if (cause.code() == kCodes[i]) return i;
  }
  return kOther;
}

Verdict composeVerdict(const Gathered& gathered) { return Composer(gathered).compose(); }

Status unconfirmedStatus(const MembershipConfig& config, const Status& cause) {
  return Status(cause.kind(), Scope::kCommunicator, cause.code(),
                "unconfirmed: the other ranks did not answer within " + seconds(config.confirm_ns) + " on \"" +
                    config.communicator + "\": " + truncated(cause.message(), kCauseBytesMax) + "; " + kOver,
                cause.ranks());
}

Status givenUpStatus(const MembershipConfig& config, const Status& verdict) {
  const std::string self = std::to_string(config.world_ranks[static_cast<size_t>(config.self)]);
  return Status(
      verdict.kind(), verdict.scope(), verdict.code(),
      "the other ranks of \"" + config.communicator + "\" gave up on this rank (" + self +
          "): it was stopped or out of reach; they go on without it, so only init() brings it back; their verdict: " +
          verdict.message(),
      verdict.ranks());
}

}  // namespace jhetcc::control
