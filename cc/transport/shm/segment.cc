// SPDX-License-Identifier: Apache-2.0
// Makes, checks and maps the shared segment. Any thread.
#include "transport/shm/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <string>

#include "base/system_text.h"

namespace jhetcc::transport::shm {

namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kRingsOffset = (sizeof(Layout) + kPage - 1) / kPage * kPage;
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

uint64_t segmentBytes(uint32_t ring_bytes) { return kRingsOffset + 2 * (uint64_t{ring_bytes} + kStageBytes); }

Status systemError(Kind kind, const char* call, uint64_t bytes) {
  return Status(
      kind, Scope::kEndpoint, "shm_segment",
      std::string("shared segment of ") + std::to_string(bytes) + " bytes: " + call + ": " + systemText(errno));
}

Status checkRingBytes(uint32_t ring_bytes) {
  const bool is_power = ring_bytes != 0 && (ring_bytes & (ring_bytes - 1)) == 0;
  if (is_power && ring_bytes >= kRingBytesMin && ring_bytes <= kRingBytesMax) return Status::ok();
  return Status(Kind::kBadArgument, Scope::kCall, "bad_option",
                "shm ring of " + std::to_string(ring_bytes) + " bytes: must be a power of two from " +
                    std::to_string(kRingBytesMin) + " to " + std::to_string(kRingBytesMax));
}

}  // namespace

Result<std::shared_ptr<Segment>> Segment::mapAnywhere(int memory, uint32_t ring_bytes) {
  const uint64_t size = segmentBytes(ring_bytes);
  const int flags = memory < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
  void* base = mmap(nullptr, size, PROT_READ | PROT_WRITE, flags, memory, 0);
  if (base == MAP_FAILED) return systemError(Kind::kResource, "mmap", size);
  return std::shared_ptr<Segment>(new Segment(base, size, ring_bytes));
}

Result<std::shared_ptr<Segment>> Segment::createLocal(uint32_t ring_bytes) {
  JHETCC_RETURN_IF_ERROR(checkRingBytes(ring_bytes));
  return mapAnywhere(-1, ring_bytes);
}

Result<std::shared_ptr<Segment>> Segment::createShared(uint32_t ring_bytes, Fd& memory) {
  JHETCC_RETURN_IF_ERROR(checkRingBytes(ring_bytes));
  const uint64_t size = segmentBytes(ring_bytes);
  memory = Fd(memfd_create("jhetcc", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory.isOpen()) return systemError(Kind::kResource, "memfd_create", size);
  if (ftruncate(memory.get(), static_cast<off_t>(size)) != 0) return systemError(Kind::kResource, "ftruncate", size);
  // Without the seal, a peer could cut the file and turn our next access into SIGBUS.
  if (fcntl(memory.get(), F_ADD_SEALS, kSeals) != 0) return systemError(Kind::kResource, "fcntl(F_ADD_SEALS)", size);
  return mapAnywhere(memory.get(), ring_bytes);
}

Result<std::shared_ptr<Segment>> Segment::map(const Fd& memory, uint32_t ring_bytes) {
  JHETCC_RETURN_IF_ERROR(checkRingBytes(ring_bytes));
  const uint64_t size = segmentBytes(ring_bytes);
  struct stat about{};
  if (fstat(memory.get(), &about) != 0) return systemError(Kind::kResource, "fstat", size);
  const int seals = fcntl(memory.get(), F_GET_SEALS);
  if (static_cast<uint64_t>(about.st_size) != size || seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return Status(Kind::kMismatch, Scope::kEndpoint, "shm_segment",
                  "the peer sent a segment of " + std::to_string(about.st_size) + " bytes, seals " +
                      std::to_string(seals) + "; expected " + std::to_string(size) +
                      " bytes, sealed against shrinking");
  }
  return mapAnywhere(memory.get(), ring_bytes);
}

Segment::~Segment() { munmap(base_, size_); }

uint8_t* Segment::ring(int side) const {
  return static_cast<uint8_t*>(base_) + kRingsOffset + static_cast<uint64_t>(side) * ring_bytes_;
}

uint8_t* Segment::stage(int side) const { return ring(2) + static_cast<uint64_t>(side) * kStageBytes; }

}  // namespace jhetcc::transport::shm
