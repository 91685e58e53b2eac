// SPDX-License-Identifier: Apache-2.0
// One suite for every adapter, on the real libraries, where JHETCC_TEST_ONECCL and JHETCC_TEST_MPI name their folders.
#include <fstream>

#include "ccl/processes.h"

namespace jhetcc::ccl {
namespace {

constexpr int64_t kSecond = 1000 * kNsPerMs;

/// "oneccl=/folder" for those that are there; says in one line what is missing.
std::vector<std::string> libraries() {
  std::vector<std::string> found;
  for (const auto& [name, variable] :
       {std::pair("oneccl", "JHETCC_TEST_ONECCL"), std::pair("mpi", "JHETCC_TEST_MPI")}) {
    if (const char* folder = std::getenv(variable); folder && *folder) {
      found.push_back(std::string(name) + "=" + folder);
    } else {
      MESSAGE("tests with ", std::string(name), " are skipped: ", std::string(variable), " is not set; ",
              "`make libraries` fetches it");
    }
  }
  return found;
}

void expectGood(Job& job) {
  const int64_t deadline_ns = kClock.nowNs() + 60 * kSecond;
  for (Process& member : job.members) CHECK(member.wait(deadline_ns) == 0);
  CHECK(job.sweep().empty());
}

/// The cell of a row of the table in docs/libraries.md that begins with these words; columns are the libraries'.
std::string cell(const std::string& row, size_t column) {
  std::ifstream page(JHETCC_TEST_PAGE);
  for (std::string line; std::getline(page, line);) {
    if (!line.starts_with("| " + row + " |")) continue;
    size_t begin = 0;
    for (size_t bar = 0; bar < column + 2; ++bar) begin = line.find('|', begin) + 1;
    return line.substr(begin + 1, line.find('|', begin) - begin - 2);
  }
  return "no row " + row;
}

void expectDocumented(Job& job, size_t column) {
  const std::string sums = job.told("sum"), products = job.told("prod"), page = cell("sum, prod", column);
  const size_t semicolon = page.find("; sum of ");
  CHECK(products == page.substr(0, semicolon));
  CHECK(sums == (semicolon == std::string::npos ? page : products + " " + page.substr(semicolon + 9)));
  CHECK(job.told("max") == cell("max, min", column));
  CHECK(job.told("min") == cell("max, min", column));
}

TEST_CASE("every operation, type and size; parts and other orders of the ranks") {
  for (const std::string& library : libraries()) {
    for (const int size : {2, 4}) {
      CAPTURE(library);
      CAPTURE(size);
      Job job(size, "everything", {library});
      expectGood(job);
      expectDocumented(job, library.starts_with("oneccl") ? 0 : 1);
    }
  }
}

TEST_CASE("two libraries in one process, whichever comes first") {
  std::vector<std::string> both = libraries();
  if (both.size() < 2) return;
  for (int order = 0; order < 2; ++order) {
    CAPTURE(both[0]);
    Job job(2, "side_by_side", both);
    expectGood(job);
    std::swap(both[0], both[1]);
  }
}

TEST_CASE("a second job in the same processes") {
  for (const std::string& library : libraries()) {
    CAPTURE(library);
    Job job(2, "again", {library});
    expectGood(job);
  }
}

TEST_CASE("a member is killed: the call is given up and the survivor ends with its own code") {
  for (const std::string& library : libraries()) {
    CAPTURE(library);
    Job job(2, "killed", {library});
    CHECK(job.members[1].wait(kClock.nowNs() + 60 * kSecond) == -SIGKILL);
    job.tell("killed");
    CHECK(job.members[0].wait(kClock.nowNs() + 3 * kSecond) == 7);
    CHECK(job.sweep().empty());  // of the killed one neither
  }
}

TEST_CASE("members that never come: create is given up and the process ends with its own code") {
  for (const std::string& library : libraries()) {
    CAPTURE(library);
    Job job(2, "alone", {library}, 1);
    CHECK(job.members[0].wait(kClock.nowNs() + 20 * kSecond) == 7);
    CHECK(job.sweep().empty());
  }
}

}  // namespace
}  // namespace jhetcc::ccl
