// SPDX-License-Identifier: Apache-2.0
// HMAC-SHA256 from OpenSSL's libcrypto, loaded late; random bytes from the kernel. Any thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/late_library.h"
#include "net/secret.h"

namespace jhetcc::net {

class Crypto {
 public:
  /// `override_path`: a libcrypto file the user named; empty: libcrypto.so.3, .so.1.1, .so in this order.
  static Result<std::shared_ptr<const Crypto>> load(const std::string& override_path);

  Result<Mac> hmacSha256(std::string_view key, std::string_view data) const;
  const std::string& libraryName() const { return library_.name(); }

 private:
  using HmacFunction = unsigned char* (*)(const void* md, const void* key, int key_size, const unsigned char* data,
                                          size_t size, unsigned char* mac, unsigned int* mac_size);
  using Sha256Function = const void* (*)();
  Crypto(LateLibrary library, HmacFunction hmac, Sha256Function sha256)
      : library_(std::move(library)), hmac_(hmac), sha256_(sha256) {}
  LateLibrary library_;
  HmacFunction hmac_;
  Sha256Function sha256_;
};

/// Takes the same time wherever the first difference lies.
bool equalInConstantTime(std::string_view a, std::string_view b);

/// Fills from getrandom(2).
Status fillRandom(void* data, size_t size);
Result<Nonce> randomNonce();

}  // namespace jhetcc::net
