// SPDX-License-Identifier: Apache-2.0
// The part of libibverbs' binary interface (version IBVERBS_1.1) that is used here: layouts and numbers, declared again
// so that neither build nor import needs its package. A test compares them with the real header where there is one.
#pragma once

#include <pthread.h>

#include <cstdint>

namespace jhetcc::transport::verbs::abi {

struct Device;
struct Context;
struct Pd;
struct Channel {
  Context* context;
  int fd;
  int references;
};
struct Cq {  ///< its beginning
  Context* context;
};
struct Mr {
  Context* context;
  Pd* pd;
  void* address;
  size_t length;
  uint32_t handle;
  uint32_t lkey;
  uint32_t rkey;
};
struct Qp {  ///< its beginning
  Context* context;
  void* user;
  Pd* pd;
  Cq* send_cq;
  Cq* receive_cq;
  void* srq;
  uint32_t handle;
  uint32_t number;
};

struct Sge {
  uint64_t address;
  uint32_t length;
  uint32_t lkey;
};
struct ReceiveWr {
  uint64_t id;
  ReceiveWr* next;
  Sge* sges;
  int sge_count;
};
struct SendWr {
  uint64_t id;
  SendWr* next;
  Sge* sges;
  int sge_count;
  uint32_t opcode;
  uint32_t flags;
  uint32_t immediate;  ///< network order
  uint64_t remote_address;
  uint32_t rkey;
  uint32_t rest[19];  ///< of unions that are not used here
};
struct Wc {
  uint64_t id;
  uint32_t status;
  uint32_t opcode;
  uint32_t vendor_error;
  uint32_t bytes;
  uint32_t immediate;  ///< network order
  uint32_t qp_number;
  uint32_t source_qp;
  uint32_t flags;
  uint16_t pkey_index;
  uint16_t source_lid;
  uint8_t service_level;
  uint8_t path_bits;
};

struct Capacity {
  uint32_t send_wrs;
  uint32_t receive_wrs;
  uint32_t send_sges;
  uint32_t receive_sges;
  uint32_t inline_bytes;
};
struct QpInit {
  void* user;
  Cq* send_cq;
  Cq* receive_cq;
  void* srq;
  Capacity capacity;
  uint32_t type;
  int all_signaled;
};
struct Route {
  union {
    uint8_t gid[16];
    uint64_t aligned;
  };
  uint32_t flow_label;
  uint8_t source_gid_index;
  uint8_t hop_limit;
  uint8_t traffic_class;
};
struct Ah {
  Route route;
  uint16_t lid;
  uint8_t service_level;
  uint8_t path_bits;
  uint8_t static_rate;
  uint8_t is_global;
  uint8_t port;
};
struct QpAttributes {
  uint32_t state;
  uint32_t current_state;
  uint32_t path_mtu;
  uint32_t migration_state;
  uint32_t qkey;
  uint32_t receive_psn;
  uint32_t send_psn;
  uint32_t remote_qp;
  int access;
  Capacity capacity;
  Ah ah;
  Ah alternative_ah;
  uint16_t pkey_index;
  uint16_t alternative_pkey_index;
  uint8_t drained_notify;
  uint8_t is_draining;
  uint8_t reads_begun;
  uint8_t reads_served;
  uint8_t rnr_timer;
  uint8_t port;
  uint8_t timeout;
  uint8_t retries;
  uint8_t rnr_retries;
  uint8_t alternative_port;
  uint8_t alternative_timeout;
  uint32_t rate_limit;
};
struct PortAttributes {  ///< its beginning; the library writes no more than `rest` holds
  uint32_t state;
  uint32_t max_mtu;
  uint32_t active_mtu;
  int gids;
  uint32_t rest[60];
};
struct AsyncEvent {
  union {
    void* element;
    int port;
  };
  uint32_t type;
};

/// Calls that the header makes inline, through this table.
struct Operations {
  void* before_poll[11];
  int (*poll_cq)(Cq* cq, int count, Wc* found);
  int (*request_notify)(Cq* cq, int solicited_only);
  void* between[12];
  int (*post_send)(Qp* qp, SendWr* first, SendWr** bad);
  int (*post_receive)(Qp* qp, ReceiveWr* first, ReceiveWr** bad);
  void* after[5];
};
struct Context {
  Device* device;
  Operations operations;
  int command_fd;
  int async_fd;
  int vectors;
  pthread_mutex_t mutex;
  void* compatibility;
};

constexpr uint32_t kQpTypeRc = 2;
constexpr uint32_t kStateInit = 1, kStateReadyToReceive = 2, kStateReadyToSend = 3, kStateError = 6;
constexpr int kMaskState = 1 << 0, kMaskAccess = 1 << 3, kMaskPkeyIndex = 1 << 4, kMaskPort = 1 << 5, kMaskAh = 1 << 7,
              kMaskPathMtu = 1 << 8, kMaskTimeout = 1 << 9, kMaskRetries = 1 << 10, kMaskRnrRetries = 1 << 11,
              kMaskReceivePsn = 1 << 12, kMaskReadsBegun = 1 << 13, kMaskRnrTimer = 1 << 15, kMaskSendPsn = 1 << 16,
              kMaskReadsServed = 1 << 17, kMaskRemoteQp = 1 << 20;
constexpr int kAccessLocalWrite = 1, kAccessRemoteWrite = 2;
constexpr uint32_t kWrite = 0, kWriteWithImmediate = 1;
constexpr uint32_t kSignaled = 1 << 1, kSolicited = 1 << 2, kInline = 1 << 3;
constexpr uint32_t kSuccess = 0, kFlushed = 5, kRetriesExceeded = 12;
constexpr uint32_t kReceivedWithImmediate = 129;
constexpr uint32_t kEventCqError = 0, kEventQpFatal = 1, kEventQpRequestError = 2, kEventQpAccessError = 3,
                   kEventDeviceFatal = 8, kEventPortActive = 9, kEventPortError = 10, kEventGidChange = 18;

}  // namespace jhetcc::transport::verbs::abi
