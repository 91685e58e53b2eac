// SPDX-License-Identifier: Apache-2.0
#include "base/late_library.h"

#include <dlfcn.h>

namespace jhetcc {

Result<LateLibrary> LateLibrary::load(const LateLibrarySpec& spec) {
  // A file the user named is taken or refused; falling back to another would hide the mistake.
  const std::vector<std::string> names =
      spec.override_path.empty() ? spec.sonames : std::vector<std::string>{spec.override_path};
  std::string tried;
  for (const std::string& name : names) {
    if (void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) {
      return LateLibrary(handle, spec.what, name, spec.hint);
    }
    const char* text = dlerror();
    tried += (tried.empty() ? "" : "; ") + name + " (" + (text ? text : "no text from the loader") + ")";
  }
  if (tried.empty()) tried = "nothing: no name was given";
  return Status(Kind::kUnavailable, Scope::kProcess, "library_missing",
                spec.what + " cannot be loaded; tried " + tried + (spec.hint.empty() ? "" : "; " + spec.hint));
}

Result<void*> LateLibrary::symbol(const char* name) const {
  if (void* found = dlsym(handle_, name)) return found;
  return Status(Kind::kUnavailable, Scope::kProcess, "library_unsuitable",
                what_ + " from " + name_ + " has no symbol " + name + (hint_.empty() ? "" : "; " + hint_));
}

}  // namespace jhetcc
