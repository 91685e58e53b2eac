// SPDX-License-Identifier: Apache-2.0
// Loads an MPI by the standard ABI, and makes its world and communicators without mpirun.
#include <atomic>
#include <filesystem>
#include <mutex>

#include "base/hash.h"
#include "ccl/mpi/communicator.h"
#include "ccl/mpi/pmi_server.h"
#include "ccl/mpi/world.h"
#include "net/interfaces.h"

namespace jhetcc::ccl::mpi {
namespace {

const std::string kHint =
    "jhetcc uses MPI by its standard ABI (MPICH 5, Intel MPI 2021.18, or later): `make libraries` fetches MPICH";
constexpr int64_t kJoinNs = 600'000 * kNsPerMs;  ///< the caller gives up earlier, by leave()

/// Read when the library is loaded or begins.
void applySettings(const std::string& file) {
  setDefault("UCX_HANDLE_ERRORS", "none");  // no signal handlers of UCX in the user's program
  setDefault("UCX_DEBUG_SIGNO", "0");       // nor for its debugging, by default SIGHUP
  setDefault("UCX_WARN_UNUSED_ENV_VARS", "n");
  setDefault("UCX_LOG_LEVEL", "error");
  setDefault("I_MPI_PIN", "0");  // the program's threads stay where they were
  // Intel MPI brings its own libfabric and does not find that one's parts by itself.
  const std::filesystem::path folder = std::filesystem::path(file).parent_path();
  std::error_code ignored;
  if (!folder.empty() && std::filesystem::exists(folder / "libtcp-fi.so", ignored)) {
    setDefault("FI_PROVIDER_PATH", folder.string());
  }
}

Result<net::Address> serverAddress(const std::string& interface) {
  if (interface.empty()) return net::Address::fromHost("127.0.0.1", 0);
  Result<std::vector<net::Interface>> interfaces = net::listInterfaces();
  if (!interfaces.isOk()) return interfaces.status();
  Result<std::vector<net::Address>> chosen = net::selectInterfaces(interface, interfaces.value());
  if (!chosen.isOk()) return chosen.status();
  return chosen.value().front();
}

class MpiLibrary final : public Library {
 public:
  MpiLibrary(const Abi& abi, Capabilities capabilities, const LoadOptions& options)
      : abi_(abi), capabilities_(std::move(capabilities)), interface_(options.interface), secret_(options.secret) {}

  const Capabilities& capabilities() const override { return capabilities_; }

  /// "127.0.0.1:4711 jhetcc_0123..." for the first communicator; a number of its own for others.
  Result<std::string> makeToken(int32_t size, bool is_first) override {
    std::lock_guard lock(mutex_);
    if (!is_first) return "communicator " + std::to_string(++tokens_);
    Result<net::Address> address = serverAddress(interface_);
    if (!address.isOk()) return address.status();
    PmiServer::Config config;
    config.address = address.value();
    config.secret = secret_;
    config.size = size;
    Result<std::unique_ptr<PmiServer>> server = PmiServer::create(std::move(config));
    if (!server.isOk()) return server.status();
    servers_.push_back(std::move(server).value());
    return servers_.back()->address().text() + " " + servers_.back()->name();
  }

  Result<std::unique_ptr<Communicator>> create(const Group& group) override {
    World& world = World::ofProcess();
    const bool is_first = group.of_first.empty();
    if (group.size < 1 || group.rank < 0 || group.rank >= group.size ||
        (!is_first && group.of_first.size() != static_cast<size_t>(group.size)) || (!is_first && !world.isEntered())) {
      return Status(Kind::kBadArgument, Scope::kCall, "bad_argument",
                    "an MPI communicator for rank " + std::to_string(group.rank) + " of " + std::to_string(group.size) +
                        ": the first one holds all processes, and later ones name their ranks in it");
    }
    if (is_first) {
      const net::Deadline deadline = net::Deadline::after(clock_, kJoinNs, [this] { return is_left_.load(); });
      JHETCC_RETURN_IF_ERROR(world.enter(abi_, group.token, group.rank, group.size, secret_, deadline));
    }
    const int tag = static_cast<int>(hashText(group.token) % (kTagMax + 1));
    Result<Comm> comm = world.communicator(abi_, group.of_first, tag);
    if (!comm.isOk()) return comm.status();
    return std::unique_ptr<Communicator>(std::make_unique<MpiCommunicator>(abi_, comm.value(), group));
  }

  void leave() override {
    is_left_.store(true);
    Vendor::lose();
  }

 private:
  const Abi abi_;
  const Capabilities capabilities_;
  const std::string interface_;
  const net::Secret secret_;
  SystemClock clock_;
  std::atomic<bool> is_left_{false};
  std::mutex mutex_;  ///< guards what follows
  int64_t tokens_ = 0;
  std::vector<std::unique_ptr<PmiServer>> servers_;
};

/// "MPICH 5.0.2", "Intel(R) MPI Library 2021.18 for Linux* OS": what identifies it in the many lines it may say.
std::string versionOf(const Abi& abi) {
  std::string text(kVersionTextMax + 1, '\0');
  int size = 0;
  if (abi.libraryVersion(text.data(), &size) != 0) return "unknown";
  text.resize(text.find_first_of(std::string_view("\n\0", 2)));
  constexpr std::string_view kMpich = "MPICH Version:";
  if (text.starts_with(kMpich)) return "MPICH " + text.substr(text.find_first_not_of(" \t", kMpich.size()));
  return text;
}

}  // namespace

Result<std::shared_ptr<Library>> load(const LoadOptions& options) {
  Result<std::string> file = locate(options, {"libmpi_abi.so.1"}, kHint);
  if (!file.isOk()) return file.status();
  applySettings(file.value());
  Result<LateLibrary> library = LateLibrary::load({"MPI", file.value(), {"libmpi_abi.so.1"}, kHint});
  if (!library.isOk()) return library.status();
  Result<Abi> abi = bind(library.value());
  if (!abi.isOk()) return abi.status();
  int major = 0, minor = 0;
  if (abi.value().abiVersion(&major, &minor) != 0 || major != 1) {
    return Status(Kind::kUnavailable, Scope::kProcess, "library_unsuitable",
                  library.value().name() + " has version " + std::to_string(major) + "." + std::to_string(minor) +
                      " of the MPI ABI, and 1 is needed; " + kHint);
  }
  Capabilities capabilities;
  capabilities.name = "mpi";
  capabilities.version = versionOf(abi.value());
  capabilities.one_world = true;
  capabilities.create_ends = true;  // while members are missing; MPI itself may wait in its beginning
  capabilities.refuses =
      refusals([](schedule::ReduceOp op, schedule::DataType type) { return opHandle(op, type) != kNone; });
  return std::shared_ptr<Library>(std::make_shared<MpiLibrary>(abi.value(), std::move(capabilities), options));
}

}  // namespace jhetcc::ccl::mpi
