// What an operator is known by: its signature, and where its tensors begin once that is seen to repeat.
#pragma once
#include "engine/settings.h"
#include "fragments/fragment.h"
#include "learning/growth.h"

#include <unordered_map>
#include <unordered_set>

namespace grape {

class Signatures {
 public:
  Signatures(const Settings& settings, const Device& device) : settings_(settings), device_(device) {}

  // Of an operator that no fragment followed, once. `seen` operators came before it.
  uint64_t of(const Operator& op, const Stack& stack, uint64_t seen) {
    uint64_t sig = growth_.of(Signature(op, stack), seen);
    return refined_.empty() || !refined_.count(sig) ? sig : mix(sig, alignments_of(op, stack));
  }
  // Of the operator that this was asked of last.
  const Sizes& sizes() const { return growth_.last(); }
  // The operator came to this step, which runs as written because its sizes grow: whether they seem to grow no more.
  bool settles(Step& step, const Operator& op, const Stack& stack) const {
    uint64_t sizes = Signature(op, stack).exact;
    step.same = sizes == step.sizes ? step.same + 1 : 0;
    step.sizes = sizes;
    return step.same >= growth_.settles_after(step.kind_of_sizes);
  }
  void settle(const Step& step) { growth_.settle(step.kind_of_sizes, step.sizes); }
  // An operator of the step's own sizes came there.
  void came(const Fragment& fragment, Step& step) {
    if (step.run == Reason::None) growth_.came(step.kind_of_sizes, step.sizes, ++step.came, fragment.iterates);
  }

  // Whether the step was recorded before the operators of its kind were seen to grow.
  bool is_outgrown(const Step& step) const {
    return step.kind_of_sizes == sizes().kind && step.signature != step.kind_of_sizes && !growth_.stays(step.sizes);
  }

  // The fragment served often: the sizes of its operators stay theirs, though others of their kind grow.
  void keep(const Fragment& fragment) {
    for (const Step& step : fragment.steps)
      if (is_outgrown(step)) growth_.keep(step.kind_of_sizes, step.sizes);
  }

  // It was refused for them: from now on it is seen what alignments come.
  void note_alignment(Fragment& fragment, const Step& refused) {
    Alignments& met = alignments_[refused.signature];
    if (refused.alignments || met.is_hopeless()) return;
    for (Step& step : fragment.steps)
      if (step.signature == refused.signature) step.alignments = &met;
  }

  // The operator came to this step, whose alignments are looked at: whether they are seen to repeat now.
  bool repeat(const Fragment& fragment, Step& step, const Operator& op, const Stack& stack) const {
    size_t period = step.alignments->push(alignments_of(op, stack));
    if (period && period * fragment.steps.size() <= settings_.iteration) return true;
    if (step.alignments->is_hopeless()) step.alignments = nullptr;
    return false;
  }
  // They belong to the signature from now on.
  void refine(const Step& step) { refined_.insert(step.signature); }

  // There are no steps any more.
  void forget() { alignments_.clear(), growth_.forget(); }

 private:
  uint64_t alignments_of(const Operator& op, const Stack& stack) const {
    uint64_t hash = 1;
    for (size_t i = stack.size() - op.arguments; i < stack.size(); i++)
      for_each_tensor(stack[i], [&](const at::Tensor& t) {
        if (!t.defined() || !device_.holds(t)) return;
        auto address = reinterpret_cast<uintptr_t>(storage_of(t)->data()) + static_cast<uintptr_t>(byte_offset(t));
        hash = mix(hash, alignment_class(address, device_.alignment));
      });
    return hash;
  }

  const Settings& settings_;
  const Device& device_;
  std::unordered_map<uint64_t, Alignments> alignments_;  // by signature, of what was refused for them
  std::unordered_set<uint64_t> refined_;  // signatures to which they belong
  Growth growth_;
};

}  // namespace grape
