// Watches operators run and writes down a fragment: what each was given, what it made, and where that lay.
#pragma once
#include "engine/run.h"
#include "learning/growth.h"
#include "learning/views.h"

#include <numeric>
#include <string>
#include <unordered_set>

namespace grape {

class Recorder {
 public:
  Recorder(uint64_t head, const Device& device, const Draws* draws) : device_(device), draws_(draws), fragment_(std::make_unique<Fragment>(device)), views_(device) { fragment_->head = head; }

  // False while the last operator runs.
  bool is_between() const { return between_; }
  size_t size() const { return fragment_->steps.size(); }

  // Before the operator runs: its arguments as they are now.
  void before(Operator& op, const Stack& stack, uint64_t signature, const Sizes& sizes, bool exposed) {
    Step step;
    step.op = &op;
    step.signature = signature;
    step.kind_of_sizes = sizes.kind, step.sizes = sizes.exact;
    step.counts_below = counts_below();
    const bool on_host = op.always == Reason::Checks || op.always == Reason::Mode;  // what only kernels of the CPU do
    step.run = on_host && !device_.is_cpu() ? Reason::None : op.always;
    still_ = op.draws_nothing(stack);
    if (still_ && step.run == Reason::Random) step.run = Reason::None;
    drawn_.reset();
    if (draws_ && step.run == Reason::Random && draws_->serves(op) && !is_given_generator(stack, op)) step.run = Reason::None, drawn_ = draws_->now();
    if (op.is_by_position(stack)) step.run = device_.is_cpu() ? Reason::Checks : Reason::None;
    if (step.run == Reason::None && op.is_packed(stack)) step.run = Reason::Host;
    if (step.run == Reason::None && op.has_python_kernel()) step.run = Reason::PythonKernel;
    if (step.run == Reason::None && exposed) step.run = Reason::Memory;
    if (step.run == Reason::None && sizes.grow) step.run = Reason::Sizes;
    size_t base = stack.size() - op.arguments;
    given_.clear();
    between_ = false;
    bool integers = false;
    Met met;
    for (size_t i = 0; i < op.arguments; i++) {
      const IValue& value = stack[base + i];
      Argument argument;
      argument.first = static_cast<uint32_t>(step.inputs.size());
      if (!holds_tensor(value)) {
        argument.value = value;
        if (step.run == Reason::None && !same_number(value, value)) step.run = Reason::Opaque;
      } else {
        argument.kind = value.isTensor() ? Argument::Tensor : value.isOptionalTensorList() ? Argument::Optionals : Argument::Tensors;
        if (argument.kind == Argument::Tensors && !value.isTensorList()) step.run = Reason::Opaque;
        for_each_tensor(value, [&](const at::Tensor& t) {
          if (op.seed[i] && is_drawn(t)) return step.inputs.push_back(seed(still_ ? Input::Any : Input::Seed));
          step.inputs.push_back(input(step, t, op.writes[i]));
          if (op.compares) step.inputs.back().again = met_before(met, t);
          integers = integers || (device_.is_cpu() && t.defined() && !is_number(t) && c10::isIntegralType(t.scalar_type(), /*includeBool=*/false));
        });
      }
      argument.end = static_cast<uint32_t>(step.inputs.size());
      step.arguments.push_back(std::move(argument));
    }
    if (step.run == Reason::None && integers && op.checks_integers) step.run = Reason::Integers;
    if (!drawn_ && step.run == Reason::None) generator_ = device_.generator_state();
    fragment_->steps.push_back(std::move(step));
  }

  // After it ran: what it returned.
  void after(const Stack& stack, const Heard& heard) {
    between_ = true;
    Step& step = fragment_->steps.back();
    Operator& op = *step.op;
    if (step.run == Reason::None && heard.warnings) step.run = Reason::Effect;
    if (step.run == Reason::None && heard.must_run()) step.run = Reason::PythonKernel;
    if (step.run == Reason::None && drawn_) {
      if (auto moves = draws_->since(*drawn_)) step.moves = *moves;
      else step.run = Reason::Random;
    } else if (step.run == Reason::None && generator_ != device_.generator_state()) {
      step.run = Reason::Random;
    }
    for (const Given& given : given_) {
      if (step.run != Reason::None) break;
      if (!given.layout.fits(given.tensor) || given.tensor.storage().data() != given.data) step.run = Reason::Metadata;
    }
    if (step.run == Reason::None) count_bumps(step);
    size_t base = stack.size() - op.returns;
    Fresh fresh{views_.size(), {}};
    for (size_t r = 0; r < op.returns && step.run == Reason::None; r++) {
      const IValue& value = stack[base + r];
      Output output;
      output.argument = op.returned_argument[r];
      if (op.hands_on && output.argument < 0 && value.isTensor()) output.argument = handed_on(step, value.toTensor());
      output.list = value.isTensorList();
      if ((still_ || op.dropout >= 0) && value.isInt()) output.number = value;  // of lengths, which follow from the arguments' layouts
      else if (output.argument < 0)
        for_each_tensor(value, [&](const at::Tensor& t) { output.made.push_back(made(step, t, fresh, op.drawn[r])); });
      if (output.argument < 0 && !output.list && output.made.size() + output.number.isInt() != 1 && step.run == Reason::None) step.run = Reason::Opaque;
      step.outputs.push_back(std::move(output));
    }
    for (auto [storage, count] : fresh.storages)  // somebody else has it as well: a cache, or the operator's own memory
      if (step.run == Reason::None && c10::raw::intrusive_ptr::use_count(storage) > count) step.run = Reason::Aliased;
    if (step.run == Reason::None)
      for (size_t i = 0; i < step.inputs.size(); i++)
        if (step.inputs[i].written && step.inputs[i].slot >= 0) views_.write(step.inputs[i].slot);
    if (step.run != Reason::None) {
      for (auto [storage, count] : fresh.storages) views_.unmake(storage);
      step.outputs.clear();
    }
    given_.clear();
  }

  std::unique_ptr<Fragment> finish(size_t longest) {
    views_.become_slots(*fragment_);
    fragment_->cut(longest);
    return std::move(fragment_);
  }

 private:
  // What the last operator made: a view each, from this one on, and how many of its results lie there.
  struct Fresh {
    size_t first;
    std::vector<std::pair<StorageImpl*, size_t>> storages;
  };

  Input input(Step& step, const at::Tensor& t, bool write) {
    Input in;
    if (!t.defined()) return in;
    if (device_.is_scalar(t) && (is_number(t) || (step.op->pointwise && !write))) {
      in.kind = Input::Number;
      in.layout = Layout::of(t);
      in.number = zero(t.scalar_type());
      in.number.unsafeGetTensorImpl()->set_wrapped_number(is_number(t));
      std::memcpy(in.number.mutable_data_ptr(), t.const_data_ptr(), t.itemsize());
      return in;
    }
    if (!device_.holds(t)) {
      Reason on_the_cpu = write ? Reason::Read : Reason::Host;  // what comes from the device is waited for
      if (step.run == Reason::None) step.run = is_plain(t) && t.is_cpu() ? on_the_cpu : Reason::Opaque;
      return in;
    }
    in.layout = Layout::of(t);
    in.written = write;
    given_.push_back({t, in.layout, t.storage().data(), version(t), step.inputs.size()});
    if (in.layout.span() == 0) {
      in.kind = Input::Empty;
      return in;
    }
    in.kind = Input::Outside;
    if (!is_torchs_own(storage_of(t), device_) && step.run == Reason::None) step.run = Reason::Memory;
    if (!views_.hold(t)) {
      if (step.run == Reason::None) step.run = Reason::Metadata;
      return in;
    }
    in.slot = views_.of(t);
    in.at = byte_offset(t);
    return in;
  }

  // One of the two numbers that tell where attention's came from; of `Any` nobody reads it.
  static Input seed(Input::Kind kind) {
    Input in;
    in.kind = kind;
    in.number = zero(at::kLong);
    return in;
  }
  bool is_drawn(const at::Tensor& t) const {
    return !device_.is_cpu() && t.defined() && t.is_cpu() && t.dim() == 0 && is_plain(t) && t.scalar_type() == at::kLong;
  }

  Made made(Step& step, const at::Tensor& t, Fresh& fresh, Drawn drawn) {
    Made m;
    if (!t.defined()) return m;
    if (still_ && t.is_cpu() && t.dim() == 0 && is_plain(t) && !device_.is_cpu()) {  // a seed that was not drawn
      m.slot = Made::UNREAD;
      m.layout = Layout::of(t);
      return m;
    }
    if (drawn != Drawn::No && step.moves && is_drawn(t)) {
      auto value = static_cast<uint64_t>(*static_cast<const int64_t*>(t.const_data_ptr()));
      if (value != (drawn == Drawn::Seed ? drawn_->seed : drawn_->offset)) return step.run = Reason::Random, m;
      m.slot = drawn == Drawn::Seed ? Made::SEED : Made::OFFSET;
      m.layout = Layout::of(t);
      return m;
    }
    if (!device_.holds(t) || is_number(t)) {
      step.run = is_plain(t) && t.is_cpu() && !is_number(t) ? Reason::Read : Reason::Opaque;  // a copy to the CPU
      return m;
    }
    if (device_.is_cpu() && c10::isIntegralType(t.scalar_type(), /*includeBool=*/false)) { step.run = Reason::Integers; return m; }
    m.layout = Layout::of(t);
    m.at = byte_offset(t);
    m.version = static_cast<uint8_t>(version(t));
    StorageImpl* storage = storage_of(t);
    if (storage->nbytes() == 0) { m.slot = Made::EMPTY; return m; }
    int known = views_.made(storage);
    if (known >= 0 && static_cast<size_t>(known) >= fresh.first) {
      fresh.storages[static_cast<size_t>(known) - fresh.first].second++;
    } else {
      if (views_.has_seen(storage) || !is_torchs_own(storage, device_)) { step.run = Reason::Aliased; return m; }
      if (m.at != 0) step.run = Reason::Metadata;  // it has the argument's place in a storage: see `copies_storage`
      fresh.storages.emplace_back(storage, 1);
      views_.make(t);
    }
    m.slot = views_.made(storage);
    return m;
  }

  // The argument that this very tensor is; -1: none is.
  int handed_on(const Step& step, const at::Tensor& t) const {
    for (const Given& given : given_)
      for (size_t i = 0; i < step.arguments.size(); i++)
        if (given.tensor.is_same(t) && step.arguments[i].kind == Argument::Tensor && step.arguments[i].first == given.input) return static_cast<int>(i);
    return -1;
  }

  static uint32_t version(const at::Tensor& t) {
    return t.is_inference() ? 0 : t.unsafeGetTensorImpl()->version_counter().current_version();
  }

  struct Given {
    at::Tensor tensor;
    Layout layout;
    const void* data;
    uint32_t version;
    size_t input;
  };

  // How often the kernel counted each written argument up. Those of a list may share one counter, as views of one storage
  // do: they share what it moved. Who shares is seen by a mark that each leaves, for counters cannot be compared.
  void count_bumps(Step& step) {
    std::vector<const Given*> counted;
    for (const Given& given : given_)
      if (step.inputs[given.input].written && version(given.tensor) != given.version) counted.push_back(&given);
    if (counted.empty()) return;
    std::unordered_set<StorageImpl*> storages;
    bool may_share = false;
    for (const Given* given : counted)
      may_share = !storages.insert(storage_of(given->tensor)).second || version(given->tensor) - given->version > 1 || may_share;
    auto counter = [](const Given* given) { return given->tensor.unsafeGetTensorImpl()->version_counter(); };
    std::vector<uint32_t> now;
    for (const Given* given : counted) now.push_back(version(given->tensor));
    std::vector<size_t> last(counted.size()), sharing(counted.size(), 0), met(counted.size(), 0);
    std::iota(last.begin(), last.end(), 0);
    if (may_share) {
      for (size_t i = 0; i < counted.size(); i++) counter(counted[i]).set_version(static_cast<int64_t>(i));
      for (size_t i = 0; i < counted.size(); i++) last[i] = version(counted[i]->tensor);
      for (size_t i = 0; i < counted.size(); i++) counter(counted[i]).set_version(now[i]);
    }
    for (size_t group : last) sharing[group]++;
    for (size_t i = 0; i < counted.size(); i++) {
      size_t all = now[i] - counted[i]->version, n = sharing[last[i]];
      size_t bumps = all / n + (met[last[i]]++ < all % n);
      if (bumps > UINT8_MAX) step.run = Reason::Metadata;
      step.inputs[counted[i]->input].bumps = static_cast<uint8_t>(bumps);
      step.bumps = step.bumps || bumps;
    }
  }

  static bool is_given_generator(const Stack& stack, const Operator& op) {
    return std::any_of(stack.end() - static_cast<std::ptrdiff_t>(op.arguments), stack.end(), [](const IValue& value) { return value.isGenerator(); });
  }

  const Device& device_;
  const Draws* const draws_;
  std::unique_ptr<Fragment> fragment_;
  Views views_;
  std::vector<Given> given_;
  bool between_ = true;
  bool still_ = false;  // an operator that may draw, and does not
  std::string generator_;     // in front of an operator that should draw nothing
  std::optional<Draw> drawn_; // and of one that may
};

}  // namespace grape
