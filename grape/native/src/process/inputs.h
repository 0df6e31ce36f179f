// Inputs of compiled code, as Python has them.
#pragma once
#include "operators/device.h"

#include <pybind11/pybind11.h>
#include <torch/csrc/autograd/python_variable.h>

#include <vector>

namespace grape {

struct Inputs {
  // Where `which` of them lie, in one; None where one is no plain tensor. To ask a tensor itself would expose its memory.
  static pybind11::object addresses(const pybind11::list& inputs, const std::vector<size_t>& which) {
    std::vector<const void*> found;
    for (size_t at : which) {
      PyObject* one = at < inputs.size() ? PyList_GET_ITEM(inputs.ptr(), at) : nullptr;
      if (!one || !THPVariable_CheckExact(one)) return pybind11::none();
      const at::Tensor& t = THPVariable_Unpack(one);
      if (!t.defined() || !is_plain(t)) return pybind11::none();
      found.push_back(t.const_data_ptr());
    }
    return pybind11::bytes(reinterpret_cast<const char*>(found.data()), found.size() * sizeof(void*));
  }
};

}  // namespace grape
