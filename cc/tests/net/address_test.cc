// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "net/interfaces.h"
#include "net/net_fixtures.h"

namespace jhetcc::net {
namespace {

TEST_CASE("addresses print as they parse") {
  for (const char* text : {"127.0.0.1:0", "10.1.2.3:65535", "[::1]:4711", "[2001:db8::1]:1", "unix:@a name/x"}) {
    CHECK(must(Address::parse(text)).text() == text);
    CHECK(must(Address::parse(text)) == must(Address::parse(text)));
  }
  CHECK(!(must(Address::parse("127.0.0.1:1")) == must(Address::parse("127.0.0.1:2"))));
  CHECK(!(must(Address::parse("unix:@a")) == must(Address::parse("unix:@b"))));
  CHECK(must(Address::parse("127.0.0.1:1")).withPort(9).text() == "127.0.0.1:9");
  CHECK(Address().text() == "nowhere");
}

TEST_CASE("what is no address is refused with the text and the forms that are") {
  for (const std::string& text : {std::string("127.0.0.1"), std::string("127.0.0.1:"), std::string("127.0.0.1:65536"),
                                  std::string("127.0.0.1:-1"), std::string("::1:80"), std::string("[::1:80"),
                                  std::string(":80"), std::string("localhost:80"), std::string("1.2.3.4.5:80"),
                                  std::string("unix:@"), "unix:@" + std::string(108, 'x'), std::string()}) {
    const Status status = Address::parse(text).status();
    CHECK_MESSAGE(status.code() == "address", text);
    CHECK(contains(status.message(), "write host:port, [ipv6]:port or unix:@name"));
  }
}

TEST_CASE("what an address is") {
  const auto is = [](const char* host) { return must(Address::fromHost(host, 1)); };
  for (const char* host : {"127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"}) CHECK(is(host).isLoopback());
  for (const char* host : {"128.0.0.1", "::", "::2", "0.0.0.0", "::ffff:128.0.0.1"}) CHECK(!is(host).isLoopback());
  CHECK(freshUnixName().isLoopback());
  CHECK(is("0.0.0.0").isWildcard());
  CHECK(is("::").isWildcard());
  CHECK(!is("::1").isWildcard());
  CHECK(is("169.254.3.4").isLinkLocal());
  CHECK(is("fe80::1").isLinkLocal());
  CHECK(!is("10.0.0.1").isLinkLocal());
}

TEST_CASE("names are resolved, unknown ones named") {
  CHECK(must(resolve("127.0.0.1:5")).front().text() == "127.0.0.1:5");
  CHECK(must(resolve("unix:@x")).front().isUnix());
  for (const Address& address : must(resolve("localhost:5"))) CHECK(address.isLoopback());
  const Status unknown = resolve("no-such-host.invalid:5").status();
  CHECK(unknown.code() == "host_unknown");
  CHECK(contains(unknown.message(), "'no-such-host.invalid'"));
}

TEST_CASE("this machine's interfaces, loopback among them") {
  bool has_loopback = false;
  for (const Interface& interface : must(listInterfaces())) {
    if (interface.is_loopback && interface.address.host() == "127.0.0.1") {
      has_loopback = true;
      CHECK(interface.is_up);
      CHECK(interface.prefix_length == 8);
    }
  }
  CHECK(has_loopback);
}

TEST_CASE("interfaces named by the user: names, subnets, addresses, in order, with what there is in the error") {
  const auto at = [](const char* host) { return must(Address::fromHost(host, 0)); };
  const std::vector<Interface> machine = {
      {"lo", at("127.0.0.1"), 8, true, true, true},    {"eth0", at("169.254.1.1"), 16, true, true, false},
      {"eth0", at("10.0.0.3"), 24, true, true, false}, {"eth1", at("10.1.0.3"), 24, true, false, false},
      {"ib0", at("fd00::3"), 64, true, true, false},   {"docker0", at("172.17.0.1"), 16, false, false, false},
      {"ib0.5", at("10.5.0.3"), 24, true, true, false}};
  const auto first = [&](const char* spec) { return must(selectInterfaces(spec, machine)).front().host(); };
  CHECK(first("eth0") == "10.0.0.3");  // link-local last
  CHECK(must(selectInterfaces("eth0", machine)).size() == 2);
  CHECK(first("nosuch, ib0,eth0") == "fd00::3");
  CHECK(first("10.0.0.0/16") == "10.0.0.3");
  CHECK(first("10.0.0.3") == "10.0.0.3");
  CHECK(first("fd00::/8") == "fd00::3");
  CHECK(first("eth1,lo") == "127.0.0.1");
  CHECK(must(selectInterfaces("ib0", machine)).size() == 1);  // not ib0.5
  CHECK(must(selectInterfaces("ib0*", machine)).size() == 2);
  CHECK(first("ib0.*") == "10.5.0.3");
  CHECK(first("*th0") == "10.0.0.3");
  for (const char* spec :
       {"nosuch0", "et", "eth", "th0", "en*", "10.9.0.0/16", "10.0.0.0/33", "10.0.0.4", "", "10.0.0.0/x"}) {
    const Status status = selectInterfaces(spec, machine).status();
    CHECK_MESSAGE(status.code() == "no_interface", spec);
    CHECK(contains(status.message(), std::string("no usable interface '") + spec + "'"));
    CHECK(contains(status.message(), "eth0 10.0.0.3/24, eth1 10.1.0.3/24 (no carrier)"));
  }
  CHECK(contains(selectInterfaces("eth1", machine).status().message(), "eth1 is down or has no carrier"));
  CHECK(contains(describe(machine), "docker0 172.17.0.1/16 (down)"));
}

}  // namespace
}  // namespace jhetcc::net
