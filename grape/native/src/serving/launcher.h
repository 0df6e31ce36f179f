// How the pending operators of a segment are issued: as its graph, or one after the other from the record, over their slots.
#pragma once
#include "fragments/fragment.h"

#include <exception>

namespace grape {

class Launcher {
 public:
  Launcher(const Device& device, const Draws* draws) : device_(device), draws_(draws) {}

  // Issues steps [first, last), as a graph where `whole` has one. What raises is demoted and its exception returned; what
  // comes behind it is not issued, as it would not have run as written.
  std::exception_ptr launch(Fragment& fragment, size_t first, size_t last, Segment* whole) {
    if (whole && whole->graph) {
      try {
        const Draw* draw = whole->draws < 0 ? nullptr : &fragment.steps[whole->draws].drawn;
        if (fragment.lies_as_captured(*whole)) {
          tell(fragment, *whole);
          if (whole->graph->launch(draw)) return graphs++, whole->served++, nullptr;
        }
      } catch (...) {
        whole->graph.reset();
        return std::current_exception();
      }
      whole->graph.reset(), stale++;
      if (std::exchange(whole->served, 0) >= Segment::WORTH) whole->captures = 0;
    }
    BelowEverything guard;
    bool draws = std::any_of(&fragment.steps[first], &fragment.steps[first] + (last - first), [](const Step& step) { return step.moves > 0; });
    Restored restored(draws ? draws_ : nullptr);
    for (size_t i = first; i < last; i++) {
      Step& step = fragment.steps[i];
      try {
        if (step.moves) draws_->restore(step.drawn);
        issue(fragment, step, nullptr);
      } catch (...) {
        stack_.clear();
        fragment.demote(step, Reason::Raised);
        for (size_t k = last - 1; k > i; k--)
          if (fragment.steps[k].moves) restored.instead(fragment.steps[k].drawn);  // what is not issued drew nothing
        return std::current_exception();
      }
    }
    return nullptr;
  }

  // Issues a segment while a stream is captured; -1, or the step that cannot be. What the graph's allocator gave an
  // operator for its result becomes the home, and whoever lived there keeps the memory: see G2. Where another segment's
  // graph has the home where it is, the result is copied there.
  std::ptrdiff_t issue_captured(Fragment& fragment, const Segment& segment, Trash& trash, std::string& why) {
    BelowEverything guard;
    for (size_t i = segment.first; i < segment.last; i++) {
      try {
        issue(fragment, fragment.steps[i], &trash, &segment);
      } catch (const std::exception& error) {
        stack_.clear();
        why = error.what();
        return static_cast<std::ptrdiff_t>(i);
      }
    }
    return -1;
  }

  uint64_t graphs = 0, stale = 0;  // launched; dropped because a slot had moved

 private:
  // Attention's numbers, to the graph that is launched next.
  void tell(const Fragment& fragment, const Segment& segment) const {
    if (segment.seeds.empty()) return;
    std::vector<int64_t> numbers;
    for (const Seed& seed : segment.seeds) numbers.push_back(*fragment.steps[seed.step].inputs[seed.input].number.const_data_ptr<int64_t>());
    device_.upload(segment.words.get(), numbers);
  }

  void issue(Fragment& fragment, Step& step, Trash* rehome, const Segment* captured = nullptr) {
    if (step.built != fragment.generation) fragment.build(step);
    stack_.assign(step.issue.begin(), step.issue.end());
    if (captured)
      for (size_t k = 0; k < captured->seeds.size(); k++)
        if (&fragment.steps[captured->seeds[k].step] == &step) stack_[captured->seeds[k].argument] = device_.word(static_cast<int64_t*>(captured->words.get()) + k);
    step.op->handle.redispatchBoxed(c10::DispatchKeySet(device_.key), &stack_);
    for (size_t r = 0; r < step.outputs.size(); r++) {
      size_t k = 0;
      const Output& output = step.outputs[r];
      if (output.argument < 0)
        for_each_tensor(stack_[r], [&](const at::Tensor& t) {
          const Made& made = output.made[k++];
          if (made.slot < 0) return;
          Slot& slot = fragment.slots[made.slot];
          TORCH_CHECK(made.layout.fits(t) && byte_offset(t) == made.at, step.op->handle.operator_name(), " made another layout than recorded: ", t.sizes(), " ", t.strides(), " at ", byte_offset(t));
          StorageImpl* storage = storage_of(t);
          if (rehome && slot.home && !fragment.stays_at_capture(made.slot, *captured) && device_.allocated(storage) && storage->nbytes() == slot.nbytes) {
            char* where = static_cast<char*>(storage->mutable_data());
            slot.home->move_to(storage->set_data_ptr(at::DataPtr(where, device_.place))).end(*rehome);
            slot.lies_at(where, device_);
            fragment.generation++;
          } else if (slot.address != storage->data()) {
            device_.copy({slot.address, static_cast<const char*>(storage->data()), std::min(slot.nbytes, storage->nbytes())});
          }
        });
    }
    stack_.clear();
  }

  const Device& device_;
  const Draws* const draws_;
  Stack stack_;
};

}  // namespace grape
