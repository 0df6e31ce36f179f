// What operators that make plans, tune or compile for the sizes of their tensors take when they meet sizes for the first
// time, and when they meet them again. Clocks are slow next to a small operator: others are not looked at.
#pragma once
#include "operators/operators.h"
#include "told/as_written.h"

#include <string>
#include <unordered_set>
#include <vector>

namespace grape {

class FirstVisits {
 public:
  struct Row {
    int user;  // whom it counts for
    const Operator* op;
    std::string name;
    int place;                           // of the first one
    std::vector<uint64_t> first, later;  // nanoseconds
  };

  // One run, since the look that it is of.
  struct Visit {
    bool counts = false, first = false;
    uint32_t look = 0;
    size_t row = 0;
  };

  // What was met stays met.
  void look_anew() {
    rows_.clear();
    look_++;
  }
  void charge(int user) { user_ = user; }
  const std::vector<Row>& rows() const { return rows_; }

  Visit begin(const Operator& op, const Stack& stack) {
    if (met_.size() >= MOST) return {};
    size_t row = 0;
    while (row < rows_.size() && (rows_[row].op != &op || rows_[row].user != user_)) row++;
    if (row == rows_.size()) rows_.push_back({user_, &op, op.handle.schema().name(), AsWritten::NOT_NOW, {}, {}});
    return {true, met_.insert(Signature(op, stack).exact).second, look_, row};
  }
  bool wants_place(const Visit& visit) const {
    return visit.first && visit.look == look_ && rows_[visit.row].place == AsWritten::NOT_NOW;
  }
  void found(const Visit& visit, int place) {
    if (visit.look == look_) rows_[visit.row].place = place;
  }
  void took(const Visit& visit, uint64_t ns) {
    if (visit.look != look_) return;
    auto& times = visit.first ? rows_[visit.row].first : rows_[visit.row].later;
    if (times.size() < MOST_TIMES) times.push_back(ns);
  }

 private:
  static constexpr size_t MOST = 1 << 16, MOST_TIMES = 4096;

  std::unordered_set<uint64_t> met_;  // signatures
  std::vector<Row> rows_;
  uint32_t look_ = 1;
  int user_ = 0;
};

}  // namespace grape
