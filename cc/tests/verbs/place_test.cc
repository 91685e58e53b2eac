// SPDX-License-Identifier: Apache-2.0
// Which device and GID stand for an address, from a sysfs tree of the test's; and a machine without libibverbs.
#include "transport/verbs/place.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "transport/verbs/library.h"

namespace jhetcc::transport::verbs {
namespace {

class Tree {
 public:
  Tree() {
    char name[] = "/tmp/jhetcc-sysfs-XXXXXX";
    REQUIRE(mkdtemp(name) != nullptr);
    root_ = name;
  }
  ~Tree() { std::filesystem::remove_all(root_); }
  void put(const std::string& device, const std::string& index, const std::string& gid, const std::string& type) {
    const std::string folder = root_ + "/class/infiniband/" + device + "/ports/1";
    std::filesystem::create_directories(folder + "/gids");
    std::filesystem::create_directories(folder + "/gid_attrs/types");
    std::ofstream(folder + "/gids/" + index) << gid << "\n";
    std::ofstream(folder + "/gid_attrs/types/" + index) << type << "\n";
  }
  const std::string& root() const { return root_; }

 private:
  std::string root_;
};

net::Address address(const char* host) {
  const Result<net::Address> made = net::Address::fromHost(host, 0);
  REQUIRE(made.isOk());
  return made.value();
}

}  // namespace

TEST_CASE(
    "verbs: a local address is found in the table of the device that has it, as RoCE v2, wherever it stands now") {
  Tree tree;
  tree.put("rdma0", "0", "fe80:0000:0000:0000:5054:00ff:fe00:0001", "IB/RoCE v1");
  tree.put("rdma0", "1", "0000:0000:0000:0000:0000:ffff:0a09:0001", "RoCE v2");
  tree.put("rdma1", "2", "0000:0000:0000:0000:0000:ffff:0a09:0101", "IB/RoCE v1");
  tree.put("rdma1", "10", "0000:0000:0000:0000:0000:ffff:0a09:0101", "RoCE v2");
  tree.put("rdma1", "11", "fd00:0000:0000:0000:0000:0000:0000:0007", "RoCE v2");
  const Result<Place> first = findPlace(address("10.9.0.1"), tree.root());
  REQUIRE(first.isOk());
  CHECK(first.value().device == "rdma0");
  CHECK(first.value().port == 1);
  CHECK(first.value().gid_index == 1);
  const Result<Place> second = findPlace(address("10.9.1.1"), tree.root());
  REQUIRE(second.isOk());
  CHECK(second.value().device == "rdma1");
  CHECK(second.value().gid_index == 10);
  CHECK(findPlace(address("fd00::7"), tree.root()).value().gid_index == 11);

  CHECK(isStill(second.value(), tree.root()));
  tree.put("rdma1", "10", "0000:0000:0000:0000:0000:0000:0000:0000", "");
  CHECK(!isStill(second.value(), tree.root()));
  tree.put("rdma1", "4", "0000:0000:0000:0000:0000:ffff:0a09:0101", "RoCE v2");  // came back at another index
  CHECK(findPlace(address("10.9.1.1"), tree.root()).value().gid_index == 4);
}

TEST_CASE("verbs: an address without a device is told with the devices there are") {
  Tree tree;
  CHECK(findPlace(address("10.9.0.1"), tree.root()).status().message().find("devices: none") != std::string::npos);
  tree.put("rdma0", "1", "0000:0000:0000:0000:0000:ffff:0a09:0001", "RoCE v2");
  const Status status = findPlace(address("10.9.0.2"), tree.root()).status();
  CHECK(status.kind() == Kind::kUnavailable);
  CHECK(status.message().find("10.9.0.2") != std::string::npos);
  CHECK(status.message().find("rdma0") != std::string::npos);
}

TEST_CASE("verbs: a missing library is an error with the loader's text and the package's name") {
  const Status status = Library::load("/nowhere/libibverbs.so.1").status();
  CHECK(status.kind() == Kind::kUnavailable);
  CHECK(status.message().find("/nowhere/libibverbs.so.1") != std::string::npos);
  CHECK(status.message().find("libibverbs1") != std::string::npos);
}

}  // namespace jhetcc::transport::verbs
