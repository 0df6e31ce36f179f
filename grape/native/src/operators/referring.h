// `set_`: a tensor refers to another storage from now on. Storages are what is watched, whoever refers to them, so that
// this is one more view, unless memory has to grow for it.
#pragma once
#include "operators/device.h"
#include "operators/operators.h"

namespace grape {

class Referring {
 public:
  // Whether nothing but the tensor changes. False where that is not known.
  static bool keeps_memory(const Operator& op, const Stack& stack, const Device& device) {
    const IValue* given = &stack[stack.size() - op.arguments];
    if (!given[0].isTensor() || !device.holds(given[0].toTensor())) return false;
    if (op.arguments == 1) return true;  // to one of its own, without bytes
    const at::Tensor& tensor = given[0].toTensor();
    if (given[1].isTensor()) {
      const at::Tensor& source = given[1].toTensor();
      if (op.arguments > 2 || !source.defined() || !device.holds(source)) return false;
      return has_room(*storage_of(source), source.storage_offset(), source.sizes(), source.strides(), tensor.itemsize());
    }
    if (!given[1].isStorage() || given[1].toStorage().device() != device.place) return false;
    if (op.arguments == 2) return true;  // to the whole storage
    if (op.arguments != 5 || !given[2].isInt() || !given[3].isIntList() || !given[4].isIntList()) return false;
    auto sizes = given[3].toIntVector(), strides = given[4].toIntVector();
    return has_room(*given[1].toStorage().unsafeGetStorageImpl(), given[2].toInt(), sizes, strides, tensor.itemsize());
  }

 private:
  // Without strides: in one piece.
  static bool has_room(const StorageImpl& storage, int64_t offset, c10::IntArrayRef sizes, c10::IntArrayRef strides, size_t itemsize) {
    if (offset < 0 || (!strides.empty() && strides.size() != sizes.size())) return false;
    const __int128 room = static_cast<__int128>(storage.nbytes() / itemsize);
    __int128 last = offset, stride = 1;
    for (size_t i = sizes.size(); i-- > 0;) {
      if (sizes[i] < 0 || (!strides.empty() && strides[i] < 0)) return false;
      if (!strides.empty()) stride = strides[i];
      last += (sizes[i] - 1) * stride;
      if (strides.empty()) stride *= sizes[i];
      if (last >= room) return false;
    }
    return last < room;
  }
};

}  // namespace grape
