// SPDX-License-Identifier: Apache-2.0
#include "net/crypto.h"

#include <sys/random.h>

#include <cerrno>

#include "base/system_text.h"

namespace jhetcc::net {

Result<std::shared_ptr<const Crypto>> Crypto::load(const std::string& override_path) {
  Result<LateLibrary> library = LateLibrary::load({
      "libcrypto (OpenSSL), which authenticates connections by the job secret,",
      override_path,
      {"libcrypto.so.3", "libcrypto.so.1.1", "libcrypto.so"},
      "install OpenSSL (Debian package libssl3)",
  });
  if (!library.isOk()) return library.status();
  Result<void*> hmac = library.value().symbol("HMAC");
  if (!hmac.isOk()) return hmac.status();
  Result<void*> sha256 = library.value().symbol("EVP_sha256");
  if (!sha256.isOk()) return sha256.status();
  return std::shared_ptr<const Crypto>(new Crypto(std::move(library).value(),
                                                  reinterpret_cast<HmacFunction>(hmac.value()),
                                                  reinterpret_cast<Sha256Function>(sha256.value())));
}

Result<Mac> Crypto::hmacSha256(std::string_view key, std::string_view data) const {
  Mac mac{};
  unsigned int size = 0;
  const auto* bytes = reinterpret_cast<const unsigned char*>(data.data());
  if (!hmac_(sha256_(), key.data(), static_cast<int>(key.size()), bytes, data.size(), mac.data(), &size) ||
      size != mac.size()) {
    return Status(Kind::kUnavailable, Scope::kProcess, "hmac",
                  "HMAC-SHA256 of " + library_.name() + " failed; does this machine's OpenSSL policy forbid it?");
  }
  return mac;
}

bool equalInConstantTime(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  volatile unsigned char difference = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference = static_cast<unsigned char>(difference | (a[i] ^ b[i]));
  }
  return difference == 0;
}

Status fillRandom(void* data, size_t size) {
  auto* bytes = static_cast<unsigned char*>(data);
  while (size > 0) {
    const ssize_t got = ::getrandom(bytes, size, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      return Status(Kind::kUnavailable, Scope::kProcess, "getrandom", "getrandom failed: " + systemText(errno));
    }
    bytes += got;
    size -= static_cast<size_t>(got);
  }
  return Status::ok();
}

Result<Nonce> randomNonce() {
  Nonce nonce;
  JHETCC_RETURN_IF_ERROR(fillRandom(nonce.data(), nonce.size()));
  return nonce;
}

}  // namespace jhetcc::net
