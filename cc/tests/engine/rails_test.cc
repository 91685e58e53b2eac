// SPDX-License-Identifier: Apache-2.0
// Ranks with several paths between them: as long as one is left or comes back, nobody above notices that others are
// lost. What fails without paths fails as soon, and for the same reason, with them.
#include <doctest/doctest.h>

#include <algorithm>

#include "all_well.h"
#include "rails_job.h"

using namespace jhetcc;
using namespace jhetcc::engine;
using namespace jhetcc::engine::testing;

using Job = RailsJob;

TEST_CASE("every schedule gives the right values over several paths") {
  for (int size : {2, 3, 5}) {
    CAPTURE(size);
    Job job(static_cast<uint64_t>(size), size, 3);
    const int group = job.simulation.makeGroup("world", firstRanks(size));
    for (const Planned* planned : plannedFor(size, false)) job.simulation.ask(group, planned);
    job.simulation.run();
    checkAllWell(job.simulation);
    CHECK(job.losses() == 0);
    CHECK(job.resentBytes() == 0);
  }
}

TEST_CASE("paths are lost and come back at any moment: every call ends well") {
  uint64_t lost = 0, resent = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    const int size = 2 + static_cast<int>(seed % 4);
    const int paths = 2 + static_cast<int>(seed % 3);
    Job job(seed, size, paths, slowEnough(seed));
    const int group = job.simulation.makeGroup("world", firstRanks(size));
    askSome(job, group, 20);
    job.loseSome(8 * kMs, 10);
    job.simulation.run();
    checkAllWell(job.simulation);
    lost += job.losses();
    resent += job.resentBytes() > 0;
  }
  CHECK(lost > 600);
  CHECK(resent > 150);
}

TEST_CASE("a path that passes nothing one way, or little both ways, is no more than that") {
  uint64_t lost = 0;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    CAPTURE(seed);
    Job job(seed, 2, 2, slowEnough(seed));
    askSome(job, job.simulation.makeGroup("world", firstRanks(2)), 20);
    const auto what = seed % 4 == 0 ? Job::Suffers::kSlow : Job::Suffers::kHoldOneWay;
    const auto strike = [&job, seed, what] { job.suffer(seed % 2 ? 1 : 0, seed % 2 ? 0 : 1, 0, what, 100'000 * kMs); };
    job.simulation.network.at(job.simulation.draw(2 * kMs), strike);
    job.simulation.run();
    checkAllWell(job.simulation);
    lost += what == Job::Suffers::kHoldOneWay && job.losses() > 0;
  }
  CHECK(lost > 50);
}

TEST_CASE("one path after the other is lost for ever, but one") {
  for (uint64_t seed = 0; seed < 150; ++seed) {
    CAPTURE(seed);
    const int size = 2 + static_cast<int>(seed % 3);
    Job job(seed, size, 4, slowEnough(seed));
    job.may_reopen = false;
    const int group = job.simulation.makeGroup("world", firstRanks(size));
    askSome(job, group, 20);
    job.loseSome(8 * kMs, 12, static_cast<int>(seed % 4));
    job.simulation.run();
    checkAllWell(job.simulation);
  }
}

TEST_CASE("ranks die while paths are lost: everybody learns it soon, with one verdict") {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    const int size = 2 + static_cast<int>(seed % 4);
    Job job(seed, size, 3, slowEnough(seed));
    const int group = job.simulation.makeGroup("world", firstRanks(size));
    askSome(job, group, 15);
    job.loseSome(5 * kMs, 4);
    const int victim = static_cast<int>(job.simulation.draw(size));
    job.simulation.network.at(job.simulation.draw(5 * kMs), [&job, victim] { job.simulation.kill(victim); });
    job.simulation.run(20'000 * kMs, 1000 * kMs);
    job.simulation.check();
    for (const Simulation::Job& one : job.simulation.jobs()) {
      if (!one.isDone() || one.status.isOk()) continue;
      if (one.status.code() != "peer_lost") job.simulation.fail("ended by " + one.status.message());
      if (one.rank != victim && one.ended_ns - one.begun_ns > 300 * kMs) job.simulation.fail("learned it late");
    }
    CHECK_MESSAGE(job.simulation.failures().empty(), job.simulation.failures());
  }
}

TEST_CASE("two ranks without any path between them: one clear end, in time") {
  int failed = 0;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    CAPTURE(seed);
    const int size = 3 + static_cast<int>(seed % 3);
    Job job(seed, size, 2, slowEnough(seed));
    job.may_reopen = false;
    const int group = job.simulation.makeGroup("world", firstRanks(size));
    askSome(job, group, 15);
    job.simulation.network.at(job.simulation.draw(3 * kMs), [&job] {
      job.cut(0, 1, 0);
      job.cut(0, 1, 1);
    });
    job.simulation.run(20'000 * kMs, 1000 * kMs);
    job.simulation.check(3);
    const auto& jobs = job.simulation.jobs();
    failed += std::any_of(jobs.begin(), jobs.end(), [](const auto& one) { return !one.status.isOk(); });
    CHECK_MESSAGE(job.simulation.failures().empty(), job.simulation.failures());
  }
  CHECK(failed > 80);  // some jobs are over before
}

TEST_CASE("two ranks without any path between them go on by a third one") {
  uint64_t relayed = 0, back = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    const int size = 3 + static_cast<int>(seed % 3);
    Job job(seed, size, 2, slowEnough(seed));
    job.may_reopen = seed % 2 == 0;
    job.reopen_after_ns = 30 * kMs;
    job.useRelays();
    const int group = job.simulation.makeGroup("world", firstRanks(size));
    askSome(job, group, 40);
    const bool is_held = seed % 4 == 1;
    job.simulation.network.at(job.simulation.draw(3 * kMs), [&job, is_held] {
      if (is_held) {
        job.holdAll(0, 1, 100 * kMs);  // nobody is told
      } else {
        job.cutAll(0, 1);
      }
    });
    if (seed % 3 == 0) {  // and the third one loses a path, too
      job.simulation.network.at(job.simulation.draw(8 * kMs), [&job] { job.cut(0, 2, 0); });
    }
    job.simulation.run(20'000 * kMs, 300 * kMs);
    checkAllWell(job.simulation);
    const auto path = job.relayed(0, 1);
    relayed += path && path->sent_bytes + path->received_bytes > 0;
    back += path && path->last_event.find("not needed") != std::string::npos;
  }
  CHECK(relayed > 80);
  CHECK(back > 10);
}

TEST_CASE("the third one dies: another takes its place, or it ends in time") {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    CAPTURE(seed);
    const int size = 4;
    Job job(seed, size, 2, slowEnough(seed));
    job.may_reopen = false;
    job.useRelays();
    const int pairs = job.simulation.makeGroup("pair", {0, 1});
    askSome(job, pairs, 20);
    job.simulation.network.at(job.simulation.draw(3 * kMs), [&job] { job.cutAll(0, 1); });
    job.simulation.network.at(20 * kMs + job.simulation.draw(20 * kMs), [&job] { job.simulation.kill(2); });
    if (seed % 4 == 3) job.simulation.network.at(60 * kMs, [&job] { job.simulation.kill(3); });
    job.simulation.run(20'000 * kMs, 1000 * kMs);
    if (seed % 4 == 3) {
      job.simulation.check();
      CHECK_MESSAGE(job.simulation.failures().empty(), job.simulation.failures());
    } else {
      checkAllWell(job.simulation);
    }
  }
}

TEST_CASE("the third one leaves properly: another takes its place; where none is left, it ends in time") {
  uint64_t twice = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    Job job(seed, 5, 2, slowEnough(seed));
    job.may_reopen = false;
    job.useRelays();
    const int pairs = job.simulation.makeGroup("pair", {0, 1});
    askSome(job, pairs, 60);
    const bool is_held = seed % 3 == 2;
    job.simulation.network.at(job.simulation.draw(3 * kMs), [&job, is_held] {
      if (is_held) return job.holdAll(0, 1, 100'000 * kMs);  // nobody is told
      job.cutAll(0, 1);
    });
    const bool all_leave = seed % 5 == 4;
    int64_t when = 5 * kMs;
    for (int third = 2; third < (all_leave ? 5 : 4); ++third) {
      when += 2 * kMs + job.simulation.draw(20 * kMs);
      job.simulation.network.at(when, [&job, third] { job.simulation.rank(third).engine->sayGoodbye(); });
      // Its process ends when its output is out, or lives on.
      if (seed % 2 == 0) job.simulation.network.at(when + kMs, [&job, third] { job.simulation.kill(third); });
    }
    job.simulation.run(20'000 * kMs, 1000 * kMs);
    const auto path = job.relayed(0, 1);
    twice += path && path->generation > 2;
    if (all_leave) {
      job.simulation.check(3);
      for (const Simulation::Job& one : job.simulation.jobs()) {
        if (one.status.isOk()) continue;
        if (one.status.code() != "peer_lost") job.simulation.fail("ended by " + one.status.message());
        if (one.ended_ns > when + 400 * kMs) job.simulation.fail("learned it late");
      }
      CHECK_MESSAGE(job.simulation.failures().empty(), job.simulation.failures());
    } else {
      checkAllWell(job.simulation);
    }
  }
  CHECK(twice > 30);
}

TEST_CASE("the third one's host falls silent: another takes its place before it is given up") {
  uint64_t twice = 0;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    CAPTURE(seed);
    Job job(seed, 4, 2, slowEnough(seed));
    job.may_reopen = false;
    job.useRelays();
    const int pairs = job.simulation.makeGroup("pair", {0, 1});
    askSome(job, pairs, 60);
    job.simulation.network.at(job.simulation.draw(3 * kMs), [&job] { job.cutAll(0, 1); });
    const int end = static_cast<int>(seed % 2);
    job.simulation.network.at(6 * kMs + job.simulation.draw(10 * kMs),
                              [&job, end] { job.holdAll(end, 2, 100'000 * kMs); });
    job.simulation.run(20'000 * kMs, 1000 * kMs);
    checkAllWell(job.simulation);
    const auto path = job.relayed(0, 1);
    twice += path && path->generation > 1;
    for (const Simulation::Job& one : job.simulation.jobs()) {
      if (one.ended_ns - one.begun_ns > 80 * kMs) job.simulation.fail("waited too long for another third");
    }
    CHECK_MESSAGE(job.simulation.failures().empty(), job.simulation.failures());
  }
  CHECK(twice > 20);
}

namespace {

/// Closes as a process does: goodbye once all its calls have ended, first what goes by third ranks; and the end when
/// nothing is owed any more. A path is lost at about that moment.
struct Leaver {
  Job& job;
  int rank, peer = -1, path = 0;
  bool is_held = false;
  int64_t goodbye_ns = -1, gone_ns = -1;
  bool has_told_all = false;

  void look() {
    Simulation& simulation = job.simulation;
    Engine& engine = *simulation.rank(rank).engine;
    const auto& jobs = simulation.jobs();
    if (goodbye_ns < 0 &&
        std::all_of(jobs.begin(), jobs.end(), [&](const auto& one) { return one.rank != rank || one.isDone(); })) {
      goodbye_ns = simulation.now();
      engine.sayGoodbye(true);
    }
    if (goodbye_ns >= 0 && !has_told_all && !engine.holdsThirds()) {
      has_told_all = true;
      engine.sayGoodbye();
    }
    if (has_told_all && !engine.hasOutput() && !engine.hasUnacknowledged()) {
      gone_ns = simulation.now();
      simulation.kill(rank);
      return;
    }
    simulation.network.at(simulation.now() + 2'000, [this] { look(); });
  }
  void lose() {
    if (is_held) return job.hold(rank, peer, path, 200 * kMs);
    job.cut(rank, peer, path);
  }
};

}  // namespace

TEST_CASE("a rank closes after its last call, and loses a path in just that moment: the others' calls end well, too") {
  int64_t longest_ns = 0;
  int in_time = 0;
  for (uint64_t seed = 0; seed < 600; ++seed) {
    CAPTURE(seed);
    // Undisturbed first: then the moment is known.
    int64_t moment_ns = 0;
    for (const bool is_cut : {false, true}) {
      const int size = 2 + static_cast<int>(seed % 2);
      Job job(seed, size, 2 + static_cast<int>(seed % 3), slowEnough(seed));
      job.may_reopen = seed % 4 != 0;
      const int group = job.simulation.makeGroup("world", firstRanks(size));
      askSome(job, group, 4);
      const int rank = static_cast<int>(seed / 2 % static_cast<uint64_t>(size));
      Leaver leaver{job, rank, (rank + 1) % size, static_cast<int>(seed / 5 % 2), seed % 7 == 3};
      job.simulation.network.at(1'000, [&leaver] { leaver.look(); });
      // Which path carries the messages, is not asked for.
      const int64_t offset_ns = (static_cast<int64_t>(seed) * 7919 % 200 - 150) * 1'000;
      if (is_cut) job.simulation.network.at(std::max<int64_t>(1, moment_ns + offset_ns), [&leaver] { leaver.lose(); });
      job.simulation.run(20'000 * kMs, 500 * kMs);
      for (const Simulation::Job& one : job.simulation.jobs()) {
        if (!one.isDone() || !one.status.isOk()) job.simulation.fail(one.planned->label + ": " + one.status.message());
      }
      if (leaver.gone_ns < 0) job.simulation.fail("it did not end");
      CHECK_MESSAGE(job.simulation.failures().empty(), job.simulation.failures());
      moment_ns = leaver.goodbye_ns;
      in_time += is_cut && leaver.gone_ns >= 0;
      longest_ns = std::max(longest_ns, leaver.gone_ns - leaver.goodbye_ns);
    }
  }
  CHECK(in_time == 600);
  CHECK(longest_ns < 100 * kMs);
}

TEST_CASE("all ranks close after the last call, two of them by way of the third: nobody waits in vain") {
  int64_t longest_ns = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    Job job(seed, 3, 2, slowEnough(seed));
    job.may_reopen = false;
    job.useRelays();
    const int group = job.simulation.makeGroup("world", firstRanks(3));
    askSome(job, group, 12);
    const int third = static_cast<int>(seed % 3), low = third == 0 ? 1 : 0, high = third == 2 ? 1 : 2;
    job.simulation.network.at(job.simulation.draw(kMs), [&job, low, high] { job.cutAll(low, high); });
    std::vector<Leaver> leavers;
    for (int rank = 0; rank < 3; ++rank) leavers.push_back({job, rank});
    for (Leaver& one : leavers) {
      const auto late_ns = static_cast<int64_t>(job.simulation.draw(300'000));
      job.simulation.network.at(5'000 * kMs + late_ns, [&one] { one.look(); });
    }
    job.simulation.run(20'000 * kMs, 8000 * kMs);
    for (const Simulation::Job& one : job.simulation.jobs()) {
      if (!one.isDone() || !one.status.isOk()) job.simulation.fail(one.planned->label + ": " + one.status.message());
    }
    for (const Leaver& one : leavers) {
      if (one.gone_ns < 0) job.simulation.fail("rank " + std::to_string(one.rank) + " did not end");
      longest_ns = std::max(longest_ns, one.gone_ns - one.goodbye_ns);
    }
    CHECK_MESSAGE(job.simulation.failures().empty(), job.simulation.failures());
  }
  CHECK(longest_ns < 100 * kMs);
}
