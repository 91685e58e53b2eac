// SPDX-License-Identifier: Apache-2.0
#include "base/status.h"

#include <algorithm>

namespace jhetcc {

const char* kindName(Kind kind) {
  switch (kind) {
    case Kind::kOk:
      return "ok";
    case Kind::kBadArgument:
      return "bad argument";
    case Kind::kUnavailable:
      return "unavailable";
    case Kind::kTimeout:
      return "timeout";
    case Kind::kDisconnected:
      return "disconnected";
    case Kind::kMismatch:
      return "mismatch";
    case Kind::kAborted:
      return "aborted";
    case Kind::kResource:
      return "resource";
    case Kind::kInternal:
      return "internal";
  }
  return "unknown";
}

const char* scopeName(Scope scope) {
  switch (scope) {
    case Scope::kCall:
      return "call";
    case Scope::kPath:
      return "path";
    case Scope::kEndpoint:
      return "endpoint";
    case Scope::kRank:
      return "rank";
    case Scope::kCommunicator:
      return "communicator";
    case Scope::kProcess:
      return "process";
  }
  return "unknown";
}

Status::Status(Kind kind, Scope scope, std::string code, std::string message, std::vector<int32_t> ranks) {
  std::sort(ranks.begin(), ranks.end());
  detail_ = std::make_shared<const Detail>(Detail{kind, scope, std::move(code), std::move(message), std::move(ranks)});
}

const std::string& Status::code() const {
  static const std::string kOkCode = "ok";
  return detail_ ? detail_->code : kOkCode;
}

const std::string& Status::message() const {
  static const std::string kEmpty;
  return detail_ ? detail_->message : kEmpty;
}

const std::vector<int32_t>& Status::ranks() const {
  static const std::vector<int32_t> kNone;
  return detail_ ? detail_->ranks : kNone;
}

Status Status::withContext(const std::string& context) const {
  if (isOk()) return *this;
  return Status(kind(), scope(), code(), context + ": " + message(), ranks());
}

void checkFailed(const char* expression, const char* file, int line, const std::string& values) {
  throw CheckFailure(std::string("jhetcc internal check failed: ") + expression + " (" + values + ") at " + file + ":" +
                     std::to_string(line) + "; please report this");
}

}  // namespace jhetcc
