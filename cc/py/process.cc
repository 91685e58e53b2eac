// SPDX-License-Identifier: Apache-2.0
// Process: this process's ranks and communicators; blocking calls are in raw_call.cc.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "engine/reduce.h"
#include "py/bindings.h"
#include "rail/bundle.h"
#include "runtime/endpoints.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace jhetcc::py {
namespace {

using runtime::Process;

int64_t nanoseconds(double seconds) { return seconds >= 9e9 ? INT64_MAX : static_cast<int64_t>(seconds * 1e9); }

std::shared_ptr<Process> create(const nb::dict& options, std::vector<int32_t> world_ranks,
                                std::vector<int64_t> ordinals) {
  runtime::RunnerOptions runner;
  const auto seconds = [&](const char* name) { return nanoseconds(nb::cast<double>(options[name])); };
  runner.engine.operation_timeout_ns = seconds("operation_timeout");
  runner.engine.warn_after_ns = seconds("warn_after");
  runner.engine.abort_gather_ns = seconds("abort_gather");
  runner.engine.abort_confirm_ns = seconds("abort_confirm");
  runner.spin_ns = seconds("spin");
  runner.help_ns = seconds("help");
  Result<std::shared_ptr<Process>> process = Process::create(runner, world_ranks, ordinals);
  raiseIfError(process.status());
  return std::move(process).value();
}

void addLocalPair(Process& process, size_t slot_a, size_t slot_b) {
  raiseIfError(runtime::addLocalPair(process, slot_a, slot_b));
}

void answerPlan(Process& process, const std::string& communicator, uint64_t epoch, const std::string& text,
                const std::vector<std::pair<int32_t, nb::bytes>>& schedules,
                const std::optional<std::string>& failure) {
  std::vector<std::pair<int32_t, std::string>> blobs;
  for (const auto& [member, blob] : schedules) blobs.emplace_back(member, std::string(blob.c_str(), blob.size()));
  const Status why = failure ? Status(Kind::kBadArgument, Scope::kCall, "plan_failed", *failure) : Status::ok();
  Status status;
  {
    const LockReleased release;
    status = process.answerPlan(communicator, epoch, text, blobs, why);
  }
  raiseIfError(status);
}

nb::object nextPlanRequest(Process& process, double timeout) {
  std::optional<runtime::PlanRequest> request;
  {
    const LockReleased release;
    request = process.nextPlanRequest(nanoseconds(timeout));
  }
  if (!request) return nb::none();
  return nb::make_tuple(request->communicator, request->epoch, request->size, request->text);
}

nb::object verdict(Process& process, const std::string& communicator) {
  std::optional<control::Verdict> verdict;
  {
    const LockReleased release;
    verdict = process.verdict(communicator);
  }
  if (!verdict) return nb::none();
  nb::dict result;
  result["kind"] = kindName(verdict->status.kind());
  result["scope"] = scopeName(verdict->status.scope());
  result["code"] = verdict->status.code();
  result["message"] = verdict->status.message();
  result["ranks"] = nb::cast(verdict->status.ranks());
  result["lost"] = nb::cast(verdict->lost);
  result["confirmed"] = verdict->confirmed;
  return result;
}

nb::object shrink(Process& process, const std::string& communicator, double timeout) {
  std::optional<Result<control::Survivors>> survivors;
  {
    const LockReleased release;
    survivors = process.shrink(communicator, nanoseconds(timeout), interrupted);
  }
  raiseAfterWait(survivors->status());
  return nb::make_tuple(nb::cast(survivors->value().members), survivors->value().epoch);
}

/// One rail as status() shows it.
struct RailRow {
  int32_t peer;
  std::string text;
  const char* state;                    ///< of a rail of one path
  transport::Answered answered;         ///< the same
  std::vector<rail::PathStatus> paths;  ///< of several
};

RailRow railRow(rail::Rail& rail) {
  const bool has_left = rail.brokenStatus().code() == "left";
  RailRow row{rail.peer(), rail.endpoint().description(), "healthy", {}, {}};
  if (rail.isBroken()) {
    row.state = has_left ? "closed" : "lost";
    row.text = (has_left ? "closed: " : "broken: ") + rail.brokenStatus().message();
  }
  if (const auto* bundle = dynamic_cast<const rail::Bundle*>(&rail.endpoint())) {
    row.paths = bundle->paths();
  } else if (!rail.isBroken()) {
    row.answered = rail.endpoint().answered();
  }
  return row;
}

nb::list pathRows(const RailRow& rail, int64_t now_ns) {
  nb::list rows;
  for (const rail::PathStatus& path : rail.paths) {
    nb::dict row;
    row["path"] = path.info.path;
    row["tier"] = path.info.tier;
    row["local"] = path.info.local;
    row["remote"] = path.info.remote;
    row["state"] = rail.state[0] == 'c' ? rail.state : stateName(path.state);
    row["bytes_per_second"] = path.rate_bytes_per_s > 0 ? nb::cast(path.rate_bytes_per_s) : nb::none();
    row["sent_bytes"] = path.sent_bytes;
    row["received_bytes"] = path.received_bytes;
    row["resent_bytes"] = path.resent_bytes;
    row["losses"] = path.losses;
    row["last_event"] = path.last_event;
    row["seconds_since"] =
        path.last_event_ns == 0 ? nb::none() : nb::cast(static_cast<double>(now_ns - path.last_event_ns) / 1e9);
    rows.append(row);
  }
  if (!rail.paths.empty()) return rows;
  nb::dict row;
  row["path"] = row["tier"] = 0;
  row["state"] = rail.state;
  for (const char* name : {"bytes_per_second", "sent_bytes", "received_bytes", "resent_bytes", "seconds_since"}) {
    row[name] = nb::none();
  }
  if (rail.answered.bytes > 0) {  // not where memory is shared
    row["sent_bytes"] = rail.answered.bytes;
    row["resent_bytes"] = 0;
  }
  if (rail.answered.busy_ns > 0) {  // the system counts it in milliseconds
    const auto bytes = static_cast<double>(rail.answered.bytes);
    row["bytes_per_second"] = 1e9 * bytes / static_cast<double>(rail.answered.busy_ns);
  }
  row["local"] = row["remote"] = "";
  row["losses"] = 0;
  row["last_event"] = rail.text;
  rows.append(row);
  return rows;
}

nb::list status(Process& process) {
  nb::list ranks;
  for (size_t slot = 0; slot < process.localRanks(); ++slot) {
    std::optional<engine::Activity> activity;
    std::vector<RailRow> rails;
    int64_t now = 0, busy = 0;
    uint64_t stale = 0;
    {
      const LockReleased release;
      process.runner(slot).withEngine([&](engine::Engine& engine) {
        now = process.clock().nowNs();
        activity = engine.activity();
        busy = engine.busyNs();
        stale = engine.staleFrames();
        for (auto& rail : engine.rails()) rails.push_back(railRow(*rail));
      });
    }
    nb::dict row;
    row["rank"] = process.runner(slot).worldRank();
    row["seconds_in_operations"] = static_cast<double>(busy) / 1e9;
    row["stale_frames"] = stale;
    row["operation"] = activity ? nb::cast(activity->operation) : nb::none();
    row["communicator"] = activity ? nb::cast(activity->communicator) : nb::none();
    row["seconds"] = activity ? static_cast<double>(now - activity->since_ns) / 1e9 : 0.0;
    row["waiting_for"] = activity ? nb::cast(activity->waiting_for) : nb::cast(std::vector<int32_t>());
    nb::dict texts, paths;
    for (const RailRow& rail : rails) {
      texts[nb::int_(rail.peer)] = rail.text;
      paths[nb::int_(rail.peer)] = pathRows(rail, now);
    }
    row["paths"] = texts;
    row["rails"] = paths;
    ranks.append(row);
  }
  return ranks;
}

nb::list counters(Process& process) {
  nb::list rows;
  const auto totals = process.trace().counters.snapshot();
  for (size_t k = 0; k < totals.size(); ++k) {
    rows.append(nb::make_tuple(trace::counterName(static_cast<trace::Counter>(k)), totals[k]));
  }
  return rows;
}

nb::list records(Process& process) {
  nb::list rows;
  for (const trace::Record& record : process.trace().recorder->snapshot()) {
    nb::dict row;
    row["time_ns"] = record.time_ns;
    row["event"] = trace::eventName(record.kind);
    row["rank"] = record.peer;
    row["communicator"] = record.communicator;
    row["sequence"] = record.sequence;
    row["bytes"] = record.bytes;
    row["argument"] = record.argument;
    row["step"] = record.step;
    row["index"] = record.index;
    row["stream"] = record.stream;
    rows.append(row);
  }
  return rows;
}

}  // namespace

void bindProcess(nb::module_& module) {
  module.def("begin_exit", &LockReleased::beginExit,
             "The interpreter ends: other threads that are in a call of this module never come back from it.");
  nb::class_<Process>(module, "Process", "This process's part of a job.")
      .def(nb::new_(&create), "options"_a, "world_ranks"_a, "ordinals"_a)
      .def("add_local_pair", &addLocalPair, "slot_a"_a, "slot_b"_a)
      .def("start", &Process::startThreads)
      .def(
          "create_communicator",
          [](Process& process, const std::string& name, uint64_t epoch, std::vector<int32_t> world_ranks,
             std::vector<std::string> places) {
            raiseIfError(process.createCommunicator(name, epoch, std::move(world_ranks), std::move(places)));
          },
          "name"_a, "epoch"_a, "world_ranks"_a, "places"_a)
      .def("destroy_communicator", &Process::destroyCommunicator, "name"_a, nb::call_guard<LockReleased>())
      .def("answer_plan", &answerPlan, "communicator"_a, "epoch"_a, "text"_a, "schedules"_a,
           "failure"_a.none() = nb::none())
      .def("has_plan", &Process::hasPlan, "communicator"_a, "text"_a)
      .def("next_plan_request", &nextPlanRequest, "timeout"_a)
      .def(
          "abort",
          [](Process& process, const std::string& name, const std::string& reason, const std::string& code) {
            Status status;
            {
              const LockReleased release;
              status = process.abort(name, reason, code);
            }
            raiseIfError(status);
          },
          "communicator"_a, "reason"_a, "code"_a = "aborted")
      .def("verdict", &verdict, "communicator"_a)
      .def("shrink", &shrink, "communicator"_a, "timeout"_a)
      .def("status", &status)
      .def("counters", &counters)
      .def_prop_ro("operations_failed",
                   [](const Process& process) { return process.counters().get(trace::Counter::kOperationsFailed); })
      .def("records", &records)
      .def(
          "close", [](Process& process, double timeout) { process.close(nanoseconds(timeout)); }, "timeout"_a,
          nb::call_guard<LockReleased>());
}

}  // namespace jhetcc::py
