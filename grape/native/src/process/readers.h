// What reads or hands out memory without an operator, waits for a device, launches by itself, or changes how operators
// compute. Their C functions are exchanged while a session is open, and put back: no attribute of torch.Tensor is set.
#pragma once
#include "engine/engine.h"
#include "process/scripts.h"
#include "process/watched.h"

#include <Python.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/Storage.h>
#include <torch/csrc/autograd/python_variable.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace grape {

struct Readers {
  static inline Engine* engine = nullptr;
  static inline std::string own_folder;  // of Grape's Python

  // False: an exception is set.
  static bool prepare(PyObject* value, Effect effect) {
    if (!engine || !engine->is_alive()) return true;
    if (effect == Effect::Converts && !c10::impl::tls_is_dispatch_key_excluded(KEY)) return true;
    if (effect == Effect::Spreads) return begin_backward();
    if (effect != Effect::Changes && effect != Effect::Fuses && !engine->device().is_cpu() && is_of_the_cpu(value)) return true;  // nothing of it is pending
    std::string error;
    Py_BEGIN_ALLOW_THREADS  // who holds the engine's lock may need the GIL
    try {
      if (effect == Effect::Fuses) engine->run_apart(Reason::Fused);
      else if (effect == Effect::Serves) engine->bar(Reason::Remote);
      else if (effect != Effect::Changes) engine->flush();
      else if (auto raised = engine->forget()) std::rethrow_exception(raised);
    } catch (const std::exception& e) {
      error = e.what();
    }
    Py_END_ALLOW_THREADS
    if (!error.empty()) {
      PyErr_SetString(PyExc_RuntimeError, error.c_str());
      return false;
    }
    StorageImpl* storage = effect == Effect::Exposes ? memory_of(value) : nullptr;
    bool is_part = storage && is_storage(value) && !storage->resizable();
    if (storage && !(engine->is_paused() && asked_by_grape())) engine->expose(storage, is_part);
    return true;
  }

  static bool begin_backward() {
    try {
      return engine->begin_backward(), true;
    } catch (python_error& raised) {  // Ctrl-C
      return raised.restore(), false;
    }
  }

  // Recurrent layers look at each call whether their weights lie in one piece of memory; nothing is read there.
  static bool compares_addresses() {
    return in_frame([](std::string_view name, std::string_view file) {
      // Before Python 3.12 a comprehension is a function in it.
      return is_in("flatten_parameters", "torch/nn/modules/rnn.py", name, file);
    });
  }

  // Torch's own code compares addresses of storages, or writes what lies there to a file at once, and libraries that save
  // weights look which of them are tied: nobody keeps them.
  static bool keeps_no_address() {
    static const std::string torch = [] {
      const char* file = PyModule_GetFilename(PyImport_AddModule("torch"));
      PyErr_Clear();
      std::string_view begin = file ? file : "";
      return std::string(begin.substr(0, begin.rfind('/') + 1));
    }();
    constexpr std::string_view WRAPPER = "torch/storage.py";  // asks for whoever asks there
    return in_frame([](std::string_view name, std::string_view file) {
      return (!torch.empty() && file.substr(0, torch.size()) == torch) ||
          is_in("storage_ptr", "safetensors/torch.py", name, file) ||
          is_in("id_tensor_storage", "transformers/pytorch_utils.py", name, file) ||
          is_in("id_tensor_storage", "accelerate/utils/modeling.py", name, file);
    }, WRAPPER);
  }

  static bool is_in(std::string_view function, std::string_view end, std::string_view name, std::string_view file) {
    bool ends = file.size() >= end.size() && file.substr(file.size() - end.size()) == end;
    return ends && name.find(function) != name.npos;
  }

  // Regions of another run of a cell ask for addresses. What they do there, they do during a pause, behind what was pending.
  static bool asked_by_grape() {
    return !own_folder.empty() && in_frame([](std::string_view, std::string_view file) { return file.substr(0, own_folder.size()) == own_folder; });
  }

  // Of the Python code that calls, past that of a file which ends so: `test` is told its qualified name and its file.
  template <class F>
  static bool in_frame(F test, std::string_view past = {}) {
    PyFrameObject* frame = PyEval_GetFrame();
    Py_XINCREF(frame);
    bool found = false;
    for (bool passes = true; frame && passes;) {
      PyCodeObject* code = PyFrame_GetCode(frame);
      const char* name = PyUnicode_AsUTF8(code->co_qualname);
      const char* file = PyUnicode_AsUTF8(code->co_filename);
      passes = !past.empty() && name && file && is_in("", past, name, file);
      found = !passes && name && file && test(name, file);
      PyErr_Clear();
      Py_DECREF(code);
      Py_SETREF(frame, passes ? PyFrame_GetBack(frame) : nullptr);
    }
    Py_XDECREF(frame);
    return found;
  }

  // Of a tensor or a storage.
  static StorageImpl* memory_of(PyObject* value) {
    if (value && is_storage(value)) return THPStorage_Unpack(value).unsafeGetStorageImpl();
    if (!value || !THPVariable_Check(value)) return nullptr;
    const at::Tensor& t = THPVariable_Unpack(value);
    return t.defined() && is_plain(t) ? storage_of(t) : nullptr;
  }
  static bool is_storage(PyObject* value) {
    static PyObject* type = PyObject_GetAttrString(PyImport_AddModule("torch._C"), "StorageBase");
    return type && PyObject_TypeCheck(value, reinterpret_cast<PyTypeObject*>(type));
  }

  static bool is_of_the_cpu(PyObject* value) {
    const StorageImpl* storage = memory_of(value);
    return storage && storage->device().is_cpu();
  }

  template <size_t N>
  struct Method {
    static inline PyMethodDef* def = nullptr;
    static inline PyCFunction original = nullptr;
    static constexpr Effect effect = WATCHED[N].effect;
    static constexpr bool ASKS_FOR_ADDRESS = std::string_view(WATCHED[N].name) == "data_ptr";

    static PyObject* target(PyObject* self, PyObject* args) {
      if (self && (THPVariable_Check(self) || is_storage(self))) return self;
      if (args && THPVariable_Check(args)) return args;
      return args && PyTuple_Check(args) && PyTuple_GET_SIZE(args) ? PyTuple_GET_ITEM(args, 0) : nullptr;
    }
    // Who is told how long it takes.
    static Engine* waits() { return effect == Effect::Reads || effect == Effect::Exchanges ? engine : nullptr; }
    template <class F>
    static PyObject* call(F f) {
      std::optional<c10::impl::ExcludeDispatchKeyGuard> guard;
      if (effect == Effect::Exchanges || effect == Effect::Fuses) guard.emplace(KEY);
      if (effect == Effect::Fuses) Scripts::ran();
      return f();
    }
    // A backward pass through TorchScript's: autograd's threads include and exclude the keys of the one that begins it.
    template <class F>
    static PyObject* differentiate(F f) {
      if (!prepare(nullptr, Effect::Fuses)) return nullptr;
      c10::impl::ExcludeDispatchKeyGuard guard(KEY);
      return f();
    }
    static PyObject* plain(PyObject* self, PyObject* args) {
      bool of_storage = ASKS_FOR_ADDRESS && is_storage(self);
      if (ASKS_FOR_ADDRESS && !of_storage && compares_addresses()) return original(self, args);
      Engine::Inside inside(waits());
      Effect now = of_storage && keeps_no_address() ? Effect::Reads : effect;
      return prepare(target(self, args), now) ? call([&] { return original(self, args); }) : nullptr;
    }
    static PyObject* with_keywords(PyObject* self, PyObject* args, PyObject* kwargs) {
      auto run = [&] { return reinterpret_cast<PyCFunctionWithKeywords>(reinterpret_cast<void*>(original))(self, args, kwargs); };
      if (effect == Effect::Spreads && Scripts::differentiates(args)) return differentiate(run);
      Engine::Inside inside(waits());
      return prepare(target(self, args), effect) ? call(run) : nullptr;
    }
    static PyObject* fast(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
      Engine::Inside inside(waits());
      if (!prepare(effect == Effect::Exposes && count ? args[0] : nullptr, effect)) return nullptr;
      return call([&] {
        return reinterpret_cast<PyObject* (*)(PyObject*, PyObject* const*, Py_ssize_t, PyObject*)>(
            reinterpret_cast<void*>(original))(self, args, count, names);
      });
    }
    static bool install() {
      constexpr bool of_module = std::string_view(WATCHED[N].of).substr(0, 8) == "torch._C";
      PyMethodDef* found = of_module ? function(WATCHED[N].of, WATCHED[N].name) : method(WATCHED[N].of, WATCHED[N].name);
      if (!found) return !WATCHED[N].required;
      int kind = found->ml_flags & (METH_VARARGS | METH_KEYWORDS | METH_NOARGS | METH_O | METH_FASTCALL);
      if (kind == (METH_VARARGS | METH_KEYWORDS)) {
        original = found->ml_meth;
        found->ml_meth = reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(&with_keywords));
      } else if (kind == METH_VARARGS || kind == METH_NOARGS || kind == METH_O) {
        original = found->ml_meth;
        found->ml_meth = &plain;
      } else if (kind == (METH_FASTCALL | METH_KEYWORDS)) {
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

  static PyMethodDef* method(const char* type, const char* name) {
    PyObject* found = nullptr;
    for (const char* module : {"torch", "torch._C", "torch._C._distributed_c10d"}) {
      PyObject* holder = PyImport_ImportModule(module);
      PyObject* of = holder ? PyObject_GetAttrString(holder, type) : nullptr;
      for (auto* t = reinterpret_cast<PyTypeObject*>(of); t && PyType_Check(of) && !found; t = t->tp_base)
        found = t->tp_dict ? PyDict_GetItemString(t->tp_dict, name) : nullptr;
      Py_XDECREF(of);  // the module keeps it
      Py_XDECREF(holder);
      PyErr_Clear();
    }
    if (found && PyInstanceMethod_Check(found)) found = PyInstanceMethod_GET_FUNCTION(found);  // pybind's
    if (found && PyCFunction_Check(found)) return reinterpret_cast<PyCFunctionObject*>(found)->m_ml;
    if (found && Py_IS_TYPE(found, &PyStaticMethod_Type)) {
      PyObject* within = PyObject_GetAttrString(found, "__func__");
      Py_XDECREF(within);  // the type keeps it
      return within && PyCFunction_Check(within) ? reinterpret_cast<PyCFunctionObject*>(within)->m_ml : nullptr;
    }
    bool describes = found && (Py_IS_TYPE(found, &PyMethodDescr_Type) || Py_IS_TYPE(found, &PyClassMethodDescr_Type));
    return describes ? reinterpret_cast<PyMethodDescrObject*>(found)->d_method : nullptr;
  }
  static PyMethodDef* function(const char* of, const char* name) {
    PyObject* module = PyImport_ImportModule(of);
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
