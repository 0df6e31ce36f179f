// Random numbers. The generator moves on when an operator is matched, as it would in eager code, and what is issued
// later is given the state that the generator had then. So whoever looks at it between two operators, or sets it, sees
// and does what he would without a stream.
//
//   R1  Pending operators that draw were matched one behind the other: nobody else moved the generator between them.
//   R2  Behind a launch the generator is as it was before it.
//   R3  A pass backward through attention draws again what its forward pass drew: it is told, also in a graph.
#pragma once
#include "operators/device.h"
#include "operators/operators.h"

#include <ATen/cuda/PhiloxCudaState.h>
#include <ATen/ops/empty_strided.h>

#include <memory>
#include <mutex>
#include <optional>

namespace grape {

// The generator's state in front of an operator: of CUDA two numbers, of the CPU some kilobytes.
struct Draw {
  uint64_t seed = 0, offset = 0;
  at::Tensor state;

  bool operator==(const Draw& other) const {
    if (state.defined() && other.state.defined())
      return std::memcmp(state.const_data_ptr(), other.state.const_data_ptr(), state.nbytes()) == 0;
    return state.defined() == other.state.defined() && seed == other.seed && offset == other.offset;
  }
};

// A device's default generator.
class Draws {
 public:
  virtual ~Draws() = default;

  // Whether an operator that draws may be deferred: it takes its numbers from nobody else, as many whatever its data are.
  virtual bool serves(const Operator& op) const = 0;
  virtual Draw now() const = 0;
  // How far the generator came since then; nothing where more was done to it than to draw.
  virtual std::optional<uint64_t> since(const Draw& before) const = 0;
  // Draws what the operator would, which draws so much.
  virtual void advance(const Operator& op, const Stack& stack, uint64_t moves) const = 0;
  virtual void restore(const Draw& draw) const = 0;
};

// Of CUDA: kernels are given a seed and an offset, those of a graph the addresses of both.
class Philox final : public Draws {
 public:
  explicit Philox(const Device& device) : generator_(at::globalContext().defaultGenerator(device.place)) {
    find(state_, "_ZN2at17CUDAGeneratorImpl17philox_cuda_stateEm");
    find(set_offset_, "_ZN2at17CUDAGeneratorImpl28set_philox_offset_per_threadEm");
  }

  bool serves(const Operator& op) const override { return !op.has_state; }

  Draw now() const override {
    auto state = move(0);
    return {state.seed_.val, state.offset_.val, {}};
  }
  std::optional<uint64_t> since(const Draw& before) const override {
    Draw draw = now();
    if (draw.seed != before.seed || draw.offset < before.offset) return std::nullopt;
    return draw.offset - before.offset;
  }
  void advance(const Operator&, const Stack&, uint64_t moves) const override { move(moves); }

  // By the numbers alone: what else sets a state has cuDNN draw that of its dropout anew.
  void restore(const Draw& draw) const override {
    std::lock_guard lock(generator_.mutex());
    if (state_(generator_.unsafeGetGeneratorImpl(), 0).seed_.val != draw.seed) generator_.unsafeGetGeneratorImpl()->set_current_seed(draw.seed);
    set_offset_(generator_.unsafeGetGeneratorImpl(), draw.offset);
  }

  // Where the kernels of the graph that is being captured look for seed and offset, and how far they moved so far.
  at::PhiloxCudaState captured() const { return move(0); }

 private:
  at::PhiloxCudaState move(uint64_t by) const {
    std::lock_guard lock(generator_.mutex());
    return state_(generator_.unsafeGetGeneratorImpl(), by);
  }

  template <class F>
  static void find(F*& function, const char* name) {
    void* found = dlsym(RTLD_DEFAULT, name);
    if (!found)
      if (void* loaded = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD)) found = dlsym(loaded, name);
    TORCH_CHECK(found, "torch's library for CUDA has no ", name);
    function = reinterpret_cast<F*>(found);
  }

  mutable at::Generator generator_;
  at::PhiloxCudaState (*state_)(c10::GeneratorImpl*, uint64_t) = nullptr;
  void (*set_offset_)(c10::GeneratorImpl*, uint64_t) = nullptr;
};

// Of the CPU, where a generator moves on by drawing only: over tensors that nobody has.
class Sequence final : public Draws {
 public:
  explicit Sequence(const Device& device) : device_(device), generator_(at::globalContext().defaultGenerator(device.place)) {}

  bool serves(const Operator& op) const override {
    const std::string& name = op.handle.schema().name();
    const std::string& overload = op.handle.schema().overload_name();
    for (const char* filled : {"aten::rand", "aten::randn", "aten::rand_like", "aten::randn_like", "aten::normal_", "aten::uniform_",
                               "aten::native_dropout", "aten::exponential_", "aten::log_normal_", "aten::cauchy_", "aten::geometric_"})
      if (name == filled) return overload != "out" && overload != "generator_out";
    return (name == "aten::bernoulli_" && overload == "float") || (name == "aten::bernoulli" && overload == "p");
  }

  Draw now() const override { return {0, 0, generator_.get_state()}; }
  std::optional<uint64_t> since(const Draw& before) const override { return !(now() == before); }

  void advance(const Operator& op, const Stack& stack, uint64_t) const override {
    BelowEverything guard;
    Stack scratch(stack.end() - static_cast<std::ptrdiff_t>(op.arguments), stack.end());
    for (size_t i = 0; i < op.arguments; i++)
      if (op.writes[i] && scratch[i].isTensor()) scratch[i] = like(scratch[i].toTensor());
    op.handle.redispatchBoxed(c10::DispatchKeySet(device_.key), &scratch);
  }

  void restore(const Draw& draw) const override { generator_.set_state(draw.state); }

 private:
  // With gaps where it has some: what lies in one piece is filled in another order.
  static at::Tensor like(const at::Tensor& t) { return at::empty_strided(t.sizes(), t.strides(), t.options()); }

  const Device& device_;
  mutable at::Generator generator_;
};

inline std::unique_ptr<Draws> draws_of(const Device& device) {
  if (device.is_cpu()) return std::make_unique<Sequence>(device);
  return std::make_unique<Philox>(device);
}

// R2.
class Restored {
 public:
  explicit Restored(const Draws* draws) : draws_(draws), draw_(draws ? draws->now() : Draw()) {}
  ~Restored() {
    if (draws_) draws_->restore(draw_);
  }
  Restored(const Restored&) = delete;
  void instead(const Draw& draw) { draw_ = draw; }

 private:
  const Draws* draws_;
  Draw draw_;
};

}  // namespace grape
