// SPDX-License-Identifier: Apache-2.0
// A cluster's vendor library as this process uses it, and the thread that makes an engine's native calls. Vendors'
// calls block, some for ever when a member dies: nothing here waits for one without a deadline.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ccl/library.h"
#include "control/store.h"
#include "device/device.h"
#include "engine/native.h"
#include "runtime/native_threads.h"

namespace jhetcc::runtime {

/// The library of the cluster that this process is in. Shared by all its communicators; any thread.
struct LibraryInUse {
  std::shared_ptr<ccl::Library> library;
  std::vector<int32_t> world_ranks;  ///< the cluster: members of the library's first communicator
  /// Of all of them; until closeLibrary(). Only threads of ours let go of it: that may take for ever.
  mutable std::shared_ptr<ccl::Communicator> first;
  std::shared_ptr<control::StoreClient> store;  ///< by which members tell each other tokens
  int64_t timeout_ns = 0;                       ///< for the first token to come
  int64_t circle_timeout_ns = 0;                ///< for another token to come, when a part first calls
  /// The first communicator made here uses `first`, on all members alike; others have their own even of the same ranks:
  /// a call that is given up ends one of them, not all.
  mutable std::atomic<bool> is_first_taken{false};
  mutable std::atomic<bool> is_closing{false};   ///< members may be gone already, each closes when it likes
  mutable std::atomic<bool> is_given_up{false};  ///< a call never came back: nothing can be made any more
};

struct OpenOptions {
  std::shared_ptr<ccl::Library> library;
  std::vector<int32_t> world_ranks;
  int32_t world_rank = 0;  ///< this process's
  std::shared_ptr<control::StoreClient> store;
  int64_t timeout_ns = 0;
  std::string job;        ///< tells the keys of this world from those of others
  std::string ended_key;  ///< in the store as soon as a process gave up: then nobody is waited for any more
  int64_t circle_timeout_ns = 60'000'000'000;  ///< for the token of a part at its first call
};

/// Makes the library's first communicator together with the cluster's other processes; kTimeout when they do not come,
/// kDisconnected ("init_failed", "store_gone") when one gave up.
Result<std::shared_ptr<const LibraryInUse>> openLibrary(const OpenOptions& options,
                                                        const std::function<bool()>& interrupted);

/// Destroys what openLibrary() made, on a thread of its own, when all workers have ended; waits so long for all threads
/// of this file, and at least a moment. Where some are stuck then, the library is left so that the process can end.
void closeLibrary(const std::shared_ptr<const LibraryInUse>& in_use, int64_t timeout_ns);

/// Makes one rank's calls on one communicator, on a thread of its own that begins with the first. Memory of the caller
/// is only touched under a lock that drop() takes: the library itself works on memory of ours.
class NativeWorker final : public engine::NativePort {
 public:
  /// `wake` is called whenever a call has ended, from the thread; never after drop() or the end of this object.
  /// `device`: calls are on its memory, by a library that orders them on a stream. Null: on memory of the host.
  NativeWorker(std::shared_ptr<const LibraryInUse> in_use, uint64_t communicator, std::vector<int32_t> world_ranks,
               int32_t world_rank, std::function<void()> wake, int64_t spin_ns,
               std::shared_ptr<device::Device> device = nullptr);
  ~NativeWorker() override;

  void start(engine::NativeCall call) override;
  bool poll(engine::NativeSink& sink) override;
  void drop() override;
  /// Its thread ends, once no call is under way; nothing can be started any more. `is_whole`: no member is lost.
  void end(bool is_whole = true);

 private:
  class Loop;
  std::shared_ptr<Loop> loop_;
};

}  // namespace jhetcc::runtime
