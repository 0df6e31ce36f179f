// What was answered and is not issued yet: the operators of the fragment in front of the position in it. Under the engine's
// lock.
#pragma once
#include "serving/epoch.h"
#include "worth/budget.h"

namespace grape {

class Pending {
 public:
  Pending(const Settings& settings, Device& device, const Draws* draws, Epoch& epoch, Launcher& launcher, Captures& captures, Budget& budget, Counts& counts)
      : settings_(settings), device_(device), draws_(draws), epoch_(epoch), launcher_(launcher), captures_(captures), budget_(budget), counts_(counts) {}

  // Issues what is pending in front of operator `at` of the fragment that is followed, if any is.
  void launch(Fragment* fragment, size_t at) {
    drawn_to_.reset();
    if (!fragment || from_ >= at) {
      epoch_.end();
      from_ = at;
      return;
    }
    size_t first = std::exchange(from_, at);
    Segment* whole = fragment->whole(first, at);
    counts_.issued += at - first;
    counts_.segments++;
    counts_.partial += !whole;
    // Something launches there each time that is no operator, or none of this fragment.
    if (Step& last = fragment->steps[at - 1]; !whole && !last.ends && ++last.splits >= Step::REFUSED && SELDOM_CUT * last.splits > fragment->entered) fragment->split(last);
    if (!settings_.issue) return epoch_.end();
    auto begin = sampling_ ? Clock::now() : Clock::time_point();
    std::optional<c10::StreamGuard> guard;
    device_.enter_stream(guard);
    bool by_one = !(whole && whole->graph);
    auto issued = by_one ? Clock::now() : Clock::time_point();
    auto raised = epoch_.launch(launcher_, *fragment, first, at, whole);
    if (raised && !raised_) raised_ = raised;
    if (by_one) counts_.issue_ns += (Clock::now() - issued).count();
    if (raised && by_one) budget_.starve(*fragment);  // of memory, as good as surely: what checks its data is not deferred
    else captures_.consider(*fragment, whole);
    cut_anew(*fragment);
    if (sampling_) launching_ += Clock::now() - begin;
  }

  // Nothing is pending. What comes next in this pass has its graphs, too.
  void cut_anew(Fragment& fragment) const {
    if (fragment.live && fragment.uncut) fragment.cut(settings_.longest);
  }

  // Nothing is pending: what is answered next is operator `at`, or comes behind it.
  void begin(size_t at) { from_ = at; }

  // R1: nobody but pending operators moved the generator since the first of them drew.
  bool draws_next() const { return !drawn_to_ || draws_->now() == *drawn_to_; }

  void draw(Step& step, const Operator& op, const Stack& stack) {
    step.drawn = draws_->now();
    draws_->advance(op, stack, step.moves);
    drawn_to_ = draws_->now();
  }

  // What launches raised since it was taken last.
  std::exception_ptr take_raised() { return std::exchange(raised_, nullptr); }

  // While comparing an operator is sampled, launches are timed: they are no part of it.
  void sample(bool sampling) { sampling_ = sampling; }
  Clock::duration take_launching() { return std::exchange(launching_, {}); }

 private:
  static constexpr uint32_t SELDOM_CUT = 16;  // in one of so many passes: pieces of segments are issued one by one, which takes
                                              // longer than a launch more in each pass

  const Settings& settings_;
  Device& device_;
  const Draws* const draws_;
  Epoch& epoch_;
  Launcher& launcher_;
  Captures& captures_;
  Budget& budget_;
  Counts& counts_;
  size_t from_ = 0;               // the first operator that is pending
  std::optional<Draw> drawn_to_;  // the generator behind the last pending operator that draws
  std::exception_ptr raised_;
  bool sampling_ = false;
  Clock::duration launching_{};  // of the operator that is sampled
};

}  // namespace grape
