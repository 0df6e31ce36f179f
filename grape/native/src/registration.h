// The kernels at the key: registered while a session is open, and taken back when it closes. Off, nothing is there.
#pragma once
#include "engine.h"

#include <ATen/core/op_registration/op_registration.h>

#include <deque>
#include <memory>
#include <optional>

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
    listener_.emplace(dispatcher.addRegistrationListener(std::make_unique<Listener>(this)));
    listening_ = true;
  }

  void close() {
    listening_ = false;
    listener_.reset();
    handles_.clear();
    operators_.clear();
  }

  size_t size() const { return handles_.size(); }

 private:
  struct Kernel final : c10::OperatorKernel {
    Kernel(Registration* registration, Operator* op) : registration(registration), engine(registration->engine_.get()), op(op) {}
    void operator()(const c10::OperatorHandle&, c10::DispatchKeySet keys, Stack* stack) {
      if (registration->unseen_.load(std::memory_order_relaxed)) registration->add_unseen();
      engine->call(*op, keys, stack);
    }
    Registration* registration;
    Engine* engine;
    Operator* op;
  };

  // An operator defined while a session is open gets its kernel at the next operator, for the dispatcher is locked here.
  // Until then it runs unseen, so nothing may be pending.
  struct Listener final : c10::OpRegistrationListener {
    explicit Listener(Registration* registration) : registration(registration) {}
    void onOperatorRegistered(const c10::OperatorHandle& op) override {
      if (!registration->listening_) return;
      registration->engine_->flush();
      std::lock_guard lock(registration->mutex_);
      registration->waiting_.push_back(op.operator_name());
      registration->unseen_ = true;
    }
    void onOperatorDeregistered(const c10::OperatorHandle&) override {}
    Registration* registration;
  };

  void add(const c10::OperatorName& name) {
    auto& dispatcher = c10::Dispatcher::singleton();
    auto op = dispatcher.findSchema(name);
    if (!op) return;
    auto kernel = c10::KernelFunction::makeFallthrough();
    if (Operator::treatment(*op) == Treatment::Boxed) {
      operators_.emplace_back(*op);
      kernel = c10::KernelFunction::makeFromBoxedFunctor<Kernel>(std::make_unique<Kernel>(this, &operators_.back()));
    }
    handles_.push_back(dispatcher.registerImpl(name, KEY, std::move(kernel), std::nullopt, nullptr, "operator streams"));
  }

  void add_unseen() {
    std::vector<c10::OperatorName> names;
    {
      std::lock_guard lock(mutex_);
      names.swap(waiting_);
      unseen_ = false;
    }
    for (const auto& name : names) add(name);
  }

  std::shared_ptr<Engine> engine_;
  std::deque<Operator> operators_;
  std::vector<c10::RegistrationHandleRAII> handles_;
  std::optional<c10::RegistrationHandleRAII> listener_;
  std::mutex mutex_;
  std::vector<c10::OperatorName> waiting_;
  std::atomic<bool> unseen_{false}, listening_{false};
};

}  // namespace grape
