// SPDX-License-Identifier: Apache-2.0
#include "fuzz/fuzz.h"

#include <sys/socket.h>

#include <cstdlib>
#include <optional>

#include "control/store_protocol.h"
#include "control/store_table.h"
#include "net/framing.h"
#include "net/handshake.h"
#include "net/tls.h"
#include "transport/tcp/tcp.h"

namespace jhetcc::fuzz {
namespace {

constexpr const char* kSecretText = "a secret for tests only";
enum Reader : uint8_t { kServer, kServerKeyed, kClient, kTlsServer, kTlsClient, kStore, kMessages, kTcp, kReaders };

template <typename T>
T must(Result<T> result) {
  if (!result.isOk()) std::abort();
  return std::move(result).value();
}

net::Secret keyed() {
  static const net::Secret secret = must(net::Secret::create(kSecretText));
  return secret;
}

const net::Tls& tls() {
  static const std::shared_ptr<const net::Tls> made = must(net::Tls::create(keyed(), "job"));
  return *made;
}

net::Identity identity(int32_t rank) { return {"job", net::Role::kData, rank, 7, 0, 0}; }
net::Nonce nonce() { return {1, 2, 3}; }

/// Two ends of a stream; what the stranger says is there already, and it has left.
struct Heard {
  explicit Heard(std::string_view bytes) {
    int fds[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) != 0) std::abort();
    ours = Fd(fds[0]);
    theirs = Fd(fds[1]);
    (void)!::send(theirs.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    ::shutdown(theirs.get(), SHUT_WR);
  }
  Fd ours, theirs;
};

/// Frames are cut as the acceptor and the caller cut them: never more than wanted, no byte behind the frame.
template <typename Handshake>
void handshake(Handshake handshake, std::string_view rest) {
  std::string received;
  for (int frames = 0; frames < 8;) {
    const Result<size_t> wanted = net::bytesWanted(received);
    if (!wanted.isOk()) return;
    if (wanted.value() > net::kHandshakeHeaderBytes + net::kHandshakeBodyMax) std::abort();
    if (wanted.value() > rest.size()) return;
    if (wanted.value() > 0) {
      received.append(rest.substr(0, wanted.value()));
      rest.remove_prefix(wanted.value());
      continue;
    }
    const net::HandshakeStep step = handshake.onFrame(net::decodeFrame(received));
    (void)net::describe(handshake.peer());
    if (!step.status.isOk() && step.is_finished) std::abort();
    if (step.is_finished || !step.status.isOk()) return;
    received.clear();
    ++frames;
  }
}

void tlsSession(std::string_view bytes, net::Tls::Side side) {
  const Heard heard(bytes);
  const auto session = must(tls().open(heard.ours.get(), side));
  for (int steps = 0; steps < 100; ++steps) {
    const Result<net::TlsSession::Need> need = session->handshake();
    if (!need.isOk()) return;
    if (need.value() == net::TlsSession::Need::kNothing) std::abort();  // without the key
  }
}

void store(std::string_view bytes) {
  control::StoreTable table({16, 4096});
  net::MessageReader reader(control::kStoreRequestMax);
  const Heard heard(bytes);
  (void)reader.readSome(heard.ours.get(), "fuzz");
  for (uint64_t caller = 1;;) {
    const Result<std::optional<std::string>> message = reader.next();
    if (!message.isOk() || !message.value()) return;
    const std::optional<control::StoreRequest> request = control::decodeRequest(*message.value());
    if (!request) return;
    std::vector<control::StoreWaiter> woken;
    std::string woken_value;
    const auto outcome = table.handle(caller, *request, &woken, &woken_value);
    if (outcome) (void)control::encodeReply(request->id, *outcome);
    if (request->id % 8 == 7) table.forgetCaller(caller++);
  }
}

void messages(std::string_view bytes) {
  const Heard heard(bytes);
  const SystemClock clock;
  const net::Deadline deadline = net::Deadline::after(clock, 1000 * kNsPerMs);
  while (net::receiveMessage(heard.ours.get(), 4096, deadline, "fuzz").isOk()) {
  }
}

struct NoSink final : transport::EventSink {
  void onFrame(const transport::FrameHeader& header, const void* payload) override {
    uint8_t sum = 0;  // every byte that is said to be there is
    const bool is_offer = header.type == transport::FrameType::kOffer;
    for (uint64_t i = 0; !is_offer && i < header.length; ++i) sum ^= static_cast<const uint8_t*>(payload)[i];
    volatile uint8_t sink = sum;
    (void)sink;
  }
  void onFetched(uint64_t, Status) override {}
  void onReleased(uint64_t) override {}
};

void tcp(std::string_view bytes) {
  Heard heard(bytes);
  auto endpoint = must(transport::tcp::create(std::move(heard.ours), {}, "fuzz"));
  std::vector<uint8_t> destination(5000), source(30'000);
  transport::FrameHeader offer;
  offer.type = transport::FrameType::kOffer;
  offer.cookie = 1;
  offer.length = destination.size();
  (void)endpoint->fetch(offer, destination.data(), 1);
  offer.address = reinterpret_cast<uint64_t>(source.data());
  offer.length = source.size();
  (void)endpoint->send(offer, nullptr);
  NoSink sink;
  for (int polls = 0; polls < 200; ++polls) {
    if (!endpoint->poll(sink).isOk() || endpoint->waitDescriptor() < 0) return;
    if (polls == 5) endpoint->revoke(1);
    if (polls == 7) endpoint->cancel(1);
    (void)endpoint->prepareSleep(true);
  }
}

}  // namespace

void readHostile(const uint8_t* data, size_t size) {
  if (size == 0) return;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (static_cast<Reader>(data[0] % kReaders)) {
    case kServer:
      return handshake(net::ServerHandshake(net::Secret::none(), identity(0), nonce()), rest);
    case kServerKeyed:
      return handshake(net::ServerHandshake(keyed(), identity(0), nonce()), rest);
    case kClient:
      return handshake(net::ClientHandshake(net::Secret::none(), identity(1), 0, nonce()), rest);
    case kTlsServer:
      return tlsSession(rest, net::Tls::Side::kServer);
    case kTlsClient:
      return tlsSession(rest, net::Tls::Side::kClient);
    case kStore:
      return store(rest);
    case kMessages:
      return messages(rest);
    default:
      return tcp(rest);
  }
}

namespace {

std::string input(Reader reader, const std::string& bytes) { return std::string(1, static_cast<char>(reader)) + bytes; }

void addHandshake(std::vector<std::string>* inputs) {
  for (const bool is_keyed : {false, true}) {
    const net::Secret secret = is_keyed ? keyed() : net::Secret::none();
    net::ClientHandshake client(secret, identity(1), 0, nonce());
    net::ServerHandshake server(secret, identity(0), nonce());
    const std::string challenge = server.onFrame(net::decodeFrame(client.hello())).reply;
    const std::string proof = client.onFrame(net::decodeFrame(challenge)).reply;
    const std::string verdict = server.onFrame(net::decodeFrame(proof)).reply;
    inputs->push_back(input(is_keyed ? kServerKeyed : kServer, client.hello() + proof));
    if (!is_keyed) inputs->push_back(input(kClient, challenge + verdict));
  }
}

void addTls(std::vector<std::string>* inputs) {
  int fds[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) != 0) std::abort();
  const Fd a(fds[0]), b(fds[1]);
  const auto caller = must(tls().open(a.get(), net::Tls::Side::kClient));
  const auto server = must(tls().open(b.get(), net::Tls::Side::kServer));
  char bytes[4096];
  (void)caller->handshake();
  ssize_t got = ::recv(b.get(), bytes, sizeof(bytes), MSG_PEEK);
  if (got <= 0) std::abort();
  inputs->push_back(input(kTlsServer, std::string(bytes, static_cast<size_t>(got))));
  (void)server->handshake();
  got = ::recv(a.get(), bytes, sizeof(bytes), MSG_PEEK);
  if (got <= 0) std::abort();
  inputs->push_back(input(kTlsClient, std::string(bytes, static_cast<size_t>(got))));
}

struct Said {
  uint8_t type;
  uint64_t address, length, cookie;
  bool has_bytes;
};
constexpr uint64_t kFirstPush = uint64_t{1} << 63 | 1;
constexpr Said kFrames[] = {{1, 0, 5, 0, true},
                            {2, 0, 900, 3, false},
                            {3, 0, 0, 0, true},
                            {5, 0, 12, 0, true},
                            {0x82, 4, 0, 1, false},
                            {0x83, 0, 7, 1, true},
                            {0x86, kFirstPush, 7, 3, false},
                            {0x83, 0, 7, kFirstPush, true},
                            {0x85, 0, 0, kFirstPush, false},
                            {0x87, 0, 0, kFirstPush, false},
                            {0x84, 0, 0, 1, false},
                            {4, 0, 0, 0, true}};

/// Frames as they follow each other, one more in each input.
void addFrames(std::vector<std::string>* inputs) {
  std::string bytes;
  for (const Said& said : kFrames) {
    transport::FrameHeader header;
    header.type = transport::FrameType{said.type};
    header.address = said.address;
    header.length = said.length;
    header.cookie = said.cookie;
    bytes.append(reinterpret_cast<const char*>(&header), sizeof header);
    if (said.has_bytes) bytes.append(said.length, 'p');
    inputs->push_back(input(kTcp, bytes));
  }
}

}  // namespace

std::vector<std::string> honestInputs() {
  std::vector<std::string> inputs;
  addHandshake(&inputs);
  addTls(&inputs);
  std::string requests;
  for (uint8_t op = 1; op <= static_cast<uint8_t>(control::StoreOp::kWill); ++op) {
    requests += net::framed(control::encodeRequest({op, static_cast<control::StoreOp>(op), 3, "key", "value"}));
  }
  inputs.push_back(input(kStore, requests));
  inputs.push_back(input(kMessages, net::framed("one") + net::framed("") + net::framed(std::string(300, 'x'))));
  addFrames(&inputs);
  return inputs;
}

}  // namespace jhetcc::fuzz
