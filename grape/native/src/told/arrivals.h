// When this rank arrives at collectives, and where in the person's code: on the clock of the host, or on the device's,
// whose marks are read when the run is over. Of a run the last ones are kept.
#pragma once
#include "operators/device.h"
#include "told/as_written.h"

#include <chrono>
#include <mutex>

namespace grape {

class Arrivals {
 public:
  // At one collective. `at_ns`: since the epoch, 0 where no clock told; `pass`: of autograd's, -1 outside of one.
  struct Row {
    std::string op;
    int place = AsWritten::NOT_NOW;
    int pass = -1;
    uint64_t at_ns = 0;
    Mark mark;
  };

  void look_anew() {
    std::lock_guard lock(mutex_);
    rows_.clear();
    met_ = passes_ = 0;
    backward_ = AsWritten::NOBODY;
  }

  // Whether Python should be asked where the next collective stands, or the pass that begins: that takes longer than to
  // issue some of them.
  bool wants_place() const { return seldom(met_.load(std::memory_order_relaxed)); }
  bool wants_pass() { return met_.load(std::memory_order_relaxed) && seldom(passes_++); }
  void begin_pass(int place) {
    std::lock_guard lock(mutex_);
    if (place != AsWritten::NOT_NOW) backward_ = place;
  }

  // A thread of autograd's own has no place but that of the pass.
  void arrive(const std::string& op, int place, int pass, const Device& device) {
    std::lock_guard lock(mutex_);
    uint64_t number = met_.fetch_add(1, std::memory_order_relaxed);
    if (rows_.size() < MOST) rows_.emplace_back();
    Row& row = rows_[number % MOST];
    row.op = op, row.pass = pass;
    row.place = place == AsWritten::NOBODY && pass != -1 ? backward_ : place;
    row.at_ns = device.is_cpu() ? host_ns() : device.mark(row.mark);
  }

  // In their order, and how many there were. The device has nothing left to do.
  std::pair<std::vector<Row>, uint64_t> take(const Device& device) {
    std::lock_guard lock(mutex_);
    uint64_t met = met_.exchange(0);
    std::vector<Row> found = std::exchange(rows_, {});
    if (met > found.size()) std::rotate(found.begin(), found.begin() + static_cast<long>(met % MOST), found.end());
    if (!device.is_cpu()) read(found, device);
    return {std::move(found), met};
  }

 private:
  static constexpr size_t MOST = 4096;
  static constexpr uint64_t OFTEN = 256, SELDOM = 16;
  static bool seldom(uint64_t number) { return number < OFTEN || number % SELDOM == 0; }

  static uint64_t host_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  }

  static void read(std::vector<Row>& rows, const Device& device) {
    Mark last;
    if (rows.empty() || !device.mark(last)) return;
    last->synchronize();
    uint64_t now = host_ns();
    for (Row& row : rows) {
      row.at_ns = row.at_ns && row.mark->query() ? now - static_cast<uint64_t>(row.mark->elapsedTime(*last) * 1e6) : 0;
      row.mark.reset();
    }
  }

  std::mutex mutex_;
  std::vector<Row> rows_;
  std::atomic<uint64_t> met_{0}, passes_{0};
  int backward_ = AsWritten::NOBODY;
};

}  // namespace grape
