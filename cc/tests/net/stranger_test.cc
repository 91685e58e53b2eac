// SPDX-License-Identifier: Apache-2.0
// Callers that lie, stammer or stay silent, against a real acceptor.
#include <doctest/doctest.h>

#include <vector>

#include "net/crypto.h"
#include "net/handshake_frames.h"
#include "net/net_fixtures.h"

namespace jhetcc::net {
namespace {

Status refusal(const Acceptor& server, const Secret& secret, const Identity& mine, int32_t wanted_rank) {
  return connect(server.address(), secret, mine, wanted_rank, inSeconds(10)).status();
}

void checkStillServes(Acceptor& server) {
  Identity good = identity(42);
  good.epoch = 9;
  CHECK(connect(server.address(), testSecret(), good, 0, inSeconds(10)).isOk());
  CHECK(server.take({Role::kData, 42, 0, 9}, inSeconds(10)).isOk());
}

std::string helloBytes(const Secret& secret, int32_t rank = 1) {
  return ClientHandshake(secret, identity(rank), 0, must(randomNonce())).hello();
}

TEST_CASE("a client with another secret, job, role, rank or epoch learns why, and the server notes it") {
  auto server = acceptor(testSecret(), identity(0));
  server->leaveBehind(3, {7, 8});
  Identity current = identity(1);
  current.epoch = 3;

  Status why = refusal(*server, testSecret("quite another secret"), current, 0);
  CHECK(why.code() == "secret_mismatch");
  for (const char* way : {"JHETCC_SECRET_FILE", "JHETCC_SECRET_FD", "JHETCC_SECRET;"})
    CHECK(contains(why.message(), way));
  why = refusal(*server, Secret::none(), current, 0);
  CHECK(why.code() == "secret_missing");

  Identity other = current;
  other.job = "other";
  CHECK(refusal(*server, testSecret(), other, 0).code() == "job_mismatch");
  other = current;
  other.role = Role::kControl;
  CHECK(refusal(*server, testSecret(), other, 0).code() == "role_mismatch");
  why = refusal(*server, testSecret(), current, 5);
  CHECK(why.code() == "wrong_rank");
  CHECK_MESSAGE(contains(why.message(), "this is rank 0, the caller wants rank 5"), why.message());
  for (const uint32_t epoch : {0u, 3u}) {  // also of another half of the job, that shrank apart
    other = identity(8);
    other.epoch = epoch;
    why = refusal(*server, testSecret(), other, 0);
    CHECK(why.code() == "stale_epoch");
    CHECK(why.kind() == Kind::kBadArgument);
    const std::string epochs = "in epoch 3, the caller in epoch " + std::to_string(epoch);
    CHECK_MESSAGE(contains(why.message(), epochs), why.message());
  }

  CHECK(waitForDrops(*server, 7));
  const Status waited = server->take({Role::kData, 1, 0, 3}, Deadline::after(kClock, 0)).status();
  CHECK_MESSAGE(contains(waited.message(), "wants rank 5"), waited.message());
  checkStillServes(*server);
}

TEST_CASE("a keyed client does not trust a server without a secret") {
  auto server = acceptor(Secret::none(), identity(0));
  CHECK(refusal(*server, testSecret(), identity(1), 0).code() == "secret_missing");
}

TEST_CASE("garbage, other protocols and oversized frames are dropped at once") {
  auto server = acceptor(testSecret(), identity(0));
  uint64_t drops = 0;
  for (const std::string& bytes :
       {std::string("GET / HTTP/1.1\r\n\r\n"), std::string(64, '\0'), std::string("JHN1\x01\x00\xff\xff", 8),
        std::string("JHN1\x09\x00\x00\x00", 8),
        encodeFrame(HandshakeType::kHello, std::string{static_cast<char>(kHandshakeVersion), 0} + "short"),
        encodeFrame(HandshakeType::kProof, std::string(32, 'x')), encodeFrame(HandshakeType::kHello, ""),
        encodeFrame(HandshakeType::kHello, std::string(kHandshakeBodyMax, '\1'))}) {
    Stranger stranger(server->address());
    CHECK(stranger.say(bytes).isOk());
    if (bytes.size() == kHandshakeHeaderBytes + kHandshakeBodyMax) stranger.hear();  // another version: ours is told
    CHECK(stranger.isDropped());
    CHECK(waitForDrops(*server, ++drops));
  }
  checkStillServes(*server);
}

TEST_CASE("random and damaged hellos never get in and never do harm") {
  auto server = acceptor(testSecret(), identity(0));
  SeededRandom random(7);
  const std::string good = helloBytes(testSecret());
  constexpr int kTries = 200;
  for (int i = 0; i < kTries; ++i) {
    std::string bytes = good;
    for (uint64_t k = 0; k <= random.below(3); ++k)
      bytes[random.below(bytes.size())] ^= static_cast<char>(1 + random.below(255));
    bytes.resize(random.below(bytes.size() + 1));
    Stranger stranger(server->address());
    (void)stranger.say(bytes);  // it may be dropped before the last byte
    ::shutdown(stranger.fd(), SHUT_WR);
  }
  CHECK(waitForDrops(*server, kTries));
  CHECK(server->counts().accepted == 0);
  checkStillServes(*server);
}

TEST_CASE("a hello without proof, and a proof that is wrong, replayed or reflected, are refused") {
  auto server = acceptor(testSecret(), identity(0));
  const Secret secret = testSecret();
  const std::string hello = helloBytes(secret);
  {
    Stranger thief(server->address());
    CHECK(thief.say(hello).isOk());
    const HandshakeFrame challenge = thief.hear();
    // Reflection: the server's own MAC sent back as the proof.
    CHECK(thief.say(encodeFrame(HandshakeType::kProof, challenge.body.substr(challenge.body.size() - 32))).isOk());
    CHECK(thief.isDropped());
  }
  ClientHandshake honest(secret, identity(1), 0, must(randomNonce()));
  std::string proof;
  {
    Stranger client(server->address());
    CHECK(client.say(honest.hello()).isOk());
    HandshakeStep step = honest.onFrame(client.hear());
    REQUIRE(step.status.isOk());
    proof = step.reply;
    CHECK(client.say(proof).isOk());
    CHECK(honest.onFrame(client.hear()).is_finished);
  }
  CHECK(server->take({Role::kData, 1, 0, 0}, inSeconds(5)).isOk());
  {
    // Replay: the same hello and proof again meet another nonce.
    Stranger thief(server->address());
    CHECK(thief.say(honest.hello()).isOk());
    thief.hear();
    CHECK(thief.say(proof).isOk());
    CHECK(thief.isDropped());
  }
  {
    Stranger leaver(server->address());
    CHECK(leaver.say(hello).isOk());
    leaver.hear();
  }
  CHECK(waitForDrops(*server, 3));
  CHECK(server->counts().accepted == 1);
  const std::vector<std::string> drops = server->recentDrops();
  CHECK(contains(drops[0], "does not have the job secret"));
  CHECK(contains(drops[1], "does not have the job secret"));
  CHECK(contains(drops[2], "it left after our challenge"));
  checkStillServes(*server);
}

TEST_CASE("a man in the middle that swaps identities or verdicts is noticed") {
  const Secret secret = testSecret();
  ClientHandshake client(secret, identity(1), 0, must(randomNonce()));
  ServerHandshake server(secret, identity(0), must(randomNonce()));
  HandshakeStep challenge = server.onFrame(decodeFrame(client.hello()));
  REQUIRE(challenge.status.isOk());
  SUBCASE("identity of the server") {
    challenge.reply[kHandshakeHeaderBytes + 2 + 1 + 32 + 1] ^= 1;  // its rank
    CHECK(client.onFrame(decodeFrame(challenge.reply)).status.code() == "secret_mismatch");
  }
  SUBCASE("verdict") {
    HandshakeStep proof = client.onFrame(decodeFrame(challenge.reply));
    HandshakeStep verdict = server.onFrame(decodeFrame(proof.reply));
    REQUIRE(verdict.is_finished);
    verdict.reply[kHandshakeHeaderBytes] ^= 1;
    CHECK(client.onFrame(decodeFrame(verdict.reply)).status.code() == "not_jhetcc");
  }
  SUBCASE("hello: another identity with the honest proof") {
    std::string hello = client.hello();
    hello[kHandshakeHeaderBytes + 2 + 1 + 32 + 1] ^= 2;
    ServerHandshake fooled(secret, identity(0), must(randomNonce()));
    HandshakeStep answer = fooled.onFrame(decodeFrame(hello));
    CHECK(client.onFrame(decodeFrame(answer.reply)).status.code() == "secret_mismatch");
  }
}

TEST_CASE("another protocol version is named on both sides") {
  std::string hello = helloBytes(testSecret());
  hello[kHandshakeHeaderBytes] = 9;
  ServerHandshake server(testSecret(), identity(0), must(randomNonce()));
  const HandshakeStep step = server.onFrame(decodeFrame(hello));
  CHECK(step.status.code() == "version_mismatch");
  CHECK(contains(step.status.message(), "version 9"));
  ClientHandshake client(testSecret(), identity(1), 0, must(randomNonce()));
  std::string answer = step.reply;
  answer[kHandshakeHeaderBytes] = 9;
  CHECK(client.onFrame(decodeFrame(answer)).status.code() == "version_mismatch");
}

TEST_CASE("silent strangers are ended by their deadline and cannot lock others out") {
  AcceptorConfig config;
  config.address = loopback();
  config.secret = testSecret();
  config.mine = identity(0);
  config.pending_max = 8;
  SUBCASE("each ends in time") {
    config.handshake_ns = 100 * kNsPerMs;
    auto server = must(Acceptor::create(std::move(config)));
    Stranger silent(server->address()), slow(server->address()), half(server->address());
    CHECK(slow.say("JHN").isOk());
    CHECK(half.say(helloBytes(testSecret())).isOk());
    half.hear();
    CHECK(silent.isDropped());
    CHECK(slow.isDropped());
    CHECK(half.isDropped());
    CHECK(waitForDrops(*server, 3));
    for (const std::string& line : server->recentDrops()) CHECK_MESSAGE(contains(line, "in time"), line);
  }
  SUBCASE("a crowd of them makes room") {
    auto server = must(Acceptor::create(std::move(config)));
    std::vector<std::unique_ptr<Stranger>> crowd;
    for (int i = 0; i < 40; ++i) crowd.push_back(std::make_unique<Stranger>(server->address()));
    checkStillServes(*server);
    CHECK(server->counts().dropped >= 32);
  }
  SUBCASE("the acceptor ends while they wait") {
    auto server = must(Acceptor::create(std::move(config)));
    Stranger silent(server->address());
    server.reset();
    CHECK(silent.isDropped());
  }
}

TEST_CASE("without a secret only this machine is served, unless it is asked for") {
  const Address outside = must(Address::fromHost("192.0.2.1", 0));
  const Status refused = checkInsecure(Secret::none(), outside, loopback());
  CHECK(refused.code() == "secret_missing");
  CHECK(contains(refused.message(), "JHETCC_SECRET_FILE"));
  CHECK(!checkInsecure(Secret::none(), loopback(), outside).isOk());
  CHECK(checkInsecure(Secret::none(), loopback(), loopback("127.0.0.2")).isOk());
  CHECK(checkInsecure(Secret::none(), freshUnixName(), freshUnixName()).isOk());
  CHECK(checkInsecure(Secret::none(true), outside, outside).isOk());
  CHECK(checkInsecure(testSecret(), outside, outside).isOk());
  AcceptorConfig config;
  config.address = outside;
  config.mine = identity(0);
  CHECK(Acceptor::create(std::move(config)).status().code() == "secret_missing");
}

TEST_CASE("an epoch that moves on closes what came before it of ranks that are left behind, and of nobody else") {
  auto server = acceptor(testSecret(), identity(0));
  Connection left = must(connect(server->address(), testSecret(), identity(1), 0, inSeconds(10)));
  Connection stays = must(connect(server->address(), testSecret(), identity(2), 0, inSeconds(10)));
  const Deadline deadline = inSeconds(10);
  while (server->counts().accepted < 2 && deadline.remainingNs() > 0) std::this_thread::yield();
  server->leaveBehind(1, {1});
  char byte;
  CHECK(receiveAll(left.fd.get(), &byte, 1, inSeconds(5), "test").kind() == Kind::kDisconnected);
  CHECK(server->take({Role::kData, 1, 0, 0}, Deadline::after(kClock, 0)).status().kind() == Kind::kTimeout);
  CHECK(server->take({Role::kData, 2, 0, 0}, inSeconds(10)).isOk());
  CHECK(connect(server->address(), testSecret(), identity(2), 0, inSeconds(10)).isOk());  // it moves on later
}

}  // namespace
}  // namespace jhetcc::net
