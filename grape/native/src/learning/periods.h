// The operators that ran last, and the distance at which they repeat themselves.
#pragma once
#include "operators/operators.h"

#include <algorithm>
#include <array>
#include <optional>
#include <unordered_map>
#include <vector>

namespace grape {

// A loop repeats at the distance of its iterations, and inside of them at the distance of its layers. The longer one is
// wanted: a fragment of a whole iteration begins where little is alive. So a short period has to hold for long, and is
// believed at once only where it contains a host read, as iterations do.
class Periods {
 public:
  Periods(size_t longest, size_t settled, size_t shortest) : longest_(longest), settled_(settled), shortest_(shortest), ring_(SIZE), kinds_(SIZE) {}

  // No new distance is looked for. `served`: by a fragment that is no inner loop's, and with its own numbers.
  void push(uint64_t signature, uint8_t kind, bool served) {
    at(n_) = signature;
    kinds_[n_ % SIZE] = served ? kind | SERVED : kind;
    for (Candidate& c : candidates_)
      if (c.period && at(n_ - c.period) == signature) c.run++;
      else c.period = 0;
    n_++;
  }

  // The last operators were met before, perhaps: `context` stands for `CONTEXT` of them.
  void meet(uint64_t context) {
    Met& last = met_[context % met_.size()];
    size_t period = n_ - std::exchange(last.at, n_);
    if (std::exchange(last.context, context) == context && period <= std::min(longest_, ROOM)) consider(period);
  }

  // Whatever ran in between was not seen.
  void begin() {
    n_ = ROOM, look_at_ = 0;
    std::fill(met_.begin(), met_.end(), Met());
    for (Candidate& c : candidates_) c.period = 0;
  }

  bool holds(size_t period) const { return held(period).has_value(); }

  // For how many operators, where it does.
  std::optional<size_t> held(size_t period) const {
    for (const Candidate& c : candidates_)
      if (c.period == period) return c.run;
    return std::nullopt;
  }

  // What repeats, where that is known now; else 0.
  size_t found() const {
    size_t best = 0;
    for (const Candidate& c : candidates_)
      if (c.period > best && c.run >= c.period && (c.run >= settled_ || (c.run % c.period == 0 && c.run >= 2 * shortest_ && any_read(c.period)))) best = c.period;
    return best;
  }

  // Whether fragments served most of the last so many operators: those to come have what they need.
  bool is_served(size_t period) const {
    size_t served = 0;
    for (size_t k = 1; k <= period; k++) served += (kinds_[(n_ - k) % SIZE] & SERVED) != 0;
    return 2 * served > period;
  }

  // What repeats and is longer than the fragment that serves now, of so many operators: an iteration around a loop. It was
  // seen twice, or, without a read, three times.
  size_t longer(size_t fragment) const {
    size_t best = 0;
    for (const Candidate& c : candidates_)
      if (c.period > std::max(best, fragment) && !is_multiple(c) && (c.run >= 2 * c.period || (c.run >= c.period && any_read(c.period)))) best = c.period;
    return best;
  }

  // The signature of the operator so many ago.
  uint64_t before(size_t back) const { return ring_[(n_ - 1 - back) % SIZE]; }

  // Whether a look for a head is due: as many operators ran since the last one as that looked at, or this one looks at
  // twice as many. Where periods hold for a moment only, as while a cache grows, each would be looked at otherwise.
  bool may_look(size_t period) const { return n_ >= look_at_ || period >= 2 * looked_at_; }

  // The context behind which an iteration best begins: one that comes once in it, behind a read, or else a write.
  template <class F>
  uint64_t head(size_t period, F context_of) {
    look_at_ = n_ + period, looked_at_ = period;
    std::unordered_map<uint64_t, int> times;
    std::vector<uint64_t> contexts(period);
    for (size_t k = 0; k < period; k++) times[contexts[k] = context_of([&](size_t back) { return ring_[(n_ - period + k - back) % SIZE]; })]++;
    size_t best = 0;
    int most = -1;
    for (size_t k = 0; k < period; k++) {
      uint8_t kind = kinds_[(n_ - period + k) % SIZE];
      int score = (times[contexts[k]] == 1 ? 4 : 0) + (kind & Operator::READ ? 2 : kind & Operator::WRITES ? 1 : 0);
      if (score >= most) most = score, best = k;
    }
    return contexts[best];
  }

 private:
  static constexpr size_t ROOM = 32768, SIZE = 4 * ROOM;
  static constexpr uint8_t SERVED = 0x80;  // beside an operator's kind
  struct Candidate {
    size_t period = 0, run = 0;
  };
  struct Met {
    uint64_t context = 0;
    size_t at = 0;
  };

  uint64_t& at(size_t n) { return ring_[n % SIZE]; }

  // It only holds because a shorter one does.
  bool is_multiple(const Candidate& c) const {
    for (const Candidate& other : candidates_)
      if (other.period && other.period < c.period && c.period % other.period == 0 && other.run >= c.period) return true;
    return false;
  }

  bool any_read(size_t period) const {
    for (size_t k = 1; k <= period; k++)
      if (kinds_[(n_ - k) % SIZE] & Operator::READ) return true;
    return false;
  }

  void consider(size_t period) {
    Candidate* least = &candidates_[0];
    for (Candidate& c : candidates_) {
      if (c.period == period) return;
      if (!c.period || (least->period && c.run < least->run)) least = &c;
    }
    *least = {period, 0};
  }

  const size_t longest_, settled_, shortest_;
  std::vector<uint64_t> ring_;
  std::vector<uint8_t> kinds_;
  std::array<Candidate, 6> candidates_{};
  std::vector<Met> met_{2 * ROOM};  // as in `Finder::met_of`
  size_t n_ = ROOM, look_at_ = 0, looked_at_ = 0;
};

}  // namespace grape
