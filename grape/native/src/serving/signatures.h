// What an operator is known by: its signature, and where its tensors begin once that is seen to repeat.
#pragma once
#include "engine/settings.h"
#include "fragments/fragment.h"

#include <unordered_map>
#include <unordered_set>

namespace grape {

class Signatures {
 public:
  Signatures(const Settings& settings, const Device& device) : settings_(settings), device_(device) {}

  uint64_t of(const Operator& op, const Stack& stack) const {
    uint64_t sig = signature(op, stack);
    return refined_.empty() || !refined_.count(sig) ? sig : mix(sig, alignments_of(op, stack));
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
  void forget() { alignments_.clear(); }

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
};

}  // namespace grape
