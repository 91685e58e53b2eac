// SPDX-License-Identifier: Apache-2.0
#include "transport/verbs/library.h"

#include <memory>
#include <mutex>

namespace jhetcc::transport::verbs {
namespace {

template <typename Function>
void take(const LateLibrary& library, const char* name, Function** function, Status* status) {
  if (!status->isOk()) return;
  const Result<void*> found = library.symbol(name);
  if (found.isOk()) {
    *function = reinterpret_cast<Function*>(found.value());
  } else {
    *status = found.status();
  }
}

}  // namespace

Result<Library> Library::load(const std::string& path) {
  Result<LateLibrary> loaded = LateLibrary::load({"libibverbs (RDMA)",
                                                  path,
                                                  {"libibverbs.so.1"},
                                                  "install rdma-core (Debian: libibverbs1 and ibverbs-providers)"});
  if (!loaded.isOk()) return loaded.status();
  const LateLibrary& from = loaded.value();
  Library made{};
  Status status;
  take(from, "ibv_get_device_list", &made.get_device_list, &status);
  take(from, "ibv_free_device_list", &made.free_device_list, &status);
  take(from, "ibv_get_device_name", &made.get_device_name, &status);
  take(from, "ibv_open_device", &made.open_device, &status);
  take(from, "ibv_close_device", &made.close_device, &status);
  take(from, "ibv_query_port", &made.query_port, &status);
  take(from, "ibv_alloc_pd", &made.alloc_pd, &status);
  take(from, "ibv_dealloc_pd", &made.dealloc_pd, &status);
  take(from, "ibv_reg_mr", &made.reg_mr, &status);
  take(from, "ibv_dereg_mr", &made.dereg_mr, &status);
  take(from, "ibv_create_comp_channel", &made.create_comp_channel, &status);
  take(from, "ibv_destroy_comp_channel", &made.destroy_comp_channel, &status);
  take(from, "ibv_create_cq", &made.create_cq, &status);
  take(from, "ibv_destroy_cq", &made.destroy_cq, &status);
  take(from, "ibv_get_cq_event", &made.get_cq_event, &status);
  take(from, "ibv_ack_cq_events", &made.ack_cq_events, &status);
  take(from, "ibv_create_qp", &made.create_qp, &status);
  take(from, "ibv_modify_qp", &made.modify_qp, &status);
  take(from, "ibv_destroy_qp", &made.destroy_qp, &status);
  take(from, "ibv_get_async_event", &made.get_async_event, &status);
  take(from, "ibv_ack_async_event", &made.ack_async_event, &status);
  take(from, "ibv_wc_status_str", &made.wc_status_str, &status);
  take(from, "ibv_event_type_str", &made.event_type_str, &status);
  if (!status.isOk()) return status;
  return made;
}

Result<const Library*> Library::get() {
  static std::mutex mutex;
  static std::unique_ptr<const Library> loaded;
  const std::lock_guard<std::mutex> lock(mutex);
  if (!loaded) {
    Result<Library> made = load("");
    if (!made.isOk()) return made.status();
    loaded = std::make_unique<const Library>(made.value());
  }
  return loaded.get();
}

}  // namespace jhetcc::transport::verbs
