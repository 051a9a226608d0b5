// The inner loops: one token's rows at a time, while they sit in the first-level cache.

#pragma once

#include "lanes.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace attnres {

// out_g = v . with_g for G vectors at once; v, with_g: [d]; out: [G].
template <int G>
inline void dot(const float* v, const float* const* with, int64_t d, float* out) {
  constexpr int U = G <= 2 ? 4 : 2;  // independent sums hide the latency of the multiply-add
  Lanes total[G][U] = {};
  int64_t k = 0;
  for (; k + U * kLanes <= d; k += U * kLanes)
    for (int u = 0; u < U; ++u) {
      const Lanes x = load<Lanes>(v + k + u * kLanes);
      for (int g = 0; g < G; ++g) total[g][u] += x * load<Lanes>(with[g] + k + u * kLanes);
    }
  for (; k + kLanes <= d; k += kLanes)
    for (int g = 0; g < G; ++g) total[g][0] += load<Lanes>(v + k) * load<Lanes>(with[g] + k);
  for (int g = 0; g < G; ++g) {
    Lanes all = total[g][0];
    for (int u = 1; u < U; ++u) all += total[g][u];
    float tail = 0;
    for (int64_t rest = k; rest < d; ++rest) tail += v[rest] * with[g][rest];
    out[g] = sum(all) + tail;
  }
}

inline void dots(const float* v, const float* const* with, int64_t count, int64_t d, float* out) {
  for (; count > 4; count -= 4, with += 4, out += 4) dot<4>(v, with, d, out);
  switch (count) {
    case 4: return dot<4>(v, with, d, out);
    case 3: return dot<3>(v, with, d, out);
    case 2: return dot<2>(v, with, d, out);
    case 1: return dot<1>(v, with, d, out);
  }
}

// 1 / sqrt(mean of squares + eps) of v: [d], given the sum of its squares. Where float32 has no room for squares, as
// from entries of 1e19 on, or below 1e-15 without an eps, they are taken again in double.
inline float inverse_rms(const float* v, float square, int64_t d, double eps) {
  const float mean = square / d + static_cast<float>(eps);
  if (mean > 1e-30f && mean < INFINITY) [[likely]] return 1.f / std::sqrt(mean);
  double again = 0;
  for (int64_t k = 0; k < d; ++k) again += static_cast<double>(v[k]) * v[k];
  return static_cast<float>(1 / std::sqrt(again / d + eps));
}

// to = h / sqrt(mean(h^2) + eps) * weight; all: [d]; to may be h.
inline void normalise(const float* h, const float* weight, int64_t d, double eps, float* to) {
  float square;
  dot<1>(h, &h, d, &square);
  const float r = inverse_rms(h, square, d, eps);
  for (int64_t k = 0; k < d; ++k) to[k] = h[k] * r * weight[k];
}

// Its gradient: dh = r (weight grad - h r^2 mean(h weight grad)),  dweight += grad h r. All: [d]; dh may be grad.
inline void normalise_backward(const float* h, const float* weight, int64_t d, double eps, const float* grad,
                               float* dh, float* dweight) {
  float square;
  dot<1>(h, &h, d, &square);
  const float r = inverse_rms(h, square, d, eps);
  for (int64_t k = 0; k < d; ++k) {
    dweight[k] += grad[k] * (h[k] * r);
    dh[k] = grad[k] * weight[k];
  }
  float along;
  dot<1>(h, &dh, d, &along);
  const float shrink = -along / d * r * r;
  for (int64_t k = 0; k < d; ++k) dh[k] = r * dh[k] + shrink * (r * h[k]);
}

// out_g = sum_i p_gi v_i for G outputs at once; v: n of [d]; p: [G, stride]; out: G of [d].
template <int G, int U, class X>
inline void weigh_channels(
    const float* const* v, int64_t n, const float* p, int64_t stride, float* const* out, int64_t k) {
  X total[G][U] = {};
  for (int64_t i = 0; i < n; ++i)
    for (int u = 0; u < U; ++u) {
      const X x = load<X>(v[i] + k + u * (sizeof(X) / 4));
      for (int g = 0; g < G; ++g) total[g][u] += p[g * stride + i] * x;
    }
  for (int g = 0; g < G; ++g)
    for (int u = 0; u < U; ++u) store(out[g] + k + u * (sizeof(X) / 4), total[g][u]);
}

template <int G>
inline void weighted_sum(
    const float* const* v, int64_t n, const float* p, int64_t stride, float* const* out, int64_t d) {
  constexpr int U = G <= 2 ? 4 : 2;
  int64_t k = 0;
  for (; k + U * kLanes <= d; k += U * kLanes) weigh_channels<G, U, Lanes>(v, n, p, stride, out, k);
  for (; k + kLanes <= d; k += kLanes) weigh_channels<G, 1, Lanes>(v, n, p, stride, out, k);
  for (; k < d; ++k) weigh_channels<G, 1, float>(v, n, p, stride, out, k);
}

inline void weighted_sums(
    const float* const* v, int64_t n, const float* p, int64_t stride, float* const* out, int64_t count, int64_t d) {
  for (; count > 4; count -= 4, p += 4 * stride, out += 4) weighted_sum<4>(v, n, p, stride, out, d);
  switch (count) {
    case 4: return weighted_sum<4>(v, n, p, stride, out, d);
    case 3: return weighted_sum<3>(v, n, p, stride, out, d);
    case 2: return weighted_sum<2>(v, n, p, stride, out, d);
    case 1: return weighted_sum<1>(v, n, p, stride, out, d);
  }
}

// to += scale x; both: [d].
inline void add_scaled(float scale, const float* x, int64_t d, float* to) {
  for (int64_t k = 0; k < d; ++k) to[k] += scale * x[k];
}

// dv_i (+)= sum_g (p_gi grad_g + e_gi c_g) - f_i r_i v_i   and   dc_g += sum_i e_gi v_i   for G queries at once.
// v, dv: n of [d]; grad, c, dc: one [d] per query.
struct Spread {
  const float* const* v;
  int64_t n, d;
  const float *p, *e, *f, *r;  // p and e: [queries, stride]; f and r: [n]
  int64_t stride;
  float* const* dv;
};

template <int G, class X>
inline void spread_channels(const Spread& s, bool first, const float* const* grad, const float* const* c,
                            float* const* dc, const float* p, const float* e, int64_t k) {
  X g_[G], c_[G], dc_[G];
  for (int g = 0; g < G; ++g) {
    g_[g] = load<X>(grad[g] + k);
    c_[g] = load<X>(c[g] + k);
    dc_[g] = load<X>(dc[g] + k);
  }
  for (int64_t i = 0; i < s.n; ++i) {
    const X v = load<X>(s.v[i] + k);
    X total = first ? -s.f[i] * (s.r[i] * v) : load<X>(s.dv[i] + k);
    for (int g = 0; g < G; ++g) {
      const float e_ = e[g * s.stride + i];
      total += p[g * s.stride + i] * g_[g] + e_ * c_[g];
      dc_[g] += e_ * v;
    }
    store(s.dv[i] + k, total);
  }
  for (int g = 0; g < G; ++g) store(dc[g] + k, dc_[g]);
}

template <int G>
inline void spread_some(
    const Spread& s, int64_t from, const float* const* grad, const float* const* c, float* const* dc) {
  const float *p = s.p + from * s.stride, *e = s.e + from * s.stride;
  int64_t k = 0;
  for (; k + kLanes <= s.d; k += kLanes)
    spread_channels<G, Lanes>(s, from == 0, grad + from, c + from, dc + from, p, e, k);
  for (; k < s.d; ++k) spread_channels<G, float>(s, from == 0, grad + from, c + from, dc + from, p, e, k);
}

inline void spread(
    const Spread& s, int64_t count, const float* const* grad, const float* const* c, float* const* dc) {
  for (int64_t from = 0; from < count; from += 4) switch (std::min<int64_t>(4, count - from)) {
      case 4: spread_some<4>(s, from, grad, c, dc); break;
      case 3: spread_some<3>(s, from, grad, c, dc); break;
      case 2: spread_some<2>(s, from, grad, c, dc); break;
      case 1: spread_some<1>(s, from, grad, c, dc); break;
    }
}

inline int64_t padded(int64_t n) { return (n + kLanes - 1) / kLanes * kLanes; }

// p = exp(s - top) over n entries; s, p: [padded n]
inline void exps(const float* s, float top, int64_t n, float* p) {
  for (int64_t i = 0; i < n; i += kLanes) store(p + i, exp_nonpositive(load<Lanes>(s + i) - top));
}

inline void scale_all(float factor, int64_t n, float* p) {
  for (int64_t i = 0; i < n; i += kLanes) store(p + i, load<Lanes>(p + i) * factor);
}

// The softmax of n scores and another one, whose share it returns. A large lse is rounded by so much that the shares
// miss one by more than what is left of a gradient where one of them takes nearly all: so they are scaled to it.
inline float softmax_given_lse(const float* s, float other, float lse, int64_t n, float* p) {
  exps(s, lse, n, p);
  const float last = std::exp(other - lse);
  float total = last;
  for (int64_t i = 0; i < n; ++i) total += p[i];
  scale_all(1 / total, n, p);
  return last / total;
}

// scale * softmax where lse is not known yet: returns it.
inline float softmax(const float* s, float scale, int64_t n, float* p) {
  float top = s[0];
  for (int64_t i = 1; i < n; ++i) top = s[i] > top ? s[i] : top;
  exps(s, top, n, p);
  float total = 0;
  for (int64_t i = 0; i < n; ++i) total += p[i];
  scale_all(scale / total, n, p);
  return top + std::log(total);
}

// What a query's scores do to the gradients at one token: e_i = ds_i r_i, f_i += ds_i s_i r_i / d. All: [n].
// Returns sum_i ds_i. f_i has one r_i, v_i takes the other: float32 has no room for r_i^2 of large or tiny v_i.
inline float score_gradients(const float* p, const float* a, const float* score, const float* r, int64_t n, int64_t d,
                             float mean, float grad_lse, float* e, float* f) {
  float total = 0;
  for (int64_t i = 0; i < n; ++i) {
    const float ds = p[i] * (a[i] - mean + grad_lse);
    e[i] = ds * r[i];
    f[i] += e[i] * (score[i] / d);
    total += ds;
  }
  return total;
}

}  // namespace attnres
