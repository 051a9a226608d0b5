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
  const int64_t stride = padded(n);
  Rows v = filled(n, d), grad = filled(s, d), c = filled(s, d), dc = filled(s, d), out(s, std::vector<float>(d));
  const Rows dc_before = dc;
  Rows dv(n, std::vector<float>(d));
  std::vector<float> p(s * stride), e(s * stride), f(n), r(n), scores(s);
  for (auto* x : {&p, &e, &f, &r})
    for (float& one : *x) one = normal(random);

  const auto v_ = pointers<const float>(v), grad_ = pointers<const float>(grad), c_ = pointers<const float>(c);
  dots(v_[0], grad_.data(), s, d, scores.data());
  weighted_sums(v_.data(), n, p.data(), stride, pointers<float>(out).data(), s, d);
  spread({v_.data(), n, d, p.data(), e.data(), f.data(), r.data(), stride, pointers<float>(dv).data()}, s, grad_.data(),
         c_.data(), pointers<float>(dc).data());
  for (int64_t j = 0; j < s; ++j) {
    double dotted = 0;
    for (int64_t k = 0; k < d; ++k) {
      dotted += double(v[0][k]) * grad[j][k];
      double sum = 0, key = dc_before[j][k];
      for (int64_t i = 0; i < n; ++i) {
        sum += double(p[j * stride + i]) * v[i][k];
        key += double(e[j * stride + i]) * v[i][k];
      }
      near(out[j][k], sum, n, "weighted sum");
      near(dc[j][k], key, n, "key's gradient");
    }
    near(scores[j], dotted, d, "dot");
  }
  for (int64_t i = 0; i < n; ++i)
    for (int64_t k = 0; k < d; ++k) {
      double sum = -double(f[i]) * r[i] * v[i][k];
      for (int64_t j = 0; j < s; ++j)
        sum += double(p[j * stride + i]) * grad[j][k] + double(e[j * stride + i]) * c[j][k];
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

  std::vector<float> score(stride), share(stride);
  double total = 0;
  for (int64_t i = 0; i < n; ++i) total += std::exp(double(score[i] = 5 * normal(random)));
  near(softmax(score.data(), 3.f, n, share.data()), std::log(total), 1, "log-sum-exp");
  for (int64_t i = 0; i < n; ++i) near(share[i], 3 * std::exp(double(score[i])) / total, 3, "softmax");
}

int main() {
  std::mt19937 random(0);
  for (int64_t n : {1, 2, 5, 17})
    for (int64_t s : {1, 2, 3, 4, 5, 9})
      for (int64_t d : {1, 3, 4, 7, 8, 15, 16, 33, 63, 64, 129}) check(n, s, d, random);
  std::puts(kInstructionSet);
}
