// SPDX-License-Identifier: Apache-2.0
// What is declared again of libibverbs, against its own header where that is installed.
#include "transport/verbs/abi.h"

#include <doctest/doctest.h>

#if __has_include(<infiniband/verbs.h>)
#include <infiniband/verbs.h>

#include <cstddef>

namespace jhetcc::transport::verbs {

#define SAME_PLACE(ours, field, theirs, name)                                                                  \
  static_assert(offsetof(ours, field) == offsetof(theirs, name) &&                                             \
                    sizeof(static_cast<ours*>(nullptr)->field) == sizeof(static_cast<theirs*>(nullptr)->name), \
                #ours "::" #field " is " #theirs "::" #name)

static_assert(sizeof(abi::SendWr) == sizeof(ibv_send_wr));
static_assert(sizeof(abi::ReceiveWr) == sizeof(ibv_recv_wr));
static_assert(sizeof(abi::Sge) == sizeof(ibv_sge));
static_assert(sizeof(abi::Wc) == sizeof(ibv_wc));
static_assert(sizeof(abi::QpInit) == sizeof(ibv_qp_init_attr));
static_assert(sizeof(abi::QpAttributes) == sizeof(ibv_qp_attr));
static_assert(sizeof(abi::Ah) == sizeof(ibv_ah_attr));
static_assert(sizeof(abi::Operations) == sizeof(ibv_context_ops));
static_assert(sizeof(abi::Context) == sizeof(ibv_context));
static_assert(sizeof(abi::PortAttributes) >= sizeof(ibv_port_attr));
static_assert(sizeof(abi::AsyncEvent) == sizeof(ibv_async_event));
static_assert(sizeof(abi::Mr) == sizeof(ibv_mr));

SAME_PLACE(abi::SendWr, id, ibv_send_wr, wr_id);
SAME_PLACE(abi::SendWr, next, ibv_send_wr, next);
SAME_PLACE(abi::SendWr, sges, ibv_send_wr, sg_list);
SAME_PLACE(abi::SendWr, sge_count, ibv_send_wr, num_sge);
SAME_PLACE(abi::SendWr, opcode, ibv_send_wr, opcode);
SAME_PLACE(abi::SendWr, flags, ibv_send_wr, send_flags);
SAME_PLACE(abi::SendWr, immediate, ibv_send_wr, imm_data);
SAME_PLACE(abi::SendWr, remote_address, ibv_send_wr, wr.rdma.remote_addr);
SAME_PLACE(abi::SendWr, rkey, ibv_send_wr, wr.rdma.rkey);
SAME_PLACE(abi::ReceiveWr, id, ibv_recv_wr, wr_id);
SAME_PLACE(abi::ReceiveWr, next, ibv_recv_wr, next);
SAME_PLACE(abi::ReceiveWr, sges, ibv_recv_wr, sg_list);
SAME_PLACE(abi::ReceiveWr, sge_count, ibv_recv_wr, num_sge);
SAME_PLACE(abi::Sge, address, ibv_sge, addr);
SAME_PLACE(abi::Sge, length, ibv_sge, length);
SAME_PLACE(abi::Sge, lkey, ibv_sge, lkey);
SAME_PLACE(abi::Wc, id, ibv_wc, wr_id);
SAME_PLACE(abi::Wc, status, ibv_wc, status);
SAME_PLACE(abi::Wc, opcode, ibv_wc, opcode);
SAME_PLACE(abi::Wc, vendor_error, ibv_wc, vendor_err);
SAME_PLACE(abi::Wc, immediate, ibv_wc, imm_data);
SAME_PLACE(abi::QpInit, send_cq, ibv_qp_init_attr, send_cq);
SAME_PLACE(abi::QpInit, receive_cq, ibv_qp_init_attr, recv_cq);
SAME_PLACE(abi::QpInit, capacity, ibv_qp_init_attr, cap);
SAME_PLACE(abi::QpInit, type, ibv_qp_init_attr, qp_type);
SAME_PLACE(abi::QpAttributes, state, ibv_qp_attr, qp_state);
SAME_PLACE(abi::QpAttributes, path_mtu, ibv_qp_attr, path_mtu);
SAME_PLACE(abi::QpAttributes, receive_psn, ibv_qp_attr, rq_psn);
SAME_PLACE(abi::QpAttributes, send_psn, ibv_qp_attr, sq_psn);
SAME_PLACE(abi::QpAttributes, remote_qp, ibv_qp_attr, dest_qp_num);
SAME_PLACE(abi::QpAttributes, access, ibv_qp_attr, qp_access_flags);
SAME_PLACE(abi::QpAttributes, ah, ibv_qp_attr, ah_attr);
SAME_PLACE(abi::QpAttributes, reads_begun, ibv_qp_attr, max_rd_atomic);
SAME_PLACE(abi::QpAttributes, reads_served, ibv_qp_attr, max_dest_rd_atomic);
SAME_PLACE(abi::QpAttributes, rnr_timer, ibv_qp_attr, min_rnr_timer);
SAME_PLACE(abi::QpAttributes, port, ibv_qp_attr, port_num);
SAME_PLACE(abi::QpAttributes, timeout, ibv_qp_attr, timeout);
SAME_PLACE(abi::QpAttributes, retries, ibv_qp_attr, retry_cnt);
SAME_PLACE(abi::QpAttributes, rnr_retries, ibv_qp_attr, rnr_retry);
SAME_PLACE(abi::Ah, route, ibv_ah_attr, grh);
SAME_PLACE(abi::Ah, is_global, ibv_ah_attr, is_global);
SAME_PLACE(abi::Ah, port, ibv_ah_attr, port_num);
SAME_PLACE(abi::Route, gid, ibv_global_route, dgid);
SAME_PLACE(abi::Route, source_gid_index, ibv_global_route, sgid_index);
SAME_PLACE(abi::Route, hop_limit, ibv_global_route, hop_limit);
SAME_PLACE(abi::PortAttributes, active_mtu, ibv_port_attr, active_mtu);
SAME_PLACE(abi::Channel, fd, ibv_comp_channel, fd);
SAME_PLACE(abi::Cq, context, ibv_cq, context);
SAME_PLACE(abi::Qp, context, ibv_qp, context);
SAME_PLACE(abi::Qp, number, ibv_qp, qp_num);
SAME_PLACE(abi::Mr, lkey, ibv_mr, lkey);
SAME_PLACE(abi::Mr, rkey, ibv_mr, rkey);
SAME_PLACE(abi::AsyncEvent, type, ibv_async_event, event_type);
SAME_PLACE(abi::Operations, poll_cq, ibv_context_ops, poll_cq);
SAME_PLACE(abi::Operations, request_notify, ibv_context_ops, req_notify_cq);
SAME_PLACE(abi::Operations, post_send, ibv_context_ops, post_send);
SAME_PLACE(abi::Operations, post_receive, ibv_context_ops, post_recv);
SAME_PLACE(abi::Context, operations, ibv_context, ops);
SAME_PLACE(abi::Context, async_fd, ibv_context, async_fd);

static_assert(abi::kQpTypeRc == IBV_QPT_RC && abi::kStateInit == IBV_QPS_INIT && abi::kStateError == IBV_QPS_ERR &&
              abi::kStateReadyToReceive == IBV_QPS_RTR && abi::kStateReadyToSend == IBV_QPS_RTS);
static_assert(abi::kMaskState == IBV_QP_STATE && abi::kMaskAccess == IBV_QP_ACCESS_FLAGS &&
              abi::kMaskPkeyIndex == IBV_QP_PKEY_INDEX && abi::kMaskPort == IBV_QP_PORT && abi::kMaskAh == IBV_QP_AV &&
              abi::kMaskPathMtu == IBV_QP_PATH_MTU && abi::kMaskTimeout == IBV_QP_TIMEOUT &&
              abi::kMaskRetries == IBV_QP_RETRY_CNT && abi::kMaskRnrRetries == IBV_QP_RNR_RETRY &&
              abi::kMaskReceivePsn == IBV_QP_RQ_PSN && abi::kMaskReadsBegun == IBV_QP_MAX_QP_RD_ATOMIC &&
              abi::kMaskRnrTimer == IBV_QP_MIN_RNR_TIMER && abi::kMaskSendPsn == IBV_QP_SQ_PSN &&
              abi::kMaskReadsServed == IBV_QP_MAX_DEST_RD_ATOMIC && abi::kMaskRemoteQp == IBV_QP_DEST_QPN);
static_assert(abi::kAccessLocalWrite == IBV_ACCESS_LOCAL_WRITE && abi::kAccessRemoteWrite == IBV_ACCESS_REMOTE_WRITE);
static_assert(abi::kWrite == IBV_WR_RDMA_WRITE && abi::kWriteWithImmediate == IBV_WR_RDMA_WRITE_WITH_IMM &&
              abi::kSignaled == IBV_SEND_SIGNALED && abi::kSolicited == IBV_SEND_SOLICITED &&
              abi::kInline == IBV_SEND_INLINE);
static_assert(abi::kSuccess == IBV_WC_SUCCESS && abi::kRetriesExceeded == IBV_WC_RETRY_EXC_ERR &&
              abi::kReceivedWithImmediate == IBV_WC_RECV_RDMA_WITH_IMM);
static_assert(abi::kEventCqError == IBV_EVENT_CQ_ERR && abi::kEventQpFatal == IBV_EVENT_QP_FATAL &&
              abi::kEventQpRequestError == IBV_EVENT_QP_REQ_ERR &&
              abi::kEventQpAccessError == IBV_EVENT_QP_ACCESS_ERR && abi::kEventDeviceFatal == IBV_EVENT_DEVICE_FATAL &&
              abi::kEventPortActive == IBV_EVENT_PORT_ACTIVE && abi::kEventPortError == IBV_EVENT_PORT_ERR &&
              abi::kEventGidChange == IBV_EVENT_GID_CHANGE);

}  // namespace jhetcc::transport::verbs

TEST_CASE("verbs: the layouts are those of the installed header") { CHECK(true); }  // the compiler has compared them
#else
TEST_CASE("verbs: the layouts are those of the installed header") {
  MESSAGE("not checked: infiniband/verbs.h is not installed (Debian: libibverbs-dev)");
}
#endif
