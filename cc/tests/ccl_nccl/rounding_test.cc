// SPDX-License-Identifier: Apache-2.0
// The tests' library adds up in rank order and rounds as our own table does, bit for bit (docs/devices.md).
#include "base/random.h"
#include "ccl_nccl/ranks.h"
#include "engine/reduce.h"

namespace jhetcc::ccl::nccl::tests {

using schedule::DataType, schedule::ReduceOp;

namespace {

/// Finite values whose sums and products round.
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
      case DataType::kFloat16:
        put(k, static_cast<uint16_t>(0x3800 + random.below(0x800) + (random.below(2) << 15)));
        break;
      case DataType::kBfloat16:
        put(k, static_cast<uint16_t>(0x3f00 + random.below(0x100) + (random.below(2) << 15)));
        break;
      default:
        put(k, value);
    }
  }
}

}  // namespace

TEST_CASE("reductions that round give the bits of our table, in rank order") {
  constexpr size_t kCount = 3000;
  const Control control(FAKE_NCCL);
  const std::shared_ptr<Library> library = load(FAKE_NCCL);
  SeededRandom random(11);
  for (size_t size = 1; size <= 4; ++size) {
    CAPTURE(size);
    Ranks ranks(size, kCount * sizeof(double) * 2);
    Communicators comms = connect(*library, size);
    for (const DataType type : {DataType::kFloat16, DataType::kBfloat16, DataType::kFloat32, DataType::kFloat64,
                                DataType::kComplex64, DataType::kComplex128}) {
      CAPTURE(static_cast<int>(type));
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kProd}) {
        if (!library->capabilities().reduces(op, type)) continue;
        const size_t bytes = kCount * itemSize(type);
        std::vector<const void*> sources;
        for (size_t r = 0; r < size; ++r) {
          fill(ranks[r].input->here(), kCount, type, random);
          sources.push_back(ranks[r].input->here());
        }
        std::string wanted(bytes, '\0');
        engine::reduce({wanted.data(), sources.data(), static_cast<int>(size), bytes, type, op, 0});
        ranks.up(bytes);
        for (size_t r = 0; r < size; ++r) {
          must(comms[r]->allReduce(ranks[r].input->there(), ranks[r].output->there(), kCount, type, op,
                                   ranks[r].stream));
        }
        ranks.down();
        for (size_t r = 0; r < size; ++r) CHECK((std::string(ranks[r].output->here(), bytes) == wanted));
      }
    }
  }
}

}  // namespace jhetcc::ccl::nccl::tests
