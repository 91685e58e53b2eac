// SPDX-License-Identifier: Apache-2.0
// Secret, store, acceptor, and the making of endpoints from authenticated connections.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include "control/store.h"
#include "net/nics.h"
#include "py/bindings.h"
#include "runtime/endpoints.h"
#include "runtime/paths.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace jhetcc::py {
namespace {

SystemClock& systemClock() {
  static SystemClock clock;
  return clock;
}

net::Deadline deadlineIn(double seconds) {
  return net::Deadline::after(systemClock(), static_cast<int64_t>(seconds * 1e9), interrupted);
}

/// Ends early, too, where the store has this key, or is gone: then nobody comes any more.
net::Deadline deadlineIn(double seconds, std::shared_ptr<control::StoreClient> store, const std::string& ended_key) {
  constexpr int64_t kAskEachNs = 100 * kNsPerMs, kAnswerNs = 1000 * kNsPerMs;
  auto cancelled = [store = std::move(store), ended_key, next_ns = int64_t{0}]() mutable {
    if (interrupted()) return true;
    if (systemClock().nowNs() < next_ns) return false;
    const auto ended = store->tryGet(ended_key, net::Deadline::after(systemClock(), kAnswerNs));
    next_ns = systemClock().nowNs() + kAskEachNs;
    return ended.isOk() ? ended.value().has_value() : ended.status().kind() == Kind::kDisconnected;
  };
  return net::Deadline::after(systemClock(), static_cast<int64_t>(seconds * 1e9), std::move(cancelled));
}

/// Runs without the Python lock; a Ctrl-C during the wait comes out as KeyboardInterrupt.
template <typename Function>
auto waited(Function function) {
  auto result = [&] {
    nb::gil_scoped_release release;
    return function();
  }();
  if (PyErr_Occurred()) throw nb::python_error();
  return result;
}

template <typename T>
T unwrap(Result<T> result) {
  raiseIfError(result.status());
  return std::move(result).value();
}

struct Identity {
  std::string job;
  int32_t rank;
  uint64_t incarnation;
  net::Identity of(net::Role role, size_t caller_slot = 0, size_t called_slot = 0) const {
    return {job, role, rank, incarnation, 0, 0, static_cast<uint16_t>(caller_slot), static_cast<uint16_t>(called_slot),
            0};
  }
};

net::Secret makeSecret(const std::optional<nb::bytes>& bytes, bool allow_insecure) {
  if (!bytes) return net::Secret::none(allow_insecure);
  return unwrap(net::Secret::create(std::string(bytes->c_str(), bytes->size())));
}

/// The job's encryption; shared, for it is the same for all its connections.
struct Encryption {
  std::shared_ptr<const net::Tls> tls;
};

Encryption makeEncryption(const net::Secret& secret, const std::string& job) {
  return {unwrap(net::Tls::create(secret, job))};
}

std::shared_ptr<const net::Tls> of(const Encryption* encryption) {
  return encryption == nullptr ? nullptr : encryption->tls;
}

net::Address firstAddress(const std::string& text) { return unwrap(net::resolve(text)).front(); }

/// On this side's slot; the wait for the other side ends at the deadline.
void addEndpoint(runtime::Process& process, size_t slot, int32_t peer, net::Connection connection, bool creator,
                 const runtime::EndpointOptions& options, const net::Deadline& deadline) {
  raiseIfError(waited(
      [&] { return runtime::addConnection(process, slot, peer, std::move(connection), creator, options, deadline); }));
}

void bindStore(nb::module_& module) {
  nb::class_<control::StoreServer>(module, "StoreServer")
      .def(nb::new_([](const std::string& address, const net::Secret& secret, const Identity& identity,
                       const Encryption* encryption) {
             control::StoreServerConfig config;
             config.tls = of(encryption);
             // Of a name: at all of its addresses that are here, but on loopback only where the first one is.
             config.more = unwrap(net::resolve(address));
             config.address = config.more.front();
             const bool is_loopback = config.address.isLoopback();
             std::erase_if(config.more, [=](const net::Address& one) { return one.isLoopback() != is_loopback; });
             config.secret = secret;
             config.mine = identity.of(net::Role::kControl);
             return unwrap(control::StoreServer::create(config));
           }),
           "address"_a, "secret"_a, "identity"_a, "encryption"_a.none())
      .def_prop_ro("address", [](const control::StoreServer& server) { return server.address().text(); });
  nb::class_<control::StoreClient>(module, "StoreClient")
      .def(nb::new_([](const std::string& address, const net::Secret& secret, const Identity& identity,
                       const Encryption* encryption, double timeout) {
             const net::Address where = firstAddress(address);
             // Shared: threads in a vendor's library use it without Python.
             return std::shared_ptr<control::StoreClient>(unwrap(waited([&] {
               return control::StoreClient::connect(where, secret, identity.of(net::Role::kControl),
                                                    deadlineIn(timeout), net::kAnyRank, of(encryption));
             })));
           }),
           "address"_a, "secret"_a, "identity"_a, "encryption"_a.none(), "timeout"_a)
      .def_prop_ro("local_address", [](const control::StoreClient& client) { return client.localAddress().text(); })
      .def(
          "set_if_absent",
          [](control::StoreClient& client, const std::string& key, const std::string& value, double timeout) {
            return unwrap(waited([&] { return client.setIfAbsent(key, value, deadlineIn(timeout)); }));
          },
          "key"_a, "value"_a, "timeout"_a)
      .def(
          "will",
          [](control::StoreClient& client, const std::string& key, const std::string& value, double timeout) {
            raiseIfError(waited([&] { return client.will(key, value, deadlineIn(timeout)); }));
          },
          "key"_a, "value"_a, "timeout"_a)
      .def(
          "try_get",
          [](control::StoreClient& client, const std::string& key, double timeout) {
            return unwrap(waited([&] { return client.tryGet(key, deadlineIn(timeout)); }));
          },
          "key"_a, "timeout"_a)
      .def(
          "list",
          [](control::StoreClient& client, const std::string& prefix, double timeout) {
            return unwrap(waited([&] { return client.list(prefix, deadlineIn(timeout)); }));
          },
          "prefix"_a, "timeout"_a);
}

void bindAcceptor(nb::module_& module) {
  nb::class_<net::Acceptor>(module, "Acceptor")
      .def(nb::new_([](const std::string& address, const net::Secret& secret, const Identity& identity) {
             net::AcceptorConfig config;
             config.address = unwrap(net::Address::parse(address));
             config.secret = secret;
             config.mine = identity.of(net::Role::kData);
             return unwrap(net::Acceptor::create(config));
           }),
           "address"_a, "secret"_a, "identity"_a)
      .def_prop_ro("address", [](const net::Acceptor& acceptor) { return acceptor.address().text(); });
  module.def(
      "accept_endpoint",
      [](net::Acceptor& acceptor, runtime::Process& process, size_t slot, int32_t peer, int32_t peer_process,
         size_t peer_slot, bool allow_cma, double timeout, std::shared_ptr<control::StoreClient> store,
         const std::string& ended_key) {
        const net::Deadline deadline = deadlineIn(timeout, std::move(store), ended_key);
        net::PeerMatch match{net::Role::kData, peer_process};
        match.caller_slot = static_cast<uint16_t>(peer_slot);
        match.called_slot = static_cast<uint16_t>(slot);
        net::Connection connection = unwrap(waited([&] { return acceptor.take(match, deadline); }));
        addEndpoint(process, slot, peer, std::move(connection), true, {allow_cma, {}}, deadline);
      },
      "acceptor"_a, "process"_a, "slot"_a, "peer"_a, "peer_process"_a, "peer_slot"_a, "allow_cma"_a, "timeout"_a,
      "store"_a, "ended_key"_a);
  module.def(
      "connect_endpoint",
      [](const std::string& address, const net::Secret& secret, const Identity& identity, runtime::Process& process,
         size_t slot, int32_t peer, int32_t peer_process, size_t peer_slot, bool allow_cma, double timeout,
         std::shared_ptr<control::StoreClient> store, const std::string& ended_key) {
        const net::Deadline deadline = deadlineIn(timeout, std::move(store), ended_key);
        const net::Address where = unwrap(net::Address::parse(address));
        const net::Identity mine = identity.of(net::Role::kData, slot, peer_slot);
        net::Connection connection =
            unwrap(waited([&] { return net::connect(where, secret, mine, peer_process, deadline); }));
        addEndpoint(process, slot, peer, std::move(connection), false, {allow_cma, {}}, deadline);
      },
      "address"_a, "secret"_a, "identity"_a, "process"_a, "slot"_a, "peer"_a, "peer_process"_a, "peer_slot"_a,
      "allow_cma"_a, "timeout"_a, "store"_a, "ended_key"_a);
}

// interface, host, prefix length, Mbit/s or 0, whether it shares its subnet, whether it is bound to its interface
using NicRow = std::tuple<std::string, std::string, int, int64_t, bool, bool>;
using PathRow = std::tuple<int, size_t, std::string, bool>;  // tier, own NIC, where the peer listens, by verbs
// slot, peer, peer's process, incarnation and slot, whether we call, paths
using PairRow = std::tuple<size_t, int32_t, int32_t, uint64_t, size_t, bool, std::vector<PathRow>>;

std::vector<NicRow> chooseNics(const std::string& interface, const std::string& towards) {
  const net::Address local = unwrap(net::Address::fromHost(towards, 0));
  std::vector<NicRow> rows;
  for (const net::Nic& nic : unwrap(net::chooseNics(interface, local, unwrap(net::listInterfaces())))) {
    rows.emplace_back(nic.name, nic.address.host(), nic.prefix_length, nic.mbit_per_s, nic.shares_subnet, nic.is_bound);
  }
  return rows;
}

std::string rdmaDevice(const std::string& host) {
  return unwrap(runtime::rdmaDevice(unwrap(net::Address::fromHost(host, 0))));
}

std::shared_ptr<runtime::Paths> makePaths(const std::vector<NicRow>& nics, const net::Secret& secret,
                                          const Identity& identity, const Encryption* encryption) {
  runtime::PathsOptions options;
  options.secret = secret;
  options.mine = identity.of(net::Role::kData);
  options.tls = of(encryption);
  for (const auto& [name, host, prefix_length, mbit_per_s, shares_subnet, is_bound] : nics) {
    const net::Address address = unwrap(net::Address::fromHost(host, 0));
    options.nics.push_back({name, address, prefix_length, mbit_per_s, shares_subnet, is_bound});
  }
  return unwrap(runtime::Paths::create(std::move(options)));
}

void connectPaths(const std::shared_ptr<runtime::Paths>& paths, runtime::Process& process,
                  const std::vector<PairRow>& rows, const std::string& congestion, double timeout,
                  std::shared_ptr<control::StoreClient> store, const std::string& ended_key) {
  std::vector<runtime::PairPlan> plans;
  for (const auto& [slot, peer, peer_process, peer_incarnation, peer_slot, is_caller, path_rows] : rows) {
    runtime::PairPlan plan{slot, peer, peer_process, peer_incarnation, peer_slot, is_caller, {}};
    for (const auto& [tier, nic, remote, is_verbs] : path_rows) {
      plan.paths.push_back({tier, nic, unwrap(net::Address::parse(remote)), is_verbs});
    }
    plans.push_back(std::move(plan));
  }
  process.keepPaths(paths);
  const net::Deadline deadline = deadlineIn(timeout, std::move(store), ended_key);
  raiseIfError(waited([&] { return paths->connect(process, std::move(plans), {true, congestion}, deadline); }));
}

void bindPaths(nb::module_& module) {
  module.def(
      "choose_nics", &chooseNics, "interface"_a, "towards"_a,
      "The NICs named, or those that lead out of this machine: (interface, host, prefix length, Mbit/s or 0, whether "
      "it shares its subnet, whether sockets are bound to its interface) each.");
  module.def("rdma_device", &rdmaDevice, "host"_a,
             "The RDMA device of this local address, tried out; an error says why not.");
  nb::class_<runtime::Paths>(module, "Paths")
      .def(nb::new_(&makePaths), "nics"_a, "secret"_a, "identity"_a, "encryption"_a.none())
      .def_prop_ro("addresses",
                   [](const runtime::Paths& paths) {
                     std::vector<std::string> texts;
                     for (const net::Address& address : paths.addresses()) texts.push_back(address.text());
                     return texts;
                   })
      .def("connect", &connectPaths, "process"_a, "pairs"_a, "congestion"_a, "timeout"_a, "store"_a, "ended_key"_a,
           "A pair: slot, peer, its process, incarnation and slot, whether this side calls, and (tier, NIC, address, "
           "whether by verbs) of each path.")
      .def_prop_ro("has_several", &runtime::Paths::hasSeveral)
      .def("leave_behind", &runtime::Paths::leaveBehind, "epoch"_a, "processes"_a,
           "Gives these processes no connection any more, and says that this one is in that epoch.",
           nb::call_guard<LockReleased>())
      .def("stop", &runtime::Paths::stop, nb::call_guard<LockReleased>());
}

}  // namespace

void bindNet(nb::module_& module) {
  nb::class_<net::Secret>(module, "Secret").def(nb::new_(&makeSecret), "bytes"_a.none(), "allow_insecure"_a);
  nb::class_<Identity>(module, "Identity")
      .def(nb::new_([](std::string job, int32_t process_id, uint64_t incarnation) {
             return Identity{std::move(job), process_id, incarnation};
           }),
           "job"_a, "process_id"_a, "incarnation"_a);
  nb::class_<Encryption>(module, "Encryption").def(nb::new_(&makeEncryption), "secret"_a, "job"_a);
  bindStore(module);
  bindAcceptor(module);
  bindPaths(module);
}

}  // namespace jhetcc::py
