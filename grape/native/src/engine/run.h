// An operator runs as written: its own kernel, below the key. While it is recorded, what that does is heard.
#pragma once
#include "operators/operators.h"

#include <c10/util/Exception.h>

#include <utility>
#include <vector>

namespace grape {

inline void run(Operator& op, c10::DispatchKeySet below, Stack* stack) {
  c10::impl::ExcludeDispatchKeyGuard guard(KEY);
  op.handle.redispatchBoxed(below, stack);
}

// What issued later would come at another place: warnings, which would name another line, and kernels in Python. Those of
// an operator that the kernel calls, as `ones` calls `fill_`, are its own.
struct Heard {
  size_t warnings = 0;
  std::vector<Operator*> operators;
  static inline thread_local Heard* now = nullptr;  // who listens in this thread: operators come to the key, and run

  bool must_run() const {
    return std::any_of(operators.begin(), operators.end(), [](Operator* op) { return op->has_python_kernel(); });
  }
};

inline Heard run_and_listen(Operator& op, c10::DispatchKeySet below, Stack* stack) {
  struct Listener final : c10::WarningHandler {
    c10::WarningHandler* plain = c10::WarningUtils::get_warning_handler();
    Heard heard;
    void process(const c10::Warning& warning) override { heard.warnings++, plain->process(warning); }
  } listener;
  c10::WarningUtils::WarningHandlerGuard guard(&listener);
  if (op.always == Reason::Foreign || op.always == Reason::Collective) // of others, and never deferred
    return run(op, below, stack), std::move(listener.heard);
  struct Listening {
    Heard* const before;
    explicit Listening(Heard* heard) : before(std::exchange(Heard::now, heard)) {}
    ~Listening() { Heard::now = before; }
  } listening(&listener.heard);
  op.handle.redispatchBoxed(below, stack);
  return std::move(listener.heard);
}

}  // namespace grape
