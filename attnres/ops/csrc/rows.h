// The rows of tensors as float32: float32 in place, bfloat16 through a float32 copy.

#pragma once

#include "pool.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <cstring>
#include <vector>

namespace attnres {

using at::Tensor;
using at::TensorList;

inline float widen(uint16_t x) {
  const uint32_t bits = static_cast<uint32_t>(x) << 16;
  float out;
  std::memcpy(&out, &bits, 4);
  return out;
}

inline uint16_t narrow(float x) {  // to nearest even; NaN stays NaN
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  return x != x ? 0x7fc0 : static_cast<uint16_t>(rounded);
}

class Rows {  // the rows of one contiguous tensor [tokens, d]
 public:
  explicit Rows(const Tensor& x) : d_(x.size(-1)), bf16_(x.scalar_type() == at::kBFloat16), data_(x.data_ptr()) {
    TORCH_CHECK(x.is_cpu() && (bf16_ || x.scalar_type() == at::kFloat),
                "depth attention on the CPU takes its float32 and bfloat16 tensors, not ", x.scalar_type(), " on ",
                x.device());
  }

  const float* read(int64_t token, float* scratch) const {
    if (!bf16_) return static_cast<const float*>(data_) + token * d_;
    const uint16_t* from = static_cast<const uint16_t*>(data_) + token * d_;
    for (int64_t k = 0; k < d_; ++k) scratch[k] = widen(from[k]);
    return scratch;
  }

  // Ask for the row: many short streams are more than the hardware foresees by itself.
  void prefetch(int64_t token) const {
    const int64_t bytes = d_ * (bf16_ ? 2 : 4);
    const char* const row = static_cast<const char*>(data_) + token * bytes;
    for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(row + at);
  }

  // Where to compute the row; `commit` then rounds it into place if that is elsewhere.
  float* target(int64_t token, float* scratch) const {
    return bf16_ ? scratch : static_cast<float*>(data_) + token * d_;
  }

  void commit(int64_t token, const float* scratch) const {
    if (!bf16_) return;
    uint16_t* to = static_cast<uint16_t*>(data_) + token * d_;
    for (int64_t k = 0; k < d_; ++k) to[k] = narrow(scratch[k]);
  }

 private:
  int64_t d_;
  bool bf16_;
  void* data_;
};

// sum = a + b at one token, rounded as the sum is stored. scratch_a, scratch_b: [d] each.
inline void add_rows(const Rows& a, const Rows& b, int64_t token, int64_t d, float* scratch_a, float* scratch_b,
                     const Rows& sum) {
  const float *const x = a.read(token, scratch_a), *const y = b.read(token, scratch_b);
  float* const to = sum.target(token, scratch_b);
  for (int64_t k = 0; k < d; ++k) to[k] = x[k] + y[k];
  sum.commit(token, to);
}

inline std::vector<Tensor> contiguous(TensorList tensors) {
  std::vector<Tensor> out;
  out.reserve(tensors.size());
  for (const Tensor& x : tensors) out.push_back(x.contiguous());
  return out;
}

inline std::vector<Rows> rows_of(const std::vector<Tensor>& tensors) { return {tensors.begin(), tensors.end()}; }

inline std::vector<const float*> data_of(const std::vector<Tensor>& tensors) {
  std::vector<const float*> out;
  for (const Tensor& x : tensors) out.push_back(x.const_data_ptr<float>());
  return out;
}

inline std::vector<Tensor> empty_each(TensorList like) {
  std::vector<Tensor> out;
  out.reserve(like.size());
  for (const Tensor& x : like) out.push_back(Pool::get().empty(x.sizes(), x.scalar_type()));
  return out;
}

// A parameter vector as float32 values, whatever its shape.
inline void read_vector(const Tensor& x, float* to) {
  const Tensor dense = x.dim() == 1 ? x.contiguous() : x.contiguous().view({-1});
  std::memcpy(to, Rows(dense).read(0, to), sizeof(float) * dense.numel());
}

// c_j = query_j * gain_j for all j, [S, d].
inline std::vector<float> key_vectors(TensorList queries, TensorList gains, int64_t d) {
  std::vector<float> c(queries.size() * d), gain(d);
  for (size_t j = 0; j < queries.size(); ++j) {
    read_vector(queries[j], &c[j * d]);
    if (gains.empty()) continue;
    read_vector(gains[j], gain.data());
    for (int64_t k = 0; k < d; ++k) c[j * d + k] *= gain[k];
  }
  return c;
}

}  // namespace attnres
