// Sums of normalised outputs: one pass forward and one backward. A part of attend.cpp: torch's headers take longer to
// compile than this.
//
//   forward   r = 1 / sqrt(mean(y^2) + eps);   out = total + r y;   sum = raw + y
//   backward  dy = r g - y r^3 mean(g y) + dsum;   dtotal = g;   draw = dsum

#pragma once

#include "loops.h"
#include "operators.h"
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

// total, raw: {} or one each. Returns out [..., d] of dtype, raw + y if there is a raw, and r [...].
std::tuple<Tensor, Tensors, Tensor> add_normalised(const Tensor& y_, TensorList total_, TensorList raw_, double eps,
                                                   at::ScalarType dtype) {
  TORCH_CHECK(total_.size() <= 1 && raw_.size() <= 1, "a normalised sum has one total, not ", total_.size());
  check_like(y_, y_);
  for (const Tensor& x : total_) check_like(y_, x);
  for (const Tensor& x : raw_) check_like(y_, x);
  const Tensor y = y_.contiguous();
  const std::vector<Tensor> total = contiguous(total_), raw = contiguous(raw_);
  const int64_t d = y.size(-1);
  Tensor out = Pool::get().empty(y.sizes(), dtype);
  Tensors sums;
  for (const Tensor& x : raw)
    sums.push_back(Pool::get().empty(y.sizes(), c10::promoteTypes(x.scalar_type(), y.scalar_type())));
  Tensor r = Pool::get().empty(y.sizes().slice(0, y.dim() - 1), at::kFloat);
  const Rows in(y), to(out);
  const std::vector<Rows> before = rows_of(total), raw_before = rows_of(raw), raw_after = rows_of(sums);
  float* const r_data = r.data_ptr<float>();
  parallel(y.numel() / d, 16, [&](int64_t first, int64_t last) {
    const Scratch scratch(3 * d);
    for (int64_t t = first; t < last; ++t) {
      const float* const row = in.read(t, scratch.data());
      r_data[t] = inverse_rms(row, dot(row, row, d), d, eps);
      const float* const other = before.empty() ? nullptr : before[0].read(t, scratch.data() + d);
      scaled_sum(r_data[t], row, other, d, to.target(t, scratch.data() + 2 * d));
      to.commit(t, scratch.data() + 2 * d);
      for (size_t i = 0; i < raw.size(); ++i)
        add_rows(raw_before[i], in, t, d, scratch.data() + d, scratch.data(), raw_after[i]);
    }
  });
  return {out, sums, r};
}

// of: {y}, or two sums whose difference is y. grad_sum: {}, or what is added to the gradient. Returns it, of dtype.
Tensor add_normalised_backward(const Tensor& grad_, TensorList grad_sum_, TensorList of_, const Tensor& r_,
                               at::ScalarType dtype) {
  TORCH_CHECK(of_.size() == 1 || of_.size() == 2, "the gradient of a normalised sum takes y or two sums");
  for (const Tensor& x : of_) check_like(grad_, x);
  for (const Tensor& x : grad_sum_) check_like(grad_, x);
  TORCH_CHECK(r_.sizes() == grad_.sizes().slice(0, grad_.dim() - 1) && r_.is_cpu() && r_.scalar_type() == at::kFloat,
              "a normalised sum of y ", grad_.sizes(), " cannot take 1/rms ", r_.sizes());
  const Tensor grad = grad_.contiguous(), r = r_.contiguous();
  const std::vector<Tensor> of = contiguous(of_), grad_sum = contiguous(grad_sum_);
  const int64_t d = grad.size(-1);
  Tensor grad_y = Pool::get().empty(grad.sizes(), dtype);
  const Rows g(grad), to(grad_y);
  const std::vector<Rows> in = rows_of(of), more = rows_of(grad_sum);
  const float* const r_data = r.const_data_ptr<float>();
  parallel(grad.numel() / d, 16, [&](int64_t first, int64_t last) {
    const Scratch scratch(4 * d);
    float* const difference = scratch.data() + 3 * d;
    for (int64_t t = first; t < last; ++t) {
      const float* row = in[0].read(t, scratch.data());
      if (in.size() == 2) {
        const float* const after = in[1].read(t, scratch.data() + d);
        for (int64_t k = 0; k < d; ++k) difference[k] = after[k] - row[k];
        row = difference;
      }
      const float* const from = g.read(t, scratch.data() + d);
      const float scale = r_data[t], shrink = -dot(row, from, d) / d * scale * scale;
      float* const dy = to.target(t, scratch.data() + 2 * d);
      for (int64_t k = 0; k < d; ++k) dy[k] = scale * from[k] + shrink * (scale * row[k]);
      for (const Rows& x : more) add_scaled(1.f, x.read(t, scratch.data()), 0, d, dy);
      to.commit(t, dy);
    }
  });
  return grad_y;
}

}  // namespace attnres
