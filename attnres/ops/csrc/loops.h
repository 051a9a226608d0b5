// The inner loops: rows of a few tokens while they sit in a near cache, and what there is per token and source, such as
// scores, of kLanes tokens at once: [n, kLanes].

#pragma once

#include "lanes.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace attnres {

// v . with_g over the channels [begin, end) for G vectors at once, as kLanes sums that are not added up yet, at
// out + g step.
template <int G>
inline void partial_dot(
    const float* v, const float* const* with, int64_t begin, int64_t end, float* out, int64_t step) {
  constexpr int U = G <= 2 ? 4 : 2;  // independent sums hide the latency of the multiply-add
  Lanes total[G][U] = {};
  int64_t k = begin;
  for (; k + U * kLanes <= end; k += U * kLanes)
    for (int u = 0; u < U; ++u) {
      const Lanes x = load<Lanes>(v + k + u * kLanes);
      for (int g = 0; g < G; ++g) total[g][u] += x * load<Lanes>(with[g] + k + u * kLanes);
    }
  for (; k + kLanes <= end; k += kLanes)
    for (int g = 0; g < G; ++g) total[g][0] += load<Lanes>(v + k) * load<Lanes>(with[g] + k);
#pragma GCC unroll 8
  for (int g = 0; g < G; ++g) {  // a loop that stays, or does more, sends the sums through memory
    Lanes all = total[g][0];
    for (int u = 1; u < U; ++u) all += total[g][u];
    store(out + g * step, all);
  }
  for (int g = 0; k < end && g < G; ++g) {
    float tail = 0;
    for (int64_t rest = k; rest < end; ++rest) tail += v[rest] * with[g][rest];
    out[g * step] += tail;
  }
}

inline void partial_dots(const float* v, const float* const* with, int64_t count, int64_t begin, int64_t end,
                         float* out, int64_t step) {
  for (; count > 5; count -= 4, with += 4, out += 4 * step) partial_dot<4>(v, with, begin, end, out, step);
  switch (count) {
    case 5: return partial_dot<5>(v, with, begin, end, out, step);
    case 4: return partial_dot<4>(v, with, begin, end, out, step);
    case 3: return partial_dot<3>(v, with, begin, end, out, step);
    case 2: return partial_dot<2>(v, with, begin, end, out, step);
    case 1: return partial_dot<1>(v, with, begin, end, out, step);
  }
}

inline float dot(const float* v, const float* with, int64_t d) {
  float out[kLanes];
  partial_dot<1>(v, &with, 0, d, out, 0);
  return sum(load<Lanes>(out));
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
  const float r = inverse_rms(h, dot(h, h, d), d, eps);
  for (int64_t k = 0; k < d; ++k) to[k] = h[k] * r * weight[k];
}

// Its gradient: dh = r (weight grad - h r^2 mean(h weight grad)),  dweight += grad h r. All: [d]; dh may be grad.
inline void normalise_backward(const float* h, const float* weight, int64_t d, double eps, const float* grad,
                               float* dh, float* dweight) {
  const float r = inverse_rms(h, dot(h, h, d), d, eps);
  for (int64_t k = 0; k < d; ++k) {
    dweight[k] += grad[k] * (h[k] * r);
    dh[k] = grad[k] * weight[k];
  }
  const float shrink = -dot(h, dh, d) / d * r * r;
  for (int64_t k = 0; k < d; ++k) dh[k] = r * dh[k] + shrink * (r * h[k]);
}

// out_g (+)= sum_i p_gi v_i over the channels [begin, end), for G outputs at once; v: n of [d]; out: G of [d];
// p: [G, n or more, kLanes], of which lane 0 is read, in steps of `stride` from one g to the next.
template <bool kAdds, int G, int U, class X>
inline void weigh_channels(
    const float* const* v, int64_t n, const float* p, int64_t stride, float* const* out, int64_t k) {
  X total[G][U] = {};
  for (int g = 0; kAdds && g < G; ++g)
    for (int u = 0; u < U; ++u) total[g][u] = load<X>(out[g] + k + u * (sizeof(X) / 4));
  for (int64_t i = 0; i < n; ++i)
    for (int u = 0; u < U; ++u) {
      const X x = load<X>(v[i] + k + u * (sizeof(X) / 4));
      for (int g = 0; g < G; ++g) total[g][u] += p[g * stride + i * kLanes] * x;
    }
  for (int g = 0; g < G; ++g)
    for (int u = 0; u < U; ++u) store(out[g] + k + u * (sizeof(X) / 4), total[g][u]);
}

template <bool kAdds, int G>
inline void weighted_sum(const float* const* v, int64_t n, const float* p, int64_t stride, float* const* out,
                         int64_t begin, int64_t end) {
  constexpr int U = G <= 2 ? 4 : 2;
  int64_t k = begin;
  for (; k + U * kLanes <= end; k += U * kLanes) weigh_channels<kAdds, G, U, Lanes>(v, n, p, stride, out, k);
  for (; k + kLanes <= end; k += kLanes) weigh_channels<kAdds, G, 1, Lanes>(v, n, p, stride, out, k);
  for (; k < end; ++k) weigh_channels<kAdds, G, 1, float>(v, n, p, stride, out, k);
}

template <bool kAdds = false>
inline void weighted_sums(const float* const* v, int64_t n, const float* p, int64_t stride, float* const* out,
                          int64_t count, int64_t begin, int64_t end) {
  for (; count > 4; count -= 4, p += 4 * stride, out += 4) weighted_sum<kAdds, 4>(v, n, p, stride, out, begin, end);
  switch (count) {
    case 4: return weighted_sum<kAdds, 4>(v, n, p, stride, out, begin, end);
    case 3: return weighted_sum<kAdds, 3>(v, n, p, stride, out, begin, end);
    case 2: return weighted_sum<kAdds, 2>(v, n, p, stride, out, begin, end);
    case 1: return weighted_sum<kAdds, 1>(v, n, p, stride, out, begin, end);
  }
}

// to_k += scale x_k over the channels [begin, end).
inline void add_scaled(float scale, const float* x, int64_t begin, int64_t end, float* to) {
  for (int64_t k = begin; k < end; ++k) to[k] += scale * x[k];
}

// dv_i (+)= sum_g (p_gi grad_g + e_gi c_g) - f_i r_i v_i over the channels [begin, end) for G queries at once.
// v, dv: n of [d]; grad, c: one [d] per query; p and e: [queries, n, kLanes]; f and r: [n, kLanes]; lane 0 is read.
struct Spread {
  const float* const* v;
  int64_t n;
  const float *p, *e, *f, *r;
  float* const* dv;
  int64_t begin, end;
};

template <int G, class X>
inline void spread_channels(bool first, const float* v, float f, float r, const float* p, const float* e,
                            const float* const* grad, const float* const* c, float* dv, int64_t k) {
  X total = first ? -f * (r * load<X>(v + k)) : load<X>(dv + k);
  for (int g = 0; g < G; ++g) {
    total += p[g] * load<X>(grad[g] + k);
    total += e[g] * load<X>(c[g] + k);
  }
  store(dv + k, total);
}

template <int G>
inline void spread_some(const Spread& s, int64_t from, const float* const* grads, const float* const* cs) {
  const float *grad[G], *c[G];
  for (int g = 0; g < G; ++g) {
    grad[g] = grads[from + g];
    c[g] = cs[from + g];
  }
  for (int64_t i = 0; i < s.n; ++i) {
    const float *const v = s.v[i], f = s.f[i * kLanes], r = s.r[i * kLanes];
    float *const dv = s.dv[i], p[G], e[G];
    for (int g = 0; g < G; ++g) {
      p[g] = s.p[((from + g) * s.n + i) * kLanes];
      e[g] = s.e[((from + g) * s.n + i) * kLanes];
    }
    int64_t k = s.begin;
    const int64_t end = s.end;
    for (; k + kLanes <= end; k += kLanes) spread_channels<G, Lanes>(from == 0, v, f, r, p, e, grad, c, dv, k);
    for (; k < end; ++k) spread_channels<G, float>(from == 0, v, f, r, p, e, grad, c, dv, k);
  }
}

inline void spread(const Spread& s, int64_t count, const float* const* grad, const float* const* c) {
  for (int64_t from = 0; from < count; from += 4) switch (std::min<int64_t>(4, count - from)) {
      case 4: spread_some<4>(s, from, grad, c); break;
      case 3: spread_some<3>(s, from, grad, c); break;
      case 2: spread_some<2>(s, from, grad, c); break;
      case 1: spread_some<1>(s, from, grad, c); break;
    }
}

// What follows is of kLanes tokens. s, p, a, e, f, r: [n, kLanes]

// p = factor exp(s - top), with the factor that makes their sum, and `last` with it, `whole`. Returns the sum before.
inline Lanes shares(const float* s, Lanes top, Lanes last, float whole, int64_t n, float* p) {
  Lanes total = last;
  for (int64_t i = 0; i < n; ++i) {
    const Lanes share = exp_nonpositive(load<Lanes>(s + i * kLanes) - top);
    store(p + i * kLanes, share);
    total += share;
  }
  const Lanes factor = whole / total;
  for (int64_t i = 0; i < n; ++i) store(p + i * kLanes, load<Lanes>(p + i * kLanes) * factor);
  return total;
}

// The softmax of n scores and another one, whose share it returns. A large lse is rounded by so much that the shares
// miss one by more than what is left of a gradient where one of them takes nearly all: so they are scaled to it.
inline Lanes softmax_given_lse(const float* s, Lanes other, Lanes lse, int64_t n, float* p) {
  const Lanes last = exp_nonpositive(other - lse);
  return last / shares(s, lse, last, 1.f, n, p);
}

// scale * softmax where lse is not known yet: returns it.
inline Lanes softmax(const float* s, float scale, int64_t n, float* p) {
  Lanes top = load<Lanes>(s);
  for (int64_t i = 1; i < n; ++i) {
    const Lanes score = load<Lanes>(s + i * kLanes);
    top = score > top ? score : top;
  }
  Lanes total = shares(s, top, Lanes{}, scale, n, p);
  for (int64_t t = 0; t < kLanes; ++t) total[t] = std::log(total[t]);
  return top + total;
}

// What a query's scores do to the gradients: e_i = ds_i r_i, f_i += ds_i s_i r_i / d. Returns sum_i ds_i.
// f_i has one r_i, v_i takes the other: float32 has no room for r_i^2 of large or tiny v_i.
inline Lanes score_gradients(const float* p, const float* a, const float* s, const float* r, int64_t n, int64_t d,
                             Lanes mean, Lanes grad_lse, float* e, float* f) {
  Lanes total = {};
  for (int64_t at = 0; at < n * kLanes; at += kLanes) {
    const Lanes ds = load<Lanes>(p + at) * (load<Lanes>(a + at) - mean + grad_lse);
    const Lanes of_row = ds * load<Lanes>(r + at);
    store(e + at, of_row);
    store(f + at, load<Lanes>(f + at) + of_row * (load<Lanes>(s + at) / static_cast<float>(d)));
    total += ds;
  }
  return total;
}

}  // namespace attnres
