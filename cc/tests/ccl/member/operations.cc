// SPDX-License-Identifier: Apache-2.0
// The operations of a communicator against a plain oracle: small whole numbers, exact in every type and order.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "ccl/member/member.h"

namespace jhetcc::ccl {
namespace {

using schedule::DataType, schedule::ReduceOp;

constexpr size_t kGuardBytes = 64;
constexpr uint8_t kGuard = 0xa5;

/// Memory at an odd place, with guards before and after.
class Block {
 public:
  Block(size_t bytes, size_t shift) : bytes_(bytes), memory_(bytes + shift + 3 * kGuardBytes, kGuard) {
    const size_t misfit = reinterpret_cast<uintptr_t>(memory_.data()) % kGuardBytes;
    begin_ = 2 * kGuardBytes - misfit + shift;
  }
  uint8_t* data() { return memory_.data() + begin_; }
  bool isWhole() const {
    const auto is_guard = [](uint8_t byte) { return byte == kGuard; };
    return std::all_of(memory_.begin(), memory_.begin() + static_cast<ptrdiff_t>(begin_), is_guard) &&
           std::all_of(memory_.begin() + static_cast<ptrdiff_t>(begin_ + bytes_), memory_.end(), is_guard);
  }
  bool holds(const std::vector<uint8_t>& wanted) {
    return wanted.size() == bytes_ && std::equal(wanted.begin(), wanted.end(), data()) && isWhole();
  }
  bool isUntouched() {
    return std::all_of(memory_.begin(), memory_.end(), [](uint8_t byte) { return byte == kGuard; });
  }

 private:
  size_t bytes_, begin_ = 0;
  std::vector<uint8_t> memory_;
};

template <typename T>
void store(uint8_t* to, double value) {
  const T typed = static_cast<T>(value);
  std::memcpy(to, &typed, sizeof(T));
}

void encode(DataType type, double value, uint8_t* to) {
  const size_t half = schedule::itemSize(type) / 2;
  switch (type) {
    case DataType::kBool:
      *to = value != 0;
      break;
    case DataType::kInt8:
      store<int8_t>(to, value);
      break;
    case DataType::kInt16:
      store<int16_t>(to, value);
      break;
    case DataType::kInt32:
      store<int32_t>(to, value);
      break;
    case DataType::kInt64:
      store<int64_t>(to, value);
      break;
    case DataType::kUint8:
      store<uint8_t>(to, value);
      break;
    case DataType::kUint16:
      store<uint16_t>(to, value);
      break;
    case DataType::kUint32:
      store<uint32_t>(to, value);
      break;
    case DataType::kUint64:
      store<uint64_t>(to, value);
      break;
    case DataType::kFloat16:
      store<_Float16>(to, value);
      break;
    case DataType::kBfloat16: {
      uint8_t wide[4];
      store<float>(wide, value);
      std::memcpy(to, wide + 2, 2);  // little endian; whole numbers below 256 lose nothing
      break;
    }
    case DataType::kFloat32:
      store<float>(to, value);
      break;
    case DataType::kFloat64:
      store<double>(to, value);
      break;
    case DataType::kComplex64:
      store<float>(to, value), store<float>(to + half, -2 * value);
      break;
    case DataType::kComplex128:
      store<double>(to, value), store<double>(to + half, -2 * value);
      break;
    default:
      require(false, "a type that does not reduce");
  }
}

bool isUnsigned(DataType type) {
  return type == DataType::kUint8 || type == DataType::kUint16 || type == DataType::kUint32 ||
         type == DataType::kUint64;
}

double contribution(DataType type, int32_t rank, size_t i) {
  if (type == DataType::kBool) return (static_cast<size_t>(rank) + i) % 3 == 0;
  const double value = 1.0 + static_cast<double>((i * 7 + static_cast<size_t>(rank) * 5) % 3);
  return !isUnsigned(type) && (i + static_cast<size_t>(rank)) % 5 == 0 ? -value : value;
}

double reduced(DataType type, ReduceOp op, int32_t size, size_t i) {
  double total = contribution(type, 0, i);
  for (int32_t rank = 1; rank < size; ++rank) {
    const double value = contribution(type, rank, i);
    switch (op) {
      case ReduceOp::kSum:
        total += value;
        break;
      case ReduceOp::kProd:
        total *= value;
        break;
      case ReduceOp::kMax:
        total = std::max(total, value);
        break;
      default:
        total = std::min(total, value);
        break;
    }
  }
  return total;
}

template <typename Value>
std::vector<uint8_t> encoded(DataType type, size_t begin, size_t end, Value value) {
  const size_t item = schedule::itemSize(type);
  std::vector<uint8_t> bytes((end - begin) * item);
  for (size_t i = begin; i < end; ++i) encode(type, value(i), bytes.data() + (i - begin) * item);
  return bytes;
}

class Checker {
 public:
  Checker(Communicator& communicator, int32_t rank, int32_t size) : to_(communicator), rank_(rank), size_(size) {}

  /// reduce to every root, all_reduce out of place and in place, reduce_scatter.
  void reductions(DataType type, ReduceOp op, size_t count) {
    const std::string what = "type " + std::to_string(static_cast<int>(type)) + " op " +
                             std::to_string(static_cast<int>(op)) + " count " + std::to_string(count);
    const size_t item = schedule::itemSize(type), shift = count % 2 ? item : 0;
    const auto mine = encoded(type, 0, count, [&](size_t i) { return contribution(type, rank_, i); });
    const auto wanted = encoded(type, 0, count, [&](size_t i) { return reduced(type, op, size_, i); });
    Block source(mine.size(), shift);
    std::copy(mine.begin(), mine.end(), source.data());
    for (int32_t root = 0; root < size_; ++root) {
      Block target(mine.size(), shift);
      require(to_.reduce(source.data(), rank_ == root ? target.data() : nullptr, count, type, op, root, nullptr), what);
      require(rank_ == root ? target.holds(wanted) : target.isUntouched(), what + ": reduce");
    }
    Block target(mine.size(), shift);
    require(to_.allReduce(source.data(), target.data(), count, type, op, nullptr), what);
    require(target.holds(wanted), what + ": all_reduce");
    require(source.holds(mine), what + ": the source is as it was");
    require(to_.allReduce(source.data(), source.data(), count, type, op, nullptr), what);
    require(source.holds(wanted), what + ": all_reduce in place");
    const size_t ranks = static_cast<size_t>(size_), me = static_cast<size_t>(rank_);
    const auto all = encoded(type, 0, ranks * count, [&](size_t i) { return contribution(type, rank_, i); });
    const auto part =
        encoded(type, me * count, (me + 1) * count, [&](size_t i) { return reduced(type, op, size_, i); });
    Block whole(all.size(), shift), piece(part.size(), shift);
    std::copy(all.begin(), all.end(), whole.data());
    require(to_.reduceScatter(whole.data(), piece.data(), count, type, op, nullptr), what);
    require(piece.holds(part) && whole.holds(all), what + ": reduce_scatter");
  }

  void moves(size_t bytes) {
    const std::string what = std::to_string(bytes) + " bytes";
    const size_t ranks = static_cast<size_t>(size_), shift = bytes % 2;
    for (int32_t root = 0; root < size_; ++root) {
      const auto wanted = pattern(root, root, bytes);
      Block block(bytes, shift), untouched(bytes, shift);
      if (rank_ == root) std::copy(wanted.begin(), wanted.end(), block.data());
      void* const target = rank_ != root ? block.data() : root % 2 ? untouched.data() : block.data();
      require(to_.broadcast(rank_ == root ? block.data() : nullptr, target, bytes, root, nullptr), what);
      require(block.holds(wanted) && untouched.isUntouched(), what + ": broadcast");
    }
    Block mine(bytes, shift), all(ranks * bytes, shift), columns(ranks * bytes, shift), rows(ranks * bytes, shift);
    std::vector<uint8_t> gathered, turned;
    for (int32_t other = 0; other < size_; ++other) {
      append(gathered, pattern(other, other, bytes));
      append(turned, pattern(other, rank_, bytes));
      const auto to_other = pattern(rank_, other, bytes);
      std::copy(to_other.begin(), to_other.end(), columns.data() + static_cast<size_t>(other) * bytes);
    }
    const auto own = pattern(rank_, rank_, bytes);
    std::copy(own.begin(), own.end(), mine.data());
    require(to_.allGather(mine.data(), all.data(), bytes, nullptr), what);
    require(all.holds(gathered), what + ": all_gather");
    require(to_.allToAll(columns.data(), rows.data(), bytes, nullptr), what);
    require(rows.holds(turned), what + ": all_to_all");
    // Everybody with everybody at once, itself too, in an order of its own.
    Block got(ranks * bytes, shift);
    std::vector<Communicator::Transfer> transfers;
    for (int32_t step = 0; step < size_; ++step) {
      const int32_t to = (rank_ + step) % size_, from = (rank_ + 2 * size_ - step) % size_;
      transfers.push_back({to, columns.data() + static_cast<size_t>(to) * bytes, nullptr, bytes});
      transfers.push_back({from, nullptr, got.data() + static_cast<size_t>(from) * bytes, bytes});
    }
    if (rank_ % 2) std::reverse(transfers.begin(), transfers.end());
    require(to_.exchange(transfers, nullptr), what);
    require(got.holds(turned), what + ": exchange");
  }

 private:
  static std::vector<uint8_t> pattern(int32_t from, int32_t to, size_t bytes) {
    std::vector<uint8_t> made(bytes);
    for (size_t i = 0; i < bytes; ++i)
      made[i] = static_cast<uint8_t>(i * 13 + i / 251 + size_t(from) * 31 + size_t(to));
    return made;
  }
  static void append(std::vector<uint8_t>& to, const std::vector<uint8_t>& more) {
    to.insert(to.end(), more.begin(), more.end());
  }

  Communicator& to_;
  const int32_t rank_, size_;
};

/// What a library claims of floats it does by our rules: NaN wins, -0 is below +0, denormals stay.
void checkNan(Communicator& communicator, const Capabilities& capabilities, int32_t rank) {
  constexpr size_t kCount = 1003;
  const float nan = std::numeric_limits<float>::quiet_NaN(), tiny = std::numeric_limits<float>::denorm_min();
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin}) {
    if (!capabilities.reduces(op, DataType::kFloat32)) continue;
    for (int32_t special = 0; special < 2; ++special) {
      std::vector<float> source(kCount, 0.0f), target(kCount);
      for (size_t i = 0; rank == special && i < kCount; ++i) source[i] = i % 3 == 0 ? nan : i % 3 == 1 ? -0.0f : tiny;
      require(communicator.allReduce(source.data(), target.data(), kCount, DataType::kFloat32, op, nullptr), "NaN");
      for (size_t i = 0; i < kCount; ++i) {
        const bool good = i % 3 == 0   ? std::isnan(target[i])
                          : i % 3 == 1 ? target[i] == 0 && std::signbit(target[i]) == (op == ReduceOp::kMin)
                                       : target[i] == (op == ReduceOp::kMin ? 0 : tiny);
        require(good, "op " + std::to_string(static_cast<int>(op)) + " of special values at " + std::to_string(i));
      }
    }
  }
}

}  // namespace

void checkEverything(Communicator& communicator, const Capabilities& capabilities, int32_t rank, int32_t size) {
  Checker checker(communicator, rank, size);
  int done = 0;
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kProd, ReduceOp::kMax, ReduceOp::kMin}) {
    for (int number = static_cast<int>(DataType::kBool); number <= static_cast<int>(DataType::kComplex128); ++number) {
      const DataType type = static_cast<DataType>(number);
      if (!capabilities.reduces(op, type)) {
        const Status refused = communicator.allReduce(&done, &done, 1, type, op, nullptr);
        require(refused.kind() == Kind::kUnavailable, "what is refused is refused: " + refused.message());
        continue;
      }
      ++done;
      for (const size_t count : {0, 1, 7, 1000}) checker.reductions(type, op, count);
      if (type == DataType::kFloat32 || type == DataType::kInt8) {
        checker.reductions(type, op, (size_t{1} << 20) / schedule::itemSize(type) + 3);
      }
    }
  }
  require(done > 20, "only " + std::to_string(done) + " reductions");
  require(!capabilities.reduces(ReduceOp::kMean, DataType::kFloat32), "a mean is never asked for");
  checkNan(communicator, capabilities, rank);
  for (const size_t bytes : {0, 1, 7, 1000, (1 << 20) + 1}) checker.moves(bytes);
}

void checkBriefly(Communicator& communicator, int32_t rank, int32_t size) {
  Checker checker(communicator, rank, size);
  checker.reductions(DataType::kFloat32, ReduceOp::kSum, 1000);
  checker.reductions(DataType::kInt32, ReduceOp::kMax, 7);
  checker.moves(4097);
}

}  // namespace jhetcc::ccl
