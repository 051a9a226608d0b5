// Memory for the kernel's results, kept for the next one of the same size when it is freed.
//
// The C library gives large freed blocks back to the system, which then zeroes and maps the next one page by page: for
// the gradients of nine sources that took several times as long as computing them. A decode step, whose results are
// small, runs on the buffers of the step before and saves the search for aligned ones. What is kept is at most kBytes
// in kBlocks blocks, the oldest goes first, and a training step frees and asks for the same sizes over and over, so its
// peak does not grow.

#pragma once

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <c10/core/impl/alloc_cpu.h>

#include <cmath>
#include <cstddef>
#include <mutex>
#include <vector>

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
    Block* const block = take(bytes);
    return {block->data, block, &give_back, c10::Device(c10::DeviceType::CPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }

  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }

 private:
  static constexpr size_t kBytes = size_t{1} << 28;
  static constexpr std::ptrdiff_t kBlocks = 1024;  // bounds the search

  struct Block {
    void* data;
    size_t bytes;
  };

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
    return new Block{c10::alloc_cpu(bytes), bytes};
  }

  static void give_back(void* freed) {
    Pool& pool = get();
    std::vector<Block*> too_old;
    {
      const std::lock_guard<std::mutex> guard(pool.mutex_);
      pool.kept_.push_back(static_cast<Block*>(freed));
      pool.held_ += pool.kept_.back()->bytes;
      auto oldest = pool.kept_.begin();
      for (; pool.held_ > kBytes || pool.kept_.end() - oldest > kBlocks; ++oldest) pool.held_ -= (*oldest)->bytes;
      too_old.assign(pool.kept_.begin(), oldest);
      pool.kept_.erase(pool.kept_.begin(), oldest);
    }
    for (Block* const block : too_old) {
      c10::free_cpu(block->data);
      delete block;
    }
  }

  std::mutex mutex_;
  std::vector<Block*> kept_;  // oldest first
  size_t held_ = 0;
};
