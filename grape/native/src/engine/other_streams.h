// E5: operators of other streams than the one that is deferred on.
#pragma once
#include "engine/lock.h"
#include "serving/follower.h"

#include <torch/csrc/autograd/graph_task.h>

namespace grape {

class OtherStreams {
 public:
  OtherStreams(Device& device, const Lock& lock, Finder& finder, Epoch& epoch, Follower& follower, const Counts& counts)
      : device_(device), lock_(lock), finder_(finder), epoch_(epoch), follower_(follower), counts_(counts) {}

  // An operator of another stream: it waits for everything that was launched late, and what it is given is no home's any
  // more, for the host does not know how long it is read. Autograd tells the allocator of the streams that a gradient
  // goes to, which hears nothing of memory that is lent at that moment: here it is told again.
  void leave(const Operator& op, const Stack& stack) {
    std::vector<at::Tensor> lent;
    bool gradients = !device_.is_current() && torch::autograd::get_current_graph_task_id() != -1;
    {
      auto lock = lock_.take();
      for (size_t i = stack.size() - op.arguments; i < stack.size(); i++)
        for_each_tensor(stack[i], [&](const at::Tensor& t) {
          if (!t.defined() || !device_.holds(t)) return;
          if (Tenancy* tenancy = tenancy_of(storage_of(t))) {
            follower_.launch();
            finder_.each([&](Fragment& fragment) { epoch_.give_away(fragment, tenancy); });
          } else if (!gradients) {
            return;
          }
          lent.push_back(t);
        });
      if (device_.is_current()) return;
      device_.let_wait(counts_.segments);
    }
    c10::impl::ExcludeDispatchKeyGuard guard(KEY);
    for (const at::Tensor& t : lent) device_.used_here(t);
  }

 private:
  Device& device_;
  const Lock& lock_;
  Finder& finder_;
  Epoch& epoch_;
  Follower& follower_;
  const Counts& counts_;
};

}  // namespace grape
