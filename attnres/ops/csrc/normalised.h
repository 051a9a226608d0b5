// Sums of normalised outputs: one pass forward and one backward. A part of attend.cpp: torch's headers take longer to
// compile than this.
//
//   forward   r = 1 / sqrt(mean(y^2) + eps);   out = total + r y
//   backward  dy = r g - y r^3 mean(g y);   dtotal = g

#pragma once

#include "loops.h"
#include "parallel.h"
#include "pool.h"
#include "rows.h"

#include <ATen/core/Tensor.h>

#include <cmath>
#include <cstdint>
#include <tuple>
#include <vector>

namespace attnres {

// to_k = scale x_k + other_k, without the last where there is none; all: [d].
inline void scaled_sum(float scale, const float* x, const float* other, int64_t d, float* to) {
  if (other)
    for (int64_t k = 0; k < d; ++k) to[k] = other[k] + scale * x[k];
  else
    for (int64_t k = 0; k < d; ++k) to[k] = scale * x[k];
}

inline void check_like(const Tensor& y, const Tensor& x) {
  TORCH_CHECK(y.dim() > 0 && y.size(-1) > 0 && x.sizes() == y.sizes() && x.is_cpu(), "a normalised sum of y ",
              y.sizes(), " cannot take ", x.sizes(), " on ", x.device());
}

// total: {} or one. Returns out [..., d] of dtype and r [...].
std::tuple<Tensor, Tensor> add_normalised(const Tensor& y_, TensorList total_, double eps, at::ScalarType dtype) {
  TORCH_CHECK(total_.size() <= 1, "a normalised sum has one total, not ", total_.size());
  check_like(y_, y_);
  for (const Tensor& x : total_) check_like(y_, x);
  const Tensor y = y_.contiguous();
  const std::vector<Tensor> total = contiguous(total_);
  const int64_t d = y.size(-1);
  Tensor out = Pool::get().empty(y.sizes(), dtype);
  Tensor r = Pool::get().empty(y.sizes().slice(0, y.dim() - 1), at::kFloat);
  const Rows in(y), to(out);
  const std::vector<Rows> before = rows_of(total);
  float* const r_data = r.data_ptr<float>();
  parallel(y.numel() / d, 16, [&](int64_t first, int64_t last) {
    const Scratch scratch(3 * d);
    for (int64_t t = first; t < last; ++t) {
      const float* const row = in.read(t, scratch.data());
      r_data[t] = inverse_rms(row, dot(row, row, d), d, eps);
      const float* const other = before.empty() ? nullptr : before[0].read(t, scratch.data() + d);
      scaled_sum(r_data[t], row, other, d, to.target(t, scratch.data() + 2 * d));
      to.commit(t, scratch.data() + 2 * d);
    }
  });
  return {out, r};
}

Tensor add_normalised_backward(const Tensor& grad_, const Tensor& y_, const Tensor& r_) {
  check_like(y_, y_);
  check_like(y_, grad_);
  TORCH_CHECK(r_.sizes() == y_.sizes().slice(0, y_.dim() - 1) && r_.is_cpu() && r_.scalar_type() == at::kFloat,
              "a normalised sum of y ", y_.sizes(), " cannot take 1/rms ", r_.sizes());
  const Tensor grad = grad_.contiguous(), y = y_.contiguous(), r = r_.contiguous();
  const int64_t d = y.size(-1);
  Tensor grad_y = Pool::get().empty(y.sizes(), y.scalar_type());
  const Rows in(y), g(grad), to(grad_y);
  const float* const r_data = r.const_data_ptr<float>();
  parallel(y.numel() / d, 16, [&](int64_t first, int64_t last) {
    const Scratch scratch(3 * d);
    for (int64_t t = first; t < last; ++t) {
      const float* const row = in.read(t, scratch.data());
      const float* const from = g.read(t, scratch.data() + d);
      const float scale = r_data[t], shrink = -dot(row, from, d) / d * scale * scale;
      float* const dy = to.target(t, scratch.data() + 2 * d);
      for (int64_t k = 0; k < d; ++k) dy[k] = scale * from[k] + shrink * (scale * row[k]);
      to.commit(t, scratch.data() + 2 * d);
    }
  });
  return grad_y;
}

}  // namespace attnres
