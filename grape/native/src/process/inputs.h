// Inputs of compiled code, as Python has them.
#pragma once
#include "serving/alignments.h"
#include "operators/device.h"

#include <pybind11/pybind11.h>
#include <torch/csrc/autograd/python_variable.h>

#include <vector>

namespace grape {

// To ask a tensor itself for its address would expose its memory.
struct Inputs {
  using Numbers = std::vector<size_t>;

  // In one: where those lie that `stay`, with their layouts, and the class of the address of those that `move`. None where
  // one of them is no plain tensor, where one that stays is on another device than CUDA's `device` (the CPU where that is
  // below 0), or where one that moves lies in memory of one that is `written`.
  static pybind11::object addresses(const pybind11::list& inputs, const Numbers& stay, const Numbers& move, const Numbers& written, int device) {
    std::vector<int64_t> found;
    for (size_t at : stay) {
      const at::Tensor* t = tensor(inputs, at);
      if (!t || (device < 0 ? !t->is_cpu() : !t->is_cuda() || t->get_device() != device)) return pybind11::none();
      found.push_back(reinterpret_cast<int64_t>(t->const_data_ptr()));
      found.push_back(static_cast<int64_t>(t->scalar_type()));
      found.push_back(t->dim());
      found.insert(found.end(), t->sizes().begin(), t->sizes().end());
      found.insert(found.end(), t->strides().begin(), t->strides().end());
    }
    for (size_t at : move) {
      if (at < inputs.size() && PyLong_CheckExact(PyList_GET_ITEM(inputs.ptr(), at))) continue;
      const at::Tensor* t = tensor(inputs, at);
      if (!t) return pybind11::none();
      for (size_t other : written)
        if (const at::Tensor* w = tensor(inputs, other); !w || is_shared(storage_of(*t), storage_of(*w))) return pybind11::none();
      found.push_back(static_cast<int64_t>(alignment_class(address(*t), CONTENT)));
    }
    return pybind11::bytes(reinterpret_cast<const char*>(found.data()), found.size() * sizeof(int64_t));
  }

  // Bytes from the last address that no kernel asks more of.
  static size_t begins(const at::Tensor& t) { return address(t) % CONTENT; }

 private:
  static constexpr size_t CONTENT = 256;
  static uintptr_t address(const at::Tensor& t) { return reinterpret_cast<uintptr_t>(t.const_data_ptr()); }

  static const at::Tensor* tensor(const pybind11::list& inputs, size_t at) {
    PyObject* one = at < inputs.size() ? PyList_GET_ITEM(inputs.ptr(), at) : nullptr;
    if (!one || !THPVariable_CheckExact(one)) return nullptr;
    const at::Tensor& t = THPVariable_Unpack(one);
    return t.defined() && is_plain(t) ? &t : nullptr;
  }

  // Other storages may refer to the same memory.
  static bool is_shared(const StorageImpl* one, const StorageImpl* other) {
    auto from = [](const StorageImpl* s) { return static_cast<const char*>(s->data()); };
    return one == other || (from(one) < from(other) + other->nbytes() && from(other) < from(one) + one->nbytes());
  }
};

}  // namespace grape
