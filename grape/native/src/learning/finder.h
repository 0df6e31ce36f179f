// What repeats: contexts (the last operators) that come back are heads, and fragments begin behind them.
#pragma once
#include "fragments/fragment.h"
#include "learning/periods.h"

#include <deque>
#include <unordered_set>

namespace grape {

class Finder {
 public:
  static constexpr size_t CONTEXT = 4;
  Finder(size_t budget, size_t iteration, size_t settled, size_t shortest) : periods(iteration, settled, shortest), budget_(budget) {}

  void push(uint64_t signature) { recent_[at_++ % CONTEXT] = signature; }

  // The same, of an operator that no fragment followed.
  void push(uint64_t signature, uint8_t kind) {
    push(signature);
    periods.push(signature, kind, false);
    periods.meet(context());
    if (kind & Operator::READ) read_ = at_;
  }

  // Of an operator that a fragment followed. `marks`: it may come once in an iteration around it. `served`: see `Periods`.
  void followed(uint64_t signature, uint8_t kind, bool marks, bool served) {
    periods.push(signature, kind, served);
    if (marks) periods.meet(followed_context());
  }

  // The same as `context`, while a fragment is followed.
  uint64_t followed_context() const {
    return hashed([&](size_t back) { return periods.before(back); });
  }

  // The context behind which to record an iteration, of `period` operators; 0 where none is known to repeat.
  uint64_t iteration(size_t period) {
    return periods.head(period, [](auto before) { return hashed(before); });
  }

  // Reads cut a loop in iterations: where there are any, fragments that no period tells of begin behind one.
  bool may_begin() const { return read_ == at_ || read_ + 4096 < at_; }

  // The operators that a fragment answered, of which only the last matter.
  void passed(const Fragment& fragment, size_t end) {
    for (size_t i = end > CONTEXT ? end - CONTEXT : 0; i < end; i++) push(fragment.steps[i].signature);
  }

  uint64_t context() const {
    uint64_t hash = 1;
    for (size_t k = 0; k < CONTEXT; k++) hash = mix(hash, recent_[(at_ + k) % CONTEXT]);
    return hash;
  }

  Fragment* behind(uint64_t context) const {
    auto found = heads_.find(context);
    return found == heads_.end() || found->second->dead ? nullptr : found->second;
  }

  // An iteration around what served before it. Where it begins, it is entered from whatever is followed there.
  void surrounds(const Fragment& outer) { outer_heads_.insert(outer.head); }
  bool has_outer() const { return !outer_heads_.empty(); }
  Fragment* outer_behind(uint64_t context) const { return outer_heads_.count(context) ? behind(context) : nullptr; }

  // True when the context was met so often, and for so long, that a record should begin.
  bool hot(uint64_t context, size_t times, size_t patience) {
    if (heads_.size() >= 4096) return false;
    Met& met = met_of(context);
    return ++met.times >= static_cast<int>(times) && at_ - met.first >= patience;
  }
  void cool(uint64_t context) { met_of(context).times = -64; }

  Fragment* add(std::unique_ptr<Fragment> fragment, Fragment* parent, uint64_t side) {
    Fragment* made = fragment.get();
    steps_ += made->steps.size();
    live_ += made->steps.size();
    made_++;
    fragments_.push_back(std::move(fragment));
    if (parent) parent->sides[side].fragment = made;
    else heads_[made->head] = made;
    return made;
  }

  template <class F>
  void each(F f) {
    for (auto& fragment : fragments_) f(*fragment);
  }

  bool could_afford(const Fragment& fragment) const { return bytes_ + fragment.bytes() <= budget_; }
  // Which live fragment was left longest ago, before so many operators had been seen, if `fragment` alone has room.
  Fragment* unused(const Fragment& fragment, uint64_t before) const {
    Fragment* oldest = nullptr;
    if (fragment.bytes() > budget_) return nullptr;
    for (auto& one : fragments_)
      if (one->live && one->last < before && (!oldest || one->last < oldest->last)) oldest = one.get();
    return oldest;
  }
  // Whether there is room for its homes, which it has from now on.
  bool afford(const Fragment& fragment) {
    if (!could_afford(fragment)) return false;
    bytes_ += fragment.bytes();
    return true;
  }

  // Its homes go. Nothing that leads through a fragment's operators is recorded any more.
  void lose(const Fragment& fragment) {
    size_t n = fragment.steps.size();
    for (size_t i = 0; i < n; i++) {
      uint64_t hash = 1;
      for (size_t k = CONTEXT; k-- > 0;) hash = mix(hash, fragment.steps[(i + n * CONTEXT - k) % n].signature);
      lost_.insert(hash);
    }
    release(fragment);
  }
  void release(const Fragment& fragment) { bytes_ -= fragment.bytes(); }
  bool is_lost(uint64_t context) const { return !lost_.empty() && lost_.count(context); }

  bool room() const { return live_ < 200'000 && bytes_ < budget_; }
  size_t fragments() const { return made_; }
  size_t steps() const { return steps_; }
  size_t bytes() const { return bytes_; }
  void clear() {
    heads_.clear();
    std::fill(met_.begin(), met_.end(), Met());
    lost_.clear();
    outer_heads_.clear();
    periods.begin();
    fragments_.clear();
    live_ = bytes_ = 0;
  }

  Periods periods;

 private:
  // `before(k)` is the signature of the operator k before the last.
  template <class F>
  static uint64_t hashed(F before) {
    uint64_t hash = 1;
    for (size_t k = CONTEXT; k-- > 0;) hash = mix(hash, before(k));
    return hash;
  }

  struct Met {
    uint64_t context = 0;
    int times = 0;
    size_t first = 0;
  };

  // Of contexts that share a place the one that came last, for what repeats comes again. A table that grows costs more than
  // all else that observing does.
  Met& met_of(uint64_t context) {
    Met& met = met_[context % met_.size()];
    if (met.context != context) met = {context, 0, at_};
    return met;
  }

  uint64_t recent_[CONTEXT] = {};
  size_t at_ = 0, read_ = 0, steps_ = 0, made_ = 0, live_ = 0, bytes_ = 0;
  const size_t budget_;
  std::unordered_map<uint64_t, Fragment*> heads_;
  std::vector<Met> met_{65536};
  std::unordered_set<uint64_t> lost_, outer_heads_;
  std::deque<std::unique_ptr<Fragment>> fragments_;
};

}  // namespace grape
