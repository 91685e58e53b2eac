// SPDX-License-Identifier: Apache-2.0
// Finds the library, its version and its entry points, and tells what it can reduce.
#include "ccl/nccl/abi.h"

#include <utility>

namespace jhetcc::ccl::nccl {

namespace {

using schedule::DataType;
using schedule::ReduceOp;

template <typename Function>
Status need(const LateLibrary& library, const char* symbol, Function*& function) {
  Result<void*> found = library.symbol(symbol);
  if (!found.isOk()) return found.status();
  function = reinterpret_cast<Function*>(found.value());
  return Status::ok();
}

template <typename Function>
void want(const LateLibrary& library, const char* symbol, Function*& function) {
  if (Result<void*> found = library.symbol(symbol); found.isOk()) function = reinterpret_cast<Function*>(found.value());
}

Status findEntries(Abi& abi) {
  const LateLibrary& library = abi.library;
  JHETCC_RETURN_IF_ERROR(need(library, "ncclGetVersion", abi.get_version));
  JHETCC_RETURN_IF_ERROR(need(library, "ncclGetUniqueId", abi.get_unique_id));
  JHETCC_RETURN_IF_ERROR(need(library, "ncclGetErrorString", abi.get_error_string));
  JHETCC_RETURN_IF_ERROR(need(library, "ncclCommInitRank", abi.comm_init_rank));
  JHETCC_RETURN_IF_ERROR(need(library, "ncclCommDestroy", abi.comm_destroy));
  JHETCC_RETURN_IF_ERROR(need(library, "ncclCommAbort", abi.comm_abort));
  JHETCC_RETURN_IF_ERROR(need(library, "ncclCommGetAsyncError", abi.comm_get_async_error));
  JHETCC_RETURN_IF_ERROR(need(library, "ncclAllReduce", abi.all_reduce));
  JHETCC_RETURN_IF_ERROR(need(library, "ncclReduce", abi.reduce));
  JHETCC_RETURN_IF_ERROR(need(library, "ncclReduceScatter", abi.reduce_scatter));
  JHETCC_RETURN_IF_ERROR(need(library, "ncclAllGather", abi.all_gather));
  JHETCC_RETURN_IF_ERROR(need(library, "ncclBroadcast", abi.broadcast));
  JHETCC_RETURN_IF_ERROR(need(library, "ncclSend", abi.send));
  JHETCC_RETURN_IF_ERROR(need(library, "ncclRecv", abi.recv));
  JHETCC_RETURN_IF_ERROR(need(library, "ncclGroupStart", abi.group_start));
  JHETCC_RETURN_IF_ERROR(need(library, "ncclGroupEnd", abi.group_end));
  want(library, "ncclGetLastError", abi.get_last_error);
  want(library, "ncclCommInitRankConfig", abi.comm_init_rank_config);
  want(library, "ncclCommFinalize", abi.comm_finalize);
  return Status::ok();
}

Status findVersion(Abi& abi) {
  int code = 0;
  if (const int result = abi.get_version(&code); result != kSuccess) {
    return Status(Kind::kUnavailable, Scope::kProcess, "library_failed",
                  "ncclGetVersion of " + abi.library.name() + ": " + abi.get_error_string(result));
  }
  // Before 2.9 a version was written with one digit for the minor number: 2804.
  const int major = code < 10000 ? code / 1000 : code / 10000;
  const int minor = code < 10000 ? code / 100 % 10 : code / 100 % 100;
  const int patch = code % 100;
  abi.version_code = major * 10000 + minor * 100 + patch;
  abi.version = std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(patch);
  // RCCL gives the number of the NCCL it follows; it is known by an entry point that NCCL spells otherwise.
  abi.name = abi.library.symbol("ncclAllToAll").isOk() ? "rccl" : "nccl";
  return Status::ok();
}

}  // namespace

Result<std::shared_ptr<const Abi>> loadAbi(const NcclOptions& options) {
  LateLibrarySpec spec;
  spec.what = "NCCL or RCCL, which reduces within a cluster of GPUs,";
  spec.override_path = options.path;
  for (const std::string& directory : options.directories) {
    for (const std::string& soname : options.sonames) spec.sonames.push_back(directory + "/" + soname);
  }
  spec.sonames.insert(spec.sonames.end(), options.sonames.begin(), options.sonames.end());
  spec.hint = "install it (NVIDIA: the Python package nvidia-nccl-cu13; AMD: ROCm), version 2.7 or later";
  Result<LateLibrary> library = LateLibrary::load(spec);
  if (!library.isOk()) return library.status();
  auto abi = std::make_shared<Abi>(std::move(library).value());
  JHETCC_RETURN_IF_ERROR(findEntries(*abi));
  JHETCC_RETURN_IF_ERROR(findVersion(*abi));
  return std::shared_ptr<const Abi>(std::move(abi));
}

std::optional<Element> elementOf(const Abi& abi, DataType type, ReduceOp op) {
  int library_op = 0;
  switch (op) {
    case ReduceOp::kSum:
      library_op = 0;
      break;
    case ReduceOp::kProd:
      library_op = 1;
      break;
    case ReduceOp::kMax:
      library_op = 2;
      break;
    case ReduceOp::kMin:
      library_op = 3;
      break;
    default:
      return std::nullopt;
  }
  // Its max and min of floats drop NaNs and do not order zeros.
  const bool is_order = op == ReduceOp::kMax || op == ReduceOp::kMin;
  const auto ifArithmetic = [&](int number) {
    return is_order ? std::nullopt : std::optional<Element>({number, library_op, 1});
  };
  // A complex sum is by parts; other reductions of them do not exist.
  const auto ifSum = [&](int number) {
    return op == ReduceOp::kSum ? std::optional<Element>({number, library_op, 2}) : std::nullopt;
  };
  switch (type) {
    case DataType::kInt8:
      return Element{0, library_op, 1};
    case DataType::kUint8:
      return Element{1, library_op, 1};
    case DataType::kInt32:
      return Element{2, library_op, 1};
    case DataType::kUint32:
      return Element{3, library_op, 1};
    case DataType::kInt64:
      return Element{4, library_op, 1};
    case DataType::kUint64:
      return Element{5, library_op, 1};
    case DataType::kFloat16:
      return ifArithmetic(6);
    case DataType::kFloat32:
      return ifArithmetic(7);
    case DataType::kFloat64:
      return ifArithmetic(8);
    case DataType::kBfloat16:
      return abi.version_code >= 21000 || abi.name == "rccl" ? ifArithmetic(9) : std::nullopt;
    case DataType::kComplex64:
      return ifSum(7);
    case DataType::kComplex128:
      return ifSum(8);
    default:  // bools that are neither 0 nor 1 count as true with us; 16-bit integers do not exist there
      return std::nullopt;
  }
}

}  // namespace jhetcc::ccl::nccl
