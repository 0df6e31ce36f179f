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
  static constexpr double FIRST_SHARE = 0.05;  // both of code that runs for the first time: what it gets then, later runs
  static constexpr double FIRST_NS = 100e6;    // know to be worth it
  static constexpr double FIRST_LASTS_NS = 10e9;
  static constexpr double REINVESTED = 0.5;    // of what was saved

  // Nanoseconds in all: of captures and records, and what served laps saved.
  struct Totals {
    double spent = 0, saved = 0;
  };

  // Other code runs from now on, and what was spent and saved before is nothing to it.
  void begin(const Totals& totals, bool first) {
    from_ = totals;
    first_ = first;
    served_ = {};
    since_ = Clock::now();
  }
  void resume() { since_ = Clock::now(); }
  void pause() { served_ += Clock::now() - since_; }

  bool overdrawn(const Totals& totals) const {
    double spent = totals.spent - from_.spent, saved = totals.saved - from_.saved;
    double served = std::chrono::duration<double, std::nano>(served_ + (Clock::now() - since_)).count();
    double young = first_ ? std::min(served, FIRST_LASTS_NS) : 0.0;
    double may = (first_ ? FIRST_NS : BESIDE_NS) + FIRST_SHARE * young + SHARE * (served - young);
    return spent - std::min(saved, 0.0) > may + REINVESTED * std::max(saved, 0.0);
  }

 private:
  Totals from_;
  bool first_ = false;
  Clock::duration served_{};
  Clock::time_point since_ = Clock::now();
};

}  // namespace grape
