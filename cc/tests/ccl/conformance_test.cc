// SPDX-License-Identifier: Apache-2.0
// One suite for every adapter. NCCL's runs on the tests' own library over virtual accelerators, everywhere; oneCCL's
// and MPI's on the real ones, where JHETCC_TEST_ONECCL and JHETCC_TEST_MPI name their folders.
#include <fstream>

#include "ccl/processes.h"

namespace jhetcc::ccl {
namespace {

constexpr int64_t kSecond = 1000 * kNsPerMs;

struct Adapter {
  std::string argument;            ///< "oneccl=/folder"
  std::string column;              ///< of docs/libraries.md: "`oneccl`"; empty: the page does not list it
  bool one_rank_a_process = true;  ///< as its capabilities say
};

void expectGood(Job& job) {
  const int64_t deadline_ns = kClock.nowNs() + 60 * kSecond;
  for (Process& member : job.members) CHECK(member.wait(deadline_ns) == 0);
  CHECK(job.sweep().empty());
}

std::vector<std::string> cellsOf(const std::string& line) {
  std::vector<std::string> cells;
  for (size_t begin = 1, end; (end = line.find('|', begin)) != std::string::npos; begin = end + 1) {
    const std::string cell = line.substr(begin, end - begin);
    const size_t first = cell.find_first_not_of(' ');
    cells.push_back(first == std::string::npos ? "" : cell.substr(first, cell.find_last_not_of(' ') - first + 1));
  }
  return cells;
}

/// The cell of a row of the first table in docs/libraries.md that has such a column.
std::string cell(const std::string& row, const std::string& column) {
  std::ifstream page(JHETCC_TEST_PAGE);
  size_t at = 0;
  for (std::string line; std::getline(page, line);) {
    const std::vector<std::string> cells = cellsOf(line);
    if (cells.empty()) continue;
    if (cells[0].empty()) {
      const auto found = std::find(cells.begin(), cells.end(), column);
      if (found != cells.end()) at = static_cast<size_t>(found - cells.begin());
    }
    if (at != 0 && cells[0] == row && at < cells.size()) return cells[at];
  }
  return "no row " + row + " with a column " + column;
}

void expectDocumented(Job& job, const std::string& column) {
  const std::string sums = job.told("sum"), products = job.told("prod"), page = cell("sum, prod", column);
  const size_t semicolon = page.find("; sum of ");
  CHECK(products == page.substr(0, semicolon));
  CHECK(sums == (semicolon == std::string::npos ? page : products + " " + page.substr(semicolon + 9)));
  CHECK(job.told("max") == cell("max, min", column));
  CHECK(job.told("min") == cell("max, min", column));
}

/// Those that are there, each asked what it can; says in one line what is missing.
std::vector<Adapter> findAdapters() {
  std::vector<Adapter> found;
  for (const char* path : {FAKE_NCCL, FAKE_RCCL, FAKE_NCCL_OLD}) found.push_back({std::string("nccl=") + path, ""});
  for (const auto& [name, variable] :
       {std::pair("oneccl", "JHETCC_TEST_ONECCL"), std::pair("mpi", "JHETCC_TEST_MPI")}) {
    if (const char* folder = std::getenv(variable); folder && *folder) {
      found.push_back({std::string(name) + "=" + folder, "`" + std::string(name) + "`"});
    } else {
      MESSAGE("tests with ", std::string(name), " are skipped: ", std::string(variable), " is not set; ",
              "`make libraries` fetches it");
    }
  }
  for (Adapter& adapter : found) {
    CAPTURE(adapter.argument);
    Job job(1, "about", {adapter.argument}, true);
    expectGood(job);
    adapter.one_rank_a_process = job.told("one_rank_a_process") == "yes";
    if (!adapter.column.empty()) expectDocumented(job, adapter.column);
  }
  return found;
}

const std::vector<Adapter>& adapters() {
  static const std::vector<Adapter> all = findAdapters();
  return all;
}

TEST_CASE("every operation, type and size; parts and other orders of the ranks") {
  for (const Adapter& adapter : adapters()) {
    for (const int size : {1, 2, 3, 4}) {
      CAPTURE(adapter.argument);
      CAPTURE(size);
      Job job(size, "everything", {adapter.argument}, !adapter.one_rank_a_process);
      expectGood(job);
      for (int rank = 0; size > 1 && rank < size && !adapter.column.empty(); ++rank) {
        const std::string mine = std::to_string(rank);
        CHECK("`" + job.told("nans made " + mine) + "`" == cell("infinity minus infinity", adapter.column));
        CHECK(job.told("nans kept " + mine) == cell("sign and payload of a source's NaN", adapter.column));
      }
    }
  }
}

TEST_CASE("two libraries in one process, whichever comes first") {
  for (const Adapter& first : adapters()) {
    for (const Adapter& second : adapters()) {
      if (&first == &second || first.one_rank_a_process != second.one_rank_a_process) continue;
      CAPTURE(first.argument);
      CAPTURE(second.argument);
      Job job(2, "side_by_side", {first.argument, second.argument}, !first.one_rank_a_process);
      expectGood(job);
    }
  }
}

TEST_CASE("a second job in the same processes") {
  for (const Adapter& adapter : adapters()) {
    CAPTURE(adapter.argument);
    Job job(2, "again", {adapter.argument}, !adapter.one_rank_a_process);
    expectGood(job);
  }
}

TEST_CASE("a member is killed: calls are aborted or given up and the survivors end with their own code") {
  for (const Adapter& adapter : adapters()) {
    CAPTURE(adapter.argument);
    Job job(3, "killed", {adapter.argument}, !adapter.one_rank_a_process);
    if (adapter.one_rank_a_process) {
      CHECK(job.members.back().wait(kClock.nowNs() + 60 * kSecond) == -SIGKILL);
      job.tell("killed");
    }
    const int64_t deadline_ns = kClock.nowNs() + (adapter.one_rank_a_process ? 3 : 60) * kSecond;
    const size_t survivors = job.members.size() - (adapter.one_rank_a_process ? 1 : 0);
    for (size_t member = 0; member < survivors; ++member) CHECK(job.members[member].wait(deadline_ns) == 7);
    CHECK(job.sweep().empty());  // of the killed one neither
  }
}

TEST_CASE("members that never come: create is given up and the process ends with its own code") {
  for (const Adapter& adapter : adapters()) {
    CAPTURE(adapter.argument);
    Job job(2, "alone", {adapter.argument}, true, 1);
    CHECK(job.members[0].wait(kClock.nowNs() + 20 * kSecond) == 7);
    CHECK(job.sweep().empty());
  }
}

}  // namespace
}  // namespace jhetcc::ccl
