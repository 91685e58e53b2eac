// SPDX-License-Identifier: Apache-2.0
#include "simulation.h"

#include <algorithm>
#include <set>

#include "base/hash.h"
#include "device/fake/api.h"
#include "fake_kernels.h"

namespace jhetcc::engine::testing {
namespace {

constexpr int64_t kQuantumNs = 20'000;

trace::Trace& sharedTrace() {
  static trace::Trace trace;
  if (!trace.recorder) trace.recorder = std::move(trace::Recorder::create(1024)).value();
  return trace;
}

EngineOptions engineOptions() {
  EngineOptions options;
  options.operation_timeout_ns = kTimeoutNs;
  options.warn_after_ns = kTimeoutNs / 4;
  options.probe_after_ns = kProbeNs;
  options.abort_gather_ns = kGatherNs;
  options.abort_confirm_ns = kConfirmNs;
  return options;
}

size_t messagesTo(const schedule::Schedule& schedule) {
  size_t count = 0;
  for (const schedule::Step& step : schedule.steps) {
    if (step.kind == schedule::StepKind::kRecv)
      count += static_cast<size_t>(schedule::iterations(step.length, schedule.chunk_bytes));
  }
  return count;
}

bool sameVerdict(const control::Verdict& a, const control::Verdict& b) {
  return a.status.code() == b.status.code() && a.lost == b.lost;
}

}  // namespace

Simulation::Simulation(int ranks, uint64_t seed, const transport::sim::Options& options, const Wrap& wrap,
                       const Join& join)
    : network(seed, options),
      library(
          seed, network, [this](int rank) { return !this->rank(rank).dead; },
          [this](const std::string& what) { fail(what); }),
      seed_(seed),
      random_(seed ^ 0x51ed),
      ranks_(static_cast<size_t>(ranks)) {
  for (int a = 0; a < ranks; ++a) {
    rank(a).engine = std::make_unique<Engine>(a, engineOptions(), network.clock(), sharedTrace());
    rank(a).depth = 1 + static_cast<int>(draw(3));
    order_.push_back(a);
  }
  for (int a = 0; a < ranks; ++a) {
    for (int b = a + 1; b < ranks; ++b) {
      auto [left, right] = join ? join(network, a, b) : network.connect(a, b);
      if (wrap) {
        left = wrap(a, b, std::move(left));
        right = wrap(b, a, std::move(right));
      }
      rank(a).engine->addRail(std::make_unique<rail::Rail>(b, std::move(left)));
      rank(b).engine->addRail(std::make_unique<rail::Rail>(a, std::move(right)));
    }
  }
}

Simulation::~Simulation() = default;

void Simulation::giveDevice(int index, device::fake::Options options) {
  options.manual = true;
  options.seed = seed_ * 1000 + static_cast<uint64_t>(index);
  Rank& mine = rank(index);
  mine.device = std::make_unique<DeviceRank>();
  auto device = device::fake::create(options);
  JHETCC_CHECK(device.isOk(), device.status().message());
  mine.device->device = std::move(device).value();
  for (int k = 0; k < options.queues + 1; ++k) {
    mine.device->streams.push_back(std::move(mine.device->device->createStream()).value());
  }
  mine.device->must_wait = !options.stream_values;
  if (mine.device->must_wait) mine.depth = 1;
  auto lane = Lane::create(mine.device->device, reduceOnFake);
  JHETCC_CHECK(lane.isOk(), lane.status().message());
  mine.engine->useDevice(std::move(lane).value());
  library.see = [](const void* memory, size_t bytes) {
    void* seen = device::fake::api().alias(memory, bytes);
    return seen != nullptr ? seen : const_cast<void*>(memory);
  };
}

int Simulation::makeGroup(const std::string& name, const std::vector<int32_t>& ranks, uint64_t epoch, bool late) {
  groups_.push_back(std::make_unique<Group>());
  Group& group = *groups_.back();
  group.spec.name = name;
  group.spec.epoch = epoch;
  group.spec.world_ranks = ranks;
  group.spec.id = hashNumber(epoch, hashText(name));
  for (int32_t rank : ranks) {
    group.spec.id = hashNumber(static_cast<uint64_t>(rank), group.spec.id);
    group.spec.places.push_back("host:" + std::to_string(rank));
  }
  group.has.resize(ranks.size());
  const int index = static_cast<int>(groups_.size()) - 1;
  for (size_t member = 0; member < ranks.size() && !late; ++member) makeOn(index, static_cast<int>(member));
  return index;
}

void Simulation::makeOn(int index, int member) {
  Group& made = group(index);
  if (made.has[static_cast<size_t>(member)]) return;
  made.has[static_cast<size_t>(member)] = true;
  CommunicatorSpec spec = made.spec;
  spec.self = member;
  if (with_library) spec.native = library.port(spec.id, spec.world_ranks, member);
  rank(spec.world_ranks[static_cast<size_t>(member)]).engine->createCommunicator(spec);
}

uint64_t Simulation::ask(int index, const Planned* planned) {
  const uint64_t salt = next_salt_++;
  ++group(index).calls;
  for (int member = 0; member < planned->size(); ++member) askOne(index, member, planned, salt);
  return salt;
}

void Simulation::askOne(int index, int member, const Planned* planned, uint64_t salt) {
  if (!planned->takesPart(member)) return;
  jobs_.emplace_back();
  Job& job = jobs_.back();
  job.simulation = this;
  job.planned = planned;
  job.command = commandOf(*planned, member);
  job.rank = group(index).spec.world_ranks[static_cast<size_t>(member)];
  job.group = index;
  job.member = member;
  job.salt = salt;
  job.not_before_ns = draw(4) ? 0 : draw(100'000);  // a pause before the call, from the last one's end
  if (draw(8) == 0) job.command->ready = false;     // its schedule comes later
  job.input = inputOf(*planned, member, salt);
  job.output.assign(outputOf(*planned, member, salt).size(), 0x5a);
  job.is_in_place = job.input.size() == job.output.size() && draw(4) == 0;
  if (job.is_in_place) job.output = job.input;
  if (!rank(job.rank).dead) rank(job.rank).todo.push_back(&job);
}

void Simulation::Job::onDone(const Status& result) {
  Simulation& sim = *simulation;
  if (isDone()) sim.fail("completed twice: " + command->text);
  ended_ns = sim.now();
  status = result;
  Rank& mine = sim.rank(rank);
  std::erase(mine.running, this);
  mine.last_end_ns = ended_ns;
  if (on_device && mine.device->must_wait) on_device->queueAfter();
  if (result.isOk()) {
    if (!on_device && output != outputOf(*planned, member, salt)) {
      sim.fail("wrong value shown as success: " + planned->label + " by " + planned->algorithm + " on rank " +
               std::to_string(rank));
    }
    // Collectives promise that all have come before one goes on.
    for (const Job& other : sim.jobs_) {
      const bool has_come = other.begun_ns >= 0 || command->point_to_point || other.salt != salt;
      if (!has_come)
        sim.fail(planned->label + " ended on rank " + std::to_string(rank) + " before rank " +
                 std::to_string(other.rank) + " began");
    }
  }
  std::fill(input.begin(), input.end(), poison());
  std::fill(output.begin(), output.end(), poison());
}

void Simulation::feed(Rank& rank, int64_t now_ns) {
  for (Job* job : rank.running) {
    if (!job->command->ready && job->begun_ns + 50'000 <= now_ns) job->command->ready = true;
  }
  while (!rank.todo.empty() && static_cast<int>(rank.running.size()) < rank.depth) {
    Job* job = rank.todo.front();
    if (rank.last_end_ns + job->not_before_ns > now_ns) return;
    rank.todo.pop_front();
    rank.running.push_back(job);
    job->begun_ns = now_ns;
    makeOn(job->group, job->member);
    Request request;
    request.communicator = group(job->group).spec.id;
    request.command = job->command;
    const void* input = job->is_in_place ? job->output.data() : job->input.data();
    request.buffers = {input, job->output.data(), job->input.size(), job->output.size()};
    request.completion = job;
    if (rank.device) {
      const auto& streams = rank.device->streams;
      const device::Stream stream = streams[static_cast<size_t>(draw(static_cast<int64_t>(streams.size())))];
      job->on_device = std::make_unique<DeviceCall>(*rank.device, stream, job->input, job->output.size(),
                                                    job->is_in_place, job->poison());
      job->on_device->queueBefore();
      Result<Turn> turn = rank.engine->lane()->enter(stream);
      JHETCC_CHECK(turn.isOk(), turn.status().message());
      request.turn = turn.value();
      if (!job->gives_host_memory) request.buffers = job->on_device->buffers();
      if (!rank.device->must_wait) job->on_device->queueAfter();
    }
    rank.engine->start(std::move(request));
  }
}

/// Every rank that is up, in a drawn order; some only sometimes.
bool Simulation::pass(bool all) {
  bool moved = false;
  for (size_t i = order_.size(); i > 1; --i)
    std::swap(order_[i - 1], order_[static_cast<size_t>(draw(static_cast<int64_t>(i)))]);
  for (int index : order_) {
    if (!isUp(index) || (!all && draw(4) == 0)) continue;
    feed(rank(index), now());
    for (int64_t k = draw(3); k >= 0; --k) {
      moved |= rank(index).engine->progress();
      if (rank(index).is_device_slow && draw(10) != 0) continue;
      for (int64_t more = draw(4); rank(index).device && more > 0; --more) {
        moved |= rank(index).device->device->step();
      }
    }
  }
  return moved;
}

int64_t Simulation::nextDueNs() {
  int64_t due = now() + 100 * kMs;
  for (int index = 0; index < size(); ++index) {
    if (!isUp(index)) continue;
    Rank& mine = rank(index);
    due = std::min(due, mine.engine->nextWakeNs());
    if (!mine.todo.empty()) due = std::min(due, mine.last_end_ns + mine.todo.front()->not_before_ns);
    for (const Job* job : mine.running) {
      if (!job->command->ready) due = std::min(due, job->begun_ns + 50'000);
    }
  }
  due = std::max(due, now() + 500'000);  // an engine looks at its deadlines every other millisecond
  if (const auto event = network.nextEventNs()) due = std::min(due, *event);
  return due;
}

bool Simulation::isIdle() {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) {
    return rank.dead || (rank.todo.empty() && rank.running.empty() && !rank.stopped);
  });
}

void Simulation::run(int64_t limit_ns, int64_t more_ns) {
  const int64_t limit = now() + limit_ns;
  int64_t until = limit;
  int still = 0;
  while (now() < until) {
    if (until == limit && isIdle()) until = std::min(limit, now() + more_ns);
    network.runUntil(still > 1 ? nextDueNs() : now() + draw(kQuantumNs));
    still = pass(still > 0) ? 0 : still + 1;
  }
}

void Simulation::kill(int index) {
  rank(index).dead = true;
  network.kill(index);
}
void Simulation::stop(int index) {
  rank(index).stopped = rank(index).ever_stopped = true;
  network.stop(index);
}
void Simulation::resume(int index) {
  rank(index).stopped = false;
  network.resume(index);
}
void Simulation::abort(int index, int group_index, const std::string& why) {
  const Status cause(Kind::kAborted, Scope::kCommunicator, "aborted", why, {index});
  rank(index).engine->abortCommunicator(group(group_index).spec.id, cause, {});
}

control::Membership* Simulation::membershipOf(int index, int member) {
  const Group& of = group(index);
  return rank(of.spec.world_ranks[static_cast<size_t>(member)]).engine->membership(of.spec.id);
}

int Simulation::shrink(int index, bool may_part) {
  const CommunicatorSpec old = group(index).spec;
  std::vector<int> asking;
  for (int member = 0; member < static_cast<int>(old.world_ranks.size()); ++member) {
    const int32_t world_rank = old.world_ranks[static_cast<size_t>(member)];
    if (!isUp(world_rank)) continue;
    makeOn(index, member);
    if (!membershipOf(index, member)->ending()) abort(world_rank, index, "shrink() of a communicator that is well");
    asking.push_back(member);
  }
  run(1000 * kMs, 2 * kConfirmNs);
  const int64_t deadline = now() + 2000 * kMs;
  for (int member : asking) rank(old.world_ranks[static_cast<size_t>(member)]).engine->beginShrink(old.id, deadline);
  std::set<std::vector<int32_t>> agreed;
  std::vector<bool> ended(old.world_ranks.size());
  // Who knows the survivors destroys the old communicator at once, as jhetcc.world does.
  for (size_t left = asking.size(); left > 0 && now() < deadline + 1000 * kMs;) {
    run(2 * kMs, 2 * kMs);
    for (int member : asking) {
      const int32_t world_rank = old.world_ranks[static_cast<size_t>(member)];
      if (ended[static_cast<size_t>(member)] || !isUp(world_rank)) continue;
      const control::Membership& membership = *membershipOf(index, member);
      if (!membership.survivors() && membership.shrinkFailure().isOk()) continue;
      ended[static_cast<size_t>(member)] = true;
      --left;
      if (membership.survivors()) {
        std::vector<int32_t> mine;
        for (int32_t survivor : membership.survivors()->members)
          mine.push_back(old.world_ranks[static_cast<size_t>(survivor)]);
        if (std::count(mine.begin(), mine.end(), world_rank) == 0) fail("a survivor that does not go on");
        agreed.insert(mine);
      }
      rank(world_rank).engine->destroyCommunicator(old.id);
    }
  }
  for (int member : asking) {
    const int32_t world_rank = old.world_ranks[static_cast<size_t>(member)];
    if (isUp(world_rank) && !ended[static_cast<size_t>(member)])
      fail("shrink() of rank " + std::to_string(world_rank) + " did not end");
  }
  if (agreed.size() > 1 && !may_part) {
    std::string text;
    for (const auto& ranks : agreed) {
      text += " {";
      for (int32_t survivor : ranks) text += " " + std::to_string(survivor);
      text += " }";
    }
    fail("several groups of survivors of " + old.name + ":" + text);
  }
  if (agreed.empty()) return -1;
  const auto larger = [](const auto& a, const auto& b) { return a.size() < b.size(); };
  return makeGroup(old.name, *std::max_element(agreed.begin(), agreed.end(), larger), old.epoch + 1, true);
}

void Simulation::fail(const std::string& what) {
  if (++failure_count_ > 8) return;
  failures_ += "seed " + std::to_string(seed_) + " at " + std::to_string(now()) + " ns: " + what + "\n";
}
std::string Simulation::failures() const { return failures_; }

std::vector<const Simulation::Job*> Simulation::jobsOf(int group) const {
  std::vector<const Job*> found;
  for (const Job& job : jobs_) {
    if (job.group == group) found.push_back(&job);
  }
  return found;
}

void Simulation::checkJobs() {
  std::vector<int64_t> previous(ranks_.size());
  for (const Job& job : jobs_) {
    Rank& mine = rank(job.rank);
    const bool is_untouched =
        std::all_of(job.output.begin(), job.output.end(), [&](uint8_t byte) { return byte == job.poison(); });
    if (job.isDone() && !is_untouched)
      fail("written to after its end: " + job.command->text + " on rank " + std::to_string(job.rank));
    if (mine.dead) continue;
    const std::string name =
        job.planned->label + " on rank " + std::to_string(job.rank) + " of " + group(job.group).spec.name;
    if (!job.isDone()) {
      fail("did not end: " + name);
      continue;
    }
  }
  if (!limit_time) return;
  std::vector<const Job*> by_end;
  for (const Job& job : jobs_) by_end.push_back(&job);
  std::sort(by_end.begin(), by_end.end(), [](const Job* a, const Job* b) { return a->ended_ns < b->ended_ns; });
  for (const Job* job : by_end) {
    if (!job->isDone() || rank(job->rank).dead || rank(job->rank).ever_stopped) continue;
    int64_t& last = previous[static_cast<size_t>(job->rank)];
    const int64_t took = job->ended_ns - std::max(last, job->begun_ns);
    last = job->ended_ns;
    if (took > kTimeoutNs + kConfirmNs + kSlackNs) fail(job->planned->label + " took " + std::to_string(took) + " ns");
  }
}

/// Streams have come to their ends, and what came out of them is right.
void Simulation::checkDeviceJobs() {
  for (const Job& job : jobs_) {
    if (!job.on_device || !job.isDone() || rank(job.rank).dead) continue;
    const std::string name = job.planned->label + " by " + job.planned->algorithm + " on rank " +
                             std::to_string(job.rank) + " of " + group(job.group).spec.name + ", on its device";
    const Status ended =
        rank(job.rank).device->device->synchronize(job.on_device->stream(), SystemClock().nowNs() + 20'000 * kMs);
    if (!ended.isOk()) {
      fail(name + ": " + ended.message());
      continue;
    }
    if (!job.on_device->isUntouched()) fail("written besides the output, or after the end: " + name);
    if (job.status.isOk() && job.on_device->output() != outputOf(*job.planned, job.member, job.salt)) {
      fail("wrong value shown as success: " + name);
    }
  }
}

void Simulation::checkVerdicts(int index) {
  const std::vector<int32_t>& ranks = group(index).spec.world_ranks;
  const control::Verdict* first = nullptr;
  for (size_t member = 0; member < ranks.size(); ++member) {
    Rank& mine = rank(ranks[member]);
    control::Membership* membership = membershipOf(index, static_cast<int>(member));
    if (mine.dead || mine.ever_stopped || !membership || !membership->verdict() || !membership->verdict()->confirmed)
      continue;
    const control::Verdict& verdict = *membership->verdict();
    const bool is_out = std::count(verdict.lost.begin(), verdict.lost.end(), static_cast<int32_t>(member)) > 0;
    if (is_out) {  // told in words of its own
      if (first && !sameVerdict(*first, verdict)) fail("another verdict for rank " + std::to_string(ranks[member]));
      continue;
    }
    if (first && (!sameVerdict(*first, verdict) || first->status.message() != verdict.status.message())) {
      fail("two verdicts on " + group(index).spec.name + ":\n  " + first->status.message() + "\n  " +
           verdict.status.message());
    }
    first = &verdict;
  }
  for (size_t member = 0; first && member < ranks.size(); ++member) {
    Rank& mine = rank(ranks[member]);
    control::Membership* membership = membershipOf(index, static_cast<int>(member));
    // Who is given up need not hear of it before it uses the communicator again.
    const bool is_out = std::count(first->lost.begin(), first->lost.end(), static_cast<int32_t>(member)) > 0;
    if (mine.dead || mine.ever_stopped || is_out || !membership) continue;
    if (!membership->verdict() || !membership->verdict()->confirmed) {
      const std::string own = membership->verdict() ? membership->verdict()->status.message() : "none";
      fail("rank " + std::to_string(ranks[member]) + " has no confirmed verdict on " + group(index).spec.name +
           ":\n  " + first->status.message() + "\n  " + own);
    }
  }
}

void Simulation::check(size_t verdicts_from) {
  checkJobs();
  checkDeviceJobs();
  for (int index = 0; index < static_cast<int>(groups_.size()); ++index) {
    if (group(index).spec.world_ranks.size() >= verdicts_from) checkVerdicts(index);
  }
  // Nobody is more than one operation of a communicator ahead.
  size_t most = 0;
  for (const Job& job : jobs_) most = std::max(most, messagesTo(*job.command->program->schedule));
  most = most * (groups_.size() + 1) + static_cast<size_t>(size()) * 16;  // and the news of ends
  for (int index = 0; index < size(); ++index) {
    if (rank(index).engine->parkedBlocks() > most) {
      fail("rank " + std::to_string(index) + " parked " + std::to_string(rank(index).engine->parkedBlocks()) +
           " messages");
    }
  }
}

}  // namespace jhetcc::engine::testing
