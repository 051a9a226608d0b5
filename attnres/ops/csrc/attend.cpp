// Depth attention on the CPU: a few tokens at a time, whose sources stay in a near cache. What is of one token and
// source, such as scores and weights, is computed for kLanes tokens at once, one in each lane.
//
//   forward   s_ji = r_i (c_j . v_i),  r_i = 1/rms(v_i);   p_j = softmax_i;   out_j = scale sum_i p_ji v_i
//   backward  a_ji = scale g_j . v_i;  ds_ji = p_ji (a_ji - D_j + dlse_j);  D_j = sum_i p_ji a_ji
//             dv_i = sum_j (scale p_ji g_j + ds_ji r_i c_j) - v_i r_i^2 / d sum_j ds_ji s_ji
//             dc_j = sum_i,t ds_ji r_i v_i
//
// Legend: i source (N), j query (S), t token, d channels; c_j = query_j * gain_j; g_j the gradient of out_j.
// A query [H, d / H] has H heads: each has its scores and its softmax over its slice of w = d / H channels, and r_i is
// that of the whole width. Scores lie by heads, then queries: [H S, N], called by g = h S + j.
// A prior (out_j, lse_j) is one more source of query j alone, whose score is lse_j: attention over earlier sources.
//
// All sums are in float32. Nothing depends on the number of threads: tokens are cut into chunks by their number alone,
// and a query's gradient is the sum of the chunks' partial sums in order. No fast-math: NaN and Inf must come through.

#include "loops.h"
#include "normalised.h"
#include "operators.h"
#include "parallel.h"
#include "pool.h"
#include "rows.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <vector>

namespace attnres {
namespace {

// What a few tokens take together: a quarter of a second-level cache of 512 kB. With half of that the backward pass
// took a tenth longer where sources are many or wide, since fewer lanes had a token.
constexpr int64_t kNearFloats = 1 << 15;

// Python passes shapes on unseen, so what does not fit must stop here: it would write over other memory.
void check_each(const char* what, TensorList tensors, at::IntArrayRef shape, at::IntArrayRef of) {
  for (const Tensor& x : tensors)
    TORCH_CHECK(x.sizes() == shape && x.is_cpu(), "for sources ", of, " depth attention needs ", what, " ", shape,
                " on the CPU, not ", x.sizes(), " on ", x.device());
}

// How many tokens, at most kLanes, go together whose rows have so many floats.
int64_t tokens_at_once(int64_t floats) { return std::clamp<int64_t>(kNearFloats / floats, 1, kLanes); }

// The lengths of lists, where they may be shorter.
void check_count(const char* what, size_t count, std::initializer_list<size_t> allowed) {
  TORCH_CHECK(std::find(allowed.begin(), allowed.end(), count) != allowed.end(),
              "depth attention over sources cannot take ", count, " ", what);
}

// What a query holds of each token: [...], or [..., H] with heads.
std::vector<int64_t> per_query(at::IntArrayRef leading, TensorList queries) {
  std::vector<int64_t> shape = leading.vec();
  if (queries[0].dim() == 2) shape.push_back(queries[0].size(0));
  return shape;
}

int64_t heads_of(TensorList queries) { return queries[0].dim() == 2 ? queries[0].size(0) : 1; }

// Returns the shape of the sources; of the prior's outs, where it stands alone.
at::IntArrayRef check_inputs(TensorList sources, TensorList queries, TensorList gains, TensorList rows,
                             const Norm& norm) {
  if (!sources.empty()) rows = sources;
  TORCH_CHECK(!rows.empty() && rows[0].dim() > 0 && rows[0].size(-1) > 0, "depth attention needs a source [..., d]");
  const auto shape = rows[0].sizes(), vector = shape.slice(shape.size() - 1);
  check_each("other sources", sources, shape, shape);
  TORCH_CHECK(!queries.empty() && (queries[0].dim() == 1 || queries[0].dim() == 2) &&
                  queries[0].numel() == vector[0] && queries[0].size(0) > 0,
              "for sources ", shape, " depth attention needs queries ", vector, ", or [H, d / H] with heads");
  check_each("queries", queries, queries[0].sizes(), shape);
  check_each("gains", gains, queries[0].sizes(), shape);
  TORCH_CHECK(gains.empty() || gains.size() == queries.size(),
              "each query of depth attention over sources wants a gain, or none has one");
  check_count("norms", norm.weight.size(), {0, queries.size() == 1});
  check_each("a norm's weight", norm.weight, vector, shape);
  return shape;
}

// prior: {}, or S outs and then S lses: then there may be no source. added: {}, or what is added to the last source
// first. Returns outs (S of [..., d]), normalised where there is a norm, the sum if there is one and, if they are
// `kept`, lses (S of [...]) and statistics [tokens, N (H S + 1)]: per token the N inverse rms, then the scores.
Forward forward(TensorList sources_, TensorList queries, TensorList gains, TensorList prior_, TensorList added_,
                double eps, double scale, at::ScalarType dtype, const Norm& norm, bool kept) {
  check_count("tensors as a prior", prior_.size(), {0, 2 * queries.size()});
  const auto shape = check_inputs(sources_, queries, gains, prior_, norm), leading = shape.slice(0, shape.size() - 1);
  const std::vector<int64_t> of_lse = per_query(leading, queries);
  if (!prior_.empty()) {
    check_each("a prior out", prior_.slice(0, queries.size()), shape, shape);
    check_each("a prior lse", prior_.slice(queries.size()), of_lse, shape);
  }
  check_count("tensors to add", added_.size(), {0, size_t{!sources_.empty()}});
  check_each("what is added", added_, shape, shape);
  const std::vector<Tensor> sources = contiguous(sources_), prior = contiguous(prior_), added = contiguous(added_);
  const int64_t n = sources.size(), s = queries.size(), d = shape.back(), rows = n + (prior.empty() ? 0 : 1);
  const int64_t tokens = c10::multiply_integers(leading);
  const int64_t heads = heads_of(queries), w = d / heads, all = heads * s;
  std::vector<Rows> in = rows_of(sources);
  for (const Rows& source : in) source.prefetch(0);

  std::vector<Tensor> outs, lses;
  Tensor statistics;
  for (int64_t j = 0; j < s; ++j) outs.push_back(Pool::get().empty(shape, dtype));
  if (kept) {
    for (int64_t j = 0; j < s; ++j) lses.push_back(Pool::get().empty(of_lse, at::kFloat));
    statistics = Pool::get().empty({tokens, n * (all + 1)}, at::kFloat);
  }
  std::vector<Tensor> sums;
  for (const Tensor& y : added)
    sums.push_back(Pool::get().empty(
        shape, c10::promoteTypes(dtype, c10::promoteTypes(sources[n - 1].scalar_type(), y.scalar_type()))));
  const bool adds = !added.empty();
  const std::vector<Rows> summands = adds ? rows_of({sources[n - 1], added[0]}) : std::vector<Rows>{};
  if (adds) in[n - 1] = Rows(sums[0]);

  const std::vector<float> c = key_vectors(queries, gains, d), norm_weight = norm.vector(d);
  const std::vector<Rows> out = rows_of(outs);
  const bool merges = !prior.empty();
  const std::vector<Rows> prior_rows = rows_of({prior.begin(), prior.begin() + (merges ? s : 0)});
  const std::vector<const float*> prior_lse = data_of({prior.begin() + prior_rows.size(), prior.end()});
  // Of one query the prior is a source like the others.
  const int64_t weighed = s == 1 ? rows : n;
  float* const statistics_data = kept ? statistics.data_ptr<float>() : nullptr;  // per token r [n], scores [all, n]
  const std::vector<float*> lse_data = [&] {
    std::vector<float*> data;
    for (const Tensor& x : lses) data.push_back(x.data_ptr<float>());
    return data;
  }();

  const int64_t at_once = tokens_at_once(rows * d), width = n * (all + 1);
  parallel(tokens, 16, [&](int64_t first, int64_t last) {
    const int64_t dotted = heads * (s + 1), zeroed = (dotted * kLanes + n + 2 * all * rows) * kLanes;
    const Scratch scratch(zeroed, (at_once * rows + s) * d);
    float* const partial = scratch.data();                      // [heads, s + 1, kLanes, kLanes]: c_j . v_i, v_i . v_i
    float* const r = partial + dotted * kLanes * kLanes;        // [n, kLanes]
    float* const scores = r + n * kLanes;                       // [all, rows, kLanes]
    float* const p = scores + all * rows * kLanes;              // [all, rows, kLanes]
    float* const row_scratch = scratch.data() + zeroed;         // [at_once, rows, d]
    float* const out_scratch = row_scratch + at_once * rows * d;  // [s, d]
    std::vector<const float*> v(at_once * rows), with(s + 1);
    std::vector<float*> to(s);
    for (int64_t j = 0; j < s; ++j) with[j] = &c[j * d];

    for (int64_t t = first; t < last; t += at_once) {
      const int64_t count = std::min(at_once, last - t);
      for (int64_t l = 0; adds && l < count; ++l)
        add_rows(summands[0], summands[1], t + l, d, out_scratch, row_scratch, in[n - 1]);
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t l = 0; l < count; ++l) {
          with[s] = v[l * rows + i] = in[i].read(t + l, row_scratch + (l * rows + i) * d);
          in[i].prefetch(t + l + at_once);
          for (int64_t h = 0; h < heads; ++h)
            partial_dots(with[s], with.data(), s + 1, h * w, (h + 1) * w,
                         partial + (h * (s + 1) * kLanes + l) * kLanes, kLanes * kLanes);
        }
        Lanes square = {};
        for (int64_t h = 0; h < heads; ++h) square += sums_of_rows(partial + (h * (s + 1) + s) * kLanes * kLanes);
        for (int64_t l = 0; l < count; ++l) r[i * kLanes + l] = inverse_rms(v[l * rows + i], square[l], d, eps);
        for (int64_t g = 0; g < all; ++g)
          store(scores + (g * rows + i) * kLanes,
                sums_of_rows(partial + (g + g / s) * kLanes * kLanes) * load<Lanes>(r + i * kLanes));
      }
      for (int64_t g = 0; g < all; ++g) {
        const int64_t h = g / s, j = g % s;
        float* const score = scores + g * rows * kLanes;
        for (int64_t l = 0; merges && l < count; ++l) score[n * kLanes + l] = prior_lse[j][(t + l) * heads + h];
        const Lanes lse = softmax(score, static_cast<float>(scale), rows, p + g * rows * kLanes);
        for (int64_t l = 0; kept && l < count; ++l) lse_data[j][(t + l) * heads + h] = lse[l];
      }
      for (int64_t l = 0; l < count; ++l) {
        if (kept) {
          float* const statistic = statistics_data + (t + l) * width;
          for (int64_t i = 0; i < n; ++i) {
            statistic[i] = r[i * kLanes + l];
            for (int64_t g = 0; g < all; ++g) statistic[(g + 1) * n + i] = scores[(g * rows + i) * kLanes + l];
          }
        }
        if (merges && s == 1) v[l * rows + n] = prior_rows[0].read(t + l, row_scratch + (l * rows + n) * d);
        for (int64_t j = 0; j < s; ++j) to[j] = norm ? out_scratch : out[j].target(t + l, out_scratch + j * d);
        for (int64_t h = 0; h < heads; ++h)
          weighted_sums(&v[l * rows], weighed, p + h * s * rows * kLanes + l, rows * kLanes, to.data(), s, h * w,
                        (h + 1) * w);
        for (int64_t j = 0; weighed < rows && j < s; ++j) {
          const float* const before = prior_rows[j].read(t + l, row_scratch + (l * rows + n) * d);
          for (int64_t h = 0; h < heads; ++h)
            add_scaled(p[((h * s + j) * rows + n) * kLanes + l], before, h * w, (h + 1) * w, to[j]);
        }
        if (norm) normalise(out_scratch, norm_weight.data(), d, norm.eps, out[0].target(t + l, out_scratch));
        for (int64_t j = 0; j < s; ++j) out[j].commit(t + l, out_scratch + j * d);
      }
    }
  });
  return {outs, lses, sums, statistics};
}

}  // namespace

Forward attend(TensorList sources, TensorList queries, TensorList gains, TensorList prior, TensorList added, double eps,
               double scale, at::ScalarType dtype, const Maybe& norm, double norm_eps, double norm_offset) {
  return forward(sources, queries, gains, prior, added, eps, scale, dtype, {norm, norm_eps, norm_offset}, true);
}

// What one query makes, where no gradient and no merge follows: out, and the sum if there is one.
std::tuple<Tensor, Tensors> attend_one(TensorList sources, const Tensor& query, const Maybe& gain,
                                       const Maybe& added, double eps, double scale,
                                       at::ScalarType dtype, const Maybe& norm, double norm_eps,
                                       double norm_offset) {
  const auto list = [](const Maybe& x) { return x ? TensorList(*x) : TensorList(); };
  auto [outs, lses, sums, statistics] = forward(sources, query, list(gain), {}, list(added), eps, scale, dtype,
                                                {norm, norm_eps, norm_offset}, false);
  return {std::move(outs[0]), std::move(sums)};
}

namespace {

at::IntArrayRef check_backward(TensorList grad_outs, TensorList grad_lses, TensorList grad_sums, TensorList sources,
                               TensorList queries, TensorList gains, TensorList outs, TensorList lses, TensorList prior,
                               const Tensor& statistics, const Norm& norm) {
  const auto shape = check_inputs(sources, queries, gains, grad_outs, norm), leading = shape.slice(0, shape.size() - 1);
  const size_t s = queries.size();
  check_count("gradients of outs", grad_outs.size(), {s});
  check_count("gradients of lses", grad_lses.size(), {0, s});
  check_count("gradients of sums", grad_sums.size(), {0, size_t{!sources.empty()}});
  check_count("outs", outs.size(), {0, norm ? 0 : s});
  check_count("lses", lses.size(), {s});
  check_count("tensors as a prior", prior.size(), {0, outs.empty() ? 2 * s : s});
  check_each("gradients of outs", grad_outs, shape, shape);
  const std::vector<int64_t> of_lse = per_query(leading, queries);
  check_each("gradients of lses", grad_lses, of_lse, shape);
  check_each("gradients of sums", grad_sums, shape, shape);
  check_each("outs", outs, shape, shape);
  check_each("lses", lses, of_lse, shape);
  if (!prior.empty()) {
    check_each("a prior lse", prior.slice(0, s), of_lse, shape);
    check_each("a prior out", prior.slice(s), shape, shape);
  }
  const int64_t width = static_cast<int64_t>(sources.size()) * (heads_of(queries) * queries.size() + 1);
  check_each("statistics", statistics, {c10::multiply_integers(leading), width}, shape);
  return shape;
}

}  // namespace

// grad_lses: {} is zero. grad_sums: {}, or what is added to the gradient of the last source. prior: {}, S lses with
// outs, or S lses and S outs without: D_j needs the one or the other, and the norm the latter.
// Returns the gradients of sources, queries, gains and then the norm's weight, and prior (S outs, then S lses).
Backward attend_backward(TensorList grad_outs_, TensorList grad_lses_, TensorList grad_sums_, TensorList sources_,
                         TensorList queries, TensorList gains, TensorList outs_, TensorList lses_, TensorList prior_,
                         const Tensor& statistics_, double scale_, const Maybe& norm_, double norm_eps,
                         double norm_offset) {
  const Norm norm(norm_, norm_eps, norm_offset);
  const auto shape = check_backward(grad_outs_, grad_lses_, grad_sums_, sources_, queries, gains, outs_, lses_, prior_,
                                    statistics_, norm);
  const std::vector<Tensor> grad_outs = contiguous(grad_outs_), grad_lses = contiguous(grad_lses_);
  const std::vector<Tensor> grad_sums = contiguous(grad_sums_);
  const std::vector<Tensor> sources = contiguous(sources_), outs = contiguous(outs_), lses = contiguous(lses_);
  const std::vector<Tensor> prior = contiguous(prior_);
  const Tensor statistics = statistics_.contiguous();
  const float scale = static_cast<float>(scale_);
  const int64_t n = sources.size(), s = queries.size(), d = shape.back();
  const Chunks chunks(c10::multiply_integers(shape.slice(0, shape.size() - 1)));
  const int64_t heads = heads_of(queries), w = d / heads, all = heads * s;

  const std::vector<Tensor> grad_sources = empty_each(sources), grad_queries = empty_each(queries);
  std::vector<Tensor> grad_gains = empty_each(gains);
  const std::vector<Tensor> grad_norm = empty_each(norm.weight);
  const bool merges = !prior.empty();
  std::vector<Tensor> grad_prior;
  for (int64_t j = 0; merges && j < s; ++j)
    grad_prior.push_back(Pool::get().empty(shape, outs.empty() ? prior[s + j].scalar_type() : at::kFloat));
  const std::vector<Rows> grad_prior_rows = rows_of(grad_prior);
  for (int64_t j = 0; merges && j < s; ++j) grad_prior.push_back(Pool::get().empty(prior[j].sizes(), at::kFloat));

  const std::vector<float> c = key_vectors(queries, gains, d), norm_weight = norm.vector(d);  // [s, d] and [d]
  std::vector<const float*> c_data(s);
  for (int64_t j = 0; j < s; ++j) c_data[j] = &c[j * d];
  const int64_t sums = s + norm.weight.size();  // that are taken over all tokens: of keys, then of the norm's weight
  const Scratch dc(chunks.count * sums * d);    // [chunks, sums, d]
  const std::vector<Rows> in = rows_of(sources), grads = rows_of(grad_outs), d_in = rows_of(grad_sources);
  const std::vector<Rows> out = rows_of(outs), grad_sum = rows_of(grad_sums);
  const std::vector<Rows> prior_rows = rows_of({prior.begin() + (merges ? s : 0), prior.end()});
  const float* const statistics_data = statistics.const_data_ptr<float>();
  const std::vector<const float*> lse_data = data_of(lses), grad_lse_data = data_of(grad_lses);
  const std::vector<const float*> prior_lse = data_of({prior.begin(), prior.begin() + (merges ? s : 0)});

  const int64_t at_once = tokens_at_once((2 * n + s) * d), width = n * (all + 1);
  parallel(chunks.count, 1, [&](int64_t first, int64_t last) {
    const int64_t zeroed = (s * kLanes + 4 * all * n + 2 * n + all) * kLanes;
    const Scratch scratch(zeroed, (at_once * (2 * n + s + 1) + 2) * d);
    float* const partial = scratch.data();                     // [s, kLanes, kLanes]: of v_i . g_j, at one head
    float* const a = partial + s * kLanes * kLanes;            // [all, n, kLanes]
    float* const p = a + all * n * kLanes;                     // [all, n, kLanes]
    float* const e = p + all * n * kLanes;                     // [all, n, kLanes]: ds_ji r_i
    float* const score = e + all * n * kLanes;                 // [all, n, kLanes]
    float* const r = score + all * n * kLanes;                 // [n, kLanes]
    float* const f = r + n * kLanes;                           // [n, kLanes]: sum_j ds_ji s_ji r_i / d
    float* const prior_share = f + n * kLanes;                 // [all, kLanes]
    float* const row_scratch = scratch.data() + zeroed;        // [at_once, n, d]
    float* const d_scratch = row_scratch + at_once * n * d;    // [at_once, n, d]
    float* const grad_scratch = d_scratch + at_once * n * d;   // [at_once, s, d]
    float* const made_scratch = grad_scratch + at_once * s * d;  // [at_once, d]: out_j or the prior
    float* const norm_scratch = made_scratch + at_once * d;    // [2, d]
    std::vector<const float*> v(at_once * n), grad(at_once * s), made(at_once);
    std::vector<float*> dv(at_once * n), dc_data(s);
    const std::vector<Rows>& made_rows = out.empty() ? prior_rows : out;

    for (int64_t chunk = first; chunk < last; ++chunk) {
      for (int64_t j = 0; j < s; ++j) dc_data[j] = dc.data() + (chunk * sums + j) * d;
      for (int64_t t = chunks.begin(chunk); t < chunks.end(chunk); t += at_once) {
        const int64_t count = std::min(at_once, chunks.end(chunk) - t);
        // From [tokens, heads].
        const auto of_tokens = [&](const float* from, int64_t h) {
          if (heads == 1 && count == kLanes) return load<Lanes>(from + t);
          Lanes x = {};
          for (int64_t l = 0; l < count; ++l) x[l] = from[(t + l) * heads + h];
          return x;
        };
        for (int64_t l = 0; l < count; ++l) {
          const float* const statistic = statistics_data + (t + l) * width;
          for (int64_t i = 0; i < n; ++i) {
            v[l * n + i] = in[i].read(t + l, row_scratch + (l * n + i) * d);
            dv[l * n + i] = d_in[i].target(t + l, d_scratch + (l * n + i) * d);
            r[i * kLanes + l] = statistic[i];
            for (int64_t g = 0; g < all; ++g) score[(g * n + i) * kLanes + l] = statistic[(g + 1) * n + i];
          }
          for (int64_t j = 0; j < s; ++j) {
            grad[l * s + j] = grads[j].read(t + l, grad_scratch + (l * s + j) * d);
          }
        }
        for (int64_t g = 0; g < all; ++g) {
          const int64_t h = g / s, j = g % s;
          const Lanes before = merges ? of_tokens(prior_lse[j], h) : Lanes{} - INFINITY;
          const Lanes last_share =
              softmax_given_lse(score + g * n * kLanes, before, of_tokens(lse_data[j], h), n, p + g * n * kLanes);
          store(prior_share + g * kLanes, scale * last_share);
        }
        for (int64_t l = 0; norm && l < count; ++l) {
          // What was read once more, whose gradient then takes the place of the normalised one's.
          float* to = norm_scratch;
          const float* const before = merges ? prior_rows[0].read(t + l, norm_scratch + d) : nullptr;
          for (int64_t h = 0; h < heads; ++h) {
            const int64_t begin = h * w, end = begin + w;
            weighted_sums(v.data() + l * n, n, p + h * n * kLanes + l, 0, &to, 1, begin, end);
            for (int64_t k = begin; scale != 1.f && k < end; ++k) to[k] *= scale;
            if (merges) add_scaled(prior_share[h * kLanes + l], before, begin, end, to);
          }
          normalise_backward(to, norm_weight.data(), d, norm.eps, grad[l], grad_scratch + l * d,
                             dc.data() + (chunk * sums + s) * d);
          grad[l] = grad_scratch + l * d;
        }
        for (int64_t i = 0; i < n; ++i)
          for (int64_t h = 0; h < heads; ++h) {
            for (int64_t l = 0; l < count; ++l)
              partial_dots(v[l * n + i], &grad[l * s], s, h * w, (h + 1) * w, partial + l * kLanes, kLanes * kLanes);
            for (int64_t j = 0; j < s; ++j)
              store(a + ((h * s + j) * n + i) * kLanes, scale * sums_of_rows(partial + j * kLanes * kLanes));
          }
        std::fill_n(f, n * kLanes, 0.f);
        for (int64_t j = 0; j < s; ++j) {
          for (int64_t l = 0; !made_rows.empty() && l < count; ++l)
            made[l] = made_rows[j].read(t + l, made_scratch + l * d);
          for (int64_t h = 0; h < heads; ++h) {
            const int64_t g = h * s + j, at = g * n * kLanes;
            const Lanes grad_lse = grad_lses.empty() ? Lanes{} : of_tokens(grad_lse_data[j], h);
            Lanes mean = {};
            if (!made_rows.empty()) {
              for (int64_t l = 0; l < count; ++l)
                partial_dot<1>(made[l], &grad[l * s + j], h * w, (h + 1) * w, partial + l * kLanes, 0);
              mean = sums_of_rows(partial);
            }
            if (out.empty()) {
              mean *= load<Lanes>(prior_share + g * kLanes);
              for (int64_t i = 0; i < n; ++i)
                mean += load<Lanes>(p + at + i * kLanes) * load<Lanes>(a + at + i * kLanes);
            }
            const Lanes of_prior =
                grad_lse - score_gradients(p + at, a + at, score + at, r, n, d, mean, grad_lse, e + at, f);
            for (int64_t i = 0; i < n; ++i)
              store(p + at + i * kLanes, scale * load<Lanes>(p + at + i * kLanes));
            // All the scores' gradients, the prior's included, add up to grad_lse.
            for (int64_t l = 0; merges && l < count; ++l)
              grad_prior[s + j].data_ptr<float>()[(t + l) * heads + h] = of_prior[l];
          }
          for (int64_t l = 0; merges && l < count; ++l) {
            float* const to = grad_prior_rows[j].target(t + l, made_scratch + l * d);
            for (int64_t h = 0; h < heads; ++h) {
              const float share = prior_share[(h * s + j) * kLanes + l];
              for (int64_t k = h * w; k < (h + 1) * w; ++k) to[k] = share * grad[l * s + j][k];
            }
            grad_prior_rows[j].commit(t + l, to);
          }
        }
        for (int64_t l = 0; l < count; ++l) {
          for (int64_t h = 0; h < heads; ++h) {
            const int64_t at = h * s * n * kLanes + l, begin = h * w, end = begin + w;
            const float* const* const rows = v.data() + l * n;
            spread({rows, n, p + at, e + at, f + l, r + l, dv.data() + l * n, begin, end}, s, &grad[l * s],
                   c_data.data());
            weighted_sums<true>(rows, n, e + at, n * kLanes, dc_data.data(), s, begin, end);
          }
          for (const Rows& more : grad_sum) add_scaled(1.f, more.read(t + l, made_scratch), 0, d, dv[l * n + n - 1]);
          for (int64_t i = 0; i < n; ++i) d_in[i].commit(t + l, dv[l * n + i]);
        }
      }
    }
  });

  const Scratch totals(sums * d);  // [sums, d]
  parallel(sums * d, 1024, [&](int64_t first, int64_t last) {
    for (int64_t chunk = 0; chunk < chunks.count; ++chunk)
      for (int64_t k = first; k < last; ++k) totals.data()[k] += dc.data()[chunk * sums * d + k];
  });
  std::vector<float> query(d), gain(d, 1.f);
  const auto write = [&](const Tensor& to, const float* total, const std::vector<float>* factor) {
    std::vector<float> scratch(d);
    const Rows flat(to.dim() == 1 ? to : to.view({d}));
    float* const row = flat.target(0, scratch.data());
    for (int64_t k = 0; k < d; ++k) row[k] = factor ? total[k] * (*factor)[k] : total[k];
    flat.commit(0, row);
  };
  for (int64_t j = 0; j < s; ++j) {
    const float* const total = totals.data() + j * d;
    if (!gains.empty()) {
      read_vector(queries[j], query.data());
      read_vector(gains[j], gain.data());
      write(grad_gains[j], total, &query);
    }
    write(grad_queries[j], total, &gain);
  }
  for (const Tensor& of_weight : grad_norm) {
    write(of_weight, totals.data() + s * d, nullptr);
    grad_gains.push_back(of_weight);
  }
  return {grad_sources, grad_queries, grad_gains, grad_prior};
}

int64_t trim() { return static_cast<int64_t>(Pool::get().trim()); }

}  // namespace attnres
