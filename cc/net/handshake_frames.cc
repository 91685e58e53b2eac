// SPDX-License-Identifier: Apache-2.0
#include "net/handshake_frames.h"

#include <cstring>

#include "base/bytes.h"
#include "net/handshake.h"
#include "net/tls.h"

namespace jhetcc::net {
namespace {

constexpr uint32_t kMagic = 0x314e484a;  // "JHN1"

void writeIdentity(ByteWriter& writer, const Identity& identity) {
  writer.u8(static_cast<uint8_t>(identity.role));
  writer.i32(identity.rank);
  writer.u64(identity.incarnation);
  writer.u32(identity.epoch);
  writer.u16(identity.path);
  writer.u16(identity.caller_slot);
  writer.u16(identity.called_slot);
  writer.u32(identity.generation);
  writer.u8(static_cast<uint8_t>(identity.job.size()));
  writer.raw(identity.job);
}

bool readIdentity(ByteReader& reader, Identity* identity) {
  const uint8_t role = reader.u8();
  identity->role = static_cast<Role>(role);
  identity->rank = reader.i32();
  identity->incarnation = reader.u64();
  identity->epoch = reader.u32();
  identity->path = reader.u16();
  identity->caller_slot = reader.u16();
  identity->called_slot = reader.u16();
  identity->generation = reader.u32();
  const size_t job_size = reader.u8();
  identity->job = std::string(reader.raw(job_size));
  if (role > 1 || job_size == 0 || job_size > kJobBytesMax) return false;
  for (char c : identity->job) {
    if (c < 0x20 || c > 0x7e) return false;  // it is printed in errors
  }
  return reader.ok();
}

template <size_t N>
void readArray(ByteReader& reader, std::array<uint8_t, N>* array) {
  const std::string_view bytes = reader.raw(N);
  if (bytes.size() == N) std::memcpy(array->data(), bytes.data(), N);
}

}  // namespace

std::string encodeFrame(HandshakeType type, const std::string& body) {
  ByteWriter writer;
  writer.u32(kMagic);
  writer.u8(static_cast<uint8_t>(type));
  writer.u8(0);
  writer.u16(static_cast<uint16_t>(body.size()));
  writer.raw(body);
  return writer.take();
}

Result<size_t> bytesWanted(const std::string& received) {
  static const char kMagicBytes[] = {'J', 'H', 'N', '1'};
  const Status not_ours(Kind::kBadArgument, Scope::kEndpoint, "not_jhetcc",
                        "the other end does not speak this protocol");
  const auto first = static_cast<uint8_t>(received.empty() ? 0 : received[0]);
  if (first >= kTlsFirstByteMin && first <= kTlsFirstByteMax) {
    return Status(Kind::kBadArgument, Scope::kEndpoint, "tls_mismatch", "the other end speaks TLS");
  }
  if (std::memcmp(received.data(), kMagicBytes, std::min<size_t>(received.size(), 4)) != 0) return not_ours;
  if (received.size() < kHandshakeHeaderBytes) return kHandshakeHeaderBytes - received.size();
  ByteReader reader(std::string_view(received).substr(4));
  const uint8_t type = reader.u8();
  const uint8_t zero = reader.u8();
  const size_t length = reader.u16();
  if (type < 1 || type > 4 || zero != 0 || length > kHandshakeBodyMax) return not_ours;
  return kHandshakeHeaderBytes + length - received.size();
}

HandshakeFrame decodeFrame(const std::string& received) {
  return {static_cast<HandshakeType>(received[4]), received.substr(kHandshakeHeaderBytes)};
}

std::string encodeHello(const Hello& hello) {
  ByteWriter writer;
  writer.u16(hello.version);
  writer.u8(hello.is_keyed ? kFlagKeyed : 0);
  writer.raw(hello.nonce.data(), hello.nonce.size());
  writeIdentity(writer, hello.identity);
  writer.i32(hello.wanted_rank);
  return writer.take();
}

std::optional<Hello> decodeHello(std::string_view body) {
  ByteReader reader(body);
  Hello hello;
  hello.version = reader.u16();
  if (reader.ok() && hello.version != kHandshakeVersion) return hello;
  hello.is_keyed = reader.u8() == kFlagKeyed;
  readArray(reader, &hello.nonce);
  if (!readIdentity(reader, &hello.identity)) return std::nullopt;
  hello.wanted_rank = reader.i32();
  if (!reader.atEnd()) return std::nullopt;
  return hello;
}

std::string encodeChallenge(const Challenge& challenge) {
  ByteWriter writer;
  writer.u16(challenge.version);
  writer.u8(challenge.is_keyed ? kFlagKeyed : 0);
  writer.raw(challenge.nonce.data(), challenge.nonce.size());
  writeIdentity(writer, challenge.identity);
  return writer.take();
}

std::optional<Challenge> decodeChallenge(std::string_view body) {
  ByteReader reader(body);
  Challenge challenge;
  challenge.version = reader.u16();
  if (reader.ok() && challenge.version != kHandshakeVersion) return challenge;
  challenge.is_keyed = reader.u8() == kFlagKeyed;
  readArray(reader, &challenge.nonce);
  if (!readIdentity(reader, &challenge.identity)) return std::nullopt;
  readArray(reader, &challenge.mac);
  if (!reader.atEnd()) return std::nullopt;
  return challenge;
}

std::optional<VerdictText> decodeVerdict(std::string_view body) {
  ByteReader reader(body);
  VerdictText verdict;
  const uint8_t code = reader.u8();
  verdict.code = static_cast<VerdictCode>(code);
  verdict.text = std::string(reader.text(kVerdictTextMax));
  readArray(reader, &verdict.mac);
  if (!reader.atEnd() || code > static_cast<uint8_t>(VerdictCode::kStaleEpoch)) return std::nullopt;
  return verdict;
}

std::string transcriptOf(std::string_view hello, std::string_view challenge_without_mac, std::string_view binding) {
  ByteWriter writer;
  writer.text(hello);
  writer.text(challenge_without_mac);
  if (!binding.empty()) writer.text(binding);
  return writer.take();
}

Result<Mac> labelledMac(const Secret& secret, std::string_view label, std::string_view transcript,
                        std::string_view more) {
  ByteWriter writer;
  writer.text("jhetcc handshake");
  writer.text(label);
  writer.text(transcript);
  writer.text(more);
  return secret.mac(writer.bytes());
}

}  // namespace jhetcc::net
