// SPDX-License-Identifier: Apache-2.0
// Frames over one connected stream socket; offered payloads go from the sender's memory into the receiver's place.
// Each endpoint belongs to one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/fd.h"
#include "base/status.h"
#include "transport/transport.h"

namespace jhetcc::net {
class TlsSession;
}

namespace jhetcc::transport::tcp {

struct Options {
  uint32_t send_buffer_bytes = 256 * 1024;     ///< frames that wait for the socket; at least 64 KiB
  uint32_t receive_buffer_bytes = 128 * 1024;  ///< at least 64 KiB
  uint32_t data_frame_bytes = 512 * 1024;      ///< of an offered payload at a time; other frames pass between
  /// What the kernel holds back unsent, at most about; 0: as it likes, which is megabytes that a request waits behind.
  uint32_t unsent_bytes = 512 * 1024;
};

/// `socket` is connected and authenticated. `description` tells the two places: "127.0.0.1:4711 -> 127.0.0.1:4712"; the
/// transport's name is put in front. `tls`: the socket's session, through which everything then goes.
Result<std::unique_ptr<Endpoint>> create(Fd socket, const Options& options, const std::string& description,
                                         std::shared_ptr<net::TlsSession> tls = nullptr);

}  // namespace jhetcc::transport::tcp
