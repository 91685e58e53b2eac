// SPDX-License-Identifier: Apache-2.0
// Takes one line out of the process's standard output: what oneCCL says of CCL_LOG_LEVEL being set, which it says
// whatever the level. Any thread.
#pragma once

#include <iostream>
#include <mutex>
#include <streambuf>
#include <string>

namespace jhetcc::ccl::oneccl {

/// Stands before the buffer of std::cout, which oneCCL shares with the program, until the line has come; then it only
/// hands on.
class RemarkFilter final : public std::streambuf {
 public:
  /// From now on, once a process; nobody writes to std::cout meanwhile.
  static void install() {
    static RemarkFilter* const only = new RemarkFilter(std::cout.rdbuf());  // never destroyed: exit handlers may write
    std::cout.rdbuf(only);
  }
  explicit RemarkFilter(std::streambuf* next) : next_(next) {}

 private:
  static constexpr const char* kRemark = "|CCL_WARN| value of CCL_LOG_LEVEL changed to be ";

  int_type overflow(int_type c) override {
    if (traits_type::eq_int_type(c, traits_type::eof())) return traits_type::not_eof(c);
    const char one = traits_type::to_char_type(c);
    return xsputn(&one, 1) == 1 ? c : traits_type::eof();
  }
  std::streamsize xsputn(const char* text, std::streamsize size) override {
    const std::lock_guard lock(mutex_);
    if (is_done_) return next_->sputn(text, size);
    line_.append(text, static_cast<size_t>(size));
    for (size_t end; !is_done_ && (end = line_.find('\n')) != std::string::npos; line_.erase(0, end + 1)) {
      is_done_ = line_.rfind(kRemark, end) != std::string::npos;
      if (!is_done_) next_->sputn(line_.data(), static_cast<std::streamsize>(end + 1));
    }
    if (is_done_) handOn();
    return size;
  }
  /// A line that others left open is shown; one that may become the remark waits for its end.
  int sync() override {
    const std::lock_guard lock(mutex_);
    if (line_.find("|CCL_WARN|") == std::string::npos) handOn();
    return next_->pubsync();
  }
  void handOn() {
    if (!line_.empty()) next_->sputn(line_.data(), static_cast<std::streamsize>(line_.size()));
    line_.clear();
  }

  std::streambuf* const next_;
  std::mutex mutex_;  ///< guards what follows
  std::string line_;
  bool is_done_ = false;
};

}  // namespace jhetcc::ccl::oneccl
