// SPDX-License-Identifier: Apache-2.0
// The part of the MPI-5 standard ABI (libmpi_abi.so.1) that is called; its numbers are those of the standard, so one
// table serves MPICH, Intel MPI and whoever follows.
#pragma once

#include <cstdint>

#include "ccl/adapter.h"

namespace jhetcc::ccl::mpi {

using Code = int;  ///< 0: success
using Count = int64_t;
/// Handles are pointers to types of their own; all of them are numbers to us.
using Comm = uintptr_t;
using MpiGroup = uintptr_t;
using Type = uintptr_t;
using Op = uintptr_t;
using Request = uintptr_t;
using Errhandler = uintptr_t;

constexpr Comm kCommNull = 0x100, kCommWorld = 0x101, kCommSelf = 0x102;
constexpr Errhandler kErrorsReturn = 0x143;
constexpr Request kRequestNull = 0x180;
constexpr Type kByte = 0x247;
constexpr uintptr_t kNone = 0;  ///< no such type or operation
constexpr int kThreadMultiple = 4096;
constexpr int kErrorTextMax = 512, kVersionTextMax = 8192;
constexpr int kTagMax = 32767;  ///< what every implementation allows
inline void* inPlace() { return reinterpret_cast<void*>(uintptr_t{1}); }

struct Abi {
  Code (*abiVersion)(int* major, int* minor);
  Code (*libraryVersion)(char* text, int* size);
  Code (*initialized)(int* flag);
  Code (*initThread)(int* argc, char*** argv, int required, int* provided);
  Code (*commSize)(Comm, int* size);
  Code (*commRank)(Comm, int* rank);
  Code (*commGroup)(Comm, MpiGroup*);
  Code (*commCreateGroup)(Comm, MpiGroup, int tag, Comm*);
  Code (*commFree)(Comm*);
  Code (*setErrhandler)(Comm, Errhandler);
  Code (*groupInclude)(MpiGroup, int count, const int* ranks, MpiGroup*);
  Code (*groupFree)(MpiGroup*);
  Code (*errorText)(Code, char* text, int* size);
  Code (*reduce)(const void*, void*, Count, Type, Op, int root, Comm);
  Code (*allReduce)(const void*, void*, Count, Type, Op, Comm);
  Code (*reduceScatter)(const void*, void*, Count, Type, Op, Comm);
  Code (*broadcast)(void*, Count, Type, int root, Comm);
  Code (*allGather)(const void*, Count, Type, void*, Count, Type, Comm);
  Code (*allToAll)(const void*, Count, Type, void*, Count, Type, Comm);
  Code (*send)(const void*, Count, Type, int peer, int tag, Comm, Request*);
  Code (*receive)(void*, Count, Type, int peer, int tag, Comm, Request*);
  Code (*waitAll)(int count, Request*, void* statuses);
};

inline Result<Abi> bind(const LateLibrary& library) {
  Abi abi{};
  const Status status = Symbols(library)
                            .find("MPI_Abi_get_version", &abi.abiVersion)
                            .find("MPI_Get_library_version", &abi.libraryVersion)
                            .find("MPI_Initialized", &abi.initialized)
                            .find("MPI_Init_thread", &abi.initThread)
                            .find("MPI_Comm_size", &abi.commSize)
                            .find("MPI_Comm_rank", &abi.commRank)
                            .find("MPI_Comm_group", &abi.commGroup)
                            .find("MPI_Comm_create_group", &abi.commCreateGroup)
                            .find("MPI_Comm_free", &abi.commFree)
                            .find("MPI_Comm_set_errhandler", &abi.setErrhandler)
                            .find("MPI_Group_incl", &abi.groupInclude)
                            .find("MPI_Group_free", &abi.groupFree)
                            .find("MPI_Error_string", &abi.errorText)
                            .find("MPI_Reduce_c", &abi.reduce)
                            .find("MPI_Allreduce_c", &abi.allReduce)
                            .find("MPI_Reduce_scatter_block_c", &abi.reduceScatter)
                            .find("MPI_Bcast_c", &abi.broadcast)
                            .find("MPI_Allgather_c", &abi.allGather)
                            .find("MPI_Alltoall_c", &abi.allToAll)
                            .find("MPI_Isend_c", &abi.send)
                            .find("MPI_Irecv_c", &abi.receive)
                            .find("MPI_Waitall", &abi.waitAll)
                            .status();
  if (!status.isOk()) return status;
  return abi;
}

/// MPI's handle of a type that reduces, or kNone: the ABI has neither f16 nor bf16.
inline Type typeHandle(schedule::DataType type) {
  using schedule::DataType;
  switch (type) {
    case DataType::kBool:
      return 0x238;
    case DataType::kInt8:
      return 0x240;
    case DataType::kUint8:
      return 0x241;
    case DataType::kInt16:
      return 0x248;
    case DataType::kUint16:
      return 0x249;
    case DataType::kInt32:
      return 0x250;
    case DataType::kUint32:
      return 0x251;
    case DataType::kInt64:
      return 0x258;
    case DataType::kUint64:
      return 0x259;
    case DataType::kFloat32:
      return 0x210;
    case DataType::kFloat64:
      return 0x214;
    case DataType::kComplex64:
      return 0x212;
    case DataType::kComplex128:
      return 0x216;
    default:
      return kNone;
  }
}

/// MPI's handle of a reduction of such elements, or kNone where it has none, or not by our rules.
inline Op opHandle(schedule::ReduceOp op, schedule::DataType type) {
  using schedule::DataType, schedule::ReduceOp;
  constexpr Op kSum = 0x21, kMin = 0x22, kMax = 0x23, kProd = 0x24, kAnd = 0x30, kOr = 0x31;
  if (typeHandle(type) == kNone || !keepsRules(op, type)) return kNone;
  const bool is_bool = type == DataType::kBool;
  const bool is_complex = type == DataType::kComplex64 || type == DataType::kComplex128;
  switch (op) {
    case ReduceOp::kSum:
      return is_bool ? kOr : kSum;
    case ReduceOp::kProd:
      return is_bool ? kAnd : is_complex ? kNone : kProd;
    case ReduceOp::kMax:
      return is_bool ? kOr : is_complex ? kNone : kMax;
    case ReduceOp::kMin:
      return is_bool ? kAnd : is_complex ? kNone : kMin;
    default:
      return kNone;
  }
}

}  // namespace jhetcc::ccl::mpi
