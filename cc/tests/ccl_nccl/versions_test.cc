// SPDX-License-Identifier: Apache-2.0
// What a version of the library can do, is called, and lacks.
#include <cstdlib>

#include "ccl_nccl/ranks.h"

namespace jhetcc::ccl::nccl::tests {

using schedule::DataType, schedule::ReduceOp;

namespace {

bool isRefused(const Library& library, ReduceOp op, DataType type) { return !library.capabilities().reduces(op, type); }

/// The library as of another version, for the life of one object.
class Version {
 public:
  explicit Version(const char* code) { setenv(control::kVersionVariable, code, 1); }
  ~Version() { unsetenv(control::kVersionVariable); }
};

}  // namespace

TEST_CASE("what the capabilities say") {
  const std::shared_ptr<Library> library = load(FAKE_NCCL);
  const Capabilities& about = library->capabilities();
  CHECK(about.name == "nccl");
  CHECK(about.version == "2.21.5");
  CHECK(about.abortable);
  CHECK_FALSE(about.blocking);
  CHECK_FALSE(about.uniform);
  CHECK_FALSE(about.one_rank_a_process);
  struct Row {
    DataType type;
    const char* refused;  ///< of sum, prod, max, min
  };
  const Row rows[] = {
      {DataType::kBool, "spxn"},   {DataType::kInt8, ""},         {DataType::kInt16, "spxn"},
      {DataType::kInt32, ""},      {DataType::kInt64, ""},        {DataType::kUint8, ""},
      {DataType::kUint16, "spxn"}, {DataType::kUint32, ""},       {DataType::kUint64, ""},
      {DataType::kFloat16, "xn"},  {DataType::kBfloat16, "xn"},   {DataType::kFloat32, "xn"},
      {DataType::kFloat64, "xn"},  {DataType::kComplex64, "pxn"}, {DataType::kComplex128, "pxn"},
  };
  for (const Row& row : rows) {
    CAPTURE(static_cast<int>(row.type));
    std::string refused;
    if (isRefused(*library, ReduceOp::kSum, row.type)) refused += 's';
    if (isRefused(*library, ReduceOp::kProd, row.type)) refused += 'p';
    if (isRefused(*library, ReduceOp::kMax, row.type)) refused += 'x';
    if (isRefused(*library, ReduceOp::kMin, row.type)) refused += 'n';
    CHECK(refused == row.refused);
  }
}

TEST_CASE("bfloat16 came with 2.10, and was in RCCL before") {
  struct Row {
    const char* path;
    const char* code;
    const char* name;
    const char* version;
    bool is_refused;
  };
  const Row rows[] = {
      {FAKE_NCCL_OLD, "2708", "nccl", "2.7.8", true},  {FAKE_NCCL_OLD, "2804", "nccl", "2.8.4", true},
      {FAKE_NCCL_OLD, "20906", "nccl", "2.9.6", true}, {FAKE_NCCL_OLD, "21003", "nccl", "2.10.3", false},
      {FAKE_NCCL, "22803", "nccl", "2.28.3", false},   {FAKE_RCCL, "2708", "rccl", "2.7.8", false},
      {FAKE_RCCL, "21805", "rccl", "2.18.5", false},
  };
  for (const Row& row : rows) {
    CAPTURE(row.code);
    const Version version(row.code);
    const std::shared_ptr<Library> library = load(row.path);
    CHECK(library->capabilities().name == row.name);
    CHECK(library->capabilities().version == row.version);
    CHECK(isRefused(*library, ReduceOp::kSum, DataType::kBfloat16) == row.is_refused);
    CHECK_FALSE(isRefused(*library, ReduceOp::kSum, DataType::kFloat16));
  }
}

TEST_CASE("a refused pair is refused by name, before the library is asked") {
  const Control control(FAKE_NCCL_OLD);
  const std::shared_ptr<Library> library = load(FAKE_NCCL_OLD);
  Ranks ranks(1, 4096);
  Communicators comms = connect(*library, 1);
  const uint64_t kernels = control.counts().kernels;
  const Status status = comms[0]->allReduce(ranks[0].input->there(), ranks[0].output->there(), 8, DataType::kBfloat16,
                                            ReduceOp::kSum, ranks[0].stream);
  CHECK(status.kind() == Kind::kUnavailable);
  CHECK(status.message().find("nccl 2.8.4") != std::string::npos);
  CHECK(control.counts().kernels == kernels);
}

TEST_CASE("a version before 2.14 is used as one that blocks, whatever entry points it has") {
  const Control control(FAKE_NCCL);
  const uint64_t before = control.counts().in_progress;
  connect(*load(FAKE_NCCL), 2);
  const uint64_t now = control.counts().in_progress;
  CHECK(now > before);
  const Version version("21304");
  const std::shared_ptr<Library> library = load(FAKE_NCCL);
  Communicators comms = connect(*library, 2);
  comms.clear();
  CHECK(control.counts().communicators == 0);
  CHECK(control.counts().in_progress == now);
}

TEST_CASE("a library that lacks a needed entry point is unsuitable, by name") {
  NcclOptions options;
  options.path = FAKE_NCCL_LACKING;
  const Status status = loadNccl(options).status();
  CHECK(status.kind() == Kind::kUnavailable);
  CHECK(status.code() == "library_unsuitable");
  CHECK(status.message().find("ncclReduceScatter") != std::string::npos);
  CHECK(status.message().find(FAKE_NCCL_LACKING) != std::string::npos);
}

TEST_CASE("no library is unavailable, with every name that was tried") {
  NcclOptions options;
  options.sonames = {"libjhetcc_no_nccl.so.2", "libjhetcc_no_rccl.so.1"};
  options.directories = {"/nonexistent/lib"};
  const Status status = loadNccl(options).status();
  CHECK(status.kind() == Kind::kUnavailable);
  CHECK(status.code() == "library_missing");
  for (const char* name : {"/nonexistent/lib/libjhetcc_no_nccl.so.2", "libjhetcc_no_rccl.so.1", "nvidia-nccl"}) {
    CHECK(status.message().find(name) != std::string::npos);
  }
}

TEST_CASE("libraries are found in the given directories, by the given names") {
  const std::string path = FAKE_RCCL;
  NcclOptions options;
  options.sonames = {"libjhetcc_no_nccl.so.2", path.substr(path.rfind('/') + 1)};
  options.directories = {path.substr(0, path.rfind('/'))};
  CHECK(must(loadNccl(options))->capabilities().name == "rccl");
}

}  // namespace jhetcc::ccl::nccl::tests
