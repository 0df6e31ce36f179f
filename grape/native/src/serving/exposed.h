// E4: memory that is read or written without operators. Nothing that touches it is deferred.
#pragma once
#include "fragments/memory.h"
#include "process/python_objects.h"

#include <set>
#include <unordered_map>

namespace grape {

class Exposed {
 public:
  void add(StorageImpl* storage) {
    if (exposed_.size() > 1024)
      for (auto it = exposed_.begin(); it != exposed_.end();) it = it->second.use_count() == 0 ? exposed_.erase(it) : std::next(it);
    exposed_.emplace(storage, weakly(storage));
  }
  // The address of a storage for a part of another's memory, which may be gone when that is read there.
  void add_part(const StorageImpl* part) { parts_.insert(static_cast<const char*>(part->data())); }
  void clear() { exposed_.clear(), parts_.clear(); }

  bool has(StorageImpl* storage) const {
    return is_held_in_python(storage) || (!exposed_.empty() && exposed_.count(storage)) || (!parts_.empty() && has_part(storage));
  }
  bool has_any(size_t arguments, const Stack& stack) const {
    bool any = false;
    for (size_t i = stack.size() - arguments; i < stack.size(); i++)
      for_each_tensor(stack[i], [&](const at::Tensor& t) { any = any || (t.defined() && t.has_storage() && has(storage_of(t))); });
    return any;
  }

 private:
  bool has_part(const StorageImpl* storage) const {
    const char* begin = static_cast<const char*>(storage->data());
    auto first = parts_.lower_bound(begin);
    return first != parts_.end() && *first < begin + storage->nbytes();
  }

  std::unordered_map<StorageImpl*, c10::weak_intrusive_ptr<StorageImpl>> exposed_;
  std::set<const char*> parts_;
};

}  // namespace grape
