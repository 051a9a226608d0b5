// As many floats at a time as one register of the target holds. GCC splits wider vectors too, but through the stack:
// sixteen floats on AVX2 made an inner loop of 13 instructions one of 208.

#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

namespace attnres {

#if defined(__AVX512F__)
constexpr int64_t kLanes = 16;
constexpr const char* kInstructionSet = "AVX-512";
#elif defined(__AVX2__)
constexpr int64_t kLanes = 8;
constexpr const char* kInstructionSet = "AVX2";
#else
constexpr int64_t kLanes = 4;
#if defined(__ARM_NEON)
constexpr const char* kInstructionSet = "NEON";
#elif defined(__SSE4_2__)
constexpr const char* kInstructionSet = "SSE4.2";
#else
constexpr const char* kInstructionSet = "vectors of four";
#endif
#endif

typedef float Lanes __attribute__((vector_size(kLanes * 4)));
typedef int32_t IntLanes __attribute__((vector_size(kLanes * 4)));

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

// Some lanes of two vectors, by number: b's follow a's.
template <int... I>
inline Lanes pick(const Lanes& a, const Lanes& b) {
#if defined(__clang__)
  return __builtin_shufflevector(a, b, I...);
#else
  return __builtin_shuffle(a, b, IntLanes{I...});
#endif
}

// Each 2 D lanes become the sum of the halves of a's 2 D lanes, then that of b's.
template <int D, int... J>
inline Lanes fold(const Lanes& a, const Lanes& b, std::integer_sequence<int, J...>) {
  return pick<(J % (2 * D) < D ? J : J - D + static_cast<int>(kLanes))...>(a, b) +
         pick<(J % (2 * D) < D ? J + D : J + static_cast<int>(kLanes))...>(a, b);
}

// The sums of kLanes vectors, each in the lane of its number.
template <int D = kLanes / 2>
inline Lanes sums(Lanes* x) {
  for (int t = 0; t < D; ++t) x[t] = fold<D>(x[t], x[t + D], std::make_integer_sequence<int, kLanes>());
  if constexpr (D == 1)
    return x[0];
  else
    return sums<D / 2>(x);
}

inline Lanes sums_of_rows(const float* rows) {
  Lanes x[kLanes];
  for (int t = 0; t < kLanes; ++t) x[t] = load<Lanes>(rows + t * kLanes);
  return sums(x);
}

inline float sum(Lanes x) {
  for (int64_t half = kLanes / 2; half > 0; half /= 2)
    for (int64_t k = 0; k < half; ++k) x[k] += x[k + half];
  return x[0];
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

}  // namespace attnres
