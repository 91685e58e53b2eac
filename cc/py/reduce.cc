// SPDX-License-Identifier: Apache-2.0
// The host reductions for Python: what the value tests and the benchmarks call. Any thread; the GIL is released
// meanwhile.
#include "engine/reduce.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <vector>

#include "base/copy.h"

namespace nb = nanobind;

namespace {

using jhetcc::schedule::DataType;
using jhetcc::schedule::ReduceOp;
using Target = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Source = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

[[noreturn]] void refuse(const std::string& why) { throw nb::value_error(("reduce: " + why).c_str()); }

void reduce(const Target& target, const std::vector<Source>& sources, int dtype, int op, int divisor) {
  const auto known = [](int value, auto last) { return value >= 0 && value <= static_cast<int>(last); };
  if (!known(dtype, DataType::kComplex128)) refuse("no dtype has the number " + std::to_string(dtype));
  if (!known(op, ReduceOp::kMean)) refuse("no operation has the number " + std::to_string(op));
  const auto type = static_cast<DataType>(dtype);
  const auto reduce_op = static_cast<ReduceOp>(op);
  if (!jhetcc::engine::canReduce(type, reduce_op))
    refuse("operation " + std::to_string(op) + " does not exist for dtype " + std::to_string(dtype) +
           "; see docs/values.md");
  if (sources.empty()) refuse("needs at least one source");
  if (divisor < 0 || (divisor != 0 && reduce_op != ReduceOp::kMean))
    refuse("divisor is " + std::to_string(divisor) + "; it is at least 0, and 0 unless the operation is the mean");
  const size_t bytes = target.nbytes();
  if (bytes % jhetcc::schedule::itemSize(type) != 0)
    refuse("the target's " + std::to_string(bytes) + " bytes are no whole number of elements");
  std::vector<const void*> at;
  for (const Source& source : sources) {
    if (source.nbytes() != bytes)
      refuse("source " + std::to_string(at.size()) + " has " + std::to_string(source.nbytes()) + " bytes, the target " +
             std::to_string(bytes));
    at.push_back(source.data());
  }
  const nb::gil_scoped_release release;
  jhetcc::engine::reduce({target.data(), at.data(), static_cast<int>(at.size()), bytes, type, reduce_op, divisor});
}

void copyPast(const Target& target, const Source& source) {
  if (source.nbytes() != target.nbytes()) throw nb::value_error("copy_past_caches: the sizes differ");
  const nb::gil_scoped_release release;
  jhetcc::copyPastCaches(target.data(), source.data(), target.nbytes());
}

void setSimd(const std::string& name) {
  if (!jhetcc::engine::setSimd(name.c_str()))
    throw nb::value_error(
        ("set_simd: " + name + " is not one of auto, base, avx2, avx512 or not on this machine").c_str());
}

}  // namespace

namespace jhetcc::py {

void bindReduce(nb::module_& m) {
  m.def(
      "reduce", &reduce, nb::arg("target").noconvert(), nb::arg("sources").noconvert(), nb::arg("dtype"), nb::arg("op"),
      nb::arg("divisor") = 0,
      "Reduce uint8 arrays, left to right, into target (which may be one of them). dtype and op are the numbers of\n"
      "the schedule's binary form; divisor divides a complete mean. Raises ValueError for a pair that does not exist.");
  m.def("copy_past_caches", &copyPast, nb::arg("target").noconvert(), nb::arg("source").noconvert(),
        "Copy uint8 arrays by non-temporal stores, which leave the target out of the caches.");
  m.def("simd_name", &jhetcc::engine::simdName, "The instruction set of the reductions: avx512, avx2 or base.");
  m.def("set_simd", &setSimd, nb::arg("name"),
        "Choose the instruction set: auto, base, avx2 or avx512. Raises ValueError where it is not present.");
}

}  // namespace jhetcc::py
