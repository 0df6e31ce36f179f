// Graphs of segments: of CUDA, and pretended ones on the CPU, which freeze what those freeze.
//
//   G1  A graph is launched only while every slot of its segment lies where it lay at the capture.
//   G2  At the capture an operator's result becomes its home; who lived in the home before keeps the old memory. Where a
//       graph of another segment has the home, it stays, and the graph copies the result there.
//   G3  A capture's memory is its own: what is a temporary in one graph is no home of another. Inside of one graph a
//       temporary may lie where a later result will, so no slot reads a home of its own fragment where it lies.
#pragma once
#include "serving/launcher.h"

#include <mutex>

namespace grape {

// Executables are made and destroyed in Python, where no lock is held.
struct Dropped {
  std::mutex mutex;
  std::vector<uint64_t> numbers;

  std::vector<uint64_t> take() {
    std::lock_guard lock(mutex);
    return std::exchange(numbers, {});
  }
};

class CudaGraph final : public Graph {
 public:
  CudaGraph(const Cuda& device, void* executable, uint64_t number, std::shared_ptr<Dropped> dropped, const at::PhiloxCudaState& draws)
      : device_(device), executable_(executable), number_(number), dropped_(std::move(dropped)), draws_(draws) {}
  ~CudaGraph() override {
    std::lock_guard lock(dropped_->mutex);
    dropped_->numbers.push_back(number_);
  }
  bool launch(const Draw* draw) override {
    if (draw) {  // before each launch: other graphs may be told by the same words
      BelowEverything guard;
      device_.word(draws_.seed_.ptr).fill_(static_cast<int64_t>(draw->seed));
      device_.word(draws_.offset_.ptr).fill_(static_cast<int64_t>(draw->offset));
    }
    return device_.launch(executable_);
  }

 private:
  const Cuda& device_;
  void* executable_;
  uint64_t number_;
  std::shared_ptr<Dropped> dropped_;
  const at::PhiloxCudaState draws_;
};

// What a CUDA graph would do, by the means of the CPU: the same operators with the same numbers on the same addresses.
class PretendedGraph final : public Graph {
 public:
  // Made without computing anything, as a capture computes nothing.
  PretendedGraph(Fragment& fragment, const Segment& segment, const Draws* draws, Trash& trash) : draws_(draws) {
    for (size_t i = segment.first; i < segment.last; i++) {
      Step& step = fragment.steps[i];
      fragment.build(step);
      Frozen frozen{step.op, step.issue, {}, {}};
      std::unordered_map<int, std::pair<char*, size_t>> results;  // by slot: two may lie in one storage
      for (const Output& output : step.outputs) {
        frozen.is_made.push_back(output.argument < 0);
        for (const Made& made : output.made) {
          auto [found, is_new] = results.try_emplace(made.slot);
          if (is_new) found->second = rehome(fragment, segment, made, trash);
          frozen.results.push_back(found->second);
        }
      }
      steps_.push_back(std::move(frozen));
    }
  }

  bool launch(const Draw* draw) override {
    BelowEverything guard;
    Restored restored(draw ? draws_ : nullptr);
    if (draw) draws_->restore(*draw);
    for (const Frozen& step : steps_)  // as if temporaries had been there: see G3
      for (const auto& [where, nbytes] : step.results)
        if (where) std::memset(where, 0xA5, nbytes);
    std::exception_ptr raised;  // kernels of a GPU do not raise, and none waits for another's error
    for (const Frozen& step : steps_) {
      Stack stack = step.arguments;
      try {
        step.op->handle.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
      } catch (...) {
        if (!raised) raised = std::current_exception();
        continue;
      }
      size_t k = 0;
      for (size_t r = 0; r < step.op->returns; r++)
        if (step.is_made[r])
          for_each_tensor(stack[r], [&](const at::Tensor& t) {
            const auto& [where, nbytes] = step.results[k++];
            if (where) std::memcpy(where, t.storage().data(), std::min(nbytes, t.storage().nbytes()));
          });
    }
    if (raised) std::rethrow_exception(raised);
    return true;
  }

 private:
  struct Frozen {
    Operator* op;
    Stack arguments;
    std::vector<bool> is_made;  // by return
    std::vector<std::pair<char*, size_t>> results;
  };

  static std::pair<char*, size_t> rehome(Fragment& fragment, const Segment& segment, const Made& made, Trash& trash) {
    if (made.slot < 0) return {nullptr, 0};
    Slot& slot = fragment.slots[made.slot];
    if (fragment.stays_at_capture(made.slot, segment)) return {slot.address, slot.nbytes};
    slot.home->move_out().end(trash);
    slot.lies_at(slot.home->address(), fragment.device);
    fragment.generation++;
    return {slot.address, slot.nbytes};
  }

  std::vector<Frozen> steps_;
  const Draws* const draws_;
};

}  // namespace grape
