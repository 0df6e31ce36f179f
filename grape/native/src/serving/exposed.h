// E4: memory that is read or written without operators. Nothing that touches it is deferred.
#pragma once
#include "fragments/memory.h"
#include "process/python_objects.h"

#include <unordered_map>

namespace grape {

class Exposed {
 public:
  void add(StorageImpl* storage) {
    if (exposed_.size() > 1024)
      for (auto it = exposed_.begin(); it != exposed_.end();) it = it->second.use_count() == 0 ? exposed_.erase(it) : std::next(it);
    exposed_.emplace(storage, weakly(storage));
  }
  void clear() { exposed_.clear(); }

  bool has(StorageImpl* storage) const {
    return is_held_in_python(storage) || (!exposed_.empty() && exposed_.count(storage));
  }
  bool has_any(size_t arguments, const Stack& stack) const {
    bool any = false;
    for (size_t i = stack.size() - arguments; i < stack.size(); i++)
      for_each_tensor(stack[i], [&](const at::Tensor& t) { any = any || (t.defined() && t.has_storage() && has(storage_of(t))); });
    return any;
  }

 private:
  std::unordered_map<StorageImpl*, c10::weak_intrusive_ptr<StorageImpl>> exposed_;
};

}  // namespace grape
