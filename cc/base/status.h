// SPDX-License-Identifier: Apache-2.0
// Errors as values: what failed, how much of the system it concerns, who is to blame, and what to do.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace jhetcc {

/// The remedy decides the kind: fix the call, wait, reconnect, shrink, free something, report a bug.
enum class Kind : uint8_t {
  kOk = 0,
  kBadArgument,   ///< the call is wrong; fix it
  kUnavailable,   ///< this machine or build cannot do it
  kTimeout,       ///< a deadline passed
  kDisconnected,  ///< a peer is gone
  kMismatch,      ///< ranks asked for different operations
  kAborted,       ///< the communicator was ended on purpose
  kResource,      ///< memory, descriptors, room
  kInternal,      ///< a bug here
};

/// The largest thing that broke.
enum class Scope : uint8_t { kCall = 0, kPath, kEndpoint, kRank, kCommunicator, kProcess };

const char* kindName(Kind kind);
const char* scopeName(Scope scope);

/// A value: empty (ok) or one error. Copying shares the detail; an ok status costs one null pointer.
class [[nodiscard]] Status {
 public:
  Status() = default;
  /// `code` is stable and documented in docs/errors.md, e.g. "peer_lost".
  Status(Kind kind, Scope scope, std::string code, std::string message, std::vector<int32_t> ranks = {});

  static Status ok() { return {}; }
  bool isOk() const { return detail_ == nullptr; }
  explicit operator bool() const = delete;

  Kind kind() const { return detail_ ? detail_->kind : Kind::kOk; }
  Scope scope() const { return detail_ ? detail_->scope : Scope::kCall; }
  const std::string& code() const;
  /// what failed, where, why, what to do
  const std::string& message() const;
  /// world ranks the error is about (lost, mismatching), ascending
  const std::vector<int32_t>& ranks() const;

  /// Context added on the way up: "context: message".
  Status withContext(const std::string& context) const;

 private:
  struct Detail {
    Kind kind;
    Scope scope;
    std::string code;
    std::string message;
    std::vector<int32_t> ranks;
  };
  std::shared_ptr<const Detail> detail_;
};

/// A value or the status that says why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::move(value)) {}         // NOLINT: implicit on purpose
  Result(Status status) : state_(std::move(status)) {}  // NOLINT: implicit on purpose
  bool isOk() const { return std::holds_alternative<T>(state_); }
  Status status() const { return isOk() ? Status() : std::get<Status>(state_); }
  T& value() & { return std::get<T>(state_); }
  const T& value() const& { return std::get<T>(state_); }
  T&& value() && { return std::get<T>(std::move(state_)); }

 private:
  std::variant<T, Status> state_;
};

/// Thrown by JHETCC_CHECK only; caught where a thread of ours begins, where it poisons the communicators.
struct CheckFailure : std::logic_error {
  using std::logic_error::logic_error;
};
[[noreturn]] void checkFailed(const char* expression, const char* file, int line, const std::string& values);

}  // namespace jhetcc

/// An invariant, checked in every build: JHETCC_CHECK(a == b, std::to_string(a) + " " + std::to_string(b)).
#define JHETCC_CHECK(condition, values)                                              \
  do {                                                                               \
    if (!(condition)) ::jhetcc::checkFailed(#condition, __FILE__, __LINE__, values); \
  } while (0)

#define JHETCC_RETURN_IF_ERROR(expression)             \
  do {                                                 \
    ::jhetcc::Status jhetcc_status_ = (expression);    \
    if (!jhetcc_status_.isOk()) return jhetcc_status_; \
  } while (0)
