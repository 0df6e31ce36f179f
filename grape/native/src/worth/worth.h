// What captures cost, what they save, and whether a fragment has earned them. Under the engine's lock, but for `note` and
// `captured`.
#pragma once
#include "engine/counts.h"
#include "engine/settings.h"
#include "fragments/fragment.h"
#include "worth/allowance.h"

namespace grape {

class Worth {
 public:
  Worth(const Settings& settings, const Counts& counts) : settings_(settings), counts_(counts), price_(settings.price) {}

  // What a fragment's operators have to take as written before captures are made of it: so much as those take. Then both
  // together cost at most twice what the better of the two would have cost, however often it comes.
  double price_of(const Fragment& fragment) const {
    if (!settings_.graphs || price_ <= 0) return 0;
    if (fragment.segments.empty()) return 0;
    return price_ * static_cast<double>(fragment.segments.size()) + CAPTURED * static_cast<double>(fragment.steps.size());
  }

  // What serves is set against a lap as written; a side of another fragment has no laps.
  bool has_earned(const Fragment& fragment) const {
    double price = price_of(fragment);
    if (fragment.earned < price) return false;
    return price == 0 || (may_begin() && (fragment.pace.laps_without() > 0 || fragment.entered >= 3));
  }

  // So many of its operators, which could have been deferred, ran as written.
  void earn(Fragment& fragment, double operators) {
    fragment.earned += saves() * operators;
    earned_ += saves() * operators;
  }

  // A capture of so many operators took so long. One that took far longer waited for something else.
  void captured(Clock::duration took, size_t operators) {
    if (price_ > 0 && is_warm_.exchange(true)) {
      double beside = std::max(0.1, std::chrono::duration<double, std::milli>(took).count() - CAPTURED * static_cast<double>(operators));
      price_ += 0.2 * (std::min(beside, std::max(0.1, 4 * price_)) - price_);
    }
  }

  // What an operator took as written that could have been deferred; milliseconds that deferring one saves.
  void note(Clock::duration took) { saves_.note(took); }
  double saves() const { return saves_.milliseconds(); }

  // Other code runs from now on; the session is open again, or pauses.
  void begin(bool first) { allowance_.begin(totals(), first); }
  void resume() { allowance_.resume(); }
  void pause() { allowance_.pause(); }

  bool overdrawn() const { return settings_.graphs && settings_.price > 0 && allowance_.overdrawn(totals()); }
  bool overdrawn(const Fragment& fragment) const { return !fragment.pays(Allowance::REINVESTED) && overdrawn(); }

  // A fragment that still costs, while no more may be spent: it runs as written. One whose last laps were faster serves,
  // though graphs of it are missing.
  bool rests(const Fragment& fragment) const {
    return fragment.live && (fragment.saved_ns < 0 || (!fragment.is_captured() && !fragment.pace.gains())) && overdrawn(fragment);
  }

 private:
  // The first capture of a process takes far longer. Not each fragment has to earn that, but all of them together: a cell
  // may have hundreds of short ones.
  bool may_begin() const { return is_warm_ || earned_ >= price_ * COLD; }

  Allowance::Totals totals() const { return {static_cast<double>(counts_.capture_ns + counts_.record_ns), counts_.saved_ns}; }

  static constexpr double CAPTURED = 0.01;  // milliseconds, roughly, of an operator that is captured
  static constexpr size_t COLD = 40;        // captures, that the first one of a process takes as long as
  static inline std::atomic<bool> is_warm_{false};

  const Settings& settings_;
  const Counts& counts_;
  double price_;       // of a capture, in milliseconds
  double earned_ = 0;  // by all fragments
  Saves saves_;
  Allowance allowance_;
};

}  // namespace grape
