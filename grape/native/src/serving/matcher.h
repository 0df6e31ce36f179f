// An operator beside the recorded step: whether it is the same one, and what is answered instead of running it. Under the
// engine's lock.
#pragma once
#include "serving/epoch.h"
#include "serving/exposed.h"
#include "serving/signatures.h"

namespace grape {

// Written: the same operator, which runs as written this time.
enum class Match : uint8_t { Yes, Other, Written };

class Matcher {
 public:
  using Handed = c10::SmallVector<std::pair<int, c10::Storage>, 4>;  // by slot

  Matcher(const Device& device, Epoch& epoch, const Exposed& exposed, Signatures& signatures)
      : device_(device), epoch_(epoch), exposed_(exposed), signatures_(signatures) {}

  Match compare(const Step& step, const Operator& op, const Stack& stack, Reason& reason) const {
    if (step.counts_below != counts_below()) return Match::Other;
    size_t base = stack.size() - op.arguments;
    Met met;
    for (size_t i = 0; i < op.arguments; i++) {
      const IValue& value = stack[base + i];
      const Argument& argument = step.arguments[i];
      if (argument.kind == Argument::Plain) {
        if (same_number(value, argument.value)) continue;
        if (holds_tensor(value)) return Match::Other;
        reason = Reason::Number;
        continue;
      }
      uint32_t k = argument.first;
      bool same = value.isTensor() == (argument.kind == Argument::Tensor);
      for_each_tensor(value, [&](const at::Tensor& t) {
        if (same && k < argument.end) same = same_tensor(step.inputs[k], t, reason) && (!op.compares || met_before(met, t) == step.inputs[k].again);
        k++;
      });
      if (!same || k != argument.end) return Match::Other;
    }
    return reason == Reason::None ? Match::Yes : Match::Written;
  }

  // Everything was compared. Binds its tensors to their slots and takes memory for what it makes; where that cannot be,
  // nothing of it stays bound.
  Match bind(Fragment& fragment, const Step& step, const Operator& op, const Stack& stack, Reason& reason, Handed& handed) {
    auto mark = epoch_.mark();
    Match match;
    try {
      match = bind_tensors(fragment, step, op, stack, reason);
      if (match == Match::Yes) handed = hand_out(fragment, step);
    } catch (const c10::Error&) {
      match = Match::Written, reason = Reason::Room;
    }
    if (match != Match::Yes) epoch_.forget(mark);
    return match;
  }

  // In place of its kernel.
  void answer(const Step& step, const Operator& op, Stack& stack, const Handed& handed) {
    size_t base = stack.size() - op.arguments;
    if (step.bumps) bump(step, op, stack);
    c10::SmallVector<IValue, 4> returned;
    for (const Output& output : step.outputs)
      returned.push_back(output.argument >= 0 ? stack[base + output.argument] : IValue());
    stack.resize(base);
    size_t next = 0;  // results come in the order of what was handed out, but where two lie in one storage
    auto make = [&](const Made& made) -> at::Tensor {
      if (made.slot == Made::UNDEFINED) return at::Tensor();
      if (made.slot == Made::UNREAD || made.slot == Made::SEED || made.slot == Made::OFFSET) {
        at::Tensor number = zero(c10::typeMetaToScalarType(made.layout.dtype));
        if (made.slot != Made::UNREAD) *number.mutable_data_ptr<int64_t>() = static_cast<int64_t>(made.slot == Made::SEED ? step.drawn.seed : step.drawn.offset);
        return number;
      }
      c10::Storage storage;
      if (made.slot >= 0) {
        for (size_t tries = 0; tries < handed.size() && !storage; tries++)
          if (handed[next].first == made.slot) storage = handed[next].second;
          else next = (next + 1) % handed.size();
      }
      if (!storage) storage = device_.storage(0);
      // A new TensorImpl each time, of the current mode; nobody but the caller holds it.
      auto impl = c10::make_intrusive<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(device_.key), made.layout.dtype);
      impl->set_sizes_and_strides(made.layout.sizes, made.layout.strides, made.at / static_cast<int64_t>(made.layout.dtype.itemsize()));
      for (uint8_t n = made.version; n && !impl->is_inference(); n--) impl->bump_version();
      return at::Tensor(std::move(impl));
    };
    for (size_t r = 0; r < step.outputs.size(); r++) {
      const Output& output = step.outputs[r];
      if (output.argument >= 0) {
        stack.push_back(std::move(returned[r]));
      } else if (output.number.isInt()) {
        stack.push_back(output.number);
      } else if (output.list) {
        c10::List<at::Tensor> list;
        list.reserve(output.made.size());
        for (const Made& made : output.made) list.push_back(make(made));
        stack.emplace_back(std::move(list));
      } else {
        stack.emplace_back(make(output.made[0]));
      }
    }
  }

 private:
  bool same_tensor(const Input& in, const at::Tensor& t, Reason& reason) const {
    if (in.kind == Input::Any) return true;
    if (in.kind == Input::Seed) return take_number(in, t);
    if (!t.defined() || in.kind == Input::Undefined) return !t.defined() && in.kind == Input::Undefined;
    if (in.kind == Input::Number) {
      if (!device_.is_scalar(t) || is_number(t) != is_number(in.number) || t.dtype() != in.layout.dtype) return false;
      if (std::memcmp(t.const_data_ptr(), in.number.const_data_ptr(), t.itemsize()) != 0) reason = Reason::Number;
      return true;
    }
    if (!device_.holds(t) || is_number(t) || !in.layout.fits_but_for_strides(t)) return false;
    if (!t.strides().equals(c10::IntArrayRef(in.layout.strides))) reason = Reason::Strides;  // a part of what grows, perhaps
    return true;
  }

  // What it is now goes to the kernel. Nothing of the operator is pending yet.
  static bool take_number(const Input& in, const at::Tensor& t) {
    if (!t.defined() || !t.is_cpu() || t.dim() != 0 || !is_plain(t) || t.scalar_type() != at::kLong) return false;
    std::memcpy(in.number.mutable_data_ptr(), t.const_data_ptr(), t.itemsize());
    return true;
  }

  Match bind_tensors(Fragment& fragment, const Step& step, const Operator& op, const Stack& stack, Reason& reason) {
    for (size_t i = 0; i < op.arguments; i++) {
      uint32_t k = step.arguments[i].first;
      if (step.arguments[i].kind != Argument::Plain)
        for_each_tensor(stack[stack.size() - op.arguments + i], [&](const at::Tensor& t) {
          const Input& in = step.inputs[k++];
          if (in.kind != Input::Outside || reason != Reason::None) return;
          if (exposed_.has(storage_of(t))) { reason = Reason::Memory; return; }
          Bound bound = epoch_.bind(fragment, in.slot, t, in.at);
          if (bound != Bound::Yes) reason = bound == Bound::Foreign ? Reason::Memory : Reason::Aliased;
          if (bound == Bound::Misaligned) signatures_.note_alignment(fragment, step);
        });
    }
    return reason == Reason::None ? Match::Yes : Match::Written;
  }

  Handed hand_out(Fragment& fragment, const Step& step) {
    Handed handed;
    for (const Output& output : step.outputs)
      for (const Made& made : output.made)
        if (made.slot >= 0 && !epoch_.has(fragment.slots[made.slot])) handed.emplace_back(made.slot, epoch_.hand_out(fragment, made.slot));
    return handed;
  }

  static void bump(const Step& step, const Operator& op, const Stack& stack) {
    for (size_t i = 0; i < op.arguments; i++) {
      uint32_t k = step.arguments[i].first;
      if (step.arguments[i].kind != Argument::Plain)
        for_each_tensor(stack[stack.size() - op.arguments + i], [&](const at::Tensor& t) {
          for (uint8_t n = step.inputs[k++].bumps; n && !t.is_inference(); n--) t.unsafeGetTensorImpl()->bump_version();
        });
    }
  }

  const Device& device_;
  Epoch& epoch_;
  const Exposed& exposed_;
  Signatures& signatures_;
};

}  // namespace grape
