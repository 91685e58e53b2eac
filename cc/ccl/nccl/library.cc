// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <utility>

#include "base/exit.h"
#include "base/log.h"
#include "ccl/nccl/abi.h"
#include "ccl/nccl/communicator.h"
#include "ccl/nccl/nccl.h"

namespace jhetcc::ccl::nccl {

namespace {

class NcclLibrary final : public Library {
 public:
  NcclLibrary(std::shared_ptr<const Abi> abi, int64_t timeout_ns) : abi_(std::move(abi)), timeout_ns_(timeout_ns) {
    capabilities_.name = abi_->name;
    capabilities_.version = abi_->version;
    capabilities_.abortable = true;
    capabilities_.blocking = false;
    capabilities_.uniform = false;  // equal bits are its practice, not its promise
    capabilities_.one_rank_a_process = false;
    capabilities_.create_ends = abi_->isNonBlocking();
    using schedule::DataType, schedule::ReduceOp;
    for (auto type = DataType::kBool; type <= DataType::kComplex128; type = DataType(static_cast<int>(type) + 1)) {
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kProd, ReduceOp::kMax, ReduceOp::kMin, ReduceOp::kMean}) {
        if (!elementOf(*abi_, type, op)) capabilities_.refuses.emplace_back(op, type);
      }
    }
  }

  const Capabilities& capabilities() const override { return capabilities_; }

  Result<std::string> makeToken(int32_t, bool) override {
    UniqueId id;
    if (const int result = abi_->get_unique_id(&id); result != kSuccess) {
      return Status(Kind::kUnavailable, Scope::kProcess, "library_failed",
                    std::string("ncclGetUniqueId: ") + abi_->get_error_string(result) + "; " + abi_->name + " " +
                        abi_->version + " from " + abi_->library.name());
    }
    return std::string(id.bytes, sizeof(id.bytes));
  }

  Result<std::unique_ptr<Communicator>> create(const Group& group) override {
    return NcclCommunicator::create(abi_, group, timeout_ns_, is_left_);
  }
  void leave() override {
    is_left_.store(true);
    if (abi_->isNonBlocking()) return;
    if (const Status status = exitWithoutDestructors(); !status.isOk()) JHETCC_LOG(kWarn, "ccl", status.message());
  }

 private:
  const std::shared_ptr<const Abi> abi_;
  const int64_t timeout_ns_;
  std::atomic<bool> is_left_{false};
  Capabilities capabilities_;
};

}  // namespace

Result<std::shared_ptr<Library>> loadNccl(const NcclOptions& options) {
  Result<std::shared_ptr<const Abi>> abi = loadAbi(options);
  if (!abi.isOk()) return abi.status();
  return std::shared_ptr<Library>(std::make_shared<NcclLibrary>(std::move(abi).value(), options.timeout_ns));
}

}  // namespace jhetcc::ccl::nccl
