// SPDX-License-Identifier: Apache-2.0
#include "ffi/handlers.h"

#include <sys/mman.h>

#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string_view>
#include <variant>

#include "xla/ffi/api/ffi.h"

namespace jhetcc::ffi_room {

namespace ffi = ::xla::ffi;

namespace {

std::shared_mutex process_mutex;
std::shared_ptr<runtime::Process>& processSlot() {
  static auto* slot = new std::shared_ptr<runtime::Process>();  // never destroyed: handlers may run at interpreter exit
  return *slot;
}

constexpr size_t kHugePageBytes = 2 << 20;
constexpr size_t kHugePagesFrom = 8 << 20;

ffi::ErrorCode errorCodeOf(Kind kind) {
  switch (kind) {
    case Kind::kBadArgument:
      return ffi::ErrorCode::kInvalidArgument;
    case Kind::kUnavailable:
      return ffi::ErrorCode::kUnimplemented;
    case Kind::kTimeout:
      return ffi::ErrorCode::kDeadlineExceeded;
    case Kind::kDisconnected:
      return ffi::ErrorCode::kUnavailable;
    case Kind::kMismatch:
      return ffi::ErrorCode::kFailedPrecondition;
    case Kind::kAborted:
      return ffi::ErrorCode::kAborted;
    case Kind::kResource:
      return ffi::ErrorCode::kResourceExhausted;
    default:
      return ffi::ErrorCode::kInternal;
  }
}

ffi::Error errorOf(const Status& status) { return ffi::Error(errorCodeOf(status.kind()), encodeStatus(status)); }

}  // namespace

/// What a handler answers: done (well or badly), or a future. Saves the future's cost where the operation is done.
struct Outcome {
  std::optional<ffi::Error> error;
  std::optional<ffi::Future> future;
};

}  // namespace jhetcc::ffi_room

template <::xla::ffi::ExecutionStage stage>
struct xla::ffi::ResultEncoding<stage, ::jhetcc::ffi_room::Outcome> {
  static std::variant<XLA_FFI_Error*, XLA_FFI_Future*> Encode(const XLA_FFI_Api* api, XLA_FFI_ExecutionContext* context,
                                                              ::jhetcc::ffi_room::Outcome outcome) {
    if (outcome.future) return ResultEncoding<stage, Future>::Encode(api, context, std::move(*outcome.future));
    if (outcome.error) return internal::CreateError(api, *outcome.error);
    return static_cast<XLA_FFI_Error*>(nullptr);
  }
};

namespace jhetcc::ffi_room {
namespace {

/// A call whose handler may leave before it is done; then it lives until resolved. Promise and future are made only
/// then.
class FutureTicket final : public runtime::Ticket {
 public:
  FutureTicket() : Ticket(nullptr, nullptr, 0) {}
  /// `future` is filled if the handler leaves; it lies with the caller, for a left ticket is the completion thread's.
  void begin(const runtime::Call& call, std::shared_ptr<runtime::Process> process, std::optional<ffi::Future>* future) {
    renew(call.runner, call.join, call.slot);
    process_ = std::move(process);
    future_ = future;
  }
  void rest() {
    future_ = nullptr;
    promise_.reset();
    process_.reset();
  }
  void prepareToLeave() override {
    promise_.emplace();
    future_->emplace(*promise_);
  }
  void resolve() override {
    ffi::Promise promise = std::move(*promise_);
    const Status end = status();
    delete this;
    if (end.isOk()) {
      promise.SetAvailable();
    } else {
      promise.SetError(errorOf(end));
    }
  }

 private:
  std::optional<ffi::Future>* future_ = nullptr;
  std::optional<ffi::Promise> promise_;
  std::shared_ptr<runtime::Process> process_;
};

/// This thread's next ticket: most calls are done when the handler returns and give it back.
thread_local std::unique_ptr<FutureTicket> spare_ticket;

/// First touch of a large fresh output costs several times the copy itself on small pages.
void askForHugePages(void* data, size_t bytes) {
  if (bytes < kHugePagesFrom) return;
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(data) + kHugePageBytes - 1) & ~(kHugePageBytes - 1);
  const uintptr_t end = (reinterpret_cast<uintptr_t>(data) + bytes) & ~(kHugePageBytes - 1);
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
}

Outcome failed(const Status& status) { return {errorOf(status), std::nullopt}; }

Outcome collective(int32_t ordinal, ffi::RemainingArgs arguments, ffi::RemainingRets results,
                   std::string_view operation, std::string_view communicator, int64_t size) {
  std::shared_ptr<runtime::Process> process = currentProcess();
  if (!process) {
    return failed(
        Status(Kind::kBadArgument, Scope::kProcess, "not_initialized",
               std::string(operation) + ": jhetcc is not initialised in this process; call jhetcc.init() first"));
  }
  engine::Buffers buffers;
  if (arguments.size() > 1) {
    auto input = arguments.get<ffi::AnyBuffer>(1);
    if (!input.has_value()) return {input.error(), std::nullopt};
    buffers.input = input->untyped_data();
    buffers.input_bytes = input->size_bytes();
  }
  if (results.size() > 1) {
    auto output = results.get<ffi::AnyBuffer>(1);
    if (!output.has_value()) return {output.error(), std::nullopt};
    buffers.output = (*output)->untyped_data();
    buffers.output_bytes = (*output)->size_bytes();
    if (buffers.output != buffers.input) askForHugePages(buffers.output, buffers.output_bytes);
  }
  Result<runtime::Call> call = process->prepareCall(communicator, operation, ordinal);
  if (!call.isOk()) return failed(call.status());
  if (call.value().size != size) {
    return failed(Status(Kind::kBadArgument, Scope::kCall, "retrace",
                         std::string(operation) + ": this program was traced for " + std::to_string(size) +
                             " ranks of \"" + std::string(communicator) + "\", which has " +
                             std::to_string(call.value().size) +
                             " now: trace it again (jax.clear_caches(), or build the function anew)"));
  }
  runtime::Runner* runner = call.value().runner;
  std::unique_ptr<FutureTicket> ticket = spare_ticket ? std::move(spare_ticket) : std::make_unique<FutureTicket>();
  Outcome outcome;
  ticket->begin(call.value(), std::move(process), &outcome.future);
  engine::Request request{call.value().communicator, std::move(call.value().command), buffers, ticket.get()};
  if (!runner->startAndHelp(std::move(request), *ticket)) {
    ticket.release();  // resolve() deletes it
    return outcome;
  }
  const Status status = ticket->status();
  ticket->rest();
  spare_ticket = std::move(ticket);
  return status.isOk() ? Outcome{} : failed(status);
}

ffi::Error rankIndex(int32_t ordinal, ffi::Result<ffi::BufferR0<ffi::S32>> result, std::string_view communicator) {
  std::shared_ptr<runtime::Process> process = currentProcess();
  if (!process) {
    return errorOf(Status(Kind::kBadArgument, Scope::kProcess, "not_initialized",
                          "axis_index: jhetcc is not initialised in this process; call jhetcc.init() first"));
  }
  jhetcc::Result<int32_t> index = process->memberIndex(communicator, ordinal);
  if (!index.isOk()) return errorOf(index.status());
  *result->typed_data() = index.value();
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER(kCollective, collective,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::DeviceOrdinal>()
                           .RemainingArgs()
                           .RemainingRets()
                           .Attr<std::string_view>("operation")
                           .Attr<std::string_view>("communicator")
                           .Attr<int64_t>("size"));
XLA_FFI_DEFINE_HANDLER(
    kRank, rankIndex,
    ffi::Ffi::Bind().Ctx<ffi::DeviceOrdinal>().Ret<ffi::BufferR0<ffi::S32>>().Attr<std::string_view>("communicator"));

}  // namespace

void setProcess(std::shared_ptr<runtime::Process> process) {
  std::unique_lock<std::shared_mutex> lock(process_mutex);
  processSlot().swap(process);
}

std::shared_ptr<runtime::Process> currentProcess() {
  std::shared_lock<std::shared_mutex> lock(process_mutex);
  return processSlot();
}

void* collectiveHandler() { return reinterpret_cast<void*>(kCollective); }
void* rankHandler() { return reinterpret_cast<void*>(kRank); }
int apiMajor() { return XLA_FFI_API_MAJOR; }
int apiMinor() { return XLA_FFI_API_MINOR; }

std::string encodeStatus(const Status& status) {
  std::string ranks;
  for (int32_t rank : status.ranks()) ranks += (ranks.empty() ? "" : ",") + std::to_string(rank);
  return status.message() + " [jhetcc kind=" + kindName(status.kind()) + "; scope=" + scopeName(status.scope()) +
         "; code=" + status.code() + "; ranks=" + ranks + "]";
}

}  // namespace jhetcc::ffi_room
