// The kernels at the key: registered while a session is open, and taken back when it closes. Off, nothing is there.
#pragma once
#include "engine/engine.h"

#include <ATen/core/op_registration/op_registration.h>

#include <memory>
#include <mutex>

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
    explicit Late(Engine* engine) : engine(engine) {}
    void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
      engine->call_unknown(op, keys, stack);
    }
    Engine* engine;
  };

  void add(const c10::OperatorName& name) {
    auto& dispatcher = c10::Dispatcher::singleton();
    auto op = dispatcher.findSchema(name);
    if (!op) return;
    auto kernel = c10::KernelFunction::makeFallthrough();
    if (Operator::treatment(*op) == Treatment::Boxed)
      kernel = c10::KernelFunction::makeFromBoxedFunctor<Kernel>(std::make_unique<Kernel>(engine_.get()));
    handles_.push_back(dispatcher.registerImpl(name, KEY, std::move(kernel), std::nullopt, nullptr, "operator streams"));
  }

  std::shared_ptr<Engine> engine_;
  std::vector<c10::RegistrationHandleRAII> handles_;
};

}  // namespace grape
