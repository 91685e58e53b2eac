// SPDX-License-Identifier: Apache-2.0
// Little-endian fields to and from bytes. Reading checks every length before it touches or allocates anything.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace jhetcc {

class ByteWriter {
 public:
  void u8(uint8_t value) { bytes_.push_back(static_cast<char>(value)); }
  void u16(uint16_t value) { number(value, 2); }
  void u32(uint32_t value) { number(value, 4); }
  void u64(uint64_t value) { number(value, 8); }
  void i32(int32_t value) { u32(static_cast<uint32_t>(value)); }
  void i64(int64_t value) { u64(static_cast<uint64_t>(value)); }
  void raw(const void* data, size_t size) { bytes_.append(static_cast<const char*>(data), size); }
  void raw(std::string_view data) { bytes_.append(data); }
  /// u32 length, then the bytes.
  void text(std::string_view data) {
    u32(static_cast<uint32_t>(data.size()));
    raw(data);
  }
  const std::string& bytes() const { return bytes_; }
  std::string take() { return std::move(bytes_); }

 private:
  void number(uint64_t value, int size) {
    for (int i = 0; i < size; ++i) bytes_.push_back(static_cast<char>(value >> (8 * i)));
  }
  std::string bytes_;
};

/// After the first field that does not fit, everything reads as zero and `ok()` is false.
class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : bytes_(bytes) {}
  uint8_t u8() { return static_cast<uint8_t>(number(1)); }
  uint16_t u16() { return static_cast<uint16_t>(number(2)); }
  uint32_t u32() { return static_cast<uint32_t>(number(4)); }
  uint64_t u64() { return number(8); }
  int32_t i32() { return static_cast<int32_t>(u32()); }
  int64_t i64() { return static_cast<int64_t>(u64()); }
  std::string_view raw(size_t size) {
    if (!ok_ || size > bytes_.size()) {
      ok_ = false;
      return {};
    }
    const std::string_view taken = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
    return taken;
  }
  std::string_view text(size_t size_max) {
    const uint32_t size = u32();
    if (size > size_max) ok_ = false;
    return raw(size);
  }
  bool ok() const { return ok_; }
  /// Everything was read, and nothing is left.
  bool atEnd() const { return ok_ && bytes_.empty(); }

 private:
  uint64_t number(size_t size) {
    const std::string_view field = raw(size);
    uint64_t value = 0;
    for (size_t i = 0; i < field.size(); ++i) value |= static_cast<uint64_t>(static_cast<uint8_t>(field[i])) << (8 * i);
    return value;
  }
  std::string_view bytes_;
  bool ok_ = true;
};

}  // namespace jhetcc
