// SPDX-License-Identifier: Apache-2.0
// What comes in: completions, frames of the ring, pieces into their place; and the ends: of the queue pair, of the
// peer, of the device. One thread.
#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "net/framing.h"
#include "net/socket.h"
#include "transport/verbs/endpoint.h"

namespace jhetcc::transport::verbs {
namespace {

constexpr uint64_t kFramesPerPoll = 64;
constexpr uint64_t kBytesPerPoll = 1024 * 1024;
constexpr int kCompletions = 32;
constexpr uint32_t kPollsPerLook = 64;  // a look costs a system call
constexpr uint32_t kReceivesAtOnce = 16;
constexpr size_t kMessageMax = 1024;
constexpr uint8_t kLeft = 0x4c;  ///< on the socket, once the ends have met: this end has lost the path

/// Few bytes on a socket that has carried none: they fit.
Status tell(int socket, std::string_view message, const std::string& what) {
  const std::string bytes = net::framed(message.substr(0, kMessageMax));
  const ssize_t sent = ::send(socket, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent == static_cast<ssize_t>(bytes.size())) return Status::ok();
  return Status(Kind::kDisconnected, Scope::kEndpoint, "peer_lost",
                what + ": send: " + (sent < 0 ? strerror(errno) : "no room"));
}

}  // namespace

VerbsEndpoint::VerbsEndpoint(Fd socket, std::unique_ptr<Link> link, const Options& options, std::string description,
                             const Clock& clock)
    : socket_(std::move(socket)),
      link_(std::move(link)),
      options_(options),
      description_(std::move(description)),
      clock_(clock),
      memory_(link_->library(), link_->pd()),
      reader_(kMessageMax) {
  out_.start(link_->out(), link_->ringBytes());
  in_.start(link_->in(), link_->ringBytes());
  internal_.reserve(64);
  requests_.reserve(64);
  released_.reserve(64);
  fetches_.reserve(64);
}

VerbsEndpoint::~VerbsEndpoint() {
  link_->fail();
  link_->destroyQp();  // before registrations end
}

Status VerbsEndpoint::start() {
  epoll_ = Fd(epoll_create1(EPOLL_CLOEXEC));
  bool is_good = epoll_.isOpen();
  for (const int fd : {socket_.get(), link_->channelFd(), link_->asyncFd()}) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = fd;
    is_good = is_good && epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
  }
  if (is_good) return tell(socket_.get(), link_->hello(), description_);
  return Status(Kind::kResource, Scope::kEndpoint, "bad_socket", description_ + ": epoll: " + strerror(errno));
}

Result<std::unique_ptr<Endpoint>> create(Fd socket, const Options& options, const std::string& description,
                                         const Clock& clock) {
  const std::string names = "verbs " + description;
  const uint32_t ring = options.ring_bytes;
  if (ring < kRingBytesMin || ring > kRingBytesMax || (ring & (ring - 1)) != 0 || options.ack_timeout > 31 ||
      options.retries > 6) {
    return Status(
        Kind::kBadArgument, Scope::kCall, "bad_option",
        names + ": the ring is a power of two from 262144 to 2097152 bytes, ack_timeout at most 31, retries 6");
  }
  const Result<net::Address> local = net::localAddress(socket.get());
  const Result<net::Address> remote = net::remoteAddress(socket.get());
  if (!local.isOk()) return local.status().withContext(names);
  if (!remote.isOk()) return remote.status().withContext(names);
  const int flags = fcntl(socket.get(), F_GETFL);
  if (flags < 0 || fcntl(socket.get(), F_SETFL, flags | O_NONBLOCK) != 0) {
    return Status(Kind::kInternal, Scope::kEndpoint, "bad_socket", names + ": fcntl(O_NONBLOCK): " + strerror(errno));
  }
  auto link = Link::open(local.value(), options);
  if (!link.isOk()) {
    (void)tell(socket.get(), link.status().message(), names);  // the error counts, whether it is heard or not
    return link.status().withContext(names);
  }
  const std::string text =
      names + " " + local.value().host() + " -> " + remote.value().host() + " by " + link.value()->here().device;
  auto made = std::make_unique<VerbsEndpoint>(std::move(socket), std::move(link).value(), options, text, clock);
  JHETCC_RETURN_IF_ERROR(made->start());
  return std::unique_ptr<Endpoint>(std::move(made));
}

Result<std::string> deviceOf(const net::Address& local, const Options& options) {
  auto link = Link::open(local, options);
  if (!link.isOk()) return link.status();
  return link.value()->here().device;
}

void VerbsEndpoint::fail(const std::string& what) {
  broken_ = Status(Kind::kInternal, Scope::kEndpoint, "bad_frame",
                   description_ + ": " + what + "; the peer is damaged or runs another version");
  endWith(broken_);
}

Status VerbsEndpoint::lost(const std::string& what) const {
  return Status(Kind::kDisconnected, Scope::kEndpoint, "peer_lost", description_ + ": " + what + port_note_);
}

/// Nothing goes out any more, and the peer hears of it; what has come is still to be reported.
void VerbsEndpoint::endWith(Status why) {
  if (!end_.isOk()) return;
  end_ = std::move(why);
  link_->fail();
  if (phase_ == Phase::kOpen)
    (void)::send(socket_.get(), &kLeft, 1, MSG_DONTWAIT | MSG_NOSIGNAL);  // this process lives
  (void)shutdown(socket_.get(), SHUT_RDWR);
}

/// Hears on the socket what the other end is, then that it is ready to receive.
void VerbsEndpoint::meet() {
  const Status read = reader_.readSome(socket_.get(), description_);
  while (phase_ != Phase::kOpen && end_.isOk()) {
    Result<std::optional<std::string>> next = reader_.next();
    if (!next.isOk()) return endWith(next.status());
    if (!next.value()) break;
    if (phase_ == Phase::kReady) {
      phase_ = Phase::kOpen;
      if (!next.value()->empty()) endWith(lost("the other end cannot: " + *next.value()));
      return;
    }
    Status status = link_->meet(*next.value());
    Status told = tell(socket_.get(), status.isOk() ? "" : status.message(), description_);
    if (!status.isOk()) return endWith(status.withContext(description_));
    if (!told.isOk()) return endWith(told);
    phase_ = Phase::kReady;
  }
  if (!read.isOk()) endWith(read);
}

Result<bool> VerbsEndpoint::fetch(const FrameHeader& offer, void* destination, uint64_t token) {
  if (!broken_.isOk()) return broken_;
  const uint64_t id = next_fetch_++;
  queueInternal(kFetchRequest, offer.cookie, id);
  fetches_.push_back({id, token, static_cast<uint8_t*>(destination), offer.length});
  return false;
}

void VerbsEndpoint::cancel(uint64_t token) {
  std::erase_if(fetches_, [token](const Fetch& one) { return one.token == token; });
}

Status VerbsEndpoint::poll(EventSink& sink) {
  if (!broken_.isOk() || has_ended_) return broken_;
  if (phase_ != Phase::kOpen && end_.isOk()) meet();
  if (++polls_ % kPollsPerLook == 0 || !end_.isOk()) lookAround();
  reap();
  has_news_ = false;
  receive(sink);
  if (end_.isOk() && phase_ == Phase::kOpen) {
    releaseWhole();
    serve();
  }
  report(sink);
  if (!broken_.isOk() || end_.isOk() || !in_.isEmpty()) return broken_;
  if (said_goodbye_) {
    has_ended_ = true;
  } else {
    broken_ = end_;
  }
  return broken_;
}

void VerbsEndpoint::report(EventSink& sink) {
  while (!released_.empty() && broken_.isOk()) {
    const uint64_t cookie = released_.front();
    released_.erase(released_.begin());
    sink.onReleased(cookie);
  }
}

bool VerbsEndpoint::prepareSleep(bool in_operation) {
  if (has_ended_) return true;
  if (!broken_.isOk() || !end_.isOk() || !released_.empty() || !in_.isEmpty() || has_news_) return false;
  if (out_.unposted() > 0 || !internal_.empty()) flush();
  if (in_operation) probeIfSilent();
  // Who wants nothing but news is woken for what the peer marked; who has something to send, for room, too.
  const Status armed = link_->arm(!in_operation && !wantsWrite() && !is_refused_);
  if (!armed.isOk()) endWith(armed);
  reap();
  lookAround();
  return end_.isOk() && !has_news_;
}

/// Takes all completions there are.
void VerbsEndpoint::reap() {
  abi::Wc found[kCompletions];
  int count = 0;
  do {
    count = link_->pollCq(found, kCompletions);
    if (count < 0) return endWith(lost("ibv_poll_cq failed"));
    for (int k = 0; k < count; ++k) onCompletion(found[k]);
    if (count > 0) heard_ns_ = clock_.nowNs();
  } while (count == kCompletions);
  while (!postings_.empty() && postings_.front().wr <= done_wr_) {
    answered_.bytes = postings_.front().bytes;
    answered_ns_ = clock_.nowNs();
    postings_.pop_front();
    if (postings_.empty()) answered_.busy_ns += answered_ns_ - busy_since_ns_;
  }
  if (receives_owed_ >= kReceivesAtOnce && end_.isOk()) {
    const int error = link_->postReceives(receives_owed_);
    receives_owed_ = 0;
    if (error != 0) endWith(lost(std::string("ibv_post_recv: ") + strerror(error)));
  }
}

void VerbsEndpoint::onCompletion(const abi::Wc& wc) {
  has_news_ = true;
  if (wc.id > 0) done_wr_ = std::max(done_wr_, wc.id);
  if (wc.status != abi::kSuccess) {
    if (!end_.isOk()) return;  // told already, or what follows from it
    std::string text = std::string(link_->library().wc_status_str(wc.status)) + " (" + std::to_string(wc.status) +
                       ", vendor's " + std::to_string(wc.vendor_error) + ")";
    if (wc.status == abi::kRetriesExceeded) {
      // What to do comes first: long texts are cut at their end.
      text = "no answer from the other end's adapter after " + std::to_string(options_.retries) +
             " retries (is UDP port 4791 closed? JHETCC_TRANSPORT=tcp goes without): " + text;
    }
    return endWith(lost(text));
  }
  if (wc.id > 0) return;
  ++receives_owed_;
  const Immediate told = Immediate::of(ntohl(wc.immediate));
  if (wc.opcode != abi::kReceivedWithImmediate) return fail("a message that is no write");
  if (!in_.publish(told.published)) return fail("more bytes than the ring has room for");
  if (!out_.credit(told.credit)) fail("more bytes read than were sent");
}

void VerbsEndpoint::receive(EventSink& sink) {
  uint64_t bytes = 0;
  for (uint64_t frames = 0; frames < kFramesPerPoll && bytes < kBytesPerPoll && broken_.isOk(); ++frames) {
    FrameHeader header;
    const uint8_t* payload = nullptr;
    const InRing::Found found = in_.peek(&header, &payload);
    if (found == InRing::Found::kNothing) return;
    if (found == InRing::Found::kDamage) {
      return fail("a frame of type " + std::to_string(static_cast<int>(header.type)) + " and " +
                  std::to_string(header.length) + " bytes that cannot be");
    }
    bytes += frameBytes(bytesBehind(header));
    handle(header, payload, sink);
    in_.advance();
  }
}

void VerbsEndpoint::handle(const FrameHeader& header, const uint8_t* payload, EventSink& sink) {
  if (header.type == kFetchData) return takePiece(header, payload, sink);
  if (header.type == kFetchRefused) return endFetch(header.cookie, sink);
  if (header.type == kTaken) return onTaken(header.cookie);
  if (header.type == kFetchRequest) {
    if (internal_.size() >= 2 * kOfferSlots) return fail("more fetch requests than offers");
    if (offers_.find(header.cookie) < 0) return queueInternal(kFetchRefused, header.address, 0);
    const auto same = [&](const Request& one) { return one.cookie == header.cookie; };
    if (std::any_of(requests_.begin(), requests_.end(), same)) return fail("an offer fetched twice");
    requests_.push_back({header.cookie, header.address});
    return;
  }
  if (header.type == FrameType::kGoodbye) said_goodbye_ = true;
  sink.onFrame(header, payload);
}

void VerbsEndpoint::takePiece(const FrameHeader& header, const uint8_t* payload, EventSink& sink) {
  const auto found =
      std::find_if(fetches_.begin(), fetches_.end(), [&](const Fetch& one) { return one.id == header.cookie; });
  const bool is_last = header.flags != 0;
  if (found == fetches_.end()) {  // cancelled
    if (is_last) queueInternal(kTaken, header.cookie, 0);
    return;
  }
  if (header.address != found->received || header.length > found->length - found->received) {
    return fail("piece of a payload out of place");
  }
  if (header.length > 0) std::memcpy(found->destination + found->received, payload, header.length);
  found->received += header.length;
  if ((found->received == found->length) != is_last) return fail("piece of a payload that is no last one");
  if (!is_last) return;
  queueInternal(kTaken, header.cookie, 0);
  const uint64_t token = found->token;
  fetches_.erase(found);
  sink.onFetched(token, Status::ok());
}

void VerbsEndpoint::onTaken(uint64_t fetch) {
  const auto found =
      std::find_if(requests_.begin(), requests_.end(), [fetch](const Request& one) { return one.fetch == fetch; });
  if (found == requests_.end()) return;  // withdrawn meanwhile
  if (!found->isWhole(offers_[offers_.find(found->cookie)].length)) return fail("a payload taken that was not sent");
  found->is_taken = true;
}

void VerbsEndpoint::endFetch(uint64_t id, EventSink& sink) {
  const auto found = std::find_if(fetches_.begin(), fetches_.end(), [id](const Fetch& one) { return one.id == id; });
  if (found == fetches_.end()) return;  // cancelled
  const uint64_t token = found->token;
  fetches_.erase(found);
  sink.onFetched(token, Status(Kind::kAborted, Scope::kCall, "offer_revoked",
                               description_ + ": the peer withdrew the offer before it was fetched"));
}

int64_t VerbsEndpoint::unansweredNs(int64_t now_ns) {
  reap();
  if (postings_.empty()) return 0;
  return std::max<int64_t>(now_ns - std::max(postings_.front().at_ns, answered_ns_), 1);
}

Answered VerbsEndpoint::answered() {
  reap();
  Answered now = answered_;
  if (!postings_.empty()) now.busy_ns += clock_.nowNs() - busy_since_ns_;
  return now;
}

/// The socket and the device's events.
void VerbsEndpoint::lookAround() {
  epoll_event events[3];
  const int count = epoll_wait(epoll_.get(), events, 3, 0);
  for (int k = 0; k < count; ++k) {
    if (events[k].data.fd == socket_.get()) hearSocket();
    if (events[k].data.fd == link_->asyncFd()) hearDevice();
  }
}

void VerbsEndpoint::hearSocket() {
  if (!end_.isOk() || phase_ != Phase::kOpen) return;
  uint8_t byte = 0;
  const ssize_t got = recv(socket_.get(), &byte, 1, MSG_DONTWAIT);
  const int error = got < 0 ? errno : 0;
  if (got > 0 && byte != kLeft) return fail("bytes on a connection that should be silent");
  if (error == EAGAIN || error == EWOULDBLOCK || error == EINTR) return;
  // Its last messages had been answered before it closed, so they are here.
  reap();
  if (got > 0) return endWith(lost("the other end's adapter has lost the path"));
  Status why = lost(error == 0 ? "connection closed by the peer" : std::string("recv: ") + strerror(error));
  // Who closes all of its paths without a word is a process that has ended.
  if (error == 0 || error == ECONNRESET) why = Status(why.kind(), why.scope(), "peer_closed", why.message());
  endWith(std::move(why));
}

void VerbsEndpoint::hearDevice() {
  abi::AsyncEvent event{};
  while (link_->library().get_async_event(link_->context(), &event) == 0) {
    const uint32_t type = event.type;
    link_->library().ack_async_event(&event);
    const std::string name = link_->library().event_type_str(type);
    if (type == abi::kEventPortError) {
      port_note_ = "; the port of " + link_->here().device + " is down";
    } else if (type == abi::kEventPortActive) {
      port_note_.clear();
    } else if (type == abi::kEventGidChange) {
      if (!isStill(link_->here())) endWith(lost("the local address is no longer on " + link_->here().device));
    } else if (type == abi::kEventCqError || type == abi::kEventQpFatal || type == abi::kEventQpRequestError ||
               type == abi::kEventQpAccessError || type == abi::kEventDeviceFatal) {
      endWith(lost(link_->here().device + ": " + name));
    }
  }
}

}  // namespace jhetcc::transport::verbs
