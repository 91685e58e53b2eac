// SPDX-License-Identifier: Apache-2.0
#include "net/handshake.h"

#include <algorithm>

#include "base/bytes.h"
#include "net/crypto.h"
#include "net/handshake_frames.h"

namespace jhetcc::net {
namespace {

HandshakeStep failed(const std::string& code, const std::string& message, std::string reply = {}) {
  return {std::move(reply), false, Status(Kind::kBadArgument, Scope::kEndpoint, code, message)};
}

HandshakeStep notOurs() { return failed("not_jhetcc", "the other end does not speak this protocol"); }

HandshakeStep otherVersion(uint16_t version, std::string reply = {}) {
  return failed("version_mismatch",
                "the other end speaks protocol version " + std::to_string(version) + ", this process version " +
                    std::to_string(kHandshakeVersion) + "; install the same release of jhetcc for every process",
                std::move(reply));
}

/// What a server holds against an authenticated client; the code of the status goes with it on both sides.
struct Judgement {
  VerdictCode code;
  std::string text;
};

Judgement judge(const Identity& mine, const Identity& client, int32_t wanted_rank,
                const std::vector<int32_t>& left_behind = {}) {
  if (client.job != mine.job) {
    return {VerdictCode::kWrongJob, "this is job '" + mine.job + "', the caller belongs to job '" + client.job +
                                        "'; do two jobs share an address?"};
  }
  if (client.role != mine.role) {
    return {VerdictCode::kWrongRole,
            std::string("this address is for ") + roleName(mine.role) + " connections, not " + roleName(client.role)};
  }
  if (wanted_rank != kAnyRank && wanted_rank != mine.rank) {
    return {VerdictCode::kWrongRank, "this is rank " + std::to_string(mine.rank) + ", the caller wants rank " +
                                         std::to_string(wanted_rank) + "; the address it used is out of date"};
  }
  // Not by comparing epochs: members of the new one that have not moved on yet are welcome, and two halves of a job
  // that shrank apart are in the same.
  if (std::find(left_behind.begin(), left_behind.end(), client.rank) != left_behind.end()) {
    return {VerdictCode::kStaleEpoch, "this process is in epoch " + std::to_string(mine.epoch) +
                                          ", the caller in epoch " + std::to_string(client.epoch) +
                                          "; it was left behind by a shrink"};
  }
  return {VerdictCode::kAccepted, ""};
}

const char* statusCode(VerdictCode code) {
  switch (code) {
    case VerdictCode::kAccepted:
      return "ok";
    case VerdictCode::kWrongJob:
      return "job_mismatch";
    case VerdictCode::kWrongRole:
      return "role_mismatch";
    case VerdictCode::kWrongRank:
      return "wrong_rank";
    case VerdictCode::kStaleEpoch:
      return "stale_epoch";
  }
  return "refused";
}

std::string verdictTail(VerdictCode code, const std::string& text) {
  ByteWriter writer;
  writer.u8(static_cast<uint8_t>(code));
  writer.text(text);
  return writer.take();
}

}  // namespace

std::string describe(const Identity& identity) {
  const std::string who = identity.rank == kAnyRank ? "a process" : "rank " + std::to_string(identity.rank);
  return who + " of job '" + identity.job + "' (" + roleName(identity.role) + ", path " +
         std::to_string(identity.path) + ", epoch " + std::to_string(identity.epoch) + ")";
}

Status checkInsecure(const Secret& secret, const Address& local, const Address& remote) {
  if (!secret.isNone() || secret.allowsInsecure() || (local.isLoopback() && remote.isLoopback())) return Status::ok();
  return Status(Kind::kBadArgument, Scope::kProcess, "secret_missing",
                "connections between " + local.text() + " and " + remote.text() +
                    " leave this machine and need a job secret, and there is none; " + kSecretHint);
}

Status tlsDiffers(const Secret& secret, bool is_ours) {
  if (secret.isNone()) {
    return Status(Kind::kBadArgument, Scope::kEndpoint, "secret_missing",
                  std::string("the other end demands the job secret, and this process has none; ") + kSecretHint);
  }
  return Status(Kind::kBadArgument, Scope::kEndpoint, "tls_mismatch",
                std::string(is_ours ? "this process speaks TLS and the other end does not"
                                    : "the other end speaks TLS and this process does not") +
                    ": JHETCC_TLS must be the same in every process of the job");
}

std::string answerToTls(const Secret& secret) {
  return encodeFrame(HandshakeType::kChallenge,
                     encodeChallenge({kHandshakeVersion, !secret.isNone(), {}, {}, {}}).substr(0, 3));
}

bool isAnswerOfKeyed(std::string_view bytes) {
  return bytes.size() > kHandshakeHeaderBytes + 2 && bytes[kHandshakeHeaderBytes + 2] == kFlagKeyed;
}

std::string answerToPlain() {
  // Fatal: handshake failure; and once more, so that it is as long as the beginning of a frame.
  return {0x15, 3, 3, 0, 2, 2, 40, 0x15, 3, 3, 0, 2, 2, 40};
}

ClientHandshake::ClientHandshake(Secret secret, Identity mine, int32_t wanted_rank, const Nonce& nonce)
    : secret_(std::move(secret)), mine_(std::move(mine)), wanted_rank_(wanted_rank) {
  hello_body_ = encodeHello({kHandshakeVersion, !secret_.isNone(), nonce, mine_, wanted_rank});
  hello_frame_ = encodeFrame(HandshakeType::kHello, hello_body_);
}

HandshakeStep ClientHandshake::onFrame(const HandshakeFrame& frame) {
  if (frame.type != awaited_) return notOurs();
  return frame.type == HandshakeType::kChallenge ? onChallenge(frame.body) : onVerdict(frame.body);
}

HandshakeStep ClientHandshake::onChallenge(const std::string& body) {
  const std::optional<Challenge> challenge = decodeChallenge(body);
  if (!challenge) return notOurs();
  if (challenge->version != kHandshakeVersion) return otherVersion(challenge->version);
  if (challenge->is_keyed && secret_.isNone()) {
    return failed("secret_missing",
                  std::string("the other end demands the job secret, and this process has none; ") + kSecretHint);
  }
  if (!challenge->is_keyed && !secret_.isNone()) {
    return failed("secret_missing",
                  std::string("the other end has no job secret, so it is not trusted; ") + kSecretHint);
  }
  transcript_ = transcriptOf(hello_body_, std::string_view(body).substr(0, body.size() - sizeof(Mac)), binding_);
  const Result<Mac> expected = labelledMac(secret_, "server", transcript_);
  if (!expected.isOk()) return {"", false, expected.status()};
  if (!equalInConstantTime(view(expected.value()), view(challenge->mac))) {
    const std::string says =
        challenge->identity.job == mine_.job
            ? "it claims to be of our job '" + mine_.job + "'"
            : "it claims to be of job '" + challenge->identity.job + "', ours is '" + mine_.job + "'";
    return failed("secret_mismatch", "the other end has a different job secret (" + says + "); " + kSecretHint);
  }
  peer_ = challenge->identity;
  const Result<Mac> proof = labelledMac(secret_, "client", transcript_);
  if (!proof.isOk()) return {"", false, proof.status()};
  awaited_ = HandshakeType::kVerdict;
  return {encodeFrame(HandshakeType::kProof, std::string(view(proof.value()))), false, Status::ok()};
}

HandshakeStep ClientHandshake::onVerdict(const std::string& body) {
  const std::optional<VerdictText> verdict = decodeVerdict(body);
  if (!verdict) return notOurs();
  const Result<Mac> expected = labelledMac(secret_, "verdict", transcript_, verdictTail(verdict->code, verdict->text));
  if (!expected.isOk()) return {"", false, expected.status()};
  if (!equalInConstantTime(view(expected.value()), view(verdict->mac))) {
    return failed("not_jhetcc", "the last frame of the handshake was altered on its way");
  }
  if (verdict->code != VerdictCode::kAccepted) return failed(statusCode(verdict->code), "refused: " + verdict->text);
  // The server judged by the same rules; judged again here, so that a lax server cannot pass for another one.
  const Judgement judgement = judge(peer_, mine_, wanted_rank_);
  if (judgement.code != VerdictCode::kAccepted) return failed(statusCode(judgement.code), judgement.text);
  return {"", true, Status::ok()};
}

ServerHandshake::ServerHandshake(Secret secret, Identity mine, const Nonce& nonce, std::vector<int32_t> left_behind)
    : secret_(std::move(secret)), mine_(std::move(mine)), nonce_(nonce), left_behind_(std::move(left_behind)) {}

HandshakeStep ServerHandshake::onFrame(const HandshakeFrame& frame) {
  if (frame.type != awaited_) return notOurs();
  return frame.type == HandshakeType::kHello ? onHello(frame.body) : onProof(frame.body);
}

HandshakeStep ServerHandshake::onHello(const std::string& body) {
  const std::optional<Hello> hello = decodeHello(body);
  if (!hello) return notOurs();
  const std::string challenge = encodeChallenge({kHandshakeVersion, !secret_.isNone(), nonce_, mine_, {}});
  if (hello->version != kHandshakeVersion) {
    // Only our version is said: the rest of the frame may mean something else there.
    return otherVersion(hello->version, encodeFrame(HandshakeType::kChallenge, challenge.substr(0, 2)));
  }
  transcript_ = transcriptOf(body, challenge, binding_);
  const Result<Mac> mac = labelledMac(secret_, "server", transcript_);
  if (!mac.isOk()) return {"", false, mac.status()};
  std::string reply = encodeFrame(HandshakeType::kChallenge, challenge + std::string(view(mac.value())));
  if (hello->is_keyed != !secret_.isNone()) {
    return failed("secret_missing",
                  std::string(hello->is_keyed ? "this process" : "the caller") +
                      " has no job secret, the other end has one; " + kSecretHint,
                  std::move(reply));
  }
  peer_ = hello->identity;
  wanted_rank_ = hello->wanted_rank;
  awaited_ = HandshakeType::kProof;
  return {std::move(reply), false, Status::ok()};
}

HandshakeStep ServerHandshake::onProof(const std::string& body) {
  const Result<Mac> expected = labelledMac(secret_, "client", transcript_);
  if (!expected.isOk()) return {"", false, expected.status()};
  if (!equalInConstantTime(view(expected.value()), body)) {
    return failed("secret_mismatch", std::string("the caller does not have the job secret; ") + kSecretHint);
  }
  const Judgement judgement = judge(mine_, peer_, wanted_rank_, left_behind_);
  const std::string tail = verdictTail(judgement.code, judgement.text);
  const Result<Mac> mac = labelledMac(secret_, "verdict", transcript_, tail);
  if (!mac.isOk()) return {"", false, mac.status()};
  std::string reply = encodeFrame(HandshakeType::kVerdict, tail + std::string(view(mac.value())));
  if (judgement.code != VerdictCode::kAccepted) {
    return failed(statusCode(judgement.code), describe(peer_) + " was refused: " + judgement.text, std::move(reply));
  }
  return {std::move(reply), true, Status::ok()};
}

}  // namespace jhetcc::net
