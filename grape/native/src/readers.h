// What reads or hands out CPU memory without an operator. The C functions of these methods are exchanged while a session is
// open, and put back: no attribute of torch.Tensor is set.
#pragma once
#include "engine.h"

#include <Python.h>
#include <torch/csrc/autograd/python_variable.h>

#include <string>
#include <vector>

namespace grape {

struct Readers {
  static inline Engine* engine = nullptr;

  // False: an exception is set.
  static bool prepare(PyObject* value, bool exposes) {
    if (!engine || !engine->is_open()) return true;
    std::string error;
    Py_BEGIN_ALLOW_THREADS  // who holds the engine's lock may need the GIL
    try {
      engine->flush();
    } catch (const std::exception& e) {
      error = e.what();
    }
    Py_END_ALLOW_THREADS
    if (!error.empty()) {
      PyErr_SetString(PyExc_RuntimeError, error.c_str());
      return false;
    }
    if (exposes && value && THPVariable_Check(value)) {
      const at::Tensor& t = THPVariable_Unpack(value);
      if (t.defined() && is_plain(t)) engine->expose(storage_of(t));
    }
    return true;
  }

  template <int N>
  struct Method {
    static inline PyMethodDef* def = nullptr;
    static inline PyCFunction original = nullptr;
    static inline bool exposes = false;

    static PyObject* target(PyObject* self, PyObject* args) {
      if (self && THPVariable_Check(self)) return self;
      if (args && THPVariable_Check(args)) return args;
      return args && PyTuple_Check(args) && PyTuple_GET_SIZE(args) ? PyTuple_GET_ITEM(args, 0) : nullptr;
    }
    static PyObject* plain(PyObject* self, PyObject* args) {
      return prepare(target(self, args), exposes) ? original(self, args) : nullptr;
    }
    static PyObject* with_keywords(PyObject* self, PyObject* args, PyObject* kwargs) {
      if (!prepare(target(self, args), exposes)) return nullptr;
      return reinterpret_cast<PyCFunctionWithKeywords>(reinterpret_cast<void*>(original))(self, args, kwargs);
    }
    static bool install(PyMethodDef* found, bool exposing) {
      int kind = found->ml_flags & (METH_VARARGS | METH_KEYWORDS | METH_NOARGS | METH_O | METH_FASTCALL);
      if (kind == (METH_VARARGS | METH_KEYWORDS)) {
        original = found->ml_meth;
        found->ml_meth = reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(&with_keywords));
      } else if (kind == METH_VARARGS || kind == METH_NOARGS || kind == METH_O) {
        original = found->ml_meth;
        found->ml_meth = &plain;
      } else {
        return false;
      }
      def = found;
      exposes = exposing;
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

  template <int N>
  static void add(std::vector<std::string>& missing, const char* name, PyMethodDef* def, bool exposes) {
    if (!def || !Method<N>::install(def, exposes)) missing.push_back(name);
  }

  // The names that could not be exchanged.
  static std::vector<std::string> install(Engine* of) {
    engine = of;
    std::vector<std::string> missing;
    add<0>(missing, "numpy", method("numpy"), true);
    add<1>(missing, "data_ptr", method("data_ptr"), true);
    add<2>(missing, "tolist", method("tolist"), false);
    add<3>(missing, "untyped_storage", method("untyped_storage"), false);  // its object is seen while it lives
    add<4>(missing, "apply_", method("apply_"), false);
    add<5>(missing, "map_", method("map_"), false);
    add<6>(missing, "map2_", method("map2_"), false);
    add<7>(missing, "_to_dlpack", function("_to_dlpack"), true);
    add<8>(missing, "_to_dlpack_versioned", function("_to_dlpack_versioned"), true);
    return missing;
  }

  static void restore() {
    Method<0>::restore(), Method<1>::restore(), Method<2>::restore(), Method<3>::restore(), Method<4>::restore();
    Method<5>::restore(), Method<6>::restore(), Method<7>::restore(), Method<8>::restore();
    engine = nullptr;
  }
};

}  // namespace grape
