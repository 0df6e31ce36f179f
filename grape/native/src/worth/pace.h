// Whether deferring pays: what an operator takes around a fragment while fragments serve, and while none does.
#pragma once
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace grape {

// A lap leads from a fragment's head to the same head, whatever runs in between. Of its time counts what is spent in
// operators and in waiting for the device, and of the rest, which Python takes either way, a difference of no more than
// what makes and frees tensors: a loader there may take any time.
class Pace {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr double BOXED_NS = 300;  // of an operator that is served: what torch takes to hand it over
  static constexpr double BETWEEN_NS = 2000;  // at most, of an operator
  static constexpr size_t LAPS = 8;  // the last so many are compared
  static constexpr size_t FIRST = 2;  // served ones take memory, for which the host may wait until the GPU is done
  static constexpr double MATCHED = 0.25;  // of its operators: a lap of which less matched tells of the others

  // What was counted when a lap began or ended.
  struct Marks {
    uint64_t seen = 0, matched = 0;
    uint64_t opened = 0;     // times that the session was
    uint64_t inside_ns = 0;
    uint64_t apart_ns = 0;   // what captures, records and comparing took, which is no pace of code as written
    uint64_t issue_ns = 0;   // what was issued without a graph
  };
  // A served lap of which it is known what it takes as written.
  struct Saved {
    double ns = 0;         // that it took less
    double waits_ns = 0;   // more, that it waited for the GPU as few laps do: code as written waits there as well, for less
    uint64_t matched = 0;  // operators of this fragment, whose saving that is
  };

  // At the head a lap begins. `doubt`: some fragment is in doubt, so that none serves.
  void begin(bool served, bool doubt, const Marks& marks) {
    begun_ = Clock::now(), marks_ = marks, served_ = served, doubt_ = doubt;
  }

  // And ends there, having deferred so many operators of the fragment, if it served. Fragments that serve the same lap share
  // what it saved, where that can be told. A lap in which a doubt began or ended, or the session paused, is neither.
  Saved end(bool doubt, uint64_t deferred, const Marks& marks) {
    Saved saved;
    if (begun_ == Clock::time_point() || marks.seen == marks_.seen || doubt != doubt_ || marks.opened != marks_.opened) return saved;
    double operators = static_cast<double>(marks.seen - marks_.seen), inside = static_cast<double>(marks.inside_ns - marks_.inside_ns);
    double all_ns = static_cast<double>((Clock::now() - begun_).count()) - static_cast<double>(marks.apart_ns - marks_.apart_ns);
    double ns = inside / operators + (served_ ? BOXED_NS : 0);
    Laps& laps = served_ ? with_ : without_;
    laps.add(ns, std::max(0.0, all_ns - inside) / operators);
    if (!served_) {
      written_ = without_.inside(), between_ = without_.between();
    } else if (uint64_t all = marks.matched - marks_.matched; written_ > 0 && laps.n > FIRST && all > MATCHED * operators) {
      saved.matched = std::min(deferred, all);
      double share = operators * static_cast<double>(saved.matched) / static_cast<double>(all);
      double usual = std::min(ns, 2 * with_.inside() + static_cast<double>(marks.issue_ns - marks_.issue_ns) / operators);
      saved.ns = (written_ + made_and_freed(between_) - usual) * share;
      saved.waits_ns = (ns - usual) * share;
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
  double judge() const { return judge(without_.inside()); }

  // The same, if code as written always took as long as in its fastest lap: of two laps the median is the slower one.
  double judge_at_best() const { return judge(without_.least()); }

  bool gains() const { return with_.n > FIRST && judge() <= WORTHWHILE; }

  static constexpr double WORTHWHILE = 0.97;  // of code as written

  int lost = 0;     // comparisons in a row
  int excused = 0;  // that did not count, as it still waited for its graphs

 private:
  // Nanoseconds of an operator, in the last laps.
  struct Laps {
    std::array<double, LAPS> inside_ns{}, between_ns{};
    size_t n = 0;

    void add(double inside, double between) {
      inside_ns[n % LAPS] = inside, between_ns[n % LAPS] = between;
      n++;
    }
    double inside() const { return median(inside_ns); }
    double between() const { return median(between_ns); }
    double least() const { return n ? *std::min_element(inside_ns.begin(), inside_ns.begin() + std::min(n, LAPS)) : 0.0; }

   private:
    double median(std::array<double, LAPS> sorted) const {
      size_t count = std::min(n, LAPS);
      std::sort(sorted.begin(), sorted.begin() + count);
      return count ? sorted[(count - 1) / 2] : 0.0;  // of two the lesser: what came first may have been cold
    }
  };

  double judge(double without) const {
    return without > 0 ? with_.inside() / std::max(1.0, without + made_and_freed(without_.between())) : 1.0;
  }

  // What served laps take less between operators.
  double made_and_freed(double as_written) const { return std::clamp(as_written - with_.between(), -BETWEEN_NS, BETWEEN_NS); }

  Clock::time_point begun_{};
  Marks marks_;
  bool served_ = true, doubt_ = false;
  Laps with_, without_;
  double written_ = 0, between_ = 0;  // nanoseconds that an operator takes as written, and what comes behind it
  size_t due_ = 0;
};

// What deferring an operator saves, roughly: what those that could be deferred take as written, without what comparing
// takes then. One that takes long waits for the device, and would as well if it were deferred.
class Saves {
 public:
  void note(std::chrono::nanoseconds took) {
    ns_.fetch_add(std::min<uint64_t>(took.count(), MOST_NS), std::memory_order_relaxed);
    n_.fetch_add(1, std::memory_order_relaxed);
  }
  double milliseconds() const {
    uint64_t n = n_.load(std::memory_order_relaxed);
    double usual = n ? static_cast<double>(ns_.load(std::memory_order_relaxed)) / static_cast<double>(n) : 0.0;
    return std::max(LEAST_NS, usual - COMPARED_NS) / 1e6;
  }

 private:
  static constexpr uint64_t MOST_NS = 20000;
  static constexpr double LEAST_NS = 5000, COMPARED_NS = 2000;
  std::atomic<uint64_t> ns_{0}, n_{0};
};

}  // namespace grape
