// SPDX-License-Identifier: Apache-2.0
// What adapters have in common: where a library lies, settings the user did not make, tables of what is refused. Any
// thread, but for setDefault.
#pragma once

#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "base/late_library.h"
#include "ccl/load.h"

namespace jhetcc::ccl {

/// Sets an environment variable that the user has not set. Other threads must not read the environment meanwhile.
inline void setDefault(const char* name, const std::string& value) { ::setenv(name, value.c_str(), 0); }

/// The file a user named, or the first of `names` in the folder he named (or in lib/ below it); empty, for the system's
/// own search, where he named nothing. kUnavailable if the folder has none of them.
inline Result<std::string> locate(const LoadOptions& options, const std::vector<std::string>& names,
                                  const std::string& hint) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  if (options.path.empty() || !fs::is_directory(options.path, ignored)) return options.path;
  for (const char* below : {"", "lib"}) {
    for (const std::string& name : names) {
      const fs::path file = fs::path(options.path) / below / name;
      if (fs::exists(file, ignored)) return file.string();
    }
  }
  std::string all;
  for (const std::string& name : names) all += (all.empty() ? "" : " or ") + name;
  return Status(Kind::kUnavailable, Scope::kProcess, "library_missing",
                "the folder " + options.path + " holds no " + all + "; " + hint);
}

/// Finds symbols one after the other; the first that is missing is remembered.
class Symbols {
 public:
  explicit Symbols(const LateLibrary& library) : library_(library) {}
  template <typename Function>
  Symbols& find(const char* name, Function** function) {
    Result<void*> found = library_.symbol(name);
    if (found.isOk()) *function = reinterpret_cast<Function*>(found.value());
    if (!found.isOk() && status_.isOk()) status_ = found.status();
    return *this;
  }
  const Status& status() const { return status_; }

 private:
  const LateLibrary& library_;
  Status status_;
};

/// Every pair of a reduction and a type for which `can` says no.
template <typename Can>
std::vector<std::pair<schedule::ReduceOp, schedule::DataType>> refusals(Can can) {
  using schedule::DataType, schedule::ReduceOp;
  std::vector<std::pair<ReduceOp, DataType>> refused;
  for (int op = static_cast<int>(ReduceOp::kSum); op <= static_cast<int>(ReduceOp::kMean); ++op) {
    for (int type = static_cast<int>(DataType::kBytes); type <= static_cast<int>(DataType::kComplex128); ++type) {
      const std::pair pair(static_cast<ReduceOp>(op), static_cast<DataType>(type));
      if (!can(pair.first, pair.second)) refused.push_back(pair);
    }
  }
  return refused;
}

/// Whether CPU libraries keep the rules of values: their max and min of floats drop NaN and mix up -0 and +0.
inline bool keepsRules(schedule::ReduceOp op, schedule::DataType type) {
  using schedule::DataType, schedule::ReduceOp;
  const bool is_float = type == DataType::kFloat16 || type == DataType::kBfloat16 || type == DataType::kFloat32 ||
                        type == DataType::kFloat64;
  return !is_float || (op != ReduceOp::kMax && op != ReduceOp::kMin);
}

}  // namespace jhetcc::ccl
