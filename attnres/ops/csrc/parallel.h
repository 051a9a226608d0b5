// Work on torch's own threads.

#pragma once

#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>

#include <algorithm>
#include <cstdint>

namespace attnres {

// f(begin, end) over parts of [0, count) of at least `grain`.
//
// at::parallel_for is a template that runs on one thread unless this file, too, is compiled with OpenMP. Apple's clang
// has none, and every clang's wants a second runtime library beside the one that torch has loaded. A TensorIterator's
// loop is the same inside torch. What it passes over is only counted: an element's address says which one it is.
template <class F>
void parallel(int64_t count, int64_t grain, const F& f) {
  if (count <= grain || at::get_num_threads() == 1 || at::in_parallel_region()) {
    if (count > 0) f(int64_t{0}, count);
    return;
  }
  at::TensorBase counted = at::detail::empty_cpu({count}, at::kByte);
  const char* const base = static_cast<const char*>(counted.const_data_ptr());
  at::TensorIterator::nullary_op(counted).for_each(
      [&](char** data, const int64_t*, int64_t size, int64_t) { f(data[0] - base, data[0] - base + size); }, grain);
}

// How tokens are cut where partial sums over them are kept: by their number alone, so that a sum is the same on any
// number of threads: into at most 256 chunks, which keeps any number of threads busy, of at least 16 tokens.
struct Chunks {
  int64_t tokens, size, count;
  explicit Chunks(int64_t tokens_) : tokens(tokens_) {
    size = std::max<int64_t>(16, (tokens + 255) / 256);
    count = (tokens + size - 1) / size;
  }
  int64_t begin(int64_t chunk) const { return chunk * size; }
  int64_t end(int64_t chunk) const { return std::min(tokens, (chunk + 1) * size); }
};

}  // namespace attnres
