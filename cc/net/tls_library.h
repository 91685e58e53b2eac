// SPDX-License-Identifier: Apache-2.0
// Private to tls: what is used of OpenSSL's libssl (3 or 1.1.1), declared here so that no build needs its headers, and
// loaded late. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/late_library.h"

namespace jhetcc::net::openssl {

// Opaque, as in OpenSSL.
struct Context;
struct Ssl;
struct Psk;  ///< an SSL_SESSION that carries the pre-shared key
struct Cipher;
struct Digest;
struct Method;
struct Bio;
struct BioMethod;

using UsePsk = int (*)(Ssl*, const Digest*, const unsigned char** identity, size_t* identity_size, Psk**);
using FindPsk = int (*)(Ssl*, const unsigned char* identity, size_t identity_size, Psk**);
using BioWrite = int (*)(Bio*, const char*, int);
using BioRead = int (*)(Bio*, char*, int);
using BioControl = long (*)(Bio*, int command, long number, void* pointer);

constexpr int kTls13 = 0x0304;
constexpr int kControlMode = 33, kControlSessionCache = 44, kControlMinProtocol = 123, kControlMaxProtocol = 124;
constexpr long kModePartialWrite = 0x1, kModeMovingBuffer = 0x2, kModeReleaseBuffers = 0x10;
constexpr uint64_t kOptionUnexpectedEnd = uint64_t{1} << 7, kOptionNoTicket = uint64_t{1} << 14,
                   kOptionNoRenegotiation = uint64_t{1} << 30;
constexpr int kVerifyPeer = 1;
constexpr int kErrorSsl = 1, kErrorWantRead = 2, kErrorWantWrite = 3, kErrorZeroReturn = 6;
constexpr int kBioSourceSink = 0x0400, kBioFlush = 11;
constexpr int kBioRead = 0x01, kBioWrite = 0x02, kBioRetry = 0x08, kBioAnyFlag = 0x0f;
constexpr uint64_t kInitNoAtExit = 0x00080000;

/// Name, result and arguments of each function that is loaded.
#define JHETCC_OPENSSL_FUNCTIONS(X)                                                         \
  X(OPENSSL_init_ssl, int, (uint64_t, const void*))                                         \
  X(TLS_method, const Method*, ())                                                          \
  X(SSL_CTX_new, Context*, (const Method*))                                                 \
  X(SSL_CTX_free, void, (Context*))                                                         \
  X(SSL_CTX_ctrl, long, (Context*, int, long, void*))                                       \
  X(SSL_CTX_set_options, uint64_t, (Context*, uint64_t))                                    \
  X(SSL_CTX_set_ciphersuites, int, (Context*, const char*))                                 \
  X(SSL_CTX_set_num_tickets, int, (Context*, size_t))                                       \
  X(SSL_CTX_set_psk_use_session_callback, void, (Context*, UsePsk))                         \
  X(SSL_CTX_set_psk_find_session_callback, void, (Context*, FindPsk))                       \
  X(SSL_CTX_set_ex_data, int, (Context*, int, void*))                                       \
  X(SSL_CTX_get_ex_data, void*, (const Context*, int))                                      \
  X(SSL_get_SSL_CTX, Context*, (const Ssl*))                                                \
  X(SSL_new, Ssl*, (Context*))                                                              \
  X(SSL_free, void, (Ssl*))                                                                 \
  X(SSL_set_bio, void, (Ssl*, Bio*, Bio*))                                                  \
  X(SSL_set_accept_state, void, (Ssl*))                                                     \
  X(SSL_set_connect_state, void, (Ssl*))                                                    \
  X(SSL_set_verify, void, (Ssl*, int, void*))                                               \
  X(SSL_do_handshake, int, (Ssl*))                                                          \
  X(SSL_read, int, (Ssl*, void*, int))                                                      \
  X(SSL_write, int, (Ssl*, const void*, int))                                               \
  X(SSL_pending, int, (const Ssl*))                                                         \
  X(SSL_get_error, int, (const Ssl*, int))                                                  \
  X(SSL_session_reused, int, (const Ssl*))                                                  \
  X(SSL_export_keying_material, int,                                                        \
    (Ssl*, unsigned char*, size_t, const char*, size_t, const unsigned char*, size_t, int)) \
  X(SSL_CIPHER_find, const Cipher*, (Ssl*, const unsigned char*))                           \
  X(SSL_SESSION_new, Psk*, ())                                                              \
  X(SSL_SESSION_free, void, (Psk*))                                                         \
  X(SSL_SESSION_set1_master_key, int, (Psk*, const unsigned char*, size_t))                 \
  X(SSL_SESSION_set_cipher, int, (Psk*, const Cipher*))                                     \
  X(SSL_SESSION_set_protocol_version, int, (Psk*, int))                                     \
  X(BIO_meth_new, BioMethod*, (int, const char*))                                           \
  X(BIO_meth_free, void, (BioMethod*))                                                      \
  X(BIO_meth_set_write, int, (BioMethod*, BioWrite))                                        \
  X(BIO_meth_set_read, int, (BioMethod*, BioRead))                                          \
  X(BIO_meth_set_ctrl, int, (BioMethod*, BioControl))                                       \
  X(BIO_new, Bio*, (const BioMethod*))                                                      \
  X(BIO_set_data, void, (Bio*, void*))                                                      \
  X(BIO_get_data, void*, (Bio*))                                                            \
  X(BIO_set_init, void, (Bio*, int))                                                        \
  X(BIO_set_flags, void, (Bio*, int))                                                       \
  X(BIO_clear_flags, void, (Bio*, int))                                                     \
  X(ERR_clear_error, void, ())                                                              \
  X(ERR_get_error, unsigned long, ())                                                       \
  X(ERR_reason_error_string, const char*, (unsigned long))

struct Functions {
#define JHETCC_OPENSSL_MEMBER(name, result, arguments) result(*name) arguments = nullptr;
  JHETCC_OPENSSL_FUNCTIONS(JHETCC_OPENSSL_MEMBER)
#undef JHETCC_OPENSSL_MEMBER
  std::string library_name;
};

/// `path`: a libssl file; empty: libssl.so.3, .so.1.1, .so in this order. kUnavailable says what to install. The first
/// that loads serves the whole process.
Result<const Functions*> load(const std::string& path);

/// What load() loaded. OpenSSL calls back with nothing but its own objects.
const Functions& functions();

}  // namespace jhetcc::net::openssl
