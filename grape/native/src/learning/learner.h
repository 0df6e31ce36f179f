// What should be recorded, from where to where, and the record that is begun. Under the engine's lock.
#pragma once
#include "learning/finder.h"
#include "learning/recorder.h"
#include "serving/exposed.h"
#include "worth/lap_time.h"
#include "worth/worth.h"

namespace grape {

class Learner {
 public:
  Learner(const Settings& settings, const Device& device, const Draws* draws, Finder& finder, const Exposed& exposed, Worth& worth, LapTime& time, Counts& counts)
      : settings_(settings), device_(device), draws_(draws), finder_(finder), exposed_(exposed), worth_(worth), time_(time), counts_(counts) {}

  bool is_recording() const { return recorder_ != nullptr; }
  // The last operator of the record has run.
  bool is_between() const { return recorder_ && recorder_->is_between(); }
  // Counts the operators that are recorded; whether that one was the last.
  uint64_t recording() const { return recording_; }
  bool records(uint64_t recording) const { return recorder_ && recording == recording_; }
  void drop() { recorder_.reset(); }

  // An operator that ran as written, and is followed by nobody: the context behind it.
  uint64_t see(const Operator& op, const Stack& stack, uint64_t sig) {
    finder_.push(sig, kind_of(op, stack));
    return finder_.context();
  }

  // Nothing serves here, and nothing is recorded: a record begins, perhaps.
  void consider(uint64_t context) {
    if (!finder_.room() || finder_.is_lost(context)) return;
    if (size_t period = finder_.periods.found(); period && period != period_ && finder_.periods.may_look(period)) {
      period_ = period;
      iteration_ = finder_.periods.is_served(period) ? 0 : finder_.iteration(period);
    } else if (period_ && !finder_.periods.holds(period_)) {
      period_ = 0;
    }
    if (period_ && context == iteration_ && !worth_.overdrawn()) return begin(context, (settings_.shortest + period_ - 1) / period_ * period_);
    if (!finder_.hot(context, settings_.hot, settings_.patience) || !(settings_.patience == 0 || finder_.may_begin()) || worth_.overdrawn()) return;
    finder_.cool(context);
    begin(context, 0);
  }

  // What repeats is looked for anew: a fragment was entered.
  void forget_period() { period_ = 0; }

  // Whether what comes instead of a fragment's operator should be recorded, if nothing is known of it.
  bool wants(const Operator& op, Side& side) const {
    return !side.fragment && ++side.times >= 2 && finder_.room() && op.always != Reason::Read && !worth_.overdrawn();
  }
  void begin_side(Fragment* parent, uint64_t side) {
    recorder_ = std::make_unique<Recorder>(0, device_, draws_);
    parent_ = parent, side_ = side, planned_ = 0, is_outer_ = false;
  }

  // What comes behind a fragment that leads nowhere, as it was as long as one may be, is recorded like a fragment.
  void go_on(Fragment& done, uint64_t context) {
    if (recorder_ || worth_.overdrawn() || !finder_.room() || finder_.is_lost(context)) return;
    done.ended = -SELDOM_BEHIND;
    begin(context, 0);
  }

  // A fragment shorter than a segment is an inner loop's. Recorded with what is around it, an iteration is launched in
  // longer segments, from memory that moves less.
  void look_further(const Fragment& fragment) {
    if (outer_ || recorder_ || counts_.seen < look_at_ || worth_.overdrawn()) return;
    look_at_ = counts_.seen + std::min(settings_.settled, SELDOM);
    size_t period = finder_.periods.longer(2 * fragment.steps.size());
    if (!period || period == too_large_ || finder_.periods.is_served(period)) return;
    outer_head_ = finder_.iteration(period);
    Fragment* known = finder_.behind(outer_head_);
    if ((known && known->steps.size() >= period) || finder_.is_lost(outer_head_)) return;
    outer_ = period;
    outer_until_ = counts_.seen + 2 * period;
  }
  bool wants_outer() const { return outer_ > 0; }
  // Behind an operator: whether the iteration that is wanted begins here.
  bool outer_begins(uint64_t context) {
    if (counts_.seen > outer_until_ || !finder_.periods.holds(outer_)) return outer_ = 0, false;
    return context == outer_head_;
  }
  void begin_outer(uint64_t context) {
    period_ = outer_;
    begin(context, std::exchange(outer_, 0));
    is_outer_ = true;
  }

  // An operator of the record is about to run.
  void before(Operator& op, const Stack& stack, uint64_t sig, const Sizes& sizes) {
    recording_++;
    Timed timed(counts_.record_ns);
    recorder_->before(op, stack, sig, sizes, exposed_.has_any(op.arguments, stack));
  }

  // And ran. Where the record ends here, the fragment that begins here, if one does.
  Fragment* after(const Operator& op, const Stack& stack, uint64_t sig, const Heard& heard) {
    recorder_->after(stack, heard);
    counts_.recorded++;
    uint64_t context = see(op, stack, sig);
    Fragment* next = finder_.behind(context);
    lost_ = finder_.is_lost(context) ? lost_ + 1 : 0;
    if (lost_ >= settings_.shortest) return recorder_.reset(), nullptr;  // it leads through what does not pay
    if (planned_) {
      if (!finder_.periods.holds(period_)) return recorder_.reset(), nullptr;  // another iteration than those before
      if (recorder_->size() < planned_) return nullptr;
    } else {
      bool back = !parent_ && context == head_ && recorder_->size() >= settings_.shortest;
      bool known = next && recorder_->size() >= (parent_ ? 1 : settings_.shortest);
      bool leads = !parent_ && recorder_->size() > settings_.furthest / 8 && finder_.periods.found();
      if (!back && !known && leads) return period_ = 0, recorder_.reset(), nullptr;  // into iterations, of which it is none
      if (!back && !known && recorder_->size() < settings_.furthest) return nullptr;
    }
    auto made = recorder_->finish(settings_.longest);
    recorder_.reset();
    if (!is_outer_) worth_.earn(*made, static_cast<double>(made->deferred) * times_as_written(*made));
    if (is_outer_ && !finder_.could_afford(*made)) return too_large_ = planned_, nullptr;  // what serves now goes on
    Fragment* added = finder_.add(std::move(made), parent_, side_);
    time_.timing = true;
    if (is_outer_ || (planned_ && planned_ == period_)) finder_.surrounds(*added);
    added->around = is_outer_;
    parent_ = nullptr;
    return finder_.behind(context);
  }

 private:
  // A record, behind this context: of so many operators, or until something comes back.
  void begin(uint64_t context, size_t planned) {
    is_outer_ = false;
    head_ = context;
    planned_ = planned;
    parent_ = nullptr;
    recorder_ = std::make_unique<Recorder>(context, device_, draws_);
  }

  // Of an operator that ran as written. Copies to the host are reads, and no schema says which copies are.
  uint8_t kind_of(const Operator& op, const Stack& stack) const {
    const IValue* first = op.returns && !device_.is_cpu() ? &stack[stack.size() - op.returns] : nullptr;
    bool copies = first && first->isTensor() && first->toTensor().defined() && first->toTensor().is_cpu();
    return op.kind() | (copies ? Operator::READ : 0);
  }

  // How often what was recorded has run as written so far, at least: that counts as if it had been followed.
  double times_as_written(const Fragment& made) const {
    size_t operators = planned_ ? finder_.periods.held(period_).value_or(0) + period_ : 0;
    return std::max(1.0, static_cast<double>(operators) / static_cast<double>(std::max<size_t>(made.steps.size(), 1)));
  }

  static constexpr size_t SELDOM = 1000;    // operators between two looks for an outer iteration
  static constexpr int SELDOM_BEHIND = 64;  // passes between two records behind the same fragment

  const Settings& settings_;
  const Device& device_;
  const Draws* const draws_;  // none: what draws runs as written
  Finder& finder_;
  const Exposed& exposed_;
  Worth& worth_;
  LapTime& time_;
  Counts& counts_;
  std::unique_ptr<Recorder> recorder_;
  uint64_t recording_ = 0;  // counts the operators that are recorded
  size_t lost_ = 0;         // of them, the last ones that a lost fragment had as well
  Fragment* parent_ = nullptr;  // of the side that is recorded
  uint64_t side_ = 0, head_ = 0;
  size_t period_ = 0, planned_ = 0;  // of what repeats, and of its record
  uint64_t iteration_ = 0;           // the context behind which that begins
  size_t outer_ = 0, too_large_ = 0;  // the period of an iteration that shall be recorded; of one that there was no room for
  uint64_t outer_head_ = 0, outer_until_ = 0, look_at_ = 0;
  bool is_outer_ = false;            // what is recorded
};

}  // namespace grape
