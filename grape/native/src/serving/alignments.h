// Where tensors begin, as far as kernels choose their code by it.
#pragma once
#include "operators/operators.h"

namespace grape {

// Vectorized loads and cuBLASLt ask by which power of two an address can be divided, up to 256; reductions of CUDA, how
// far it is from the last one of up to 64. Addresses of one class are the same to all of them.
inline size_t alignment_class(uintptr_t address, size_t alignment) {
  size_t rest = address % alignment;
  return rest % 64 ? rest % 64 : rest & (~rest + 1);
}

// A loop over rows or columns hands an operator another class in each iteration, and the same ones again some iterations
// later. What is known of one such operator, by its signature: once its classes are seen to repeat, they belong to the
// signature, and an iteration becomes as long as they need.
class Alignments {
 public:
  // The classes of its tensors, from the first time on that it was refused for them. Behind how many they repeat; 0 where
  // they do not, or do not change.
  size_t push(uint64_t classes) {
    ring_[n_++ % SEEN] = classes;
    if (n_ < SEEN || n_ % LONGEST || repeats(1)) return 0;
    for (size_t period = 2; period <= LONGEST; period++)
      if (repeats(period)) return period;
    return 0;
  }
  bool is_hopeless() const { return n_ >= 8 * SEEN; }

 private:
  static constexpr size_t LONGEST = 32, SEEN = 3 * LONGEST;
  bool repeats(size_t period) const {
    for (size_t k = period; k < SEEN; k++)
      if (before(k) != before(k - period)) return false;
    return true;
  }
  uint64_t before(size_t back) const { return ring_[(n_ - 1 - back) % SEEN]; }
  std::array<uint64_t, SEEN> ring_{};
  size_t n_ = 0;
};

}  // namespace grape
