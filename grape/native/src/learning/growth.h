// Operators whose sizes are new ones again and again, as those of a cache that grows, amid others that repeat.
#pragma once
#include "operators/operators.h"

#include <algorithm>
#include <array>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

namespace grape {

// What is known of an operator's sizes: their kind, they themselves, and whether the kind grows, and did not before.
struct Sizes {
  uint64_t kind = 0, exact = 0;
  bool grow = false, since_now = false;
};

// Operators of the same name, dimensions and dtypes are a kind. It grows where sizes arrive that it never had, and those
// before neither come back nor came often, while most of what ran meanwhile had its sizes before: where everything is new,
// as in the first batches of a loader that pads, whole iterations come again instead, and so they do in the loops of a
// sweep, which have other sizes each. Its operators run as written, and what lies between them repeats.
class Growth {
 public:
  // What the operator is known by: without its sizes, where its kind grows. `seen` operators came before it, of which those
  // that a fragment answered had their sizes before.
  uint64_t of(const Signature& signature, uint64_t seen) {
    n_ = seen;
    Met& met = met_of(signature.exact);
    bool is_new = met.first == n_;
    young_ += n_ - met.first < YOUNG;
    last_ = {signature.loose, signature.exact};
    if (kinds_.size() >= MOST && !kinds_.count(signature.loose)) return signature.exact;
    Kind& kind = kinds_[signature.loose];
    if (kind.grows) {
      last_.grow = !met.stays;
    } else if (is_new) {
      kind.arrive({n_, young_, kind.stayed});
      last_.grow = last_.since_now = kind.grows = grows(kind);
    } else if (kind.arrived >= RETURNED && kind.before(RETURNED).at > met.first) {
      stay(kind, met);
    }
    return last_.grow ? signature.loose : signature.exact;
  }
  const Sizes& last() const { return last_; }

  // These sizes came again and again, with no others: they belong to the operator from now on. Those of an operator that is
  // not seen meanwhile settle at once.
  void settle(uint64_t kind, uint64_t exact) {
    Kind& of = kinds_[kind];
    if (!stays(exact) && std::exchange(of.settled_at, n_) != n_) of.settled++;
    stay(of, met_of(exact));
  }
  // These came with what served, though others of their kind grow.
  void keep(uint64_t kind, uint64_t exact) { stay(kinds_[kind], met_of(exact)); }
  // How often in a row they have to come for that: longer for a kind that grew on all the same.
  uint32_t settles_after(uint64_t kind) const {
    auto found = kinds_.find(kind);
    return REPEATED << std::min(found == kinds_.end() ? 0u : found->second.settled, 16u);
  }

  // A fragment knows the operator by these sizes, which came there so often, once in an iteration if it is one.
  void came(uint64_t kind, uint64_t exact, uint32_t times, bool iterates) {
    bool often = times == OFTEN || (iterates && times == ITERATIONS);
    if (!often && times != WORTH) return;
    auto found = kinds_.find(kind);
    if (found == kinds_.end()) return;
    if (often) stay(found->second, met_of(exact));
    else found->second.settled = 0;
  }

  // Whether these sizes belong to their operator, though its kind grows.
  bool stays(uint64_t exact) const {
    const Met* set = &met_[exact % SETS * WAYS];
    return std::any_of(set, set + WAYS, [&](const Met& met) { return met.exact == exact && met.stays; });
  }

  void forget() {
    std::fill(met_.begin(), met_.end(), Met());
    kinds_.clear();
  }

 private:
  static constexpr size_t MOST = 4096;      // kinds
  static constexpr size_t SETS = 4096, WAYS = 8;  // of 5,000 sizes hardly ever nine share a set
  static constexpr uint64_t YOUNG = 1024;   // operators since sizes came first
  static constexpr double OTHERS = 0.35;    // of the operators since then, young ones, amid which a kind may grow
  static constexpr size_t ARRIVED = 8;      // sizes
  static constexpr size_t RETURNED = 4;     // of them, behind which one that comes back stays
  static constexpr size_t STAYED = 2;       // that may have come to stay meanwhile
  static constexpr uint32_t OFTEN = 32;     // times that sizes come in a fragment: in one iteration hardly as many layers do
  static constexpr uint32_t ITERATIONS = 8; // that they come in
  static constexpr uint32_t WORTH = 128;    // that make up for looking for them anew
  static constexpr uint32_t REPEATED = 64;  // times in a row that sizes come once a kind grows no more

  struct Met {
    uint64_t exact = 0, first = 0, last = 0;
    bool stays = false;
  };
  struct Arrival {
    uint64_t at = 0, young = 0;
    size_t stayed = 0;
  };
  struct Kind {
    std::array<Arrival, ARRIVED> last{};
    size_t arrived = 0, stayed = 0;
    bool grows = false;
    uint32_t settled = 0;      // times that sizes came to stay, and then others came
    uint64_t settled_at = ~0ull;

    void arrive(Arrival one) { last[arrived++ % ARRIVED] = one; }
    // The first one of the last so many of its sizes.
    const Arrival& before(size_t sizes) const { return last[(arrived - sizes) % ARRIVED]; }
  };

  static void stay(Kind& kind, Met& met) { kind.stayed += !std::exchange(met.stays, true); }

  bool grows(const Kind& kind) const {
    if (kind.arrived < ARRIVED) return false;
    const Arrival &first = kind.before(ARRIVED), &late = kind.before(RETURNED);
    return kind.stayed - first.stayed <= STAYED && amid_others(first) && amid_others(late);
  }
  // Whether most of what ran since then had its sizes before.
  bool amid_others(const Arrival& since) const {
    return static_cast<double>(young_ - since.young) < OTHERS * static_cast<double>(n_ - since.at);
  }

  // Of sizes that share a set the ones that came last, and rather those that stay: else operators of a loop would take
  // turns in one place, and be new ones each time.
  Met& met_of(uint64_t exact) {
    Met* set = &met_[exact % SETS * WAYS];
    Met* least = set;
    for (Met* met = set; met < set + WAYS; met++) {
      if (met->exact == exact) return met->last = n_, *met;
      if (std::tie(met->stays, met->last) < std::tie(least->stays, least->last)) least = met;
    }
    return *least = {exact, n_, n_};
  }

  std::vector<Met> met_{SETS * WAYS};
  std::unordered_map<uint64_t, Kind> kinds_;
  Sizes last_;
  uint64_t n_ = 0, young_ = 0;
};

}  // namespace grape
