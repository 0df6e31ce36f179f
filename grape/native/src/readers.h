// What reads or hands out CPU memory without an operator, and what changes how operators compute. Their C functions are
// exchanged while a session is open, and put back: no attribute of torch.Tensor is set.
#pragma once
#include "engine.h"

#include <Python.h>
#include <torch/csrc/autograd/python_variable.h>

#include <array>
#include <string>
#include <utility>
#include <vector>

namespace grape {

enum class Effect : uint8_t {
  Reads,    // memory, now
  Exposes,  // memory, for good
  Changes,  // how operators compute: what was recorded is forgotten
};

struct Watched {
  const char* name;
  Effect effect;
  bool method;    // of tensors; else a function of torch._C
  bool required;  // in every torch
};

inline constexpr std::array WATCHED = {
    Watched{"numpy", Effect::Exposes, true, true},
    Watched{"data_ptr", Effect::Exposes, true, true},
    Watched{"tolist", Effect::Reads, true, true},
    Watched{"untyped_storage", Effect::Reads, true, true},  // its object is seen while it lives
    Watched{"apply_", Effect::Reads, true, true},
    Watched{"map_", Effect::Reads, true, true},
    Watched{"map2_", Effect::Reads, true, true},
    Watched{"_to_dlpack", Effect::Exposes, false, true},
    Watched{"_to_dlpack_versioned", Effect::Exposes, false, true},
    Watched{"_set_default_dtype", Effect::Changes, false, true},
    Watched{"_set_default_tensor_type", Effect::Changes, false, true},
    Watched{"_set_deterministic_algorithms", Effect::Changes, false, true},
    Watched{"_set_deterministic_fill_uninitialized_memory", Effect::Changes, false, true},
    Watched{"_set_float32_matmul_precision", Effect::Changes, false, true},
    Watched{"_set_cpu_allow_fp16_reduced_precision_reduction", Effect::Changes, false, false},
    Watched{"_set_fp32_precision_setter", Effect::Changes, false, false},
    Watched{"_set_mkldnn_enabled", Effect::Changes, false, true},
    Watched{"_set_mkldnn_deterministic", Effect::Changes, false, false},
    Watched{"_set_onednn_allow_tf32", Effect::Changes, false, false},
    Watched{"_set_nnpack_enabled", Effect::Changes, false, false},
    Watched{"_set_sdp_use_flash", Effect::Changes, false, true},
    Watched{"_set_sdp_use_math", Effect::Changes, false, true},
    Watched{"_set_sdp_use_mem_efficient", Effect::Changes, false, true},
    Watched{"_set_sdp_priority_order", Effect::Changes, false, false},
    Watched{"_set_linalg_preferred_backend", Effect::Changes, false, false},
    Watched{"_set_blas_preferred_backend", Effect::Changes, false, false},
    Watched{"set_flush_denormal", Effect::Changes, false, true},
    Watched{"set_num_threads", Effect::Changes, false, true},
};

struct Readers {
  static inline Engine* engine = nullptr;

  // False: an exception is set.
  static bool prepare(PyObject* value, Effect effect) {
    if (!engine || !engine->is_alive()) return true;
    std::string error;
    Py_BEGIN_ALLOW_THREADS  // who holds the engine's lock may need the GIL
    try {
      if (effect != Effect::Changes) engine->flush();
      else if (auto raised = engine->forget()) std::rethrow_exception(raised);
    } catch (const std::exception& e) {
      error = e.what();
    }
    Py_END_ALLOW_THREADS
    if (!error.empty()) {
      PyErr_SetString(PyExc_RuntimeError, error.c_str());
      return false;
    }
    if (effect == Effect::Exposes && value && THPVariable_Check(value)) {
      const at::Tensor& t = THPVariable_Unpack(value);
      if (t.defined() && is_plain(t)) engine->expose(storage_of(t));
    }
    return true;
  }

  template <size_t N>
  struct Method {
    static inline PyMethodDef* def = nullptr;
    static inline PyCFunction original = nullptr;
    static constexpr Effect effect = WATCHED[N].effect;

    static PyObject* target(PyObject* self, PyObject* args) {
      if (self && THPVariable_Check(self)) return self;
      if (args && THPVariable_Check(args)) return args;
      return args && PyTuple_Check(args) && PyTuple_GET_SIZE(args) ? PyTuple_GET_ITEM(args, 0) : nullptr;
    }
    static PyObject* plain(PyObject* self, PyObject* args) {
      return prepare(target(self, args), effect) ? original(self, args) : nullptr;
    }
    static PyObject* with_keywords(PyObject* self, PyObject* args, PyObject* kwargs) {
      if (!prepare(target(self, args), effect)) return nullptr;
      return reinterpret_cast<PyCFunctionWithKeywords>(reinterpret_cast<void*>(original))(self, args, kwargs);
    }
    static PyObject* fast(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
      if (!prepare(nullptr, effect)) return nullptr;
      return reinterpret_cast<PyObject* (*)(PyObject*, PyObject* const*, Py_ssize_t, PyObject*)>(
          reinterpret_cast<void*>(original))(self, args, count, names);
    }
    static bool install() {
      PyMethodDef* found = WATCHED[N].method ? method(WATCHED[N].name) : function(WATCHED[N].name);
      if (!found) return !WATCHED[N].required;
      int kind = found->ml_flags & (METH_VARARGS | METH_KEYWORDS | METH_NOARGS | METH_O | METH_FASTCALL);
      if (kind == (METH_VARARGS | METH_KEYWORDS)) {
        original = found->ml_meth;
        found->ml_meth = reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(&with_keywords));
      } else if (kind == METH_VARARGS || kind == METH_NOARGS || kind == METH_O) {
        original = found->ml_meth;
        found->ml_meth = &plain;
      } else if (kind == (METH_FASTCALL | METH_KEYWORDS) && effect == Effect::Changes) {
        original = found->ml_meth;
        found->ml_meth = reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(&fast));
      } else {
        return false;
      }
      def = found;
      return true;
    }
    static void restore() {
      if (def) def->ml_meth = original;
      def = nullptr;
    }
  };

  static PyMethodDef* method(const char* name) {
    PyObject* found = PyDict_GetItemString(reinterpret_cast<PyTypeObject*>(THPVariableClass)->tp_dict, name);
    if (!found) {
      PyObject* base = reinterpret_cast<PyObject*>(reinterpret_cast<PyTypeObject*>(THPVariableClass)->tp_base);
      found = PyDict_GetItemString(reinterpret_cast<PyTypeObject*>(base)->tp_dict, name);
    }
    return found && Py_IS_TYPE(found, &PyMethodDescr_Type) ? reinterpret_cast<PyMethodDescrObject*>(found)->d_method : nullptr;
  }
  static PyMethodDef* function(const char* name) {
    PyObject* module = PyImport_ImportModule("torch._C");
    PyObject* found = module ? PyObject_GetAttrString(module, name) : nullptr;
    Py_XDECREF(module);
    if (!found) PyErr_Clear();
    PyMethodDef* def = found && PyCFunction_Check(found) ? reinterpret_cast<PyCFunctionObject*>(found)->m_ml : nullptr;
    Py_XDECREF(found);  // the module keeps it
    return def;
  }

  // The names that could not be exchanged.
  static std::vector<std::string> install(Engine* of) {
    engine = of;
    std::vector<std::string> missing;
    each([&](auto method) {
      if (!decltype(method)::type::install()) missing.push_back(WATCHED[decltype(method)::number].name);
    });
    return missing;
  }

  static void restore() {
    each([](auto method) { decltype(method)::type::restore(); });
    engine = nullptr;
  }

 private:
  template <size_t N>
  struct Numbered {
    using type = Method<N>;
    static constexpr size_t number = N;
  };
  template <class F>
  static void each(F f) {
    each(f, std::make_index_sequence<WATCHED.size()>());
  }
  template <class F, size_t... N>
  static void each(F f, std::index_sequence<N...>) {
    (f(Numbered<N>()), ...);
  }
};

}  // namespace grape
