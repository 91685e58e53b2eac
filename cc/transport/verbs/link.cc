// SPDX-License-Identifier: Apache-2.0
#include "transport/verbs/link.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "net/crypto.h"
#include "transport/verbs/ring.h"

namespace jhetcc::transport::verbs {
namespace {

constexpr uint32_t kMagic = 0x76636a68;  // "hjcv"
constexpr uint32_t kVersion = 1;
constexpr uint32_t kMtuMax = 5;  // 4096 bytes
constexpr uint32_t kPsnMask = 0xffffff;
constexpr uint32_t kInlineWanted = 192;  // a header, its round trip's answer, and some bytes
constexpr uint8_t kRnrTimer = 12;        // 0.64 ms; receives are counted, so it should never be needed

void setNonBlocking(int fd) { (void)fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK); }

}  // namespace

Status Registered::start(const Library& library, abi::Pd* pd, uint64_t bytes, int access) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return Status(Kind::kResource, Scope::kEndpoint, "no_memory",
                  "mmap of " + std::to_string(bytes) + " bytes: " + strerror(errno));
  }
  library_ = &library;
  data_ = static_cast<uint8_t*>(memory);
  bytes_ = bytes;
  (void)madvise(memory, bytes, MADV_DONTFORK);  // a child's write would part the pages from those that are registered
  mr_ = library.reg_mr(pd, memory, bytes, access);
  if (mr_ != nullptr) return Status::ok();
  return Status(Kind::kResource, Scope::kEndpoint, "no_memory",
                "ibv_reg_mr of " + std::to_string(bytes) + " bytes: " + strerror(errno) +
                    (errno == ENOMEM ? "; raise the limit of locked memory (ulimit -l)" : ""));
}

void Registered::reset() {
  if (mr_ != nullptr) library_->dereg_mr(mr_);
  if (data_ != nullptr) munmap(data_, bytes_);
  mr_ = nullptr;
  data_ = nullptr;
}

Status Link::failed(const char* call) const {
  const int number = errno;
  return Status(Kind::kUnavailable, Scope::kEndpoint, "rdma_setup_failed",
                std::string(call) + " on " + place_.device + ": " + strerror(number));
}

Result<std::unique_ptr<Link>> Link::open(const net::Address& local, const Options& options) {
  const Result<Place> place = findPlace(local);
  if (!place.isOk()) return place.status();
  const Result<const Library*> library = Library::get();
  if (!library.isOk()) return library.status().withContext(place.value().device + " carries " + local.host());
  std::unique_ptr<Link> link(new Link(*library.value(), options, place.value()));
  JHETCC_RETURN_IF_ERROR(link->openDevice());
  JHETCC_RETURN_IF_ERROR(link->openQp());
  JHETCC_RETURN_IF_ERROR(link->in_.start(*link->library_, link->pd_, options.ring_bytes,
                                         abi::kAccessLocalWrite | abi::kAccessRemoteWrite));
  JHETCC_RETURN_IF_ERROR(link->out_.start(*link->library_, link->pd_, options.ring_bytes, 0));
  JHETCC_RETURN_IF_ERROR(net::fillRandom(&link->psn_, sizeof link->psn_));
  link->psn_ &= kPsnMask;
  return link;
}

Status Link::openDevice() {
  int count = 0;
  abi::Device** list = library_->get_device_list(&count);
  if (list == nullptr) return failed("ibv_get_device_list");
  for (int k = 0; k < count && context_ == nullptr; ++k) {
    if (place_.device == library_->get_device_name(list[k])) context_ = library_->open_device(list[k]);
  }
  library_->free_device_list(list);
  if (context_ == nullptr) return failed("ibv_open_device");
  setNonBlocking(context_->async_fd);
  abi::PortAttributes port{};
  if ((errno = library_->query_port(context_, place_.port, &port)) != 0) return failed("ibv_query_port");
  mtu_ = port.active_mtu;
  pd_ = library_->alloc_pd(context_);
  if (pd_ == nullptr) return failed("ibv_alloc_pd");
  channel_ = library_->create_comp_channel(context_);
  if (channel_ == nullptr) return failed("ibv_create_comp_channel");
  setNonBlocking(channel_->fd);
  cq_ = library_->create_cq(context_, kSendsMax + kReceives + 16, nullptr, channel_, 0);
  if (cq_ == nullptr) return failed("ibv_create_cq");
  return Status::ok();
}

Status Link::openQp() {
  for (const uint32_t inline_bytes : {kInlineWanted, uint32_t{sizeof(FrameHeader)}, uint32_t{0}}) {
    abi::QpInit init{};
    init.send_cq = init.receive_cq = cq_;
    init.capacity = {kSendsMax, kReceives, 3, 1, inline_bytes};
    init.type = abi::kQpTypeRc;
    qp_ = library_->create_qp(pd_, &init);
    if (qp_ == nullptr) continue;
    inline_bytes_ = inline_bytes;
    break;
  }
  if (qp_ == nullptr) return failed("ibv_create_qp");
  abi::QpAttributes attributes{};
  attributes.state = abi::kStateInit;
  attributes.port = place_.port;
  attributes.access = abi::kAccessRemoteWrite;
  const int mask = abi::kMaskState | abi::kMaskPkeyIndex | abi::kMaskPort | abi::kMaskAccess;
  if ((errno = library_->modify_qp(qp_, &attributes, mask)) != 0) return failed("ibv_modify_qp to INIT");
  receives_.resize(kReceives);
  if ((errno = postReceives(kReceives)) != 0) return failed("ibv_post_recv");
  return Status::ok();
}

int Link::postReceives(uint32_t count) {
  if (count == 0) return 0;
  for (uint32_t k = 0; k < count; ++k) {
    receives_[k] = {};
    receives_[k].next = k + 1 < count ? &receives_[k + 1] : nullptr;
  }
  abi::ReceiveWr* bad = nullptr;
  return context_->operations.post_receive(qp_, receives_.data(), &bad);
}

std::string Link::hello() {
  Hello mine;
  mine.magic = kMagic;
  mine.version = kVersion;
  mine.qp = qp_->number;
  mine.psn = psn_;
  mine.gid = place_.gid;
  mine.ring_address = reinterpret_cast<uint64_t>(in_.data());
  mine.ring_key = in_.mr().rkey;
  mine.ring_bytes = options_.ring_bytes;
  mine.mtu = mtu_;
  return std::string(reinterpret_cast<const char*>(&mine), sizeof mine);
}

Status Link::meet(std::string_view hello) {
  uint32_t magic = 0;
  std::memcpy(&magic, hello.data(), std::min(sizeof magic, hello.size()));
  if (magic != kMagic || hello.size() != sizeof remote_) {
    return Status(Kind::kUnavailable, Scope::kEndpoint, "rdma_setup_failed",
                  "the other end cannot: " + std::string(hello));
  }
  std::memcpy(&remote_, hello.data(), sizeof remote_);
  if (remote_.version != kVersion || remote_.mtu < 1 || remote_.mtu > kMtuMax ||
      remote_.ring_bytes != options_.ring_bytes) {
    return Status(Kind::kMismatch, Scope::kEndpoint, "rdma_setup_failed",
                  "the other end runs another version: " + std::to_string(remote_.version) + ", a ring of " +
                      std::to_string(remote_.ring_bytes) + " bytes, mtu " + std::to_string(remote_.mtu));
  }
  return makeReady();
}

Status Link::makeReady() {
  abi::QpAttributes attributes{};
  attributes.state = abi::kStateReadyToReceive;
  attributes.path_mtu = std::min(mtu_, remote_.mtu);
  attributes.remote_qp = remote_.qp;
  attributes.receive_psn = remote_.psn & kPsnMask;
  attributes.reads_served = 1;
  attributes.rnr_timer = kRnrTimer;
  attributes.ah.is_global = 1;
  attributes.ah.port = place_.port;
  std::copy(remote_.gid.begin(), remote_.gid.end(), attributes.ah.route.gid);
  attributes.ah.route.source_gid_index = place_.gid_index;
  attributes.ah.route.hop_limit = 64;
  int mask = abi::kMaskState | abi::kMaskAh | abi::kMaskPathMtu | abi::kMaskRemoteQp | abi::kMaskReceivePsn |
             abi::kMaskReadsServed | abi::kMaskRnrTimer;
  if ((errno = library_->modify_qp(qp_, &attributes, mask)) != 0) return failed("ibv_modify_qp to RTR");
  attributes = {};
  attributes.state = abi::kStateReadyToSend;
  attributes.send_psn = psn_;
  attributes.timeout = options_.ack_timeout;
  attributes.retries = options_.retries;
  attributes.rnr_retries = 7;  // for ever: a peer that is not polled is no dead path
  attributes.reads_begun = 1;
  mask = abi::kMaskState | abi::kMaskSendPsn | abi::kMaskTimeout | abi::kMaskRetries | abi::kMaskRnrRetries |
         abi::kMaskReadsBegun;
  if ((errno = library_->modify_qp(qp_, &attributes, mask)) != 0) return failed("ibv_modify_qp to RTS");
  return Status::ok();
}

Status Link::arm(bool solicited_only) {
  abi::Cq* cq = nullptr;
  void* user = nullptr;
  while (library_->get_cq_event(channel_, &cq, &user) == 0) ++unacknowledged_;
  if ((errno = context_->operations.request_notify(cq_, solicited_only)) != 0) return failed("ibv_req_notify_cq");
  return Status::ok();
}

void Link::fail() {
  if (qp_ == nullptr) return;
  abi::QpAttributes attributes{};
  attributes.state = abi::kStateError;
  (void)library_->modify_qp(qp_, &attributes, abi::kMaskState);
}

void Link::destroyQp() {
  if (qp_ != nullptr) library_->destroy_qp(qp_);
  qp_ = nullptr;
}

Link::~Link() {
  fail();
  destroyQp();
  if (cq_ != nullptr && unacknowledged_ > 0) library_->ack_cq_events(cq_, unacknowledged_);
  if (cq_ != nullptr) library_->destroy_cq(cq_);
  if (channel_ != nullptr) library_->destroy_comp_channel(channel_);
  in_.reset();
  out_.reset();
  if (pd_ != nullptr) library_->dealloc_pd(pd_);
  if (context_ != nullptr) library_->close_device(context_);
}

}  // namespace jhetcc::transport::verbs
