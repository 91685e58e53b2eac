// SPDX-License-Identifier: Apache-2.0
// The operations of a communicator against a plain oracle: small whole numbers, exact in every type and order.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "ccl/member/memory.h"

namespace jhetcc::ccl {
namespace {

using schedule::DataType, schedule::ReduceOp;

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
      store<float>(to, value), store<float>(to + half, 0 - 2 * value);
      break;
    case DataType::kComplex128:
      store<double>(to, value), store<double>(to + half, 0 - 2 * value);
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
  Checker(Communicator& communicator, Place& place, int32_t rank, int32_t size)
      : to_(communicator), place_(place), rank_(rank), size_(size) {}

  /// reduce to every root, all_reduce out of place and in place, reduce_scatter.
  void reductions(DataType type, ReduceOp op, size_t count) {
    const std::string what = "type " + std::to_string(static_cast<int>(type)) + " op " +
                             std::to_string(static_cast<int>(op)) + " count " + std::to_string(count);
    const size_t item = schedule::itemSize(type), shift = count % 2 ? item : 0;
    const auto mine = encoded(type, 0, count, [&](size_t i) { return contribution(type, rank_, i); });
    const auto wanted = encoded(type, 0, count, [&](size_t i) { return reduced(type, op, size_, i); });
    Block source(place_, mine.size(), shift);
    source.put(mine);
    for (int32_t root = 0; root < size_; ++root) {
      Block target(place_, mine.size(), shift);
      void* const to = rank_ == root ? target.data() : nullptr;
      require(to_.reduce(source.data(), to, count, type, op, root, stream()), what);
      require(rank_ == root ? target.holds(wanted) : target.isUntouched(), what + ": reduce");
    }
    Block target(place_, mine.size(), shift);
    require(to_.allReduce(source.data(), target.data(), count, type, op, stream()), what);
    require(target.holds(wanted), what + ": all_reduce");
    require(source.holds(mine), what + ": the source is as it was");
    require(to_.allReduce(source.data(), source.data(), count, type, op, stream()), what);
    require(source.holds(wanted), what + ": all_reduce in place");
    const size_t ranks = static_cast<size_t>(size_), me = static_cast<size_t>(rank_);
    const auto all = encoded(type, 0, ranks * count, [&](size_t i) { return contribution(type, rank_, i); });
    const auto part =
        encoded(type, me * count, (me + 1) * count, [&](size_t i) { return reduced(type, op, size_, i); });
    Block whole(place_, all.size(), shift), piece(place_, part.size(), shift);
    whole.put(all);
    require(to_.reduceScatter(whole.data(), piece.data(), count, type, op, stream()), what);
    require(piece.holds(part) && whole.holds(all), what + ": reduce_scatter");
  }

  void moves(size_t bytes) {
    const std::string what = std::to_string(bytes) + " bytes";
    broadcasts(bytes, what);
    const size_t ranks = static_cast<size_t>(size_), shift = bytes % 2;
    Block mine(place_, bytes, shift), all(place_, ranks * bytes, shift);
    Block columns(place_, ranks * bytes, shift), rows(place_, ranks * bytes, shift);
    std::vector<uint8_t> gathered, turned;
    for (int32_t other = 0; other < size_; ++other) {
      append(gathered, pattern(other, other, bytes));
      append(turned, pattern(other, rank_, bytes));
      columns.put(pattern(rank_, other, bytes), static_cast<size_t>(other) * bytes);
    }
    mine.put(pattern(rank_, rank_, bytes));
    require(to_.allGather(mine.data(), all.data(), bytes, stream()), what);
    require(all.holds(gathered), what + ": all_gather");
    require(to_.allToAll(columns.data(), rows.data(), bytes, stream()), what);
    require(rows.holds(turned), what + ": all_to_all");
    // Everybody with everybody at once, itself too, in an order of its own.
    Block got(place_, ranks * bytes, shift);
    std::vector<Communicator::Transfer> transfers;
    for (int32_t step = 0; step < size_; ++step) {
      const int32_t to = (rank_ + step) % size_, from = (rank_ + 2 * size_ - step) % size_;
      transfers.push_back({to, columns.at(static_cast<size_t>(to) * bytes), nullptr, bytes});
      transfers.push_back({from, nullptr, got.at(static_cast<size_t>(from) * bytes), bytes});
    }
    if (rank_ % 2) std::reverse(transfers.begin(), transfers.end());
    require(to_.exchange(transfers, stream()), what);
    require(got.holds(turned), what + ": exchange");
  }

  /// Several messages to one peer, to oneself and of nothing go in one exchange; so does none.
  void severalMessages() {
    const int32_t next = (rank_ + 1) % size_, before = (rank_ + size_ - 1) % size_;
    Block out(place_, 1107), in(place_, 1107);
    out.put(pattern(rank_, next, 1107));
    std::vector<Communicator::Transfer> transfers;
    if (size_ > 1) {
      transfers = {{before, nullptr, in.at(0), 100},   {next, out.at(0), nullptr, 100},
                   {next, out.at(100), nullptr, 1000}, {before, nullptr, in.at(100), 1000},
                   {next, out.at(0), nullptr, 0},      {before, nullptr, in.at(0), 0}};
    }
    transfers.push_back({rank_, out.at(1100), nullptr, 7});
    transfers.push_back({rank_, nullptr, in.at(1100), 7});
    require(to_.exchange(transfers, stream()), "several messages");
    require(to_.exchange({}, stream()), "no message");
    std::vector<uint8_t> wanted = in.seen();
    const auto from_before = pattern(before, rank_, 1107), own = pattern(rank_, next, 1107);
    if (size_ > 1) std::copy_n(from_before.begin(), 1100, wanted.begin());
    std::copy_n(own.begin() + 1100, 7, wanted.begin() + 1100);
    require(in.holds(wanted), "several messages to one peer");
  }

 private:
  /// From every root; its target is the source, or left as it was.
  void broadcasts(size_t bytes, const std::string& what) {
    for (int32_t root = 0; root < size_; ++root) {
      const auto wanted = pattern(root, root, bytes);
      Block block(place_, bytes, bytes % 2), untouched(place_, bytes, bytes % 2);
      if (rank_ == root) block.put(wanted);
      void* const target = rank_ != root ? block.data() : root % 2 ? untouched.data() : block.data();
      require(to_.broadcast(rank_ == root ? block.data() : nullptr, target, bytes, root, stream()), what);
      require(block.holds(wanted) && untouched.isUntouched(), what + ": broadcast");
    }
  }
  static std::vector<uint8_t> pattern(int32_t from, int32_t to, size_t bytes) {
    std::vector<uint8_t> made(bytes);
    for (size_t i = 0; i < bytes; ++i)
      made[i] = static_cast<uint8_t>(i * 13 + i / 251 + size_t(from) * 31 + size_t(to));
    return made;
  }
  static void append(std::vector<uint8_t>& to, const std::vector<uint8_t>& more) {
    to.insert(to.end(), more.begin(), more.end());
  }
  Stream stream() { return place_.stream(); }

  Communicator& to_;
  Place& place_;
  const int32_t rank_, size_;
};

/// What a library claims of floats it does by our rules: NaN wins, -0 is below +0, denormals stay.
void checkSpecialValues(Communicator& communicator, Place& place, const Capabilities& capabilities, int32_t rank,
                        int32_t size) {
  constexpr size_t kCount = 1003;
  const float nan = std::numeric_limits<float>::quiet_NaN(), tiny = std::numeric_limits<float>::denorm_min();
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin}) {
    if (!capabilities.reduces(op, DataType::kFloat32)) continue;
    for (int32_t special = 0; special < std::min(size, 2); ++special) {
      std::vector<float> values(kCount, 0.0f);
      for (size_t i = 0; rank == special && i < kCount; ++i) values[i] = i % 3 == 0 ? nan : i % 3 == 1 ? -0.0f : tiny;
      const bool is_alone = size == 1;
      std::vector<uint8_t> bytes(kCount * sizeof(float));
      std::memcpy(bytes.data(), values.data(), bytes.size());
      Block source(place, bytes.size()), target(place, bytes.size());
      source.put(bytes);
      require(communicator.allReduce(source.data(), target.data(), kCount, DataType::kFloat32, op, place.stream()),
              "NaN");
      std::memcpy(values.data(), target.seen().data(), bytes.size());
      for (size_t i = 0; i < kCount; ++i) {
        const float value = values[i];
        const bool good = i % 3 == 0   ? std::isnan(value)
                          : i % 3 == 1 ? value == 0 && std::signbit(value) == (is_alone || op == ReduceOp::kMin)
                                       : value == (op == ReduceOp::kMin && !is_alone ? 0 : tiny);
        require(good, "op " + std::to_string(static_cast<int>(op)) + " of special values at " + std::to_string(i));
      }
    }
  }
}

}  // namespace

void checkEverything(Communicator& communicator, Place& place, const Capabilities& capabilities, int32_t rank,
                     int32_t size) {
  Checker checker(communicator, place, rank, size);
  int done = 0;
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kProd, ReduceOp::kMax, ReduceOp::kMin}) {
    for (int number = static_cast<int>(DataType::kBool); number <= static_cast<int>(DataType::kComplex128); ++number) {
      const DataType type = static_cast<DataType>(number);
      if (!capabilities.reduces(op, type)) {
        const Status refused = communicator.allReduce(&done, &done, 1, type, op, place.stream());
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
  checkSpecialValues(communicator, place, capabilities, rank, size);
  for (const size_t bytes : {0, 1, 7, 1000, (1 << 20) + 1}) checker.moves(bytes);
  checker.severalMessages();
}

void checkBriefly(Communicator& communicator, Place& place, int32_t rank, int32_t size) {
  Checker checker(communicator, place, rank, size);
  checker.reductions(DataType::kFloat32, ReduceOp::kSum, 1000);
  checker.reductions(DataType::kInt32, ReduceOp::kMax, 7);
  checker.moves(4097);
}

}  // namespace jhetcc::ccl
