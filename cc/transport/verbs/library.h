// SPDX-License-Identifier: Apache-2.0
// libibverbs, loaded when it is first needed. Any thread.
#pragma once

#include "base/late_library.h"
#include "transport/verbs/abi.h"

namespace jhetcc::transport::verbs {

struct Library {
  abi::Device** (*get_device_list)(int* count);
  void (*free_device_list)(abi::Device** list);
  const char* (*get_device_name)(abi::Device* device);
  abi::Context* (*open_device)(abi::Device* device);
  int (*close_device)(abi::Context* context);
  int (*query_port)(abi::Context* context, uint8_t port, abi::PortAttributes* attributes);
  abi::Pd* (*alloc_pd)(abi::Context* context);
  int (*dealloc_pd)(abi::Pd* pd);
  abi::Mr* (*reg_mr)(abi::Pd* pd, void* address, size_t length, int access);
  int (*dereg_mr)(abi::Mr* mr);
  abi::Channel* (*create_comp_channel)(abi::Context* context);
  int (*destroy_comp_channel)(abi::Channel* channel);
  abi::Cq* (*create_cq)(abi::Context* context, int entries, void* user, abi::Channel* channel, int vector);
  int (*destroy_cq)(abi::Cq* cq);
  int (*get_cq_event)(abi::Channel* channel, abi::Cq** cq, void** user);
  void (*ack_cq_events)(abi::Cq* cq, unsigned int count);
  abi::Qp* (*create_qp)(abi::Pd* pd, abi::QpInit* init);
  int (*modify_qp)(abi::Qp* qp, abi::QpAttributes* attributes, int mask);
  int (*destroy_qp)(abi::Qp* qp);
  int (*get_async_event)(abi::Context* context, abi::AsyncEvent* event);
  void (*ack_async_event)(abi::AsyncEvent* event);
  const char* (*wc_status_str)(uint32_t status);
  const char* (*event_type_str)(uint32_t type);

  /// The one of this process. kUnavailable with the loader's text; asked again after a failure.
  static Result<const Library*> get();
  /// `path`: this file instead of the system's.
  static Result<Library> load(const std::string& path);
};

}  // namespace jhetcc::transport::verbs
