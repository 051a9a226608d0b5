// Memory for the kernel's results, kept for the next one of about the same size when it is freed.
//
// The C library gives large freed blocks back to the system, which then zeroes and maps the next one page by page: for
// the gradients of nine sources that took several times as long as computing them. A decode step, whose results are
// small, runs on the buffers of the step before and saves the search for aligned ones. What is kept is at most kBytes
// in kBlocks blocks, the oldest goes first, and a training step frees and asks for the same sizes over and over, so its
// peak does not grow. From 4 KB on, sizes are rounded up by at most an eighth: batches of varying length find what
// others left.

#pragma once

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <c10/core/impl/alloc_cpu.h>
#include <pthread.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <mutex>
#include <vector>

namespace attnres {

class Pool final : public c10::Allocator {
 public:
  static Pool& get() {
    static Pool* const pool = new Pool;  // never destroyed: tensors may outlive every static
    return *pool;
  }

  at::Tensor empty(at::IntArrayRef shape, at::ScalarType dtype) {
    constexpr c10::DispatchKeySet cpu(c10::DispatchKey::CPU);
    at::Tensor x = at::detail::empty_generic(shape, this, cpu, dtype, std::nullopt);
    if (at::globalContext().deterministicAlgorithms() && at::globalContext().deterministicFillUninitializedMemory())
      x.fill_(NAN);
    return x;
  }

  c10::DataPtr allocate(size_t bytes) override {
    Block* const block = take(rounded(bytes));
    return {block->data, block, &give_back, c10::Device(c10::DeviceType::CPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }

  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }

  // New memory; what is kept makes room where there is no more. Raises torch's own error.
  void* fresh(size_t bytes) {
    try {
      return c10::alloc_cpu(bytes);
    } catch (const c10::Error&) {
      if (trim() == 0) throw;
      return c10::alloc_cpu(bytes);
    }
  }

  // Frees what is kept, and returns how many bytes that was.
  size_t trim() {
    const std::lock_guard<std::mutex> guard(mutex_);
    return free_oldest(kept_.size());
  }

 private:
  static constexpr size_t kBytes = size_t{1} << 28;
  static constexpr size_t kBlocks = 1024;  // bounds the search

  struct Block {
    void* data;
    size_t bytes;
  };

  Pool() {
    kept_.reserve(kBlocks + 1);  // a tensor's end must not fail for want of memory
    // Another thread may hold the mutex when this one forks, and will never let go of it in the child.
    pthread_atfork([] { get().mutex_.lock(); }, [] { get().mutex_.unlock(); }, [] { get().mutex_.unlock(); });
  }

  static size_t rounded(size_t bytes) {
    if (bytes < 4096) return bytes;
    const size_t step = std::bit_floor(bytes) / 8;
    return (bytes + step - 1) / step * step;
  }

  Block* take(size_t bytes) {
    {
      const std::lock_guard<std::mutex> guard(mutex_);
      for (auto block = kept_.rbegin(); block != kept_.rend(); ++block)  // the newest, which may still be in a cache
        if ((*block)->bytes == bytes) {
          Block* const found = *block;
          kept_.erase(std::next(block).base());
          held_ -= bytes;
          return found;
        }
    }
    return new Block{fresh(bytes), bytes};
  }

  static void give_back(void* freed) {
    Pool& pool = get();
    const std::lock_guard<std::mutex> guard(pool.mutex_);
    pool.kept_.push_back(static_cast<Block*>(freed));
    pool.held_ += pool.kept_.back()->bytes;
    size_t too_old = pool.kept_.size() > kBlocks ? 1 : 0, held = pool.held_;
    for (size_t i = 0; i < too_old; ++i) held -= pool.kept_[i]->bytes;
    for (; held > kBytes; ++too_old) held -= pool.kept_[too_old]->bytes;
    pool.free_oldest(too_old);
  }

  // The mutex is held.
  size_t free_oldest(size_t count) {
    size_t freed = 0;
    for (size_t i = 0; i < count; ++i) {
      freed += kept_[i]->bytes;
      c10::free_cpu(kept_[i]->data);
      delete kept_[i];
    }
    kept_.erase(kept_.begin(), kept_.begin() + static_cast<std::ptrdiff_t>(count));
    held_ -= freed;
    return freed;
  }

  std::mutex mutex_;
  std::vector<Block*> kept_;  // oldest first
  size_t held_ = 0;
};

// Floats for the length of a call, the first of them zeroed. A vector says no more than std::bad_alloc where there is
// no memory for it, and of what is kept they would take the results' places.
class Scratch {
 public:
  explicit Scratch(int64_t zeroed, int64_t others = 0)
      : data_(static_cast<float*>(Pool::get().fresh(sizeof(float) * (zeroed + others)))) {
    if (zeroed > 0) std::memset(data_, 0, sizeof(float) * zeroed);
  }
  ~Scratch() { c10::free_cpu(data_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  float* data() const { return data_; }

 private:
  float* data_;
};

}  // namespace attnres
