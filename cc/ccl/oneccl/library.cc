// SPDX-License-Identifier: Apache-2.0
// Loads oneCCL with settings that suit this host, and makes communicators.
#include <dlfcn.h>
#include <execinfo.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>

#include "base/exit.h"
#include "base/late_library.h"
#include "ccl/oneccl/communicator.h"
#include "ccl/oneccl/remark.h"

namespace jhetcc::ccl::oneccl {
namespace {

const std::string kHint =
    "`make libraries` fetches libccl.so.2, libccl.so.1 and libccl_legacy_cpu.so into one folder; a "
    "libfabric.so.1 is there, too, or comes from the system (Debian: libfabric1)";

/// oneCCL reads them when it is loaded. Its defaults let a thread of its own spin against the rank.
void applySettings(const LoadOptions& options, const std::string& file) {
  if (std::getenv("CCL_LOG_LEVEL") == nullptr) RemarkFilter::install();
  setDefault("CCL_LOG_LEVEL", "error");   // it warns about each of these settings and names; of this one it does anyway
  setDefault("IPATH_NO_BACKTRACE", "1");  // no signal handlers of libpsm, which Debian's libfabric loads
  setDefault("CCL_ATL_TRANSPORT", "ofi");
  setDefault("CCL_ATL_SHM", "1");
  if (options.is_crowded) {
    setDefault("CCL_WORKER_OFFLOAD", "1");
    setDefault("CCL_YIELD", "sched_yield");
    setDefault("CCL_SPIN_COUNT", "1");
  } else {
    setDefault("CCL_WORKER_OFFLOAD", "0");
  }
  // A libfabric next to it goes before the system's: a process has one, and an MPI in it may need a newer one.
  const std::filesystem::path libfabric = std::filesystem::path(file).parent_path() / "libfabric.so.1";
  std::error_code ignored;
  if (std::filesystem::exists(libfabric, ignored)) setDefault("CCL_OFI_LIBRARY_PATH", libfabric.string());
  const std::string interface = options.interface.empty() ? "lo" : options.interface;
  setDefault("CCL_KVS_IFACE", interface);
  setDefault("FI_TCP_IFACE", interface);
}

class OnecclLibrary final : public Library {
 public:
  OnecclLibrary(const Abi& abi, Capabilities capabilities) : abi_(abi), capabilities_(std::move(capabilities)) {}

  const Capabilities& capabilities() const override { return capabilities_; }

  Result<std::string> makeToken(int32_t, bool) override {
    UniqueId id{};
    if (const Code code = abi_.getUniqueId(&id); code != 0) {
      return failed(abi_, "making the id of a communicator", code, nullptr);
    }
    // Most of it is zeros behind an address in text.
    size_t size = id.bytes.size();
    while (size > 0 && id.bytes[size - 1] == '\0') --size;
    return std::string(id.bytes.data(), size);
  }

  Result<std::unique_ptr<Communicator>> create(const Group& group) override {
    UniqueId id{};
    if (group.size < 1 || group.rank < 0 || group.rank >= group.size || group.token.empty() ||
        group.token.size() > id.bytes.size()) {
      return Status(Kind::kBadArgument, Scope::kCall, "bad_argument",
                    "a oneCCL communicator for rank " + std::to_string(group.rank) + " of " +
                        std::to_string(group.size) + " with an id of " + std::to_string(group.token.size()) + " bytes");
    }
    std::memcpy(id.bytes.data(), group.token.data(), group.token.size());
    Comm comm = nullptr;
    const std::string what =
        "making a communicator, rank " + std::to_string(group.rank) + " of " + std::to_string(group.size);
    if (const Code code = abi_.commInitRank(&comm, static_cast<size_t>(group.size), id, group.rank); code != 0) {
      return failed(abi_, what, code, nullptr);
    }
    return std::unique_ptr<Communicator>(std::make_unique<OnecclCommunicator>(abi_, comm, group));
  }

  void leave() override { armExit(); }

 private:
  const Abi abi_;
  const Capabilities capabilities_;
};

std::string versionText(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

std::terminate_handler before_ours = nullptr;

/// Whether the calling thread is below a function of oneCCL.
bool isInOneccl() {
  void* frames[64];
  const int count = ::backtrace(frames, 64);
  for (int k = 0; k < count; ++k) {
    Dl_info info{};
    if (::dladdr(frames[k], &info) != 0 && info.dli_fname && std::strstr(info.dli_fname, "libccl")) return true;
  }
  return false;
}

/// A thread of oneCCL's own that finds a peer dead throws, which would end the process. It sleeps instead: whoever
/// waits for it in a call is given up as for any peer that is lost.
void keepThreadsFromTerminating() {
  static const bool is_set = [] {
    before_ours = std::set_terminate([] {
      if (::gettid() != ::getpid() && isInOneccl()) {
        armExit();
        for (;;) ::pause();
      }
      if (before_ours) before_ours();
      std::abort();
    });
    return true;
  }();
  (void)is_set;
}

}  // namespace

Result<std::shared_ptr<Library>> load(const LoadOptions& options) {
  Result<std::string> file = locate(options, {"libccl.so.2"}, kHint);
  if (!file.isOk()) return file.status();
  applySettings(options, file.value());
  Result<LateLibrary> library = LateLibrary::load({"oneCCL", file.value(), {"libccl.so.2"}, kHint});
  if (!library.isOk()) return library.status();
  // A fork has none of the library's threads, and its destructors would wait for them.
  static const int registered = pthread_atfork(nullptr, nullptr, [] { (void)exitWithoutDestructors(); });
  (void)registered;
  keepThreadsFromTerminating();
  Result<Abi> abi = bind(library.value());
  if (!abi.isOk()) return abi.status();
  int version = 0;
  if (const Code code = abi.value().getVersion(&version); code != 0) {
    return failed(abi.value(), "asking " + library.value().name() + " for its version", code, nullptr);
  }
  Capabilities capabilities;
  capabilities.name = "oneccl";
  capabilities.version = versionText(version);
  capabilities.destroys_alone = false;  // without the member that made the token it ends the whole process
  capabilities.refuses =
      refusals([](schedule::ReduceOp op, schedule::DataType type) { return opNumber(op, type) != kNone; });
  return std::shared_ptr<Library>(std::make_shared<OnecclLibrary>(abi.value(), std::move(capabilities)));
}

}  // namespace jhetcc::ccl::oneccl
