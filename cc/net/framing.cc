// SPDX-License-Identifier: Apache-2.0
#include "net/framing.h"

#include <algorithm>
#include <cerrno>

#include "base/bytes.h"
#include "net/socket.h"
#include "net/tls.h"

namespace jhetcc::net {
namespace {

constexpr size_t kReadBytes = 64 * 1024;

Status tooLong(size_t size, size_t size_max) {
  return Status(
      Kind::kDisconnected, Scope::kEndpoint, "message_size",
      "a message of " + std::to_string(size) + " bytes was announced, the limit is " + std::to_string(size_max));
}

}  // namespace

std::string framed(std::string_view message) {
  JHETCC_CHECK(message.size() <= UINT32_MAX, std::to_string(message.size()));
  ByteWriter writer;
  writer.text(message);
  return writer.take();
}

Status sendMessage(const Stream& stream, std::string_view message, const Deadline& deadline, const std::string& what) {
  const std::string bytes = framed(message);
  return sendAll(stream, bytes.data(), bytes.size(), deadline, what);
}

Result<std::string> receiveMessage(const Stream& stream, size_t size_max, const Deadline& deadline,
                                   const std::string& what) {
  char header[kMessageHeaderBytes];
  JHETCC_RETURN_IF_ERROR(receiveAll(stream, header, sizeof(header), deadline, what));
  const size_t size = ByteReader({header, sizeof(header)}).u32();
  if (size > size_max) return tooLong(size, size_max).withContext(what);
  std::string message;
  while (message.size() < size) {
    const size_t before = message.size();
    const size_t piece = std::min(size - before, kReadBytes);
    message.resize(before + piece);
    JHETCC_RETURN_IF_ERROR(receiveAll(stream, message.data() + before, piece, deadline, what));
  }
  return message;
}

Status MessageReader::readSome(const Stream& stream, const std::string& what) {
  for (int i = 0; i < 4 || (stream.tls && stream.tls->hasPending()); ++i) {
    const size_t before = buffer_.size();
    buffer_.resize(before + kReadBytes);
    const ssize_t got = stream.receive(buffer_.data() + before, kReadBytes);
    const int error = errno;
    buffer_.resize(before + (got > 0 ? static_cast<size_t>(got) : 0));
    if (got == 0) return disconnected(what, 0);
    if (got < 0 && error == EINTR) continue;
    if (got < 0 && (error == EAGAIN || error == EWOULDBLOCK)) return Status::ok();
    if (got < 0) return disconnected(what, error);
    // TLS hands out a record at a time, less than there may be, and the socket would not tell of the rest.
    if (static_cast<size_t>(got) < kReadBytes && !stream.tls) return Status::ok();
  }
  return Status::ok();
}

Result<std::optional<std::string>> MessageReader::next() {
  const std::string_view rest = std::string_view(buffer_).substr(begin_);
  if (rest.size() >= kMessageHeaderBytes) {
    const size_t size = ByteReader(rest).u32();
    if (size > size_max_) return tooLong(size, size_max_);
    if (rest.size() - kMessageHeaderBytes >= size) {
      std::string message(rest.substr(kMessageHeaderBytes, size));
      begin_ += kMessageHeaderBytes + size;
      return std::optional<std::string>(std::move(message));
    }
  }
  // Nothing whole is left: what was handed out goes.
  buffer_.erase(0, begin_);
  begin_ = 0;
  return std::optional<std::string>();
}

}  // namespace jhetcc::net
