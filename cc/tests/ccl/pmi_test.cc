// SPDX-License-Identifier: Apache-2.0
// The server of an MPI world: what well-behaved members get, and what strangers and broken clients cannot do.
#include <doctest/doctest.h>
#include <sys/socket.h>

#include <thread>

#include "ccl/mpi/pmi_server.h"
#include "net/connect.h"
#include "net/socket.h"

namespace jhetcc::ccl::mpi {
namespace {

const SystemClock kClock;
constexpr int64_t kSecond = 1000 * kNsPerMs;

net::Deadline inSeconds(int64_t seconds) { return net::Deadline::after(kClock, seconds * kSecond); }

std::unique_ptr<PmiServer> serverOf(int32_t size, int64_t line_ns = 10 * kSecond) {
  PmiServer::Config config;
  config.address = net::Address::fromHost("127.0.0.1", 0).value();
  config.size = size;
  config.line_ns = line_ns;
  auto server = PmiServer::create(std::move(config));
  REQUIRE_MESSAGE(server.isOk(), server.status().message());
  return std::move(server).value();
}

class Client {
 public:
  Client(const PmiServer& server, int32_t rank) {
    net::Identity mine;
    mine.job = server.name();
    mine.rank = rank;
    auto connection = net::connect(server.address(), net::Secret::none(), mine, net::kAnyRank, inSeconds(10));
    REQUIRE_MESSAGE(connection.isOk(), connection.status().message());
    connection_ = std::move(connection).value();
  }
  void say(const std::string& text) {
    const Status status = net::sendAll(connection_.fd.get(), text.data(), text.size(), inSeconds(10), "client");
    CHECK_MESSAGE(status.isOk(), status.message());
  }
  std::string hear() {
    std::string line;
    for (char byte; net::receiveAll(connection_.fd.get(), &byte, 1, inSeconds(10), "client").isOk(); line += byte) {
      if (byte == '\n') return line;
    }
    return "nothing after '" + line + "'";
  }
  bool isDropped() {
    char byte;
    return net::receiveAll(connection_.fd.get(), &byte, 1, inSeconds(10), "client").kind() == Kind::kDisconnected;
  }

 private:
  net::Connection connection_;
};

bool waitForDrops(const PmiServer& server, int64_t drops) {
  const net::Deadline deadline = inSeconds(10);
  while (server.dropped() < drops && deadline.remainingNs() > 0) std::this_thread::yield();
  return server.dropped() >= drops;
}

TEST_CASE("two members join and exchange what MPI asks for") {
  const auto server = serverOf(2);
  Client first(*server, 0), second(*server, 1);
  first.say(pmiJoinLine(2, "none", "a"));
  second.say(pmiJoinLine(2, "none", "b"));
  for (Client* client : {&first, &second}) CHECK(client->hear() == "cmd=jhetcc_go world=none");
  first.say("cmd=init pmi_version=1 pmi_subversion=1\n");
  CHECK(first.hear() == "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0");
  first.say("cmd=get_my_kvsname\n");
  CHECK(first.hear() == "cmd=my_kvsname rc=0 kvsname=" + server->name());
  first.say("cmd=put kvsname=" + server->name() + " key=card value=a b=c\n");
  CHECK(first.hear() == "cmd=put_result rc=0 msg=success");
  first.say("cmd=barrier_in\n");
  second.say("cmd=bar");  // a line may come in pieces
  second.say("rier_in\n");
  for (Client* client : {&first, &second}) CHECK(client->hear() == "cmd=barrier_out rc=0");
  second.say("cmd=get kvsname=x key=card\ncmd=get kvsname=x key=none\ncmd=get kvsname=x key=PMI_process_mapping\n");
  CHECK(second.hear() == "cmd=get_result rc=0 msg=success value=a b=c");
  CHECK(second.hear() == "cmd=get_result rc=-1 msg=key_not_found");
  CHECK(second.hear() == "cmd=get_result rc=0 msg=success value=(vector,(0,1,1),(1,1,1))");
  second.say("cmd=spawn_all\ncmd=finalize\n");
  CHECK(second.hear() == "cmd=spawn_all_result rc=-1 msg=unknown");
  CHECK(second.hear() == "cmd=finalize_ack rc=0");
  CHECK(server->dropped() == 0);
}

TEST_CASE("ranks of one host stand together in the mapping, wherever they are") {
  PmiTable table(5, "world");
  std::vector<PmiTable::Reply> replies;
  const char* hosts[] = {"a", "a", "b", "a", "b"};
  for (int32_t rank = 0; rank < 5; ++rank) {
    std::string line = pmiJoinLine(5, "none", hosts[rank]);
    line.pop_back();
    CHECK(table.onLine(rank, line, &replies));
  }
  CHECK(replies.size() == 5);
  CHECK(table.onLine(0, "cmd=get kvsname=world key=PMI_process_mapping", &replies));
  CHECK(replies.back().line == "cmd=get_result rc=0 msg=success value=(vector,(0,1,2),(1,1,1),(0,1,1),(1,1,1))\n");
}

TEST_CASE("members with worlds of their own are told so") {
  for (const auto& [one, other, why] : {std::tuple("none", "old", "did not begin it together"),
                                        std::tuple("old", "old", ""), std::tuple("lost", "lost", "lost a member")}) {
    CAPTURE(one);
    const auto server = serverOf(2);
    Client first(*server, 0), second(*server, 1);
    first.say(pmiJoinLine(2, one, "a"));
    second.say(pmiJoinLine(2, other, "a"));
    for (Client* client : {&first, &second}) {
      const std::string answer = client->hear();
      CHECK_MESSAGE(answer.find(*why ? why : "cmd=jhetcc_go world=old") != std::string::npos, answer);
    }
  }
}

TEST_CASE("a client that breaks the rules is dropped, and the others go on") {
  const std::string join = pmiJoinLine(2, "none", "a");
  const std::string broken[] = {
      "\x01\x02 garbage\n",                         // no command
      "cmd=barrier_in\n",                           // not joined yet
      "GET / HTTP/1.1\r\n\r\n",                     // another protocol
      pmiJoinLine(3, "none", "a"),                  // another size
      "cmd=jhetcc_join size=2 world= host=\n",      // no world
      join + join,                                  // twice
      "cmd=jhetcc_join " + std::string(9000, 'x'),  // too long, no end
      std::string(9000, 'x') + "\n",                // too long
      std::string(100, '\0') + "\n",                // zeros
  };
  const auto server = serverOf(2);
  int64_t drops = 0;
  for (const std::string& text : broken) {
    CAPTURE(text);
    Client client(*server, 1);
    client.say(text);
    CHECK(client.isDropped());
    CHECK(waitForDrops(*server, ++drops));
  }
  {
    Client vanishes(*server, 1);
  }
  CHECK(waitForDrops(*server, ++drops));
  for (const int32_t rank : {2, -1, 1 << 30}) {
    Client wrong(*server, rank);
    CHECK(wrong.isDropped());
    ++drops;
  }
  Client first(*server, 0);
  first.say(join);
  Client impostor(*server, 0);
  CHECK(impostor.isDropped());
  CHECK(waitForDrops(*server, ++drops));
  Client second(*server, 1);
  second.say(join);
  for (Client* client : {&first, &second}) CHECK(client->hear() == "cmd=jhetcc_go world=none");
}

TEST_CASE("after the beginning, too: nobody fills the table or speaks for others") {
  const auto server = serverOf(1);
  Client client(*server, 0);
  client.say(pmiJoinLine(1, "none", "a"));
  CHECK(client.hear() == "cmd=jhetcc_go world=none");
  const std::string put = "cmd=put kvsname=" + server->name() + " key=";
  for (size_t key = 0; key < kPmiKeysPerRankMax; ++key) {
    client.say(put + std::to_string(key) + " value=x\n");
    CHECK(client.hear() == "cmd=put_result rc=0 msg=success");
  }
  client.say(put + "0 value=other\n");
  CHECK(client.hear() == "cmd=put_result rc=-1 msg=duplicate_key");
  client.say(put + "one_too_many value=x\n");
  CHECK(client.isDropped());
}

TEST_CASE("a half line has a deadline") {
  const auto server = serverOf(1, 50 * kNsPerMs);
  Client client(*server, 0);
  client.say("cmd=jhetcc_jo");
  CHECK(client.isDropped());
}

TEST_CASE("a stranger without the name of the world does not come in") {
  const auto server = serverOf(1);
  net::Identity stranger;
  stranger.job = "another";
  stranger.rank = 0;
  const auto connection = net::connect(server->address(), net::Secret::none(), stranger, net::kAnyRank, inSeconds(10));
  CHECK_FALSE(connection.isOk());
}

}  // namespace
}  // namespace jhetcc::ccl::mpi
