// SPDX-License-Identifier: Apache-2.0
// What a bundle costs: one path of it over tcp against that endpoint bare, and the processor time of a stripe where
// bytes move by themselves. Prints JSON lines; `bench/rails.py --parts bare` runs it. One thread plays both sides.
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "base/status.h"
#include "rail/bundle.h"
#include "transport/tcp/tcp.h"

using namespace jhetcc;
using transport::Endpoint;
using transport::FrameHeader;
using transport::FrameType;

namespace {

using Pair = std::pair<std::unique_ptr<Endpoint>, std::unique_ptr<Endpoint>>;
constexpr uint64_t kMiB = 1 << 20;
const SystemClock kClock;

void need(bool holds) { JHETCC_CHECK(holds, "the bench's own expectation"); }

double seconds(clockid_t which) {
  timespec now{};
  ::clock_gettime(which, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// Moves nothing: a fetch is done at once, and its offer released at the other side's next poll.
class Null final : public Endpoint {
 public:
  void join(Null& other) { other_ = &other; }
  Result<bool> send(const FrameHeader& header, const void* payload) override {
    Frame frame{header, {}};
    if (header.type != FrameType::kOffer && header.length > 0) {
      const auto* bytes = static_cast<const uint8_t*>(payload);
      frame.payload.assign(bytes, bytes + header.length);
    }
    other_->frames_.push_back(std::move(frame));
    return true;
  }
  Result<bool> fetch(const FrameHeader& offer, void*, uint64_t) override {
    other_->released_.push_back(offer.cookie);
    return true;
  }
  void cancel(uint64_t) override {}
  void revoke(uint64_t) override {}
  Status poll(transport::EventSink& sink) override {
    std::deque<Frame> frames;
    std::deque<uint64_t> released;
    frames.swap(frames_);
    released.swap(released_);
    for (const Frame& frame : frames) sink.onFrame(frame.header, frame.payload.data());
    for (uint64_t cookie : released) sink.onReleased(cookie);
    return Status::ok();
  }
  int waitDescriptor() const override { return -1; }
  bool prepareSleep(bool) override { return false; }
  bool wantsWrite() const override { return false; }
  const char* transportName() const override { return "null"; }
  const std::string& description() const override { return description_; }

 private:
  struct Frame {
    FrameHeader header;
    std::vector<uint8_t> payload;
  };
  Null* other_ = nullptr;
  std::deque<Frame> frames_;
  std::deque<uint64_t> released_;
  std::string description_ = "null";
};

Pair nulls() {
  auto a = std::make_unique<Null>(), b = std::make_unique<Null>();
  a->join(*b);
  b->join(*a);
  return {std::move(a), std::move(b)};
}

Pair tcps() {
  Fd listener(::socket(AF_INET, SOCK_STREAM, 0)), calling(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
  sockaddr_in where{};
  where.sin_family = AF_INET;
  where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* address = reinterpret_cast<sockaddr*>(&where);
  socklen_t length = sizeof where;
  need(::bind(listener.get(), address, length) == 0 && ::listen(listener.get(), 1) == 0);
  need(::getsockname(listener.get(), address, &length) == 0);
  (void)::connect(calling.get(), address, length);
  Fd called(::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK));
  const int on = 1;
  for (int one : {calling.get(), called.get()}) {
    need(::setsockopt(one, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0);
  }
  auto a = transport::tcp::create(std::move(calling), {}, "a -> b"),
       b = transport::tcp::create(std::move(called), {}, "b -> a");
  need(a.isOk() && b.isOk());
  return {std::move(a.value()), std::move(b.value())};
}

Pair bundled(Pair (*make)(), uint16_t paths) {
  auto a = std::make_unique<rail::Bundle>("a", kClock, rail::BundleOptions{});
  auto b = std::make_unique<rail::Bundle>("b", kClock, rail::BundleOptions{});
  for (uint16_t path = 0; path < paths; ++path) {
    Pair ends = make();
    a->addPath({path, 0, "a", "b"}, std::move(ends.first));
    b->addPath({path, 0, "b", "a"}, std::move(ends.second));
  }
  return {std::move(a), std::move(b)};
}

class Side final : public transport::EventSink {
 public:
  Side(Endpoint& endpoint, std::vector<uint8_t>& memory) : endpoint_(endpoint), memory_(memory) {}
  void onFrame(const FrameHeader& header, const void*) override {
    if (header.type != FrameType::kOffer) {
      ++messages;
      return;
    }
    const Result<bool> done = endpoint_.fetch(header, memory_.data(), header.cookie);
    need(done.isOk());
    fetched += done.value();
  }
  void onFetched(uint64_t, Status status) override {
    need(status.isOk());
    ++fetched;
  }
  void onReleased(uint64_t) override { ++released; }
  void poll() { need(endpoint_.poll(*this).isOk()); }

  uint64_t fetched = 0, released = 0, messages = 0;

 private:
  Endpoint& endpoint_;
  std::vector<uint8_t>& memory_;
};

struct Cost {
  double wall = 0, processor = 0;
};

/// Offers of so many bytes, a few at a time.
Cost offers(const Pair& ends, uint64_t count, uint64_t bytes) {
  static std::vector<uint8_t> source(4 * kMiB, 1), place(4 * kMiB);
  constexpr uint64_t kAtOnce = 4;
  Side a(*ends.first, source), b(*ends.second, place);
  static uint64_t cookie = 0;
  const double wall = seconds(CLOCK_MONOTONIC), processor = seconds(CLOCK_THREAD_CPUTIME_ID);
  uint64_t sent = 0;
  while (b.fetched < count || a.released < count) {
    while (sent < count && sent < a.released + kAtOnce) {
      FrameHeader header;
      header.type = FrameType::kOffer;
      header.address = reinterpret_cast<uint64_t>(source.data());
      header.length = bytes;
      header.cookie = ++cookie;
      const Result<bool> taken = ends.first->send(header, nullptr);
      need(taken.isOk());
      if (!taken.value()) break;
      ++sent;
    }
    a.poll();
    b.poll();
  }
  return {seconds(CLOCK_MONOTONIC) - wall, seconds(CLOCK_THREAD_CPUTIME_ID) - processor};
}

/// A message there and one back, so many times.
Cost messages(const Pair& ends, uint64_t count, uint64_t bytes) {
  static std::vector<uint8_t> memory(transport::kInlineBytesMax);
  Side a(*ends.first, memory), b(*ends.second, memory);
  FrameHeader header;
  header.type = FrameType::kData;
  header.length = bytes;
  const double wall = seconds(CLOCK_MONOTONIC), processor = seconds(CLOCK_THREAD_CPUTIME_ID);
  const auto send = [&](Endpoint& endpoint) {
    const Result<bool> taken = endpoint.send(header, memory.data());
    need(taken.isOk() && taken.value());
  };
  for (uint64_t turn = 1; turn <= count; ++turn) {
    for (send(*ends.first); b.messages < turn; b.poll()) a.poll();
    for (send(*ends.second); a.messages < turn; a.poll()) b.poll();
  }
  return {seconds(CLOCK_MONOTONIC) - wall, seconds(CLOCK_THREAD_CPUTIME_ID) - processor};
}

Cost median(std::vector<Cost> all) {
  const auto by = [&all](double Cost::* which) {
    std::nth_element(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2), all.end(),
                     [which](const Cost& x, const Cost& y) { return x.*which < y.*which; });
    return all[all.size() / 2].*which;
  };
  return {by(&Cost::wall), by(&Cost::processor)};
}

template <typename Measure>
void compare(const char* name, const Measure& measure) {
  constexpr int kRounds = 15;
  const Pair bare = tcps(), rail = bundled(tcps, 1);
  std::vector<Cost> bares, rails;
  for (int round = 0; round <= kRounds; ++round) {
    const Cost one = measure(bare), other = measure(rail);
    if (round == 0) continue;  // warms up
    bares.push_back(one);
    rails.push_back(other);
  }
  const Cost one = median(bares), other = median(rails);
  std::printf("{\"name\": \"%s, rail of one path / bare, by the clock\", \"value\": %.2f, \"unit\": \"%%\"}\n", name,
              100 * one.wall / other.wall);
  std::printf("{\"name\": \"%s, rail of one path / bare, by processor time\", \"value\": %.2f, \"unit\": \"%%\"}\n",
              name, 100 * one.processor / other.processor);
}

/// A stripe of unmeasured paths is 128 KiB: one offer of 4 MiB is 32.
void perStripe(uint16_t paths) {
  constexpr uint64_t kOffers = 4000, kStripes = kOffers * 32;
  const Pair rail = bundled(nulls, paths);
  std::vector<Cost> all;
  for (int round = 0; round < 7; ++round) all.push_back(offers(rail, kOffers, 4 * kMiB));
  std::printf("{\"name\": \"processor time of a stripe, both sides, %d path%s\", \"value\": %.4f, \"unit\": \"us\"}\n",
              paths, paths > 1 ? "s" : "", 1e6 * median(all).processor / kStripes);
}

}  // namespace

int main() {
  compare("payloads of 1 MiB over tcp", [](const Pair& ends) { return offers(ends, 256, kMiB); });
  compare("messages of 4 KiB over tcp", [](const Pair& ends) { return messages(ends, 3000, 4096); });
  perStripe(1);
  perStripe(4);
  return 0;
}
