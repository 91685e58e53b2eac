// SPDX-License-Identifier: Apache-2.0
#include "net/tls_library.h"

#include <atomic>
#include <memory>
#include <mutex>

namespace jhetcc::net::openssl {
namespace {

/// Never freed, as the library is never unloaded: threads may use it while the process exits.
std::atomic<const Functions*> loaded{nullptr};

}  // namespace

const Functions& functions() { return *loaded.load(std::memory_order_acquire); }

Result<const Functions*> load(const std::string& path) {
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  if (path.empty() && loaded.load() != nullptr) return loaded.load();
  Result<LateLibrary> library = LateLibrary::load({
      "libssl (OpenSSL), which encrypts the connections of a job that has a secret,",
      path,
      {"libssl.so.3", "libssl.so.1.1", "libssl.so"},
      "install OpenSSL (Debian package libssl3), or set JHETCC_TLS=off in every process to go without encryption",
  });
  if (!library.isOk()) return library.status();
  auto functions = std::make_unique<Functions>();
  functions->library_name = library.value().name();
// A symbol of libcrypto is found through libssl, which depends on it.
#define JHETCC_OPENSSL_LOAD(name, result, arguments)                               \
  {                                                                                \
    Result<void*> symbol = library.value().symbol(#name);                          \
    if (!symbol.isOk()) return symbol.status();                                    \
    functions->name = reinterpret_cast<decltype(functions->name)>(symbol.value()); \
  }
  JHETCC_OPENSSL_FUNCTIONS(JHETCC_OPENSSL_LOAD)
#undef JHETCC_OPENSSL_LOAD
  if (functions->OPENSSL_init_ssl(kInitNoAtExit, nullptr) != 1) {
    return Status(Kind::kUnavailable, Scope::kProcess, "library_unsuitable",
                  functions->library_name + " does not start; does this machine's OpenSSL configuration forbid it?");
  }
  if (loaded.load() == nullptr) loaded.store(functions.release(), std::memory_order_release);
  return loaded.load();
}

}  // namespace jhetcc::net::openssl
