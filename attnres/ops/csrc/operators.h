// The operators as attnres/ops/library.py and normalised.py define them. library.cpp registers them: torch's headers
// for that take longer to compile than the kernels.

#pragma once

#include "rows.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

namespace attnres {

using Maybe = std::optional<Tensor>;
using Tensors = std::vector<Tensor>;
using Forward = std::tuple<Tensors, Tensors, Tensors, Tensor>;
using Backward = std::tuple<Tensors, Tensors, Tensors, Tensors>;

// What follows the one query's read: n = h / sqrt(mean(h^2) + eps) * (offset + weight), or nothing without a weight.
struct Norm {
  Norm(const Maybe& weight_, double eps_, double offset_) : eps(eps_), offset(offset_) {
    if (weight_) weight = TensorList(*weight_);
  }
  TensorList weight;  // none or one
  double eps, offset;
  explicit operator bool() const { return !weight.empty(); }
  std::vector<float> vector(int64_t d) const {
    std::vector<float> out(weight.empty() ? 0 : d);
    if (weight.empty()) return out;
    read_vector(weight[0], out.data());
    for (float& x : out) x += static_cast<float>(offset);
    return out;
  }
};

Forward attend(TensorList sources, TensorList queries, TensorList gains, TensorList prior, TensorList added, double eps,
               double scale, at::ScalarType dtype, const Maybe& norm, double norm_eps, double norm_offset);

std::tuple<Tensor, Tensors> attend_one(TensorList sources, const Tensor& query, const Maybe& gain,
                                       const Maybe& added, double eps, double scale,
                                       at::ScalarType dtype, const Maybe& norm, double norm_eps,
                                       double norm_offset);

Backward attend_backward(TensorList grad_outs, TensorList grad_lses, TensorList grad_sums, TensorList sources,
                         TensorList queries, TensorList gains, TensorList outs, TensorList lses, TensorList prior,
                         const Tensor& statistics, double scale, const Maybe& norm, double norm_eps,
                         double norm_offset);

std::tuple<Tensor, Tensors, Tensor> add_normalised(const Tensor& y, TensorList total, TensorList raw, double eps,
                                                   at::ScalarType dtype);

Tensor add_normalised_backward(const Tensor& grad, TensorList grad_sum, TensorList of, const Tensor& r,
                               at::ScalarType dtype);

int64_t trim();

}  // namespace attnres
