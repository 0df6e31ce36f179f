// Whose operators are deferred, and why others run as written. Without the engine's lock.
#pragma once
#include "operators/device.h"
#include "operators/operators.h"

#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/profiler/orchestration/observer.h>

#include <atomic>
#include <thread>

namespace grape {

class Threads {
 public:
  explicit Threads(const Device& device) : device_(device) {}

  // The owner is who opened the session last.
  void own() { owner_ = std::this_thread::get_id(); }

  // Threads of Python that carry the key. Once one of them runs an operator or a backward, and until it ends, only the
  // owner's operators are deferred; many never do.
  void join() { of_python_ = true; }
  void leave() {
    of_python_ = false;
    if (std::exchange(counted_by_, nullptr) == this) others_--;
  }
  void count() {
    if (of_python_ && counted_by_ != this) counted_by_ = this, others_++;
  }
  bool is_alone() const { return others_ == 0; }

  // The owner's operators, and those of a backward, which autograd runs on threads of its own for some devices. Nobody
  // else calls a backward while no other thread carries the key.
  bool is_followed() const {
    return std::this_thread::get_id() == owner_ ||
        (device_.has_threads() && others_ == 0 && torch::autograd::get_current_graph_task_id() != -1);
  }

  // From now on everybody's run as written.
  void bar(Reason why) { barred_ = why; }
  bool is_barred() const { return barred_ != Reason::None; }

  // While the person captures, operators are passed through.
  void pass_through(bool passing) { passing_ = passing; }
  bool is_passing() const { return passing_; }

  // Why the operator is none that is followed. In torch 2.11 modes of Python's are still to see it, in 2.13 they have.
  Reason apart(c10::DispatchKeySet below) const {
    return is_barred() ? barred_.load() : passing_ ? Reason::Capturing : torch::profiler::impl::profilerEnabled() ? Reason::Profiled
        : !is_followed() ? Reason::Thread : below.has(c10::DispatchKey::Python) ? Reason::Mode
        : !device_.is_current() ? Reason::Stream : Reason::None;
  }

 private:
  const Device& device_;
  std::thread::id owner_;
  std::atomic<Reason> barred_{Reason::None};
  std::atomic<bool> passing_{false};
  std::atomic<int> others_{0};
  static inline thread_local bool of_python_ = false;  // and another thread than the owner's
  static inline thread_local const Threads* counted_by_ = nullptr;
};

}  // namespace grape
