// SPDX-License-Identifier: Apache-2.0
// One line of oneCCL's is taken out of standard output, and nothing else.
#include "ccl/oneccl/remark.h"

#include <doctest/doctest.h>

#include <ostream>
#include <sstream>

namespace jhetcc::ccl::oneccl {
namespace {

const std::string kRemark =
    "2026:01:01-10:00:00: 7 |CCL_WARN| value of CCL_LOG_LEVEL changed to be error (default:warn)\n";

TEST_CASE("the remark goes, in pieces or at once, and what is before and after it stays") {
  for (const size_t piece : {size_t{1}, size_t{7}, size_t{1000}}) {
    CAPTURE(piece);
    std::stringbuf seen;
    RemarkFilter filter(&seen);
    std::ostream out(&filter);
    const std::string text = "before\n|CCL_WARN| of another kind\n" + kRemark + "after\n" + kRemark + "no end";
    for (size_t at = 0; at < text.size(); at += piece) out << text.substr(at, piece);
    // Said once by a process: a second one is the program's own text.
    CHECK(seen.str() == "before\n|CCL_WARN| of another kind\nafter\n" + kRemark + "no end");
  }
}

TEST_CASE("a line without an end is shown when it is flushed") {
  std::stringbuf seen;
  RemarkFilter filter(&seen);
  std::ostream out(&filter);
  out << "loss 0.5" << std::flush;
  CHECK(seen.str() == "loss 0.5");
  out << "\rloss 0.4\n";
  CHECK(seen.str() == "loss 0.5\rloss 0.4\n");
}

}  // namespace
}  // namespace jhetcc::ccl::oneccl
