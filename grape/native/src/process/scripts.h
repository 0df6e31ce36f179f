// TorchScript: what it fuses is launched over pointers, without an operator, in backward passes as well. Calls of it, and
// backward passes through what it differentiated, run behind what is pending and without the key.
#pragma once
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <atomic>
#include <cstring>
#include <typeinfo>
#include <unordered_set>
#include <vector>

namespace grape {

struct Scripts {
  // One ran with gradients in this process, as far as is known.
  static inline std::atomic<bool> differentiated{false};

  static void ran() {
    if (c10::GradMode::is_enabled()) differentiated = true;
  }

  // Whether a backward pass from these tensors, the first argument of autograd's engine, comes through one. Also where that
  // cannot be told.
  static bool differentiates(PyObject* args) {
    if (!differentiated) return false;
    PyObject* roots = args && PyTuple_Check(args) && PyTuple_GET_SIZE(args) ? PyTuple_GET_ITEM(args, 0) : nullptr;
    if (!roots || !PyTuple_Check(roots)) return true;
    std::vector<const torch::autograd::Node*> next;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(roots); i++) {
      PyObject* root = PyTuple_GET_ITEM(roots, i);
      if (!THPVariable_Check(root)) return true;
      next.push_back(THPVariable_Unpack(root).grad_fn().get());
    }
    std::unordered_set<const torch::autograd::Node*> seen;
    while (!next.empty()) {
      const torch::autograd::Node* node = next.back();
      next.pop_back();
      if (!node || !seen.insert(node).second) continue;
      if (std::strstr(typeid(*node).name(), "DifferentiableGraphBackward")) return true;
      for (const auto& edge : node->next_edges()) next.push_back(edge.function.get());
    }
    return false;
  }
};

}  // namespace grape
