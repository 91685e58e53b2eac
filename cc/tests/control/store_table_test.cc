// SPDX-License-Identifier: Apache-2.0
#include "control/store_table.h"

#include <doctest/doctest.h>

namespace jhetcc::control {
namespace {

struct Table {
  StoreTable table;
  std::vector<StoreWaiter> woken;
  std::string woken_value;

  explicit Table(StoreLimits limits = {}) : table(limits) {}
  std::optional<StoreOutcome> ask(uint64_t caller, StoreOp op, std::string_view key, std::string_view value = {},
                                  int64_t delta = 0, uint64_t id = 1) {
    woken.clear();
    return table.handle(caller, {id, op, delta, key, value}, &woken, &woken_value);
  }
};

TEST_CASE("keys and bytes are bounded; replacing a value is charged by the difference") {
  Table t({2, 20});
  CHECK(t.ask(1, StoreOp::kSet, "a", "12345")->answer == StoreAnswer::kOk);
  CHECK(t.ask(1, StoreOp::kSet, "b", "")->answer == StoreAnswer::kOk);
  StoreOutcome full = *t.ask(1, StoreOp::kSet, "c", "");
  CHECK(full.answer == StoreAnswer::kError);
  CHECK(full.error.code() == "store_full");
  CHECK(t.ask(1, StoreOp::kSetIfAbsent, "c", "")->error.kind() == Kind::kResource);
  CHECK(t.ask(1, StoreOp::kAdd, "c", "", 1)->error.code() == "store_full");
  CHECK(t.ask(1, StoreOp::kSet, "a", std::string(18, 'x'))->answer == StoreAnswer::kOk);
  CHECK(t.ask(1, StoreOp::kSet, "b", "xx")->error.code() == "store_full");
  CHECK(t.ask(1, StoreOp::kTryGet, "b")->value.empty());
  CHECK(t.ask(1, StoreOp::kSet, "a", "")->answer == StoreAnswer::kOk);
  CHECK(t.ask(1, StoreOp::kSet, "b", "xx")->answer == StoreAnswer::kOk);
}

TEST_CASE("waits end by set, add, set-if-absent, by being forgotten, or with their caller") {
  Table t;
  for (StoreOp op : {StoreOp::kSet, StoreOp::kSetIfAbsent, StoreOp::kAdd}) {
    const std::string key(1, static_cast<char>('a' + static_cast<int>(op)));
    CHECK(!t.ask(7, StoreOp::kGet, key, "", 0, 11).has_value());
    CHECK(!t.ask(8, StoreOp::kGet, key, "", 0, 12).has_value());
    t.ask(1, op, key, "5", 5);
    REQUIRE(t.woken.size() == 2);
    CHECK(t.woken[0].caller == 7);
    CHECK(t.woken[1].request == 12);
    CHECK(t.woken_value == "5");
    CHECK(t.table.waits() == 0);
  }
  CHECK(!t.ask(7, StoreOp::kGet, "x", "", 0, 1).has_value());
  CHECK(!t.ask(8, StoreOp::kGet, "x", "", 0, 1).has_value());
  CHECK(!t.ask(7, StoreOp::kForget, "", "", 1).has_value());
  CHECK(t.table.waits() == 1);
  t.table.forgetCaller(8);
  CHECK(t.table.waits() == 0);
  t.ask(1, StoreOp::kSet, "x", "v");
  CHECK(t.woken.empty());
}

TEST_CASE("one caller's waits are bounded, and room comes back") {
  Table t;
  for (uint64_t id = 0; id < kStoreWaitsPerCallerMax; ++id) CHECK(!t.ask(1, StoreOp::kGet, "x", "", 0, id).has_value());
  CHECK(t.ask(1, StoreOp::kGet, "x", "", 0, 99)->error.code() == "store_waits");
  CHECK(!t.ask(2, StoreOp::kGet, "x").has_value());
  t.ask(2, StoreOp::kSet, "x", "v");
  CHECK(t.woken.size() == kStoreWaitsPerCallerMax + 1);
  CHECK(!t.ask(1, StoreOp::kGet, "y").has_value());
}

TEST_CASE("requests that are none are recognised") {
  const std::string good = encodeRequest({1, StoreOp::kSet, 0, "key", "value"});
  CHECK(decodeRequest(good).has_value());
  for (size_t size = 0; size < good.size(); ++size) CHECK(!decodeRequest(std::string_view(good).substr(0, size)));
  CHECK(!decodeRequest(good + "x"));
  CHECK(!decodeRequest(encodeRequest({1, static_cast<StoreOp>(0), 0, "key", ""})));
  CHECK(!decodeRequest(encodeRequest({1, static_cast<StoreOp>(9), 0, "key", ""})));
  CHECK(!decodeRequest(encodeRequest({1, StoreOp::kSet, 0, std::string(257, 'k'), ""})));
}

TEST_CASE("an empty key is refused by the server too") {
  Table t;
  CHECK(t.ask(1, StoreOp::kSet, "", "v")->error.code() == "store_key");
  CHECK(t.ask(1, StoreOp::kGet, "")->error.code() == "store_key");
}

}  // namespace
}  // namespace jhetcc::control
