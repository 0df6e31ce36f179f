// What serving may cost: code that streams do not make faster takes only a little longer for their trying.
#pragma once
#include <algorithm>
#include <chrono>

namespace grape {

class Allowance {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr double SHARE = 0.015;       // of the time that is served
  static constexpr double BESIDE_NS = 5e6;     // beside that
  static constexpr double REINVESTED = 0.5;    // of what was saved

  // Nanoseconds in all: of captures and records, and what served laps saved.
  struct Totals {
    double spent = 0, saved = 0;
  };

  // Other code runs from now on, and what was spent and saved before is nothing to it.
  void begin(const Totals& totals) {
    from_ = totals;
    served_ = {};
    since_ = Clock::now();
  }
  void resume() { since_ = Clock::now(); }
  void pause() { served_ += Clock::now() - since_; }

  bool overdrawn(const Totals& totals) const {
    double spent = totals.spent - from_.spent, saved = totals.saved - from_.saved;
    double served = std::chrono::duration<double, std::nano>(served_ + (Clock::now() - since_)).count();
    return spent - std::min(saved, 0.0) > BESIDE_NS + SHARE * served + REINVESTED * std::max(saved, 0.0);
  }

 private:
  Totals from_;
  Clock::duration served_{};
  Clock::time_point since_ = Clock::now();
};

}  // namespace grape
