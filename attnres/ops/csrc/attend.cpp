// Depth attention on the CPU: one pass over the sources per token, while they sit in the first-level cache.
//
//   forward   s_ji = r_i (c_j . v_i),  r_i = 1/rms(v_i);   p_j = softmax_i;   out_j = scale sum_i p_ji v_i
//   backward  a_ji = scale g_j . v_i;  ds_ji = p_ji (a_ji - D_j + dlse_j);  D_j = sum_i p_ji a_ji
//             dv_i = sum_j (scale p_ji g_j + ds_ji r_i c_j) - v_i r_i^2 / d sum_j ds_ji s_ji
//             dc_j = sum_i,t ds_ji r_i v_i
//
// Legend: i source (N), j query (S), t token, d channels; c_j = query_j * gain_j; g_j the gradient of out_j.
// A prior (out, lse) is one more source whose score is lse: the result of attention over sources seen earlier.
//
// All sums are in float32. Nothing depends on the number of threads: tokens are cut into chunks by their number alone,
// and a query's gradient is the sum of the chunks' partial sums in order. No fast-math: NaN and Inf must come through.

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include "pool.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

using at::Tensor;
using at::TensorList;

// ---- sixteen floats at a time; the compiler maps them to what the machine has ---------------------------------------

constexpr int64_t kLanes = 16;
typedef float Lanes __attribute__((vector_size(kLanes * 4)));
typedef int32_t IntLanes __attribute__((vector_size(kLanes * 4)));
typedef float Half __attribute__((vector_size(kLanes * 2)));
typedef float Quarter __attribute__((vector_size(kLanes)));

template <class X>
inline X load(const float* from) {
  X x;
  std::memcpy(&x, from, sizeof(X));
  return x;
}

template <class X>
inline void store(float* to, X x) {
  std::memcpy(to, &x, sizeof(X));
}

inline float sum(float x) { return x; }
inline float sum(const Lanes& x) {
  const float* p = reinterpret_cast<const float*>(&x);
  Half half = load<Half>(p) + load<Half>(p + 8);
  p = reinterpret_cast<const float*>(&half);
  Quarter quarter = load<Quarter>(p) + load<Quarter>(p + 4);
  return (quarter[0] + quarter[2]) + (quarter[1] + quarter[3]);
}

// exp(min(x, 0)), within 2 ulp; 0 below -87; NaN for NaN. Cephes: 2^n times a polynomial on [-ln2/2, ln2/2].
inline Lanes exp_nonpositive(Lanes x) {
  x = x > 0.f ? Lanes{} : x;
  const Lanes shifter = Lanes{} + 12582912.f;  // 1.5 * 2^23: adding it rounds to the nearest integer
  Lanes n = (x * 1.44269504088896341f + shifter) - shifter;
  Lanes f = x - n * 0.693359375f;
  f = f + n * 2.12194440e-4f;
  Lanes y = Lanes{} + 1.9875691500e-4f;
  y = y * f + 1.3981999507e-3f;
  y = y * f + 8.3334519073e-3f;
  y = y * f + 4.1665795894e-2f;
  y = y * f + 1.6666665459e-1f;
  y = y * f + 5.0000001201e-1f;
  y = y * f * f + f + 1.f;
  const IntLanes tiny = x < -87.f;
  n = (Lanes)(((IntLanes)n) & ~tiny);  // keeps the conversion to int defined
  const IntLanes nan = x != x;
  const IntLanes exponent = __builtin_convertvector((Lanes)(((IntLanes)n) & ~nan), IntLanes);
  const Lanes scale = (Lanes)((exponent + 127) << 23);
  return (Lanes)(((IntLanes)(y * scale)) & ~tiny);
}

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

// dv_i (+)= sum_g (p_gi grad_g + e_gi c_g) - f_i v_i   and   dc_g += sum_i e_gi v_i   for G queries at once.
// v, dv: n of [d]; grad, c, dc: one [d] per query.
struct Spread {
  const float* const* v;
  int64_t n, d;
  const float *p, *e, *f;  // p and e: [queries, stride]; f: [n]
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
    X total = first ? -s.f[i] * v : load<X>(s.dv[i] + k);
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
inline void spread(const Spread& s, int64_t from, const float* const* grad, const float* const* c, float* const* dc) {
  const float *p = s.p + from * s.stride, *e = s.e + from * s.stride;
  int64_t k = 0;
  for (; k + kLanes <= s.d; k += kLanes)
    spread_channels<G, Lanes>(s, from == 0, grad + from, c + from, dc + from, p, e, k);
  for (; k < s.d; ++k) spread_channels<G, float>(s, from == 0, grad + from, c + from, dc + from, p, e, k);
}

// ---- rows: float32 in place, bfloat16 through a float32 copy --------------------------------------------------------

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

std::vector<Tensor> contiguous(TensorList tensors) {
  std::vector<Tensor> out;
  out.reserve(tensors.size());
  for (const Tensor& x : tensors) out.push_back(x.contiguous());
  return out;
}

std::vector<Rows> rows_of(const std::vector<Tensor>& tensors) { return {tensors.begin(), tensors.end()}; }

std::vector<const float*> data_of(const std::vector<Tensor>& tensors) {
  std::vector<const float*> out;
  for (const Tensor& x : tensors) out.push_back(x.const_data_ptr<float>());
  return out;
}

std::vector<Tensor> empty_each(TensorList like) {
  std::vector<Tensor> out;
  out.reserve(like.size());
  for (const Tensor& x : like) out.push_back(Pool::get().empty(x.sizes(), x.scalar_type()));
  return out;
}

// A parameter vector as float32 values.
void read_vector(const Tensor& x, float* to) {
  const Tensor dense = x.contiguous();
  std::memcpy(to, Rows(dense).read(0, to), sizeof(float) * dense.numel());
}

// c_j = query_j * gain_j for all j, [S, d].
std::vector<float> key_vectors(TensorList queries, TensorList gains, int64_t d) {
  std::vector<float> c(queries.size() * d), gain(d);
  for (size_t j = 0; j < queries.size(); ++j) {
    read_vector(queries[j], &c[j * d]);
    if (gains.empty()) continue;
    read_vector(gains[j], gain.data());
    for (int64_t k = 0; k < d; ++k) c[j * d + k] *= gain[k];
  }
  return c;
}

template <class T>
std::vector<T*> pointers(T* base, int64_t count, int64_t step) {
  std::vector<T*> out(count);
  for (int64_t i = 0; i < count; ++i) out[i] = base + i * step;
  return out;
}

struct Chunks {  // how tokens are cut, from their number alone
  int64_t tokens, size, count;
  explicit Chunks(int64_t tokens_) : tokens(tokens_), size(std::max<int64_t>(16, (tokens_ + 63) / 64)) {
    count = (tokens + size - 1) / size;
  }
  int64_t begin(int64_t chunk) const { return chunk * size; }
  int64_t end(int64_t chunk) const { return std::min(tokens, (chunk + 1) * size); }
};

int64_t padded(int64_t n) { return (n + kLanes - 1) / kLanes * kLanes; }

// p = exp(s - lse) over n entries; s, p: [padded n]
inline void softmax_given_lse(const float* s, float lse, int64_t n, float* p) {
  for (int64_t i = 0; i < n; i += kLanes) store(p + i, exp_nonpositive(load<Lanes>(s + i) - lse));
}

// scale * softmax where lse is not known yet: returns it.
inline float softmax(const float* s, float scale, int64_t n, float* p) {
  float top = s[0];
  for (int64_t i = 1; i < n; ++i) top = s[i] > top ? s[i] : top;
  softmax_given_lse(s, top, n, p);
  float total = 0;
  for (int64_t i = 0; i < n; ++i) total += p[i];
  const float share = scale / total;
  for (int64_t i = 0; i < n; i += kLanes) store(p + i, load<Lanes>(p + i) * share);
  return top + std::log(total);
}

// ---- the two operators ----------------------------------------------------------------------------------------------

using Forward = std::tuple<std::vector<Tensor>, std::vector<Tensor>, Tensor>;
using Backward = std::tuple<std::vector<Tensor>, std::vector<Tensor>, std::vector<Tensor>, std::vector<Tensor>>;

// Python passes shapes on unseen, so what does not fit must stop here: it would write over other memory.
void check_shapes(TensorList sources, TensorList queries, TensorList gains, TensorList prior) {
  TORCH_CHECK(!sources.empty() && sources[0].dim() > 0 && sources[0].size(-1) > 0,
              "depth attention needs a source [..., d]");
  const auto shape = sources[0].sizes(), tokens = shape.slice(0, shape.size() - 1);
  const auto vector = shape.slice(shape.size() - 1);
  for (const Tensor& x : sources)
    TORCH_CHECK(x.sizes() == shape, "the sources of depth attention must all be ", shape, ", not ", x.sizes());
  for (const TensorList vectors : {queries, gains})
    for (const Tensor& x : vectors)
      TORCH_CHECK(x.sizes() == vector, "for sources ", shape, " queries and gains must be ", vector, ", not ",
                  x.sizes());
  TORCH_CHECK(gains.empty() || gains.size() == queries.size(), "each query wants a gain, or none has one");
  TORCH_CHECK(prior.empty() || (prior.size() == 2 && queries.size() == 1 && prior[0].sizes() == shape &&
                                prior[1].sizes() == tokens),
              "for sources ", shape, " a prior is an out ", shape, " and a lse ", tokens, ", for one query");
}

// prior: {} or {out, lse} (then one query). Returns outs (S of [..., d]), lses (S of [...]) and statistics
// [tokens, N (S+1)]: per token the N inverse rms, then the N scores of each query.
Forward attend(TensorList sources_, TensorList queries, TensorList gains, TensorList prior_, double eps, double scale,
               at::ScalarType dtype) {
  check_shapes(sources_, queries, gains, prior_);
  const std::vector<Tensor> sources = contiguous(sources_), prior = contiguous(prior_);
  const int64_t n = sources.size(), s = queries.size(), d = sources[0].size(-1), rows = n + (prior.empty() ? 0 : 1);
  const Chunks chunks(sources[0].numel() / d);
  const int64_t stride = padded(rows);
  const auto shape = sources[0].sizes();

  std::vector<Tensor> outs, lses;
  for (int64_t j = 0; j < s; ++j) {
    outs.push_back(Pool::get().empty(shape, dtype));
    lses.push_back(Pool::get().empty(shape.slice(0, shape.size() - 1), at::kFloat));
  }
  Tensor statistics = Pool::get().empty({chunks.tokens, n * (s + 1)}, at::kFloat);

  std::vector<float> c = key_vectors(queries, gains, d);
  const std::vector<Rows> in = rows_of(sources), out = rows_of(outs);
  const std::vector<Rows> prior_rows = prior.empty() ? std::vector<Rows>{} : std::vector<Rows>{Rows(prior[0])};
  const float* prior_lse = prior.empty() ? nullptr : prior[1].const_data_ptr<float>();
  float* const statistics_data = statistics.data_ptr<float>();
  const std::vector<float*> lse_data = [&] {
    std::vector<float*> data;
    for (const Tensor& x : lses) data.push_back(x.data_ptr<float>());
    return data;
  }();

  at::parallel_for(0, chunks.count, 1, [&](int64_t first, int64_t last) {
    std::vector<float> scratch((rows + s) * d + 2 * s * stride + s + 1);
    float* const row_scratch = scratch.data();          // [rows, d]
    float* const out_scratch = row_scratch + rows * d;  // [s, d]
    float* const scores = out_scratch + s * d;          // [s, stride]
    float* const p = scores + s * stride;               // [s, stride]
    float* const dotted = p + s * stride;               // [s + 1]: c_j . v_i, then v_i . v_i
    std::vector<const float*> v(rows), with(s + 1);
    std::vector<float*> to(s);
    for (int64_t j = 0; j < s; ++j) with[j] = &c[j * d];

    for (int64_t t = chunks.begin(first); t < chunks.end(last - 1); ++t) {
      float* const r = statistics_data + t * n * (s + 1);  // [n], then the scores [s, n]
      for (int64_t i = 0; i < n; ++i) {
        v[i] = with[s] = in[i].read(t, row_scratch + i * d);
        in[i].prefetch(t + 1);
        dots(v[i], with.data(), s + 1, d, dotted);
        r[i] = 1.f / std::sqrt(dotted[s] / d + static_cast<float>(eps));
        for (int64_t j = 0; j < s; ++j) scores[j * stride + i] = dotted[j] * r[i];
      }
      if (prior_lse) {
        v[n] = prior_rows[0].read(t, row_scratch + n * d);
        scores[n] = prior_lse[t];
      }
      for (int64_t j = 0; j < s; ++j) {
        std::memcpy(r + n * (j + 1), scores + j * stride, sizeof(float) * n);
        lse_data[j][t] = softmax(scores + j * stride, static_cast<float>(scale), rows, p + j * stride);
        to[j] = out[j].target(t, out_scratch + j * d);
      }
      weighted_sums(v.data(), rows, p, stride, to.data(), s, d);
      for (int64_t j = 0; j < s; ++j) out[j].commit(t, out_scratch + j * d);
    }
  });
  return {outs, lses, statistics};
}

// grad_lses: {} is zero. prior: {}, {lse} with outs, or {lse, out} without them: D_j needs the one or the other.
// Returns the gradients of sources, queries, gains and prior (out, lse).
Backward attend_backward(TensorList grad_outs_, TensorList grad_lses_, TensorList sources_, TensorList queries,
                         TensorList gains, TensorList outs_, TensorList lses_, TensorList prior_,
                         const Tensor& statistics_, double scale_) {
  const std::vector<Tensor> grad_outs = contiguous(grad_outs_), grad_lses = contiguous(grad_lses_);
  const std::vector<Tensor> sources = contiguous(sources_), outs = contiguous(outs_), lses = contiguous(lses_);
  const std::vector<Tensor> prior = contiguous(prior_);
  const Tensor statistics = statistics_.contiguous();
  const float scale = static_cast<float>(scale_);
  const int64_t n = sources.size(), s = queries.size(), d = sources[0].size(-1);
  const Chunks chunks(sources[0].numel() / d);
  const int64_t stride = padded(n);

  const std::vector<Tensor> grad_sources = empty_each(sources), grad_queries = empty_each(queries);
  const std::vector<Tensor> grad_gains = empty_each(gains);
  std::vector<Tensor> grad_prior;
  if (!prior.empty())
    grad_prior = {Pool::get().empty(sources[0].sizes(), at::kFloat), Pool::get().empty(prior[0].sizes(), at::kFloat)};

  std::vector<float> c = key_vectors(queries, gains, d);  // [s, d]
  const std::vector<const float*> c_data = pointers<const float>(c.data(), s, d);
  std::vector<float> dc(std::max<int64_t>(1, chunks.count) * s * d, 0.f);  // [chunks, s, d]
  const std::vector<Rows> in = rows_of(sources), grads = rows_of(grad_outs), d_in = rows_of(grad_sources);
  const std::vector<Rows> out = rows_of(outs);
  const std::vector<Rows> prior_rows = prior.size() < 2 ? std::vector<Rows>{} : std::vector<Rows>{Rows(prior[1])};
  const float* const statistics_data = statistics.const_data_ptr<float>();
  const std::vector<const float*> lse_data = data_of(lses), grad_lse_data = data_of(grad_lses);
  const float* const prior_lse = prior.empty() ? nullptr : prior[0].const_data_ptr<float>();

  at::parallel_for(0, chunks.count, 1, [&](int64_t first, int64_t last) {
    std::vector<float> scratch((2 * n + s + 1) * d + (4 * s + 1) * stride + s, 0.f);
    float* const row_scratch = scratch.data();            // [n, d]
    float* const grad_scratch = row_scratch + n * d;      // [s + 1, d]: the last row is for out_j or the prior
    float* const d_scratch = grad_scratch + (s + 1) * d;  // [n, d]
    float* const a = d_scratch + n * d;                   // [s, stride]
    float* const p = a + s * stride;                      // [s, stride]
    float* const e = p + s * stride;                      // [s, stride]: ds_ji r_i
    float* const score = e + s * stride;                  // [s, stride]
    float* const f = score + s * stride;                  // [stride]: sum_j ds_ji s_ji r_i^2 / d
    float* const dotted = f + stride;                     // [s]
    std::vector<const float*> v(n), grad(s);
    std::vector<float*> dv(n), dc_data(s);

    for (int64_t chunk = first; chunk < last; ++chunk) {
      for (int64_t j = 0; j < s; ++j) dc_data[j] = &dc[(chunk * s + j) * d];
      for (int64_t t = chunks.begin(chunk); t < chunks.end(chunk); ++t) {
        const float* const r = statistics_data + t * n * (s + 1);
        for (int64_t j = 0; j < s; ++j) {
          grad[j] = grads[j].read(t, grad_scratch + j * d);
          grads[j].prefetch(t + 1);
        }
        for (int64_t i = 0; i < n; ++i) {
          v[i] = in[i].read(t, row_scratch + i * d);
          in[i].prefetch(t + 1);
          dv[i] = d_in[i].target(t, d_scratch + i * d);
          dots(v[i], grad.data(), s, d, dotted);
          for (int64_t j = 0; j < s; ++j) a[j * stride + i] = scale * dotted[j];
          f[i] = 0;
        }
        for (int64_t j = 0; j < s; ++j) {
          const float lse = lse_data[j][t], grad_lse = grad_lses.empty() ? 0.f : grad_lse_data[j][t];
          std::memcpy(score + j * stride, r + n * (j + 1), sizeof(float) * n);
          softmax_given_lse(score + j * stride, lse, n, p + j * stride);
          const float prior_share = prior.empty() ? 0.f : scale * std::exp(prior_lse[t] - lse);
          float mean = 0, total = 0;
          if (!out.empty()) {
            dot<1>(out[j].read(t, grad_scratch + s * d), &grad[j], d, &mean);
          } else {
            if (!prior_rows.empty()) {
              dot<1>(prior_rows[0].read(t, grad_scratch + s * d), &grad[j], d, &mean);
              mean *= prior_share;
            }
            for (int64_t i = 0; i < n; ++i) mean += p[j * stride + i] * a[j * stride + i];
          }
          for (int64_t i = 0; i < n; ++i) {
            const float ds = p[j * stride + i] * (a[j * stride + i] - mean + grad_lse);
            e[j * stride + i] = ds * r[i];
            f[i] += ds * score[j * stride + i] * r[i] * r[i] / d;
            total += ds;
            p[j * stride + i] *= scale;
          }
          if (!prior.empty()) {  // all the scores' gradients, the prior's included, add up to grad_lse
            grad_prior[1].data_ptr<float>()[t] = grad_lse - total;
            float* const to = grad_prior[0].data_ptr<float>() + t * d;
            for (int64_t k = 0; k < d; ++k) to[k] = prior_share * grad[j][k];
          }
        }
        const Spread spreading{v.data(), n, d, p, e, f, stride, dv.data()};
        for (int64_t j = 0; j < s; j += 4) {
          switch (std::min<int64_t>(4, s - j)) {
            case 4: spread<4>(spreading, j, grad.data(), c_data.data(), dc_data.data()); break;
            case 3: spread<3>(spreading, j, grad.data(), c_data.data(), dc_data.data()); break;
            case 2: spread<2>(spreading, j, grad.data(), c_data.data(), dc_data.data()); break;
            case 1: spread<1>(spreading, j, grad.data(), c_data.data(), dc_data.data()); break;
          }
        }
        for (int64_t i = 0; i < n; ++i) d_in[i].commit(t, dv[i]);
      }
    }
  });

  std::vector<float> query(d), gain(d, 1.f), total(d);
  for (int64_t j = 0; j < s; ++j) {
    std::fill(total.begin(), total.end(), 0.f);
    for (int64_t chunk = 0; chunk < chunks.count; ++chunk)
      for (int64_t k = 0; k < d; ++k) total[k] += dc[(chunk * s + j) * d + k];
    const auto write = [&](const Tensor& to, const std::vector<float>& factor) {
      std::vector<float> scratch(d);
      float* const row = Rows(to).target(0, scratch.data());
      for (int64_t k = 0; k < d; ++k) row[k] = total[k] * factor[k];
      Rows(to).commit(0, row);
    };
    if (!gains.empty()) {
      read_vector(queries[j], query.data());
      read_vector(gains[j], gain.data());
      write(grad_gains[j], query);
    }
    write(grad_queries[j], gain);
  }
  return {grad_sources, grad_queries, grad_gains, grad_prior};
}

}  // namespace

TORCH_LIBRARY_IMPL(attnres, CPU, m) {
  m.impl("attend", &attend);
  m.impl("attend_backward", &attend_backward);
}
