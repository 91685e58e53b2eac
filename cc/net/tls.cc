// SPDX-License-Identifier: Apache-2.0
#include "net/tls.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>

#include "net/socket.h"
#include "net/tls_library.h"

namespace jhetcc::net {
namespace {

using openssl::functions;

constexpr const char* kCipherSuite = "TLS_AES_128_GCM_SHA256";
constexpr unsigned char kCipherNumber[] = {0x13, 0x01};
constexpr const char* kKeyLabel = "jhetcc tls 1.3 pre-shared key";
constexpr std::string_view kBindingLabel = "EXPERIMENTAL jhetcc handshake";  // RFC 5705: how unregistered ones begin
constexpr size_t kBindingBytes = 32;
constexpr size_t kAheadBytes = 64 * 1024;

/// OpenSSL's words for the first error of this thread's last call.
std::string reason() {
  const unsigned long error = functions().ERR_get_error();
  const char* text = error == 0 ? nullptr : functions().ERR_reason_error_string(error);
  return text ? text : "no reason given";
}

Status unavailable(const std::string& what) {
  return Status(Kind::kUnavailable, Scope::kProcess, "tls",
                functions().library_name + ": " + what + " failed: " + reason() +
                    "; does this machine's OpenSSL configuration forbid TLS 1.3 with AES-128-GCM? JHETCC_TLS=off in "
                    "every process goes without encryption");
}

}  // namespace

/// Between OpenSSL and the socket: no SIGPIPE, and an end to what strangers may say.
struct TlsSession::Socket {
  int fd;
  size_t unproven_left = kTlsUnprovenBytesMax;
  bool is_proven = false;
  bool has_ended = false;
  std::unique_ptr<char[]> ahead = {};  ///< once proven: what came, before OpenSSL asks for it piece by piece
  size_t ahead_begin = 0, ahead_end = 0;
  bool is_foreign = false;  ///< the first byte is none of TLS; it is still to be read
  int error = 0;            ///< errno of what ended it

  static Socket& of(openssl::Bio* bio) {
    functions().BIO_clear_flags(bio, openssl::kBioAnyFlag);
    return *static_cast<Socket*>(functions().BIO_get_data(bio));
  }

  /// What OpenSSL is to do after a call of the system that failed.
  void onError(openssl::Bio* bio, int direction) {
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) {
      functions().BIO_set_flags(bio, direction | openssl::kBioRetry);
    } else {
      error = errno;
    }
  }

  static int write(openssl::Bio* bio, const char* data, int size) {
    Socket& self = of(bio);
    const ssize_t sent = ::send(self.fd, data, static_cast<size_t>(size), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) self.onError(bio, openssl::kBioWrite);
    return static_cast<int>(sent);
  }

  /// What a recv(2) that brought nothing means.
  int ended(openssl::Bio* bio, ssize_t got) {
    if (got < 0) onError(bio, openssl::kBioRead);
    if (got == 0) has_ended = true;
    return static_cast<int>(got);
  }

  int readAhead(openssl::Bio* bio, char* data, int size) {
    if (ahead_begin == ahead_end) {
      if (!ahead) ahead.reset(new char[kAheadBytes]);
      const ssize_t got = ::recv(fd, ahead.get(), kAheadBytes, MSG_DONTWAIT);
      if (got <= 0) return ended(bio, got);
      ahead_begin = 0;
      ahead_end = static_cast<size_t>(got);
    }
    const size_t taken = std::min<size_t>(static_cast<size_t>(size), ahead_end - ahead_begin);
    std::memcpy(data, ahead.get() + ahead_begin, taken);
    ahead_begin += taken;
    return static_cast<int>(taken);
  }

  static int read(openssl::Bio* bio, char* data, int size) {
    Socket& self = of(bio);
    if (self.is_proven) return self.readAhead(bio, data, size);
    const size_t wanted = std::min<size_t>(static_cast<size_t>(size), self.unproven_left);
    if (wanted == 0) {
      self.error = EMSGSIZE;
      return -1;
    }
    ssize_t got = 0;
    if (self.unproven_left == kTlsUnprovenBytesMax) {
      got = ::recv(self.fd, data, 1, MSG_DONTWAIT | MSG_PEEK);
      self.is_foreign = got == 1 && (data[0] < kTlsFirstByteMin || data[0] > kTlsFirstByteMax);
      if (self.is_foreign) return -1;
    }
    got = ::recv(self.fd, data, wanted, MSG_DONTWAIT);
    if (got <= 0) return self.ended(bio, got);
    self.unproven_left -= static_cast<size_t>(got);
    return static_cast<int>(got);
  }

  static long control(openssl::Bio*, int command, long, void*) { return command == openssl::kBioFlush ? 1 : 0; }
};

struct Tls::Callbacks {
  static const Tls& of(openssl::Ssl* ssl) {
    return *static_cast<const Tls*>(functions().SSL_CTX_get_ex_data(functions().SSL_get_SSL_CTX(ssl), 0));
  }

  static openssl::Psk* makePsk(openssl::Ssl* ssl) {
    const Tls& self = of(ssl);
    const openssl::Cipher* cipher = functions().SSL_CIPHER_find(ssl, kCipherNumber);
    openssl::Psk* psk = functions().SSL_SESSION_new();
    if (psk && cipher && functions().SSL_SESSION_set1_master_key(psk, self.key_.data(), self.key_.size()) == 1 &&
        functions().SSL_SESSION_set_cipher(psk, cipher) == 1 &&
        functions().SSL_SESSION_set_protocol_version(psk, openssl::kTls13) == 1) {
      return psk;
    }
    if (psk) functions().SSL_SESSION_free(psk);
    return nullptr;
  }

  static int use(openssl::Ssl* ssl, const openssl::Digest*, const unsigned char** identity, size_t* size,
                 openssl::Psk** psk) {
    const Tls& self = of(ssl);
    *identity = reinterpret_cast<const unsigned char*>(self.hint_.data());
    *size = self.hint_.size();
    *psk = makePsk(ssl);
    return *psk != nullptr;
  }

  /// Whatever the hint: there is one key, and what follows names a job that is not ours.
  static int find(openssl::Ssl* ssl, const unsigned char*, size_t, openssl::Psk** psk) {
    *psk = makePsk(ssl);
    return *psk != nullptr;
  }
};

Result<std::shared_ptr<const Tls>> Tls::create(const Secret& secret, std::string hint, const std::string& libssl_path) {
  JHETCC_CHECK(!secret.isNone(), "TLS needs a secret");
  const Result<const openssl::Functions*> library = openssl::load(libssl_path);
  if (!library.isOk()) return library.status();
  const Result<Mac> key = secret.mac(kKeyLabel);
  if (!key.isOk()) return key.status();
  std::shared_ptr<Tls> tls(new Tls);
  tls->key_ = key.value();
  tls->hint_ = std::move(hint);
  JHETCC_RETURN_IF_ERROR(tls->configure());
  return std::shared_ptr<const Tls>(std::move(tls));
}

Status Tls::configure() {
  const openssl::Functions& f = functions();
  f.ERR_clear_error();
  method_ = f.BIO_meth_new(openssl::kBioSourceSink, "jhetcc socket");
  context_ = f.SSL_CTX_new(f.TLS_method());
  if (!method_ || !context_) return unavailable("a TLS context");
  f.BIO_meth_set_write(method_, TlsSession::Socket::write);
  f.BIO_meth_set_read(method_, TlsSession::Socket::read);
  f.BIO_meth_set_ctrl(method_, TlsSession::Socket::control);
  f.SSL_CTX_set_options(context_,
                        openssl::kOptionUnexpectedEnd | openssl::kOptionNoTicket | openssl::kOptionNoRenegotiation);
  f.SSL_CTX_ctrl(context_, openssl::kControlMode,
                 openssl::kModePartialWrite | openssl::kModeMovingBuffer | openssl::kModeReleaseBuffers, nullptr);
  f.SSL_CTX_ctrl(context_, openssl::kControlSessionCache, 0, nullptr);
  f.SSL_CTX_set_psk_use_session_callback(context_, Callbacks::use);
  f.SSL_CTX_set_psk_find_session_callback(context_, Callbacks::find);
  if (f.SSL_CTX_ctrl(context_, openssl::kControlMinProtocol, openssl::kTls13, nullptr) != 1 ||
      f.SSL_CTX_ctrl(context_, openssl::kControlMaxProtocol, openssl::kTls13, nullptr) != 1 ||
      f.SSL_CTX_set_ciphersuites(context_, kCipherSuite) != 1 || f.SSL_CTX_set_num_tickets(context_, 0) != 1 ||
      f.SSL_CTX_set_ex_data(context_, 0, this) != 1) {
    return unavailable("choosing TLS 1.3");
  }
  return Status::ok();
}

Tls::~Tls() {
  if (context_) functions().SSL_CTX_free(context_);
  if (method_) functions().BIO_meth_free(method_);
  explicit_bzero(key_.data(), key_.size());
}

Result<std::unique_ptr<TlsSession>> Tls::open(int fd, Side side) const {
  const openssl::Functions& f = functions();
  f.ERR_clear_error();
  std::unique_ptr<TlsSession> session(new TlsSession(shared_from_this(), fd));
  session->ssl_ = f.SSL_new(context_);
  openssl::Bio* bio = session->ssl_ ? f.BIO_new(method_) : nullptr;
  if (!bio) return unavailable("a TLS session");
  f.BIO_set_data(bio, session->socket_.get());
  f.BIO_set_init(bio, 1);
  f.SSL_set_bio(session->ssl_, bio, bio);
  if (side == Side::kClient) {
    f.SSL_set_connect_state(session->ssl_);
    // There is no certificate to believe in: a server that offers one instead of the key is refused.
    f.SSL_set_verify(session->ssl_, openssl::kVerifyPeer, nullptr);
  } else {
    f.SSL_set_accept_state(session->ssl_);
  }
  return session;
}

TlsSession::TlsSession(std::shared_ptr<const Tls> tls, int fd)
    : tls_(std::move(tls)), socket_(std::make_unique<Socket>(Socket{fd})) {}

TlsSession::~TlsSession() {
  if (ssl_) functions().SSL_free(ssl_);
}

Status TlsSession::failed(int error) {
  if (socket_->error == EMSGSIZE) {
    return Status(Kind::kBadArgument, Scope::kEndpoint, "not_jhetcc",
                  "it says too much without proving the job secret");
  }
  if (socket_->is_foreign) return Status(Kind::kBadArgument, Scope::kEndpoint, "not_tls", "it does not speak TLS");
  if (socket_->error != 0 || socket_->has_ended || error != openssl::kErrorSsl) {
    return disconnected("TLS", socket_->error);
  }
  return Status(Kind::kBadArgument, Scope::kEndpoint, "secret_mismatch", "TLS: " + reason());
}

Result<TlsSession::Need> TlsSession::handshake() {
  const openssl::Functions& f = functions();
  std::lock_guard lock(mutex_);
  f.ERR_clear_error();
  const int done = f.SSL_do_handshake(ssl_);
  if (done == 1) {
    if (f.SSL_session_reused(ssl_) != 1) {
      return Status(Kind::kBadArgument, Scope::kEndpoint, "secret_mismatch", "TLS: not by the job's key");
    }
    socket_->is_proven = true;
    return Need::kNothing;
  }
  const int error = f.SSL_get_error(ssl_, done);
  if (error == openssl::kErrorWantRead) return Need::kRead;
  if (error == openssl::kErrorWantWrite) return Need::kWrite;
  return failed(error);
}

Result<std::string> TlsSession::binding() {
  std::string binding(kBindingBytes, '\0');
  std::lock_guard lock(mutex_);
  functions().ERR_clear_error();
  if (functions().SSL_export_keying_material(ssl_, reinterpret_cast<unsigned char*>(binding.data()), binding.size(),
                                             kBindingLabel.data(), kBindingLabel.size(), nullptr, 0, 0) != 1) {
    return unavailable("exporting from a TLS session");
  }
  return binding;
}

ssize_t TlsSession::receive(void* data, size_t size) {
  const openssl::Functions& f = functions();
  std::lock_guard lock(mutex_);
  f.ERR_clear_error();
  const int got = f.SSL_read(ssl_, data, static_cast<int>(std::min<size_t>(size, INT_MAX)));
  if (got > 0) return got;
  return ended(f.SSL_get_error(ssl_, got));
}

ssize_t TlsSession::send(const void* data, size_t size) {
  const openssl::Functions& f = functions();
  if (size == 0) return 0;
  std::lock_guard lock(mutex_);
  f.ERR_clear_error();
  const int sent = f.SSL_write(ssl_, data, static_cast<int>(std::min<size_t>(size, INT_MAX)));
  if (sent > 0) return sent;
  const ssize_t why = ended(f.SSL_get_error(ssl_, sent));
  if (why == 0) errno = EPIPE;
  return -1;
}

/// What recv(2) would have returned.
ssize_t TlsSession::ended(int error) {
  if (error == openssl::kErrorZeroReturn) return 0;
  if (error == openssl::kErrorWantRead || error == openssl::kErrorWantWrite) {
    errno = EAGAIN;
  } else if (socket_->error == 0 && socket_->has_ended) {
    return 0;
  } else {
    is_broken_ = socket_->error == 0;
    errno = is_broken_ ? EBADMSG : socket_->error;
  }
  return -1;
}

bool TlsSession::hasPending() const {
  std::lock_guard lock(mutex_);
  return is_broken_ || socket_->ahead_begin < socket_->ahead_end || functions().SSL_pending(ssl_) > 0;
}

}  // namespace jhetcc::net
