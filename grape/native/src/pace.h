// Whether deferring pays: what an operator takes around a fragment while fragments serve, and while none does.
#pragma once
#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace grape {

// A lap leads from a fragment's head to the same head, whatever runs in between.
class Pace {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr size_t LAPS = 8;  // the last so many are compared

  // At the head, after so many operators in all: a lap ends.
  void lap(bool served, uint64_t operators) {
    auto now = Clock::now();
    if (operators > operators_ && begun_ != Clock::time_point() && served == served_) {
      Laps& laps = served ? with_ : without_;
      laps.ns[laps.n++ % LAPS] = static_cast<double>((now - begun_).count()) / static_cast<double>(operators - operators_);
    }
    begun_ = now, operators_ = operators, served_ = served;
  }

  size_t laps() const { return with_.n; }
  size_t laps_without() const { return without_.n; }
  bool is_due(size_t first) const { return with_.n >= std::max(due_, first); }
  void wait(size_t laps) { due_ = laps; }

  // What served laps take of those without, by their medians. The latter begin anew.
  double judge() {
    double without = without_.median();
    without_.n = 0;
    return without > 0 ? with_.median() / without : 1.0;
  }

  int lost = 0;  // comparisons in a row

 private:
  struct Laps {
    std::array<double, LAPS> ns{};
    size_t n = 0;

    double median() const {
      auto sorted = ns;
      size_t count = std::min(n, LAPS);
      std::sort(sorted.begin(), sorted.begin() + count);
      return count ? sorted[count / 2] : 0.0;
    }
  };

  Clock::time_point begun_{};
  uint64_t operators_ = 0;
  bool served_ = true;
  Laps with_, without_;
  size_t due_ = 0;
};

}  // namespace grape
