// SPDX-License-Identifier: Apache-2.0
// Every operation by element type, reduction, size and root over one to four ranks of a process, against our own table
// of values.
#include <algorithm>

#include "base/random.h"
#include "ccl_nccl/ranks.h"
#include "engine/reduce.h"

namespace jhetcc::ccl::nccl::tests {

namespace {

using schedule::DataType, schedule::ReduceOp;

constexpr size_t kBytes = 1 << 16;
constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kProd, ReduceOp::kMax, ReduceOp::kMin};

bool isRefused(const Library& library, ReduceOp op, DataType type) {
  const auto& refuses = library.capabilities().refuses;
  return std::find(refuses.begin(), refuses.end(), std::make_pair(op, type)) != refuses.end();
}

/// Values whose sums and products round, and none that is a NaN.
void fill(char* bytes, size_t count, DataType type, Random& random) {
  const auto put = [&](size_t k, auto value) { std::memcpy(bytes + k * sizeof(value), &value, sizeof(value)); };
  const bool is_complex = type == DataType::kComplex64 || type == DataType::kComplex128;
  for (size_t k = 0; k < count * (is_complex ? 2 : 1); ++k) {
    const double value = random.unit() * 4 - 2;
    switch (type) {
      case DataType::kFloat32:
      case DataType::kComplex64:
        put(k, static_cast<float>(value));
        break;
      case DataType::kFloat64:
      case DataType::kComplex128:
        put(k, value);
        break;
      case DataType::kFloat16:
        put(k, static_cast<uint16_t>(0x3800 + random.below(0x800) + (random.below(2) << 15)));
        break;
      case DataType::kBfloat16:
        put(k, static_cast<uint16_t>(0x3f00 + random.below(0x100) + (random.below(2) << 15)));
        break;
      default:
        for (size_t b = 0; b < itemSize(type); ++b) bytes[k * itemSize(type) + b] = static_cast<char>(random.next());
    }
  }
}

std::string expected(Ranks& ranks, size_t offset, size_t bytes, DataType type, ReduceOp op) {
  std::vector<const void*> sources;
  for (size_t rank = 0; rank < ranks.size(); ++rank) sources.push_back(ranks[rank].input->here() + offset);
  std::string result(bytes, '\0');
  engine::reduce({result.data(), sources.data(), static_cast<int>(sources.size()), bytes, type, op, 0});
  return result;
}

std::string seen(Ranks& ranks, size_t rank, size_t bytes) { return {ranks[rank].output->here(), bytes}; }

void checkReductions(Ranks& ranks, Communicators& comms, size_t count, DataType type, ReduceOp op) {
  const size_t size = ranks.size(), bytes = count * itemSize(type);
  const std::string untouched(bytes, 0x5A);
  const std::string wanted = expected(ranks, 0, bytes, type, op);
  ranks.up(kBytes);
  for (size_t r = 0; r < size; ++r) {
    must(comms[r]->allReduce(ranks[r].input->there(), ranks[r].output->there(), count, type, op, ranks[r].stream));
  }
  ranks.down();
  for (size_t r = 0; r < size; ++r) CHECK((seen(ranks, r, bytes) == wanted));
  for (size_t root = 0; root < size; ++root) {
    ranks.up(kBytes);
    for (size_t r = 0; r < size; ++r) {
      must(comms[r]->reduce(ranks[r].input->there(), r == root ? ranks[r].output->there() : nullptr, count, type, op,
                            static_cast<int32_t>(root), ranks[r].stream));
    }
    ranks.down();
    for (size_t r = 0; r < size; ++r) CHECK((seen(ranks, r, bytes) == (r == root ? wanted : untouched)));
  }
  const size_t part = count / size;
  ranks.up(kBytes);
  for (size_t r = 0; r < size; ++r) {
    must(comms[r]->reduceScatter(ranks[r].input->there(), ranks[r].output->there(), part, type, op, ranks[r].stream));
  }
  ranks.down();
  const size_t part_bytes = part * itemSize(type);
  for (size_t r = 0; r < size; ++r) {
    CHECK((seen(ranks, r, part_bytes) == expected(ranks, r * part_bytes, part_bytes, type, op)));
  }
}

void checkMoves(Ranks& ranks, Communicators& comms, size_t bytes) {
  const size_t size = ranks.size();
  ranks.up(kBytes);
  for (size_t r = 0; r < size; ++r) {
    must(comms[r]->allGather(ranks[r].input->there(), ranks[r].output->there(), bytes, ranks[r].stream));
  }
  ranks.down();
  std::string all;
  for (size_t r = 0; r < size; ++r) all.append(ranks[r].input->here(), bytes);
  for (size_t r = 0; r < size; ++r) CHECK((seen(ranks, r, all.size()) == all));

  ranks.up(kBytes);
  for (size_t r = 0; r < size; ++r) {
    must(comms[r]->allToAll(ranks[r].input->there(), ranks[r].output->there(), bytes, ranks[r].stream));
  }
  ranks.down();
  for (size_t r = 0; r < size; ++r) {
    for (size_t from = 0; from < size; ++from) {
      CHECK((std::string(ranks[r].output->here() + from * bytes, bytes) ==
             std::string(ranks[from].input->here() + r * bytes, bytes)));
    }
  }

  for (size_t root = 0; root < size; ++root) {
    ranks.up(kBytes);
    for (size_t r = 0; r < size; ++r) {
      must(comms[r]->broadcast(r == root ? ranks[r].input->there() : nullptr,
                               r == root ? nullptr : ranks[r].output->there(), bytes, static_cast<int32_t>(root),
                               ranks[r].stream));
    }
    ranks.down();
    const std::string from_root(ranks[root].input->here(), bytes);
    for (size_t r = 0; r < size; ++r)
      CHECK((seen(ranks, r, bytes) == (r == root ? std::string(bytes, 0x5A) : from_root)));
  }
}

}  // namespace

TEST_CASE("reductions give the values of our table, in rank order") {
  const Control control(FAKE_NCCL);
  const std::shared_ptr<Library> library = load(FAKE_NCCL);
  SeededRandom random(11);
  for (size_t size = 1; size <= 4; ++size) {
    CAPTURE(size);
    Ranks ranks(size, kBytes);
    Communicators comms = connect(*library, size);
    for (auto type = DataType::kBool; type <= DataType::kComplex128; type = DataType(static_cast<int>(type) + 1)) {
      CAPTURE(static_cast<int>(type));
      for (const ReduceOp op : kOps) {
        CAPTURE(static_cast<int>(op));
        if (isRefused(*library, op, type)) {
          CHECK(comms[0]->allReduce(nullptr, nullptr, 1, type, op, ranks[0].stream).kind() == Kind::kUnavailable);
          continue;
        }
        for (size_t r = 0; r < size; ++r) fill(ranks[r].input->here(), kBytes / 16, type, random);
        for (const size_t count : {size_t{0}, size_t{1}, size_t{5}, kBytes / 16}) {
          if (count == kBytes / 16 && op != ReduceOp::kSum) continue;
          CAPTURE(count);
          checkReductions(ranks, comms, count, type, op);
        }
      }
    }
  }
  CHECK(control.counts().communicators == 0);
  CHECK(control.counts().misuses == 0);
  CHECK(control.counts().in_progress > 0);
}

TEST_CASE("bytes move as they are, of every size and root") {
  const Control control(FAKE_NCCL);
  const std::shared_ptr<Library> library = load(FAKE_NCCL);
  SeededRandom random(12);
  for (size_t size = 1; size <= 4; ++size) {
    CAPTURE(size);
    Ranks ranks(size, kBytes);
    Communicators comms = connect(*library, size);
    for (size_t r = 0; r < size; ++r) fill(ranks[r].input->here(), kBytes, DataType::kUint8, random);
    for (const size_t bytes : {size_t{0}, size_t{1}, size_t{4097}, kBytes / 4}) checkMoves(ranks, comms, bytes);
  }
  CHECK(control.counts().misuses == 0);
}

TEST_CASE("an old library that blocks in its calls computes the same") {
  const Control control(FAKE_NCCL_OLD);
  const std::shared_ptr<Library> library = load(FAKE_NCCL_OLD);
  SeededRandom random(13);
  Ranks ranks(3, kBytes);
  Communicators comms = connect(*library, 3);
  for (size_t r = 0; r < 3; ++r) fill(ranks[r].input->here(), 3000, DataType::kFloat32, random);
  checkReductions(ranks, comms, 3000, DataType::kFloat32, ReduceOp::kSum);
  checkMoves(ranks, comms, 1001);
  comms.clear();
  CHECK(control.counts().communicators == 0);
  CHECK(control.counts().in_progress == 0);
}

TEST_CASE("results may replace sources") {
  const Control control(FAKE_NCCL);
  const std::shared_ptr<Library> library = load(FAKE_NCCL);
  SeededRandom random(14);
  Ranks ranks(3, kBytes);
  Communicators comms = connect(*library, 3);
  for (size_t r = 0; r < 3; ++r) fill(ranks[r].input->here(), 900, DataType::kInt32, random);
  const std::string wanted = expected(ranks, 0, 3600, DataType::kInt32, ReduceOp::kSum);
  ranks.up(kBytes);
  for (size_t r = 0; r < 3; ++r) {
    char* memory = ranks[r].input->there();
    must(comms[r]->allReduce(memory, memory, 900, DataType::kInt32, ReduceOp::kSum, ranks[r].stream));
    must(comms[r]->broadcast(memory, memory, 3600, 1, ranks[r].stream));
    must(ranks[r].device->copy(ranks[r].output->there(), memory, 3600, ranks[r].stream));
  }
  ranks.down();
  for (size_t r = 0; r < 3; ++r) CHECK((seen(ranks, r, 3600) == wanted));
}

TEST_CASE("several messages to one peer, to oneself, and of nothing go in one exchange") {
  const Control control(FAKE_NCCL);
  const std::shared_ptr<Library> library = load(FAKE_NCCL);
  SeededRandom random(15);
  Ranks ranks(2, kBytes);
  Communicators comms = connect(*library, 2);
  for (size_t r = 0; r < 2; ++r) fill(ranks[r].input->here(), 4000, DataType::kUint8, random);
  ranks.up(kBytes);
  for (int32_t r = 0; r < 2; ++r) {
    const int32_t other = 1 - r;
    char *in = ranks[r].input->there(), *out = ranks[r].output->there();
    must(comms[r]->exchange({{other, nullptr, out, 100},
                             {other, in, nullptr, 100},
                             {other, in + 100, nullptr, 1000},
                             {r, in + 2000, nullptr, 7},
                             {other, nullptr, out + 100, 1000},
                             {r, nullptr, out + 2000, 7},
                             {other, in, nullptr, 0},
                             {other, nullptr, out, 0}},
                            ranks[r].stream));
    must(comms[r]->exchange({}, ranks[r].stream));
  }
  ranks.down();
  for (size_t r = 0; r < 2; ++r) {
    CHECK((seen(ranks, r, 1100) == std::string(ranks[1 - r].input->here(), 1100)));
    CHECK((std::string(ranks[r].output->here() + 2000, 7) == std::string(ranks[r].input->here() + 2000, 7)));
  }
  CHECK(control.counts().misuses == 0);
}

}  // namespace jhetcc::ccl::nccl::tests
