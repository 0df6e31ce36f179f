// Operators whose sizes are new ones again and again, as those of a cache that grows, amid others that repeat.
#pragma once
#include "operators/operators.h"

#include <array>
#include <unordered_map>
#include <vector>

namespace grape {

// What is known of an operator's sizes: their kind, and whether it grows, and did not before.
struct Sizes {
  uint64_t kind = 0;
  bool grow = false, since_now = false;
};

// Operators of the same name, dimensions and dtypes are a kind. It grows where sizes arrive that it never had, and those
// before do not come back, while most of what runs beside it had its sizes before: where everything is new, as in the first
// batches of a loader that pads, whole iterations come again instead. Its operators run as written, and what lies between
// them repeats.
class Growth {
 public:
  // What the operator is known by: without its sizes, where its kind grows. `seen` operators came before it, of which those
  // that a fragment answered had their sizes before.
  uint64_t of(const Signature& signature, uint64_t seen) {
    young_ *= std::max(0.0, 1 - static_cast<double>(seen - n_) / MEAN);
    n_ = seen;
    Met& met = met_[signature.exact % met_.size()];
    bool is_new = met.exact != signature.exact;
    if (is_new) met = {signature.exact, n_};
    young_ += (n_ - met.first < YOUNG) / MEAN;
    last_ = {signature.loose};
    if (kinds_.size() >= MOST && !kinds_.count(signature.loose)) return signature.exact;
    Kind& kind = kinds_[signature.loose];
    if (kind.grows) {
      last_.grow = !met.stays;
    } else if (is_new) {
      kind.arrive(n_);
      last_.grow = last_.since_now = kind.grows = kind.arrived >= ARRIVED && ENDURING * kind.endured <= kind.arrived && young_ < OTHERS;
    } else if (!met.stays && met.first < kind.earliest()) {
      met.stays = true, kind.endured++;
    }
    return last_.grow ? signature.loose : signature.exact;
  }
  const Sizes& last() const { return last_; }

  // These sizes came again and again, with no others: they belong to the operator from now on.
  void settle(uint64_t kind, uint64_t exact) {
    if (!stays(exact)) kinds_[kind].settled++;
    met_[exact % met_.size()] = {exact, n_, true};
  }
  // How often in a row they have to come for that: longer for a kind that grew on all the same.
  uint32_t settles_after(uint64_t kind) const {
    auto found = kinds_.find(kind);
    return REPEATED << std::min(found == kinds_.end() ? 0u : found->second.settled, 16u);
  }

  // Whether an operator of a growing kind has these sizes in particular.
  bool stays(uint64_t exact) const {
    const Met& met = met_[exact % met_.size()];
    return met.exact == exact && met.stays;
  }

  void forget() {
    std::fill(met_.begin(), met_.end(), Met());
    kinds_.clear();
    young_ = 1;
  }

 private:
  static constexpr size_t MOST = 4096;      // kinds
  static constexpr uint64_t YOUNG = 1024;   // operators since sizes came first
  static constexpr double MEAN = 2048;      // operators over which is counted how many of them are young
  static constexpr double OTHERS = 0.35;    // young ones, of which a kind may grow
  static constexpr uint32_t ARRIVED = 8;    // sizes
  static constexpr uint32_t ENDURING = 4;   // one in so many may have come back
  static constexpr uint32_t REPEATED = 64;  // times in a row that sizes come once a kind grows no more

  // Sizes of a kind. Of those that share a place the last ones, as in `Finder`.
  struct Met {
    uint64_t exact = 0, first = 0;
    bool stays = false;  // they came back behind others that arrived later, before their kind was seen to grow
  };

  struct Kind {
    std::array<uint64_t, 4> at{};  // when its last sizes arrived
    uint32_t arrived = 0, endured = 0;
    bool grows = false;
    uint32_t settled = 0;  // times that sizes came to stay

    void arrive(uint64_t now) { at[arrived++ % at.size()] = now; }
    uint64_t earliest() const { return arrived < at.size() ? 0 : at[arrived % at.size()]; }
  };

  std::vector<Met> met_{65536};
  std::unordered_map<uint64_t, Kind> kinds_;
  Sizes last_;
  uint64_t n_ = 0;
  double young_ = 1;
};

}  // namespace grape
