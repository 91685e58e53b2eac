// SPDX-License-Identifier: Apache-2.0
// The same bytes through TLS, which takes and gives them by records of at most 16 KiB. One thread.
#include "net/tls.h"

#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "transport/tcp/endpoint.h"

namespace jhetcc::transport::tcp {

namespace {

constexpr size_t kRecordBytes = 16 * 1024;

}  // namespace

/// As sendmsg(2). After EAGAIN the same bytes come again, as TLS demands: what is gathered changes behind them only, or
/// becomes zeros, which are then not sent, for the record is made already.
ssize_t TcpEndpoint::sendTls(const iovec* pieces, size_t count) {
  if (count == 1 || pieces[0].iov_len >= kRecordBytes) return tls_->send(pieces[0].iov_base, pieces[0].iov_len);
  if (!record_) record_.reset(new uint8_t[kRecordBytes]);
  size_t filled = 0;
  for (size_t k = 0; k < count && filled < kRecordBytes; ++k) {
    const size_t bytes = std::min(pieces[k].iov_len, kRecordBytes - filled);
    std::memcpy(record_.get() + filled, pieces[k].iov_base, bytes);
    filled += bytes;
  }
  return tls_->send(record_.get(), filled);
}

/// As recvmsg(2): less than there is room for only when nothing more has come.
ssize_t TcpEndpoint::receiveTls(const iovec* pieces, size_t count) {
  ssize_t total = 0;
  for (size_t k = 0; k < count; ++k) {
    for (size_t filled = 0; filled < pieces[k].iov_len;) {
      const ssize_t got = tls_->receive(static_cast<uint8_t*>(pieces[k].iov_base) + filled, pieces[k].iov_len - filled);
      if (got <= 0) return total > 0 ? total : got;  // an error or the end is met again
      filled += static_cast<size_t>(got);
      total += got;
    }
  }
  return total;
}

}  // namespace jhetcc::transport::tcp
