// Where in the person's code operators of fragments run as written, how often, and how long that took. Python says where.
// It is asked at a step's first run and at ever longer distances from there, for another line may do the same.
#pragma once
#include "operators/operators.h"

#include <algorithm>
#include <unordered_map>

namespace grape {

// What a step remembers of its runs as written.
struct Stop {
  uint32_t look = 0;  // in which the rest holds
  int place = 0;
  uint32_t runs = 0;
  uint8_t distance = 0, left = 0;  // in runs, until Python is asked again
};

class AsWritten {
 public:
  static constexpr int NOBODY = 0, NOT_NOW = -1;  // places that are none of Python's

  struct Row {
    int user;  // whom it counts for
    std::string op;
    Reason reason;
    int place;
    uint64_t times = 0, ns = 0, cuts = 0;  // cuts: of what was pending
  };

  // One run: the row that it counts for, and for how many runs its time stands; 0: it is not timed.
  struct Run {
    uint32_t look = 0, weight = 0;
    size_t row = 0;
  };

  // Other code runs from now on: nothing that is known of places holds for it.
  void look_anew() {
    rows_.clear();
    known_.clear();
    look_++;
  }
  void charge(int user) { user_ = user; }
  const std::vector<Row>& rows() const { return rows_; }

  // Whether Python should be asked where the step stands, before it runs.
  bool wants_place(Stop& stop) const {
    if (stop.look != look_) stop = Stop{look_};
    if (stop.left > 0) stop.left--;
    return stop.left == 0;
  }
  void found(Stop& stop, int place) const {
    bool same = place == NOT_NOW || (stop.distance && place == stop.place);
    stop.left = stop.distance = static_cast<uint8_t>(same ? std::clamp(4 * stop.distance, 1, FURTHEST) : 1);
    if (place != NOT_NOW) stop.place = place;
  }

  // Clocks are slow next to a small operator: of what waits for nothing the first runs are timed, and then some.
  Run count(const Operator& op, Reason reason, Stop& stop, bool cuts, bool waits) {
    int place = stop.look == look_ ? stop.place : NOBODY;
    auto [known, is_new] = known_.try_emplace(mix(key(op, reason, place), static_cast<uint64_t>(user_)), rows_.size());
    if (is_new) {
      if (rows_.size() >= MOST) return known_.erase(known), Run();
      rows_.push_back({user_, op.handle.schema().name(), reason, place});
    }
    Row& row = rows_[known->second];
    row.times++, row.cuts += cuts;
    uint32_t run = stop.runs++;
    return {look_, waits || run < TIMED ? 1 : run % TIMED == TIMED - 1 ? TIMED : 0, known->second};
  }
  void took(const Run& run, uint64_t ns) {
    if (run.look == look_) rows_[run.row].ns += run.weight * ns;
  }

 private:
  static constexpr size_t MOST = 1000;
  static constexpr int FURTHEST = 64;
  static constexpr uint32_t TIMED = 8;

  static uint64_t key(const Operator& op, Reason reason, int place) {
    return mix(mix(reinterpret_cast<uint64_t>(&op), static_cast<uint64_t>(reason)), static_cast<uint64_t>(place));
  }

  uint32_t look_ = 1;
  int user_ = 0;
  std::vector<Row> rows_;
  std::unordered_map<uint64_t, size_t> known_;
};

}  // namespace grape
