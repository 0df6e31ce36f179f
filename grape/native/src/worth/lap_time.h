// The time that counts to laps: what is spent in operators, in waiting for the device, and in comparing what runs as
// written. Without the engine's lock.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <utility>

namespace grape {

// What is in here is timed as a whole, or not to be timed.
struct Within {
  const bool before = std::exchange(any, true);
  ~Within() { any = before; }
  static inline thread_local bool any = false;
};

class LapTime {
 public:
  using Clock = std::chrono::steady_clock;

  std::atomic<bool> timing{false}, deferring{false};  // there are laps to time; a served one was begun last

  void stop() { deferring = timing = false; }

  // Of all engines, for who waited for one may outlive it.
  static void spend_inside(Clock::time_point since) { spend(inside_ns_, since); }
  static void spend_comparing(Clock::time_point since) { spend(compared_ns_, since); }
  static uint64_t inside_ns() { return inside_ns_.load(std::memory_order_relaxed); }
  static uint64_t compared_ns() { return compared_ns_.load(std::memory_order_relaxed); }

 private:
  static void spend(std::atomic<uint64_t>& ns, Clock::time_point since) {
    ns.fetch_add((Clock::now() - since).count(), std::memory_order_relaxed);
  }

  // In operators, and in waiting for the device, while laps are timed; in comparing what runs as written.
  static inline std::atomic<uint64_t> inside_ns_{0}, compared_ns_{0};
};

}  // namespace grape
