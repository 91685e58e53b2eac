// SPDX-License-Identifier: Apache-2.0
#include "base/exit.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>

namespace jhetcc {
namespace {

/// Handlers run in the reverse order of their registration, so this one comes before all that are older.
void leaveNow(int code, void* argument) {
  if (const auto& last = *static_cast<std::function<void()>*>(argument)) last();
  std::cout.flush();
  std::fflush(nullptr);
  ::_exit(code);
}

}  // namespace

Status exitWithoutDestructors(std::function<void()> last) {
  auto argument = std::make_unique<std::function<void()>>(std::move(last));
  if (::on_exit(leaveNow, argument.get()) != 0) {
    return Status(Kind::kResource, Scope::kProcess, "resource",
                  "the system registers no further exit handler: this process may hang when it ends");
  }
  argument.release();  // it lives as long as the process
  return Status::ok();
}

}  // namespace jhetcc
