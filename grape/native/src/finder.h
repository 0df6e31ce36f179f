// What repeats: contexts (the last operators) that come back are heads, and fragments begin behind them.
#pragma once
#include "fragment.h"

#include <deque>

namespace grape {

class Finder {
 public:
  static constexpr size_t CONTEXT = 4;
  explicit Finder(size_t budget) : budget_(budget) {}

  void push(uint64_t signature) { recent_[at_++ % CONTEXT] = signature; }

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

  // True when the context was met so often that a record should begin.
  bool hot(uint64_t context, size_t times) {
    if (heads_.size() >= 4096 || counts_.size() > 65536) return false;
    return ++counts_[context] >= static_cast<int>(times);
  }
  void cool(uint64_t context) { counts_[context] = -64; }

  Fragment* add(std::unique_ptr<Fragment> fragment, Fragment* parent, uint64_t side) {
    Fragment* made = fragment.get();
    steps_ += made->steps.size();
    live_ += made->steps.size();
    made_++;
    for (const Slot& slot : made->slots) bytes_ += slot.nbytes;
    fragments_.push_back(std::move(fragment));
    if (parent) parent->sides[side].fragment = made;
    else heads_[made->head] = made;
    return made;
  }

  template <class F>
  void each(F f) {
    for (auto& fragment : fragments_) f(*fragment);
  }

  bool room() const { return live_ < 200'000 && bytes_ < budget_; }
  size_t fragments() const { return made_; }
  size_t steps() const { return steps_; }
  size_t bytes() const { return bytes_; }
  void clear() {
    heads_.clear();
    counts_.clear();
    fragments_.clear();
    live_ = bytes_ = 0;
  }

 private:
  uint64_t recent_[CONTEXT] = {};
  size_t at_ = 0, steps_ = 0, made_ = 0, live_ = 0, bytes_ = 0;
  const size_t budget_;
  std::unordered_map<uint64_t, Fragment*> heads_;
  std::unordered_map<uint64_t, int> counts_;
  std::deque<std::unique_ptr<Fragment>> fragments_;
};

}  // namespace grape
