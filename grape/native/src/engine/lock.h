// The engine's lock.
#pragma once
#include <Python.h>

#include <mutex>

namespace grape {

class Lock {
 public:
  // K5: who has the lock may need the GIL, to drop a tensor that Python has as well.
  std::unique_lock<std::mutex> take() const {
    std::unique_lock lock(mutex_, std::try_to_lock);
    if (lock) return lock;
    PyThreadState* thread = PyGILState_Check() ? PyEval_SaveThread() : nullptr;
    lock.lock();
    if (thread) PyEval_RestoreThread(thread);
    return lock;
  }

 private:
  mutable std::mutex mutex_;
};

}  // namespace grape
