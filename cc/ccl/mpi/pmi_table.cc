// SPDX-License-Identifier: Apache-2.0
#include "ccl/mpi/pmi_table.h"

#include <algorithm>

namespace jhetcc::ccl::mpi {
namespace {

bool isWord(std::string_view text, size_t size_max) {
  return !text.empty() && text.size() <= size_max &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) { return c > ' ' && c < 0x7f && c != '='; });
}

}  // namespace

std::string pmiJoinLine(int32_t size, const std::string& world, const std::string& host) {
  return "cmd=jhetcc_join size=" + std::to_string(size) + " world=" + world + " host=" + host + "\n";
}

PmiLine::PmiLine(std::string_view line) {
  while (!line.empty()) {
    const size_t equals = line.find('=');
    if (equals == std::string_view::npos) return;
    const std::string_view name = line.substr(0, equals);
    // A value and a reason reach to the end of the line, spaces and all.
    const bool is_last = name == "value" || name == "why";
    const size_t end = is_last ? std::string_view::npos : line.find(' ', equals);
    fields_.emplace_back(name, line.substr(equals + 1, end == std::string_view::npos ? end : end - equals - 1));
    if (end == std::string_view::npos) return;
    line.remove_prefix(end);
    while (!line.empty() && line.front() == ' ') line.remove_prefix(1);
  }
}

std::string_view PmiLine::field(std::string_view name) const {
  for (const auto& [known, value] : fields_) {
    if (known == name) return value;
  }
  return {};
}

bool PmiTable::onLine(int32_t rank, std::string_view text, std::vector<Reply>* replies) {
  const PmiLine line(text);
  const std::string_view command = line.field("cmd");
  const auto reply = [&](const std::string& answer) { replies->push_back({rank, answer + "\n"}); };
  if (command == "jhetcc_join") return join(rank, line, replies);
  if (!is_joined_) return false;
  const std::string size = std::to_string(clients_.size());
  if (command == "init") {
    reply("cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0");
  } else if (command == "get_maxes") {
    reply("cmd=maxes rc=0 kvsname_max=256 keylen_max=" + std::to_string(kPmiKeyBytesMax) +
          " vallen_max=" + std::to_string(kPmiValueBytesMax));
  } else if (command == "get_appnum") {
    reply("cmd=appnum rc=0 appnum=0");
  } else if (command == "get_my_kvsname") {
    reply("cmd=my_kvsname rc=0 kvsname=" + name_);
  } else if (command == "get_universe_size") {
    reply("cmd=universe_size rc=0 size=" + size);
  } else if (command == "put") {
    return put(rank, line, replies);
  } else if (command == "get") {
    reply(get(line));
  } else if (command == "barrier_in") {
    enterBarrier(rank, replies);
  } else if (command == "finalize") {
    reply("cmd=finalize_ack rc=0");
  } else {
    if (!isWord(command, kPmiKeyBytesMax)) return false;
    reply("cmd=" + std::string(command) + "_result rc=-1 msg=unknown");
  }
  return true;
}

void PmiTable::onGone(int32_t rank) {
  if (!is_joined_) clients_[static_cast<size_t>(rank)] = Client{};
}

bool PmiTable::join(int32_t rank, const PmiLine& line, std::vector<Reply>* replies) {
  Client& client = clients_[static_cast<size_t>(rank)];
  if (is_joined_ || client.is_joined || line.field("size") != std::to_string(clients_.size()) ||
      !isWord(line.field("world"), kPmiKeyBytesMax) || !isWord(line.field("host"), kPmiKeyBytesMax)) {
    return false;
  }
  client.is_joined = true;
  client.world = line.field("world");
  client.host = line.field("host");
  is_joined_ = std::all_of(clients_.begin(), clients_.end(), [](const Client& c) { return c.is_joined; });
  if (!is_joined_) return true;
  std::string answer = "cmd=jhetcc_go world=" + clients_[0].world;
  for (size_t other = 0; other < clients_.size(); ++other) {
    if (clients_[other].world == "lost" || clients_[other].world != clients_[0].world) {
      answer = "cmd=jhetcc_no why=MPI begins once in a process, and rank " + std::to_string(other) +
               (clients_[other].world == "lost" ? " lost a member of its world before"
                                                : " and rank 0 did not begin it together") +
               ": start the processes anew";
      break;
    }
  }
  for (size_t other = 0; other < clients_.size(); ++other) {
    replies->push_back({static_cast<int32_t>(other), answer + "\n"});
  }
  return true;
}

bool PmiTable::put(int32_t rank, const PmiLine& line, std::vector<Reply>* replies) {
  const std::string_view key = line.field("key"), value = line.field("value");
  Client& client = clients_[static_cast<size_t>(rank)];
  if (!isWord(key, kPmiKeyBytesMax) || value.size() > kPmiValueBytesMax || line.field("kvsname") != name_) return false;
  const bool is_new = values_.find(key) == values_.end();
  if (is_new && ++client.keys > kPmiKeysPerRankMax) return false;
  if (is_new) values_.emplace(key, value);
  replies->push_back({rank, is_new ? "cmd=put_result rc=0 msg=success\n" : "cmd=put_result rc=-1 msg=duplicate_key\n"});
  return true;
}

std::string PmiTable::get(const PmiLine& line) const {
  const std::string_view key = line.field("key");
  std::string value;
  if (key == "PMI_process_mapping") {
    value = mapping();
  } else if (const auto found = values_.find(key); found != values_.end()) {
    value = found->second;
  }
  if (value.empty() || value.size() > kPmiValueBytesMax) return "cmd=get_result rc=-1 msg=key_not_found";
  return "cmd=get_result rc=0 msg=success value=" + value;
}

void PmiTable::enterBarrier(int32_t rank, std::vector<Reply>* replies) {
  clients_[static_cast<size_t>(rank)].is_in_barrier = true;
  if (!std::all_of(clients_.begin(), clients_.end(), [](const Client& c) { return c.is_in_barrier; })) return;
  for (size_t other = 0; other < clients_.size(); ++other) {
    clients_[other].is_in_barrier = false;
    replies->push_back({static_cast<int32_t>(other), "cmd=barrier_out rc=0\n"});
  }
}

/// Blocks of (first host, hosts, ranks on each) in rank order.
std::string PmiTable::mapping() const {
  std::vector<std::string> hosts;
  std::string text = "(vector";
  for (size_t rank = 0; rank < clients_.size();) {
    const std::string& host = clients_[rank].host;
    size_t end = rank;
    while (end < clients_.size() && clients_[end].host == host) ++end;
    const size_t number = static_cast<size_t>(std::find(hosts.begin(), hosts.end(), host) - hosts.begin());
    if (number == hosts.size()) hosts.push_back(host);
    text += ",(" + std::to_string(number) + ",1," + std::to_string(end - rank) + ")";
    rank = end;
  }
  return text + ")";
}

}  // namespace jhetcc::ccl::mpi
