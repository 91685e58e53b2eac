// SPDX-License-Identifier: Apache-2.0
// A shared library loaded when it is first needed, so that one build serves machines that lack it. Any thread.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"

namespace jhetcc {

/// What to load: the file the user named, else the first of the sonames that loads.
struct LateLibrarySpec {
  std::string what;                  ///< for texts: "libcrypto (OpenSSL)"
  std::string override_path;         ///< if not empty, only this is tried
  std::vector<std::string> sonames;  ///< in order of preference
  std::string hint;                  ///< what to do when there is none: "install the Debian package libssl3"
};

/// Stays loaded for the life of the process: its code may be referred to by exit handlers and other libraries.
class LateLibrary {
 public:
  /// kUnavailable with the loader's text for every name that was tried.
  static Result<LateLibrary> load(const LateLibrarySpec& spec);

  /// kUnavailable, naming the library file and the symbol.
  Result<void*> symbol(const char* name) const;
  /// The name or path that loaded.
  const std::string& name() const { return name_; }

 private:
  LateLibrary(void* handle, std::string what, std::string name, std::string hint)
      : handle_(handle), what_(std::move(what)), name_(std::move(name)), hint_(std::move(hint)) {}
  void* handle_;
  std::string what_, name_, hint_;
};

}  // namespace jhetcc
