// How the pending operators of a segment are issued. On the CPU one after the other, over their slots; a launcher of CUDA
// graphs launches the segment's graph where `whole`, and issues what a divergence left of one.
#pragma once
#include "fragment.h"

#include <exception>

namespace grape {

// The dispatch state in which recorded operators run: no autograd, autocast, mode or engine above the backend.
class BelowEverything {
  static c10::DispatchKeySet excluded() {
    return c10::DispatchKeySet(KEY) | c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset |
        c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot, c10::DispatchKey::FuncTorchDynamicLayerFrontMode,
                             c10::DispatchKey::FuncTorchDynamicLayerBackMode, c10::DispatchKey::Functionalize});
  }
  c10::impl::ForceDispatchKeyGuard guard_{c10::DispatchKeySet(c10::DispatchKey::BackendSelect), excluded()};
};

class Launcher {
 public:
  virtual ~Launcher() = default;
  // Issues steps [first, last). What raises is demoted, the others are issued; the first exception is returned.
  virtual std::exception_ptr launch(Fragment& fragment, size_t first, size_t last, bool whole) = 0;
};

class IssueFromRecord final : public Launcher {
 public:
  std::exception_ptr launch(Fragment& fragment, size_t first, size_t last, bool) override {
    BelowEverything guard;
    std::exception_ptr raised;
    for (size_t i = first; i < last; i++) {
      Step& step = fragment.steps[i];
      if (step.built != fragment.generation) fragment.build(step);
      try {
        issue(fragment, step);
      } catch (...) {
        step.run = Reason::Raised;
        if (!raised) raised = std::current_exception();
      }
    }
    return raised;
  }

 private:
  void issue(Fragment& fragment, Step& step) {
    stack_.assign(step.issue.begin(), step.issue.end());
    step.op->handle.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack_);
    for (size_t r = 0; r < step.outputs.size(); r++) {
      size_t k = 0;
      const Output& output = step.outputs[r];
      if (output.argument < 0)
        for_each_tensor(stack_[r], [&](const at::Tensor& t) {
          const Made& made = output.made[k++];
          if (made.slot < 0) return;
          const Slot& slot = fragment.slots[made.slot];
          TORCH_CHECK(made.layout.fits(t) && byte_offset(t) == made.at, "a recorded operator made another layout");
          if (slot.address != t.storage().data()) std::memcpy(slot.address, t.storage().data(), std::min(slot.nbytes, t.storage().nbytes()));
        });
    }
    stack_.clear();
  }
  Stack stack_;
};

}  // namespace grape
