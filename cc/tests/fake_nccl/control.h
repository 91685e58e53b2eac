// SPDX-License-Identifier: Apache-2.0
// The functions that the tests' NCCL has for tests alone, found in the library under test. Any thread.
#pragma once

#include <dlfcn.h>

#include <string>

#include "base/status.h"
#include "device/fake/api.h"
#include "fake_nccl/fake_nccl.h"

namespace jhetcc::tests::fake_nccl {

/// Loads the library and ties it to the virtual accelerators.
class Control {
 public:
  explicit Control(const std::string& path) : handle_(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    JHETCC_CHECK(handle_ != nullptr, path);
    entry<BindFunction>(kBind)(&device::fake::api());
  }
  ~Control() { dlclose(handle_); }
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;
  void setAsyncError(int rank, int code) const { entry<SetAsyncErrorFunction>(kSetAsyncError)(rank, code); }
  Counts counts() const { return entry<CountsFunction>(kCounts)(); }

 private:
  template <typename Function>
  Function* entry(const char* name) const {
    void* found = dlsym(handle_, name);
    JHETCC_CHECK(found != nullptr, name);
    return reinterpret_cast<Function*>(found);
  }
  void* handle_;
};

}  // namespace jhetcc::tests::fake_nccl
