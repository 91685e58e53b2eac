// SPDX-License-Identifier: Apache-2.0
#include "net/secret.h"

#include <cstring>

#include "net/crypto.h"

namespace jhetcc::net {

const char* const kSecretHint =
    "give every process of the job the same secret by JHETCC_SECRET_FILE (a file only you can read), JHETCC_SECRET_FD "
    "or "
    "JHETCC_SECRET; `python -m jhetcc secret` makes one";

struct Secret::Key {
  std::string bytes;
  std::shared_ptr<const Crypto> crypto;
  ~Key() { explicit_bzero(bytes.data(), bytes.size()); }
};

Result<Secret> Secret::create(std::string bytes, const std::string& libcrypto_path) {
  if (bytes.size() < kSecretBytesMin || bytes.size() > kSecretBytesMax) {
    return Status(Kind::kBadArgument, Scope::kProcess, "secret_size",
                  "the job secret has " + std::to_string(bytes.size()) + " bytes; it must have " +
                      std::to_string(kSecretBytesMin) + " to " + std::to_string(kSecretBytesMax) + "; " + kSecretHint);
  }
  Result<std::shared_ptr<const Crypto>> crypto = Crypto::load(libcrypto_path);
  if (!crypto.isOk()) return crypto.status();
  auto key = std::make_shared<Key>();
  key->bytes.assign(bytes);
  key->crypto = std::move(crypto).value();
  explicit_bzero(bytes.data(), bytes.size());
  Secret secret;
  secret.key_ = std::move(key);
  return secret;
}

Secret Secret::none(bool allow_insecure) {
  Secret secret;
  secret.allow_insecure_ = allow_insecure;
  return secret;
}

Result<Mac> Secret::mac(std::string_view data) const {
  if (isNone()) return Mac{};
  return key_->crypto->hmacSha256(key_->bytes, data);
}

}  // namespace jhetcc::net
