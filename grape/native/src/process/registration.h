// The kernels at the key: registered while a session is open, and taken back when it closes. Off, nothing is there.
#pragma once
#include "engine/engine.h"

#include <ATen/core/op_registration/op_registration.h>

#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>

namespace grape {

class Registration {
 public:
  explicit Registration(std::shared_ptr<Engine> engine) : engine_(std::move(engine)) {}

  // Why the key cannot be used, if it cannot: a kernel of torch's own there would be hidden, or would hide operators.
  static std::string refusal() {
    auto& dispatcher = c10::Dispatcher::singleton();
    if (dispatcher.hasBackendFallbackForDispatchKey(KEY)) return "this torch has a fallback at the dispatch key Fake";
    for (const auto& name : dispatcher.getAllOpNamesForDispatchKey(KEY))
      return "an operator has a kernel of its own at the dispatch key Fake: " + c10::toString(name);
    return "";
  }

  void open() {
    auto& dispatcher = c10::Dispatcher::singleton();
    for (const auto& name : dispatcher.getAllOpNames()) add(name);
    auto late = c10::KernelFunction::makeFromBoxedFunctor<Late>(std::make_unique<Late>(engine_.get()));
    handles_.push_back(dispatcher.registerFallback(KEY, std::move(late), "operator streams"));
  }

  void close() { handles_.clear(); }

  size_t size() const { return handles_.size(); }

 private:
  // Most operators are never called: what their schemas say is found at the first call.
  struct Kernel final : c10::OperatorKernel {
    explicit Kernel(Engine* engine) : engine(engine) {}
    void operator()(const c10::OperatorHandle& now, c10::DispatchKeySet keys, Stack* stack) {
      std::call_once(known, [&] { op = std::make_unique<Operator>(now); });
      if (op->always == Reason::Foreign && !op->is_still(now.schema())) engine->call_unknown(now, keys, stack);
      else engine->call(*op, keys, stack);
    }
    Engine* engine;
    std::once_flag known;
    std::unique_ptr<Operator> op;
  };

  // An operator that was defined while a session is open. Without a kernel here it could not be called.
  struct Late final : c10::OperatorKernel {
    explicit Late(Engine* engine, Reason why = Reason::Foreign) : engine(engine), why(why) {}
    void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
      engine->call_unknown(op, keys, stack, why);
    }
    Engine* engine;
    Reason why;
  };

  // A composite operator that reads the host's memory without an operator: `max_pool1d` was seen to, the others are said
  // to. It comes as a whole, before its kernel runs at autograd's key, where a subclass of tensors is one only for what
  // it is made of.
  struct Whole final : c10::OperatorKernel {
    explicit Whole(Engine* engine) : engine(engine) {}
    void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
      engine->call_unknown(op, keys.remove(c10::DispatchKey::Python), stack, Reason::Read);
    }
    Engine* engine;
  };

  static bool reads_the_host(const c10::OperatorName& name) {
    static const std::unordered_set<std::string> without_overload{
        "aten::max_pool1d", "aten::_pad_packed_sequence", "aten::choose_qparams_optimized", "aten::_sobol_engine_draw",
        "aten::_sobol_engine_ff_", "aten::_sobol_engine_scramble_", "aten::_sobol_engine_initialize_state_"};
    static const std::unordered_set<std::string> with_data{"aten::lstm", "aten::gru", "aten::rnn_tanh", "aten::rnn_relu"};
    const auto& overload = name.overload_name;
    return (overload.empty() && (without_overload.count(name.name) || name.name.rfind("aten::fbgemm_", 0) == 0)) ||
        (overload == "data" && with_data.count(name.name)) || (overload == "Tensor" && name.name == "aten::ctc_loss") ||
        (overload == "tensor_indices_or_sections" && name.name == "aten::tensor_split");
  }

  void add(const c10::OperatorName& name) {
    auto& dispatcher = c10::Dispatcher::singleton();
    auto op = dispatcher.findSchema(name);
    if (!op) return;
    auto kernel = c10::KernelFunction::makeFallthrough();
    if (engine_->device().place.is_cpu() && reads_the_host(name)) {
      kernel = c10::KernelFunction::makeFromBoxedFunctor<Late>(std::make_unique<Late>(engine_.get(), Reason::Read));
      auto whole = c10::KernelFunction::makeFromBoxedFunctor<Whole>(std::make_unique<Whole>(engine_.get()));
      const auto differentiates = c10::DispatchKey::AutogradCPU;
      handles_.push_back(dispatcher.registerImpl(name, differentiates, std::move(whole), std::nullopt, nullptr, "operator streams"));
    } else if (Operator::treatment(*op) == Treatment::Boxed) {
      kernel = c10::KernelFunction::makeFromBoxedFunctor<Kernel>(std::make_unique<Kernel>(engine_.get()));
    }
    handles_.push_back(dispatcher.registerImpl(name, KEY, std::move(kernel), std::nullopt, nullptr, "operator streams"));
  }

  std::shared_ptr<Engine> engine_;
  std::vector<c10::RegistrationHandleRAII> handles_;
};

}  // namespace grape
