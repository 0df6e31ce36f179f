// Whether deferring pays: what an operator takes around a fragment while fragments serve, and while none does.
#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace grape {

// A lap leads from a fragment's head to the same head, whatever runs in between. Of its time counts what is spent in
// operators and in waiting for the device: what Python does between them it does either way, and it may be anything.
class Pace {
 public:
  static constexpr double BOXED_NS = 300;  // of an operator that is served: what torch takes to hand it over
  static constexpr size_t LAPS = 8;  // the last so many are compared
  static constexpr size_t FIRST = 2;  // served ones take memory, for which the host may wait until the GPU is done
  static constexpr double MATCHED = 0.25;  // of its operators: a lap of which less matched tells of the others

  // What was counted when a lap began or ended.
  struct Marks {
    uint64_t seen = 0, matched = 0;
    uint64_t inside_ns = 0;
  };
  // A served lap of which it is known what it takes as written.
  struct Saved {
    double ns = 0;         // that it took less
    uint64_t matched = 0;  // operators of this fragment, whose saving that is
  };

  // At the head a lap begins. `doubt`: some fragment is in doubt, so that none serves.
  void begin(bool served, bool doubt, const Marks& marks) {
    begun_ = true, marks_ = marks, served_ = served, doubt_ = doubt;
  }

  // And ends there, having deferred so many operators of the fragment, if it served. Fragments that serve the same lap share
  // what it saved, where that can be told. A lap in which a doubt began or ended is neither.
  Saved end(bool doubt, uint64_t deferred, const Marks& marks) {
    Saved saved;
    if (!begun_ || marks.seen == marks_.seen || doubt != doubt_) return saved;
    double operators = static_cast<double>(marks.seen - marks_.seen);
    double ns = static_cast<double>(marks.inside_ns - marks_.inside_ns) / operators + (served_ ? BOXED_NS : 0);
    Laps& laps = served_ ? with_ : without_;
    laps.ns[laps.n++ % LAPS] = ns;
    if (!served_) {
      written_ = without_.median();
    } else if (uint64_t all = marks.matched - marks_.matched; written_ > 0 && laps.n > FIRST && all > MATCHED * operators) {
      saved.matched = std::min(deferred, all);
      double usual = std::min(ns, 2 * with_.median());  // a lap that an epoch ends in is not slow for being served
      saved.ns = (written_ - usual) * operators * static_cast<double>(saved.matched) / static_cast<double>(all);
    }
    return saved;
  }

  size_t laps() const { return with_.n; }
  size_t laps_without() const { return without_.n; }
  bool is_due(size_t first) const { return with_.n >= std::max(due_, first); }
  void wait(size_t laps) { due_ = laps; }

  // Laps without begin anew, for only what came right behind the others compares.
  void doubt() { without_.n = 0; }
  // What served laps take of those without, by their medians.
  double judge() const {
    double without = without_.median();
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

  Marks marks_;
  bool begun_ = false, served_ = true, doubt_ = false;
  Laps with_, without_;
  double written_ = 0;  // nanoseconds that an operator takes as written, by the laps that tell last
  size_t due_ = 0;
};

}  // namespace grape
