// An operator runs as written: its own kernel, below the key.
#pragma once
#include "operators/operators.h"

#include <c10/util/Exception.h>

namespace grape {

inline void run(Operator& op, c10::DispatchKeySet below, Stack* stack) {
  c10::impl::ExcludeDispatchKeyGuard guard(KEY);
  op.handle.redispatchBoxed(below, stack);
}

// How many warnings a kernel gave. Issued later, they would name another line.
inline size_t run_and_listen(Operator& op, c10::DispatchKeySet below, Stack* stack) {
  struct Listener final : c10::WarningHandler {
    c10::WarningHandler* plain = c10::WarningUtils::get_warning_handler();
    size_t heard = 0;
    void process(const c10::Warning& warning) override { heard++, plain->process(warning); }
  } listener;
  c10::WarningUtils::WarningHandlerGuard guard(&listener);
  run(op, below, stack);
  return listener.heard;
}

}  // namespace grape
