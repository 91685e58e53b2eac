// SPDX-License-Identifier: Apache-2.0
#include "schedules.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>

#include "base/bytes.h"
#include "base/hash.h"
#include "base/random.h"

namespace jhetcc::engine::testing {
namespace {

using Bytes = std::vector<uint8_t>;

std::vector<Planned> load() {
  std::ifstream file(JHETCC_TEST_SCHEDULES, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), {});
  ByteReader reader(bytes);
  std::vector<Planned> all(reader.u32());
  for (Planned& planned : all) {
    planned.label = reader.text(4096);
    planned.algorithm = reader.text(4096);
    planned.members.resize(reader.u32());
    for (Planned::Member& member : planned.members) {
      member.text = reader.text(4096);
      const std::string_view blob = reader.text(1 << 20);
      if (member.text.empty()) continue;
      member.binary = blob;
      auto schedule = schedule::decode(blob.data(), blob.size());
      JHETCC_CHECK(schedule.isOk(), member.text + ": " + schedule.status().message());
      member.program = Program::make(schedule.value());
    }
  }
  JHETCC_CHECK(reader.atEnd() && !all.empty(), std::string("unreadable: " JHETCC_TEST_SCHEDULES));
  return all;
}

const schedule::Schedule& scheduleOf(const Planned& planned, int member) {
  return *planned.members[static_cast<size_t>(member)].program->schedule;
}

template <typename T>
void reduceInto(Bytes& target, const Bytes& source, const std::string& op) {
  for (size_t at = 0; at + sizeof(T) <= target.size(); at += sizeof(T)) {
    T a, b;
    std::memcpy(&a, target.data() + at, sizeof a);
    std::memcpy(&b, source.data() + at, sizeof b);
    const T c = op == "max" ? std::max(a, b) : op == "min" ? std::min(a, b) : op == "prod" ? a * b : a + b;
    std::memcpy(target.data() + at, &c, sizeof c);
  }
}

Bytes reduced(const Planned& planned, uint64_t salt, const std::string& op, const std::string& type) {
  Bytes result = inputOf(planned, 0, salt);
  for (int member = 1; member < planned.size(); ++member) {
    const Bytes input = inputOf(planned, member, salt);
    if (type == "f64") {
      reduceInto<double>(result, input, op);
    } else {
      reduceInto<uint64_t>(result, input, op);
    }
  }
  for (size_t at = 0; op == "mean" && at < result.size(); at += sizeof(double)) {
    double value;
    std::memcpy(&value, result.data() + at, sizeof value);
    value /= planned.size();
    std::memcpy(result.data() + at, &value, sizeof value);
  }
  return result;
}

Bytes block(const Bytes& whole, int index, int count) {
  const auto length = static_cast<std::ptrdiff_t>(whole.size()) / count;
  return {whole.begin() + index * length, whole.begin() + (index + 1) * length};
}

int sourceOf(const std::string& perm, int member) {
  const std::string wanted = ">" + std::to_string(member) + ";";
  const size_t found = (perm + ";").find(wanted);
  return found == std::string::npos ? -1 : std::stoi(perm.substr(perm.rfind(';', found) + 1));
}

}  // namespace

bool Planned::isPointToPoint() const {
  return std::any_of(members.begin(), members.end(),
                     [](const Member& member) { return Call(member.text).keys.count("tag") > 0; });
}

const std::vector<Planned>& allPlanned() {
  static const std::vector<Planned> all = load();
  return all;
}

std::vector<const Planned*> plannedFor(int size, bool short_only) {
  std::vector<const Planned*> found;
  for (const Planned& planned : allPlanned()) {
    if (planned.size() != size) continue;
    const bool is_short =
        std::all_of(planned.members.begin(), planned.members.end(), [](const Planned::Member& member) {
          return !member.program ||
                 member.program->schedule->output_bytes + member.program->schedule->input_bytes <= 2048;
        });
    if (is_short || !short_only) found.push_back(&planned);
  }
  return found;
}

const Planned* planned(int size, const std::string& label, const std::string& algorithm) {
  for (const Planned& planned : allPlanned()) {
    if (planned.size() == size && planned.label == label && (algorithm.empty() || planned.algorithm == algorithm))
      return &planned;
  }
  JHETCC_CHECK(false, label + " for " + std::to_string(size) + " is not in make_schedules.py");
  return nullptr;
}

Call::Call(const std::string& text) {
  const size_t open = text.find('(');
  name = text.substr(0, open);
  if (open == std::string::npos) return;
  std::string rest = text.substr(open + 1, text.size() - open - 2) + ", ";
  for (size_t end; (end = rest.find(", ")) != std::string::npos; rest.erase(0, end + 2)) {
    const std::string part = rest.substr(0, end);
    const size_t equals = part.find('=');
    if (equals != std::string::npos) {
      keys[part.substr(0, equals)] = part.substr(equals + 1);
    } else {
      type = part.substr(0, part.find('['));
    }
  }
}

std::shared_ptr<Command> commandOf(const Planned& planned, int member) {
  const Planned::Member& mine = planned.members[static_cast<size_t>(member)];
  const Call call(mine.text);
  auto command = std::make_shared<Command>();
  command->text = mine.text;
  command->text_hash = hashText(mine.text);
  command->point_to_point = call.keys.count("tag") > 0;
  command->to = call.number("to");
  command->from = call.number("from");
  if (command->point_to_point) command->tag = static_cast<uint32_t>(call.number("tag"));
  command->program = mine.program;
  command->ready = true;
  return command;
}

Bytes inputOf(const Planned& planned, int member, uint64_t salt) {
  const std::string type = Call(planned.members[static_cast<size_t>(member)].text).type;
  Bytes bytes(static_cast<size_t>(scheduleOf(planned, member).input_bytes));
  const auto m = static_cast<uint64_t>(member);
  for (size_t at = 0, e = 0; at < bytes.size(); ++e) {
    uint64_t state = salt * 1'000'003 + e;
    uint64_t word = e % 2 == 0 ? uint64_t{1} << m : splitmix64(state) * (2 * m + 1);
    if (type == "f64") {  // sums of small integers are exact
      const double value = static_cast<double>((m + 1) * (e + 1 + salt % 7));
      std::memcpy(&word, &value, sizeof word);
    } else if (type == "b8") {
      word = splitmix64(state) ^ m * 0x0101010101010101ULL;
    }
    const size_t length = std::min(sizeof word, bytes.size() - at);
    std::memcpy(bytes.data() + at, &word, length);
    at += length;
  }
  return bytes;
}

Bytes outputOf(const Planned& planned, int member, uint64_t salt) {
  const Call call(planned.members[static_cast<size_t>(member)].text);
  const Bytes zeros(static_cast<size_t>(scheduleOf(planned, member).output_bytes));
  const int root = call.number("root");
  const bool is_elsewhere = root >= 0 && root != member;
  if (call.name == "barrier" || call.name == "send") return zeros;
  if (call.name == "broadcast") return inputOf(planned, root, salt);
  if (call.name == "recv" || call.name == "sendrecv") return inputOf(planned, call.number("from"), salt);
  if (call.name == "scatter") return block(inputOf(planned, root, salt), member, planned.size());
  if (call.name == "ppermute") {
    const int source = sourceOf(call.keys.at("perm"), member);
    return source < 0 ? zeros : inputOf(planned, source, salt);
  }
  if (call.name == "reduce") return is_elsewhere ? zeros : reduced(planned, salt, call.keys.at("op"), call.type);
  if (call.name == "psum_scatter") return block(reduced(planned, salt, "sum", call.type), member, planned.size());
  if (call.name == "all_gather" || call.name == "gather" || call.name == "all_to_all") {
    if (is_elsewhere) return zeros;
    Bytes all;
    for (int other = 0; other < planned.size(); ++other) {
      const Bytes input = inputOf(planned, other, salt);
      const Bytes part = call.name == "all_to_all" ? block(input, member, planned.size()) : input;
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }
  return reduced(planned, salt, call.name.substr(1), call.type);
}

}  // namespace jhetcc::engine::testing
