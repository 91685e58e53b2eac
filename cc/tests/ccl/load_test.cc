// SPDX-License-Identifier: Apache-2.0
// What loading says where there is nothing to load, or something else.
#include "ccl/load.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "ccl/adapter.h"

namespace jhetcc::ccl {
namespace {

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

Status loading(const std::string& name, const std::string& path) {
  LoadOptions options;
  options.name = name;
  options.path = path;
  return load(options).status();
}

TEST_CASE("an unknown name lists the adapters") {
  const Status status = loading("gloo", "");
  CHECK(status.code() == "unknown_library");
  CHECK(contains(status.message(), "'gloo'"));
  CHECK(contains(status.message(), "mpi, oneccl"));
}

TEST_CASE("a folder without the library, and a file that is none") {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("jhetcc-load-" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder);
  const std::filesystem::path file = folder / "libccl.so.2";
  for (const char* name : {"oneccl", "mpi"}) {
    CAPTURE(name);
    const Status missing = loading(name, folder.string());
    CHECK(missing.code() == "library_missing");
    CHECK(contains(missing.message(), folder.string()));
    CHECK(contains(missing.message(), "make libraries"));
  }
  std::ofstream(file) << "no library";
  const Status garbage = loading("oneccl", folder.string());
  CHECK(garbage.code() == "library_missing");
  CHECK(contains(garbage.message(), file.string()));
  std::filesystem::remove_all(folder);
}

TEST_CASE("another library is told from the one that is wanted") {
  const Status status = loading("mpi", "libm.so.6");
  CHECK(status.code() == "library_unsuitable");
  CHECK(contains(status.message(), "MPI_Abi_get_version"));
}

TEST_CASE("what the user set stays") {
  ::setenv("JHETCC_TEST_SETTING", "his", 1);
  setDefault("JHETCC_TEST_SETTING", "ours");
  CHECK(std::string(std::getenv("JHETCC_TEST_SETTING")) == "his");
  ::unsetenv("JHETCC_TEST_SETTING");
  setDefault("JHETCC_TEST_SETTING", "ours");
  CHECK(std::string(std::getenv("JHETCC_TEST_SETTING")) == "ours");
}

}  // namespace
}  // namespace jhetcc::ccl
