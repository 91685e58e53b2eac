// SPDX-License-Identifier: Apache-2.0
// The part of oneCCL's C interface (libccl.so.2) that is called, declared here because its header belongs to a package
// of its own. Enumerators have NCCL's values; the id is larger and goes by value.
#pragma once

#include <array>
#include <cstddef>

#include "ccl/adapter.h"

namespace jhetcc::ccl::oneccl {

struct UniqueId {
  std::array<char, 4096> bytes;
};
using Comm = void*;
using Code = int;  ///< 0: success

constexpr int kInt8 = 0;
constexpr int kNone = -1;

struct Abi {
  Code (*getVersion)(int* version);
  Code (*getUniqueId)(UniqueId* id);
  Code (*commInitRank)(Comm* comm, size_t size, UniqueId id, int rank);
  Code (*commDestroy)(Comm comm);
  Code (*allReduce)(void* source, void* target, size_t count, int type, int op, Comm comm, void* stream);
  Code (*reduce)(const void* source, void* target, size_t count, int type, int op, int root, Comm comm, void* stream);
  Code (*reduceScatter)(const void* source, void* target, size_t count, int type, int op, Comm comm, void* stream);
  Code (*broadcast)(const void* source, void* target, size_t count, int type, int root, Comm comm, void* stream);
  Code (*allGather)(const void* source, void* target, size_t count, int type, Comm comm, void* stream);
  Code (*allToAll)(const void* source, void* target, size_t count, int type, Comm comm, void* stream);
  Code (*send)(const void* source, size_t count, int type, int peer, Comm comm, void* stream);
  Code (*recv)(void* target, size_t count, int type, int peer, Comm comm, void* stream);
  const char* (*getErrorString)(Code code);
  const char* (*getLastError)(Comm comm);
};

inline Result<Abi> bind(const LateLibrary& library) {
  Abi abi{};
  const Status status = Symbols(library)
                            .find("onecclGetVersion", &abi.getVersion)
                            .find("onecclGetUniqueId", &abi.getUniqueId)
                            .find("onecclCommInitRank", &abi.commInitRank)
                            .find("onecclCommDestroy", &abi.commDestroy)
                            .find("onecclAllReduce", &abi.allReduce)
                            .find("onecclReduce", &abi.reduce)
                            .find("onecclReduceScatter", &abi.reduceScatter)
                            .find("onecclBroadcast", &abi.broadcast)
                            .find("onecclAllGather", &abi.allGather)
                            .find("onecclAllToAll", &abi.allToAll)
                            .find("onecclSend", &abi.send)
                            .find("onecclRecv", &abi.recv)
                            .find("onecclGetErrorString", &abi.getErrorString)
                            .find("onecclGetLastError", &abi.getLastError)
                            .status();
  if (!status.isOk()) return status;
  return abi;
}

/// The library's number of a type, or kNone.
inline int typeNumber(schedule::DataType type) {
  using schedule::DataType;
  switch (type) {
    case DataType::kInt8:
      return kInt8;
    case DataType::kUint8:
      return 1;
    case DataType::kInt32:
      return 2;
    case DataType::kUint32:
      return 3;
    case DataType::kInt64:
      return 4;
    case DataType::kUint64:
      return 5;
    case DataType::kFloat16:
      return 6;
    case DataType::kFloat32:
      return 7;
    case DataType::kFloat64:
      return 8;
    case DataType::kBfloat16:
      return 9;
    default:
      return kNone;
  }
}

/// The library's number of a reduction of such elements, or kNone where it cannot do it, or not by our rules.
inline int opNumber(schedule::ReduceOp op, schedule::DataType type) {
  using schedule::ReduceOp;
  if (typeNumber(type) == kNone || !keepsRules(op, type)) return kNone;
  switch (op) {
    case ReduceOp::kSum:
      return 0;
    case ReduceOp::kProd:
      return 1;
    case ReduceOp::kMax:
      return 2;
    case ReduceOp::kMin:
      return 3;
    default:
      return kNone;
  }
}

}  // namespace jhetcc::ccl::oneccl
