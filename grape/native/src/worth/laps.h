// Laps of fragments: what they save, and now and then, while nothing is deferred, whether they do. Under the engine's lock.
#pragma once
#include "worth/budget.h"
#include "worth/lap_time.h"

namespace grape {

class Laps {
 public:
  Laps(const Settings& settings, Budget& budget, LapTime& time, Counts& counts)
      : settings_(settings), budget_(budget), time_(time), counts_(counts) {}

  // The session is, perhaps after a pause.
  void open() { opened_++, time_.deferring = false; }

  // While one is doubted, none is entered.
  const Fragment* doubted() const { return doubted_; }

  // At the head of a fragment, where a lap ends and another one begins. True: `doubt` it.
  bool end(Fragment& fragment) {
    Pace& pace = fragment.pace;
    Pace::Saved saved = pace.end(doubted_ != nullptr, fragment.deferred, marks());
    fragment.saved_ns += saved.ns;
    counts_.saved_ns += saved.ns;
    counts_.waits_ns += saved.waits_ns;
    counts_.timed += saved.matched;
    if (!settings_.doubt || !fragment.live) return false;
    if (doubted_ != &fragment) return !doubted_ && pace.is_due(settings_.doubt);
    if (pace.laps_without() >= LAPS_WITHOUT || (pace.laps_without() >= CLEAR_LAPS && pace.judge_at_best() < CLEAR)) judge();
    return false;
  }
  void begin(Fragment& fragment, bool served) {
    time_.deferring = served;
    fragment.pace.begin(served, doubted_ != nullptr, marks());
  }

  // Nothing is deferred from now on, to see what that is worth.
  void doubt(Fragment& fragment) {
    doubted_ = &fragment;
    doubted_until_ = counts_.seen + 8 * std::max(settings_.furthest, fragment.steps.size());
    fragment.pace.doubt();
  }
  // It came no more.
  void judge_late() {
    if (doubted_ && counts_.seen > doubted_until_) judge();
  }

  // It serves no more; none does.
  void forget(const Fragment& fragment) {
    if (doubted_ == &fragment) doubted_ = nullptr;
  }
  void forget() {
    doubted_ = nullptr;
    time_.stop();
  }

 private:
  Pace::Marks marks() const {
    return {counts_.seen, counts_.matched, opened_, LapTime::inside_ns(), counts_.capture_ns + counts_.record_ns + LapTime::compared_ns(), counts_.issue_ns};
  }

  // Whether code as written was faster than what served it. A fragment of which that is said twice serves no more; of one
  // that has saved something in all laps it is said in vain, unless it is said again and again.
  void judge() {
    Fragment* fragment = std::exchange(doubted_, nullptr);
    Pace& pace = fragment->pace;
    double ratio = pace.judge();
    if (ratio <= Pace::WORTHWHILE) return pace.wait(8 * pace.laps()), pace.lost = 0, void();
    pace.wait(pace.laps() + settings_.doubt);
    if (settings_.graphs && !fragment->is_captured() && pace.excused++ < UNFAIR) return;
    if (++pace.lost < 2 && ratio < 1.2) return;
    if (fragment->saved_ns > 0 && pace.lost < OFTEN) return;
    counts_.lost++;
    budget_.lose(*fragment);
  }

  static constexpr size_t LAPS_WITHOUT = 5;   // that tell what code as written takes
  static constexpr size_t CLEAR_LAPS = 2;     // that do where what served takes less than this of them
  static constexpr double CLEAR = 0.6;        // and of each of them: one may have waited for what served before
  static constexpr int UNFAIR = 2;            // comparisons that a fragment without all its graphs need not pass
  static constexpr int OFTEN = 4;

  const Settings& settings_;
  Budget& budget_;
  LapTime& time_;
  Counts& counts_;
  Fragment* doubted_ = nullptr;  // nothing is deferred, to see what that is worth
  uint64_t doubted_until_ = 0;
  uint64_t opened_ = 0;  // times that the session was
};

}  // namespace grape
