// The kernel's inner loops against double precision, without torch: so they can be run for other processors, too.

#include "loops.h"

#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

using namespace attnres;
using Rows = std::vector<std::vector<float>>;

static void near(double actual, double exact, double size, const char* what) {
  if (std::abs(actual - exact) <= 1e-5 * size) return;
  std::printf("%s: %g is not %g\n", what, actual, exact);
  std::exit(1);
}

template <class T>
static std::vector<T*> pointers(Rows& rows) {
  std::vector<T*> out;
  for (auto& row : rows) out.push_back(row.data());
  return out;
}

static void check(int64_t n, int64_t s, int64_t d, std::mt19937& random) {
  std::normal_distribution<float> normal;
  const auto filled = [&](int64_t count, int64_t length) {
    Rows rows(count, std::vector<float>(length));
    for (auto& row : rows)
      for (float& x : row) x = normal(random);
    return rows;
  };
  Rows v = filled(n, d), grad = filled(s, d), c = filled(s, d), dc = filled(s, d), out(s, std::vector<float>(d));
  const Rows dc_before = dc;
  Rows dv(n, std::vector<float>(d));
  // Of kLanes tokens, of which the last is taken.
  std::vector<float> p(s * n * kLanes), e(s * n * kLanes), f(n * kLanes), r(n * kLanes), partial(s * kLanes * kLanes);
  const int64_t lane = kLanes - 1;
  const auto at = [&](int64_t j, int64_t i) { return (j * n + i) * kLanes + lane; };
  for (auto* x : {&p, &e, &f, &r})
    for (float& one : *x) one = normal(random);

  const auto v_ = pointers<const float>(v), grad_ = pointers<const float>(grad), c_ = pointers<const float>(c);
  partial_dots(v_[0], grad_.data(), s, 0, d, &partial[lane * kLanes], kLanes * kLanes);
  // Two halves, as two heads have them.
  for (const auto& [begin, end] : {std::pair{int64_t{0}, d / 2}, std::pair{d / 2, d}}) {
    weighted_sums(v_.data(), n, &p[lane], n * kLanes, pointers<float>(out).data(), s, begin, end);
    weighted_sums<true>(v_.data(), n, &e[lane], n * kLanes, pointers<float>(dc).data(), s, begin, end);
    spread({v_.data(), n, &p[lane], &e[lane], &f[lane], &r[lane], pointers<float>(dv).data(), begin, end}, s,
           grad_.data(), c_.data());
  }
  for (int64_t j = 0; j < s; ++j) {
    double dotted = 0;
    for (int64_t k = 0; k < d; ++k) {
      dotted += double(v[0][k]) * grad[j][k];
      double sum = 0, key = dc_before[j][k];
      for (int64_t i = 0; i < n; ++i) {
        sum += double(p[at(j, i)]) * v[i][k];
        key += double(e[at(j, i)]) * v[i][k];
      }
      near(out[j][k], sum, n, "weighted sum");
      near(dc[j][k], key, n, "key's gradient");
    }
    near(sums_of_rows(&partial[j * kLanes * kLanes])[lane], dotted, d, "dot");
  }
  for (int64_t i = 0; i < n; ++i)
    for (int64_t k = 0; k < d; ++k) {
      double sum = -double(f[at(0, i)]) * r[at(0, i)] * v[i][k];
      for (int64_t j = 0; j < s; ++j)
        sum += double(p[at(j, i)]) * grad[j][k] + double(e[at(j, i)]) * c[j][k];
      near(dv[i][k], sum, 2 * s + 1, "source's gradient");
    }

  std::vector<float> normed(d), dh(d), dw(d, 1.f);
  normalise(v[0].data(), c[0].data(), d, 1e-3, normed.data());
  normalise_backward(v[0].data(), c[0].data(), d, 1e-3, grad[0].data(), dh.data(), dw.data());
  double mean = 1e-3, along = 0;
  for (int64_t k = 0; k < d; ++k) {
    mean += double(v[0][k]) * v[0][k] / d;
    along += double(v[0][k]) * c[0][k] * grad[0][k] / d;
  }
  const double rms = std::sqrt(mean);
  for (int64_t k = 0; k < d; ++k) {
    near(normed[k], v[0][k] / rms * c[0][k], 4, "normalised");
    near(dw[k], 1 + grad[0][k] * v[0][k] / rms, 8, "norm's weight's gradient");
    near(dh[k], (double(c[0][k]) * grad[0][k] - v[0][k] * along / mean) / rms, 8 / rms + 8, "norm's gradient");
  }

  std::vector<float> score(n * kLanes), share(n * kLanes);
  for (float& x : score) x = 5 * normal(random);
  const Lanes lse = softmax(score.data(), 3.f, n, share.data());
  for (int64_t t = 0; t < kLanes; ++t) {
    double total = 0;
    for (int64_t i = 0; i < n; ++i) total += std::exp(double(score[i * kLanes + t]));
    near(lse[t], std::log(total), 1, "log-sum-exp");
    for (int64_t i = 0; i < n; ++i)
      near(share[i * kLanes + t], 3 * std::exp(double(score[i * kLanes + t])) / total, 3, "softmax");
  }
}

int main() {
  std::mt19937 random(0);
  for (int64_t n : {1, 2, 5, 17})
    for (int64_t s : {1, 2, 3, 4, 5, 9})
      for (int64_t d : {1, 3, 4, 7, 8, 15, 16, 33, 63, 64, 129}) check(n, s, d, random);
  std::puts(kInstructionSet);
}
