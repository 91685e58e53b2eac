// SPDX-License-Identifier: Apache-2.0
// The keyed mutual handshake as two passive state machines: frames in, frames out, no I/O. One thread each.
//
//   client                                          server
//   hello(version, keyed?, nonce, identity, wanted rank)  ->
//         <-  challenge(version, keyed?, nonce, identity, MAC "server" over hello + challenge)
//   proof(MAC "client" over hello + challenge)            ->
//         <-  verdict(code, text, MAC "verdict" over hello + challenge + code + text)
//
// Every MAC covers both nonces, both identities and the wanted rank, and each direction has its own label, so nothing
// can be replayed or reflected. The server explains a refusal only to a client that proved the secret, and proves it
// itself.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "net/identity.h"
#include "net/secret.h"

namespace jhetcc::net {

constexpr uint16_t kHandshakeVersion = 2;
constexpr size_t kHandshakeHeaderBytes = 8;  ///< magic u32, type u8, zero u8, body length u16
constexpr size_t kHandshakeBodyMax = 512;

enum class HandshakeType : uint8_t { kHello = 1, kChallenge = 2, kProof = 3, kVerdict = 4 };

struct HandshakeFrame {
  HandshakeType type;
  std::string body;
};

std::string encodeFrame(HandshakeType type, const std::string& body);

/// How many bytes to read next so that no byte behind the frame is taken; 0: the frame is whole.
/// An error at the first byte that cannot belong to this protocol.
Result<size_t> bytesWanted(const std::string& received);
/// Of a whole frame.
HandshakeFrame decodeFrame(const std::string& received);

/// What a frame led to. `reply` is to be sent first, also when `status` is an error; then the connection is closed.
struct HandshakeStep {
  std::string reply;
  bool is_finished = false;
  Status status;
};

class ClientHandshake {
 public:
  ClientHandshake(Secret secret, Identity mine, int32_t wanted_rank, const Nonce& nonce);
  /// Also covered by every MAC: what both ends know of the connection below and nobody else has. Before any frame.
  void bindTo(std::string binding) { binding_ = std::move(binding); }
  const std::string& hello() const { return hello_frame_; }
  HandshakeStep onFrame(const HandshakeFrame& frame);
  /// Of the server; proven once finished.
  const Identity& peer() const { return peer_; }

 private:
  HandshakeStep onChallenge(const std::string& body);
  HandshakeStep onVerdict(const std::string& body);
  Secret secret_;
  Identity mine_, peer_;
  int32_t wanted_rank_;
  std::string hello_frame_, hello_body_, transcript_, binding_;
  HandshakeType awaited_ = HandshakeType::kChallenge;
};

class ServerHandshake {
 public:
  /// Clients that `left_behind` names are refused as stale, whatever epoch they say.
  ServerHandshake(Secret secret, Identity mine, const Nonce& nonce, std::vector<int32_t> left_behind = {});
  void bindTo(std::string binding) { binding_ = std::move(binding); }  ///< as the client's
  HandshakeStep onFrame(const HandshakeFrame& frame);
  bool hasHello() const { return awaited_ != HandshakeType::kHello; }
  /// Of the client; proven once finished.
  const Identity& peer() const { return peer_; }

 private:
  HandshakeStep onHello(const std::string& body);
  HandshakeStep onProof(const std::string& body);
  Secret secret_;
  Identity mine_, peer_;
  Nonce nonce_;
  std::vector<int32_t> left_behind_;
  int32_t wanted_rank_ = kAnyRank;
  std::string transcript_, binding_;
  HandshakeType awaited_ = HandshakeType::kHello;
};

/// One end speaks TLS, the other does not: what is wrong, as `secret`'s owner sees it, who speaks it or (`is_ours`
/// false) does not.
Status tlsDiffers(const Secret& secret, bool is_ours);
/// What a server without TLS says to a client that speaks it, and the other way round.
std::string answerToTls(const Secret& secret);
std::string answerToPlain();
/// Whether these bytes, the first of an answer, are answerToTls() of a server that has a secret.
bool isAnswerOfKeyed(std::string_view bytes);

/// A connection without a secret is refused unless both ends are on this machine or the override was given.
Status checkInsecure(const Secret& secret, const Address& local, const Address& remote);

}  // namespace jhetcc::net
