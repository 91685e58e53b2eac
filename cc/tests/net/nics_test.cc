// SPDX-License-Identifier: Apache-2.0
#include "net/nics.h"

#include <doctest/doctest.h>

#include "net/net_fixtures.h"

namespace jhetcc::net {
namespace {

Address at(const char* host) { return must(Address::fromHost(host, 0)); }

LinkFacts facts(const std::string& name) {
  if (name == "docker0") return {"bridge"};
  if (name == "tun0") return {"tun", 10};
  if (name == "eth1") return {"mlx5_core", 25'000};
  return {};
}

const std::vector<Interface>& machine() {
  static const std::vector<Interface> interfaces = {
      {"lo", at("127.0.0.1"), 8, true, true, true},       {"eth0", at("10.0.0.3"), 24, true, true, false},
      {"eth0", at("10.0.0.4"), 24, true, true, false},    {"eth1", at("169.254.7.7"), 16, true, true, false},
      {"eth1", at("10.1.0.3"), 24, true, true, false},    {"eth2", at("10.2.0.3"), 24, true, false, false},
      {"eth3", at("169.254.8.8"), 16, true, true, false}, {"docker0", at("172.17.0.1"), 16, true, true, false},
      {"tun0", at("10.9.0.1"), 24, true, true, false},    {"lo", at("::1"), 128, true, true, true},
      {"eth0", at("fd00::3"), 64, true, true, false},     {"eth1", at("fe80::7%1"), 64, true, true, false},
  };
  return interfaces;
}

std::string chosen(const std::string& spec, const char* towards) {
  std::string text;
  for (const Nic& nic : must(chooseNics(spec, at(towards), machine(), facts))) {
    text += (text.empty() ? "" : " ") + nic.name + "=" + nic.address.host();
  }
  return text;
}

TEST_CASE("NICs chosen by the system's state: one address each, none that stays within the machine") {
  CHECK(chosen("", "10.0.0.3") == "eth0=10.0.0.3 eth1=10.1.0.3");
  CHECK(chosen("", "10.0.0.4") == "eth0=10.0.0.4 eth1=10.1.0.3");  // the address that reaches the coordinator
  CHECK(chosen("", "fd00::3") == "eth0=fd00::3");
  CHECK(chosen("", "127.0.0.1") == "lo=127.0.0.1");
  CHECK(chosen("", "127.0.0.9") == "lo=127.0.0.9");
  // A bridge, and a link-local address, are taken where they are the way to the coordinator.
  CHECK(chosen("", "172.17.0.1") == "eth0=10.0.0.3 eth1=10.1.0.3 docker0=172.17.0.1");
  CHECK(chosen("", "169.254.8.8") == "eth0=10.0.0.3 eth1=169.254.7.7 eth3=169.254.8.8");
}

TEST_CASE("NICs named by the user: all of them, in that order") {
  CHECK(chosen("eth1,eth0", "10.0.0.3") == "eth1=10.1.0.3 eth0=10.0.0.3");
  CHECK(chosen("en1,eth1", "10.0.0.3") == "eth1=10.1.0.3");  // names of another host
  CHECK(chosen("eth0", "fd00::3") == "eth0=fd00::3");
  CHECK(chosen("eth*", "10.0.0.3") == "eth0=10.0.0.3 eth1=10.1.0.3 eth3=169.254.8.8");
  CHECK(chosen("10.0.0.3,10.0.0.4", "10.0.0.3") == "eth0=10.0.0.3 eth0=10.0.0.4");
  CHECK(chosen("10.0.0.0/8", "10.0.0.3") == "eth0=10.0.0.3 eth1=10.1.0.3 tun0=10.9.0.1");
  CHECK(chosen("docker0", "10.0.0.3") == "docker0=172.17.0.1");
  CHECK(chosen("127.0.0.2,127.0.0.3", "127.0.0.1") == "lo=127.0.0.2 lo=127.0.0.3");
  CHECK(chosen("lo", "127.0.0.1") == "lo=127.0.0.1");
  for (const char* spec : {"nosuch0", "eth2", "10.5.0.0/16", "128.0.0.2", "127.0.0.2/x"}) {
    const Status status = chooseNics(spec, at("10.0.0.3"), machine(), facts).status();
    CHECK_MESSAGE(status.code() == "no_interface", spec);
    CHECK(contains(status.message(), std::string("no usable interface '") + spec + "'"));
  }
  CHECK(describe(must(chooseNics("eth0,eth1", at("10.0.0.3"), machine(), facts))) ==
        "eth0 10.0.0.3, eth1 10.1.0.3 (25 Gbit/s)");
}

TEST_CASE("NICs of one subnet are bound to their interfaces where nobody else answers for them") {
  const std::vector<Interface> neighbours = {{"eth0", at("10.0.0.3"), 24, true, true, false},
                                             {"eth1", at("10.0.0.4"), 24, true, true, false},
                                             {"eth2", at("10.1.0.4"), 24, true, true, false}};
  const auto look = [&](AskLink ask) {
    std::string text;
    for (const Nic& nic : must(chooseNics("", at("10.0.0.3"), neighbours, ask))) {
      text += nic.is_bound ? "b" : nic.shares_subnet ? "s" : "-";
      CHECK(nic.device() == (nic.is_bound ? nic.name : ""));
    }
    return text;
  };
  CHECK(look([](const std::string&) { return LinkFacts{"", 0, true, true}; }) == "bb-");
  CHECK(look([](const std::string&) { return LinkFacts{"", 0, true, false}; }) == "ss-");
  CHECK(look([](const std::string&) { return LinkFacts{"", 0, false, true}; }) == "ss-");
  // Two addresses of one interface are no neighbours.
  CHECK(!must(chooseNics("10.0.0.3,10.0.0.4", at("10.0.0.3"), machine(), facts)).front().shares_subnet);
}

TEST_CASE("the state of a NIC, in the system's words") {
  const Nic nic{"eth0", at("10.0.0.3"), 24, 0};
  std::vector<Interface> interfaces = machine();
  CHECK(nicState(nic, interfaces).isOk());
  CHECK(nicState({"lo", at("127.0.0.7"), 8, 0}, interfaces).isOk());
  interfaces[1].is_running = false;
  CHECK(contains(nicState(nic, interfaces).message(), "eth0 has no carrier"));
  interfaces[1].is_up = false;
  CHECK(contains(nicState(nic, interfaces).message(), "eth0 is down"));
  interfaces.erase(interfaces.begin() + 1);
  CHECK(contains(nicState(nic, interfaces).message(), "the address 10.0.0.3 is gone from eth0"));
  interfaces.erase(interfaces.begin());
  CHECK(nicState({"lo", at("127.0.0.7"), 8, 0}, {}).code() == "nic_lost");
}

TEST_CASE("what the drivers say of this machine's interfaces is asked without rights") {
  CHECK(linkFacts("lo").driver.find("bridge") == std::string::npos);
  CHECK(linkFacts("no such one").driver.empty());
  CHECK(linkFacts("a name that is longer than any interface's").mbit_per_s == 0);
}

}  // namespace
}  // namespace jhetcc::net
