// What reads or hands out memory without an operator, waits for a device, launches by itself, or changes how operators
// compute. Their C functions are exchanged while a session is open, and put back: no attribute of torch.Tensor is set.
#pragma once
#include "engine/engine.h"
#include "process/scripts.h"

#include <Python.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include <array>
#include <string_view>
#include <string>
#include <utility>
#include <vector>

namespace grape {

enum class Effect : uint8_t {
  Reads,    // memory, or waits for the device, now
  Exposes,  // memory, for good
  Changes,  // how operators compute: what was recorded is forgotten
  Spreads,  // over autograd's threads
  Fuses,    // a call of TorchScript
  Serves,   // calls of other processes, on threads without the key, and reads what it sends
  Exchanges,  // reads, and runs operators of its own whose results it reads: none of them is deferred
};

struct Watched {
  const char* name;
  Effect effect;
  const char* of;  // a type of `torch` or `torch._C`, or a module
  bool required;   // in every torch
};

inline constexpr std::array WATCHED = {
    Watched{"numpy", Effect::Exposes, "Tensor", true},
    Watched{"data_ptr", Effect::Exposes, "Tensor", true},
    Watched{"run_backward", Effect::Spreads, "_ImperativeEngine", true},
    Watched{"__call__", Effect::Fuses, "ScriptFunction", true},
    Watched{"__call__", Effect::Fuses, "ScriptMethod", true},
    Watched{"tolist", Effect::Reads, "Tensor", true},
    Watched{"untyped_storage", Effect::Reads, "Tensor", true},  // its object is seen while it lives
    Watched{"apply_", Effect::Reads, "Tensor", true},
    Watched{"map_", Effect::Reads, "Tensor", true},
    Watched{"map2_", Effect::Reads, "Tensor", true},
    Watched{"_to_dlpack", Effect::Exposes, "torch._C", true},
    Watched{"_to_dlpack_versioned", Effect::Exposes, "torch._C", true},
    Watched{"_set_default_dtype", Effect::Changes, "torch._C", true},
    Watched{"_set_default_tensor_type", Effect::Changes, "torch._C", true},
    Watched{"_set_deterministic_algorithms", Effect::Changes, "torch._C", true},
    Watched{"_set_deterministic_fill_uninitialized_memory", Effect::Changes, "torch._C", true},
    Watched{"_set_float32_matmul_precision", Effect::Changes, "torch._C", true},
    Watched{"_set_warnAlways", Effect::Changes, "torch._C", true},
    Watched{"impl", Effect::Changes, "_DispatchModule", true},
    Watched{"fallback", Effect::Changes, "_DispatchModule", true},
    Watched{"_set_cpu_allow_fp16_reduced_precision_reduction", Effect::Changes, "torch._C", false},
    Watched{"_set_fp32_precision_setter", Effect::Changes, "torch._C", false},
    Watched{"_set_mkldnn_enabled", Effect::Changes, "torch._C", true},
    Watched{"_set_mkldnn_deterministic", Effect::Changes, "torch._C", false},
    Watched{"_set_onednn_allow_tf32", Effect::Changes, "torch._C", false},
    Watched{"_set_nnpack_enabled", Effect::Changes, "torch._C", false},
    Watched{"_set_sdp_use_flash", Effect::Changes, "torch._C", true},
    Watched{"_set_sdp_use_math", Effect::Changes, "torch._C", true},
    Watched{"_set_sdp_use_mem_efficient", Effect::Changes, "torch._C", true},
    Watched{"_set_sdp_priority_order", Effect::Changes, "torch._C", false},
    Watched{"_set_linalg_preferred_backend", Effect::Changes, "torch._C", false},
    Watched{"_set_blas_preferred_backend", Effect::Changes, "torch._C", false},
    Watched{"set_flush_denormal", Effect::Changes, "torch._C", true},
    Watched{"set_num_threads", Effect::Changes, "torch._C", true},
    Watched{"_set_cublas_allow_tf32", Effect::Changes, "torch._C", false},
    Watched{"_set_cublas_allow_fp16_reduced_precision_reduction", Effect::Changes, "torch._C", false},
    Watched{"_set_cublas_allow_bf16_reduced_precision_reduction", Effect::Changes, "torch._C", false},
    Watched{"_set_cublas_allow_fp16_accumulation", Effect::Changes, "torch._C", false},
    Watched{"_set_cudnn_allow_tf32", Effect::Changes, "torch._C", false},
    Watched{"_set_cudnn_benchmark", Effect::Changes, "torch._C", false},
    Watched{"_set_cudnn_deterministic", Effect::Changes, "torch._C", false},
    Watched{"_set_cudnn_enabled", Effect::Changes, "torch._C", false},
    Watched{"_set_math_sdp_allow_fp16_bf16_reduction", Effect::Changes, "torch._C", false},
    Watched{"_set_sdp_use_cudnn", Effect::Changes, "torch._C", false},
    Watched{"_set_sdp_use_overrideable", Effect::Changes, "torch._C", false},
    Watched{"_set_sdp_use_fa3", Effect::Changes, "torch._C", false},
    Watched{"_set_rocm_fa_preferred_backend", Effect::Changes, "torch._C", false},
    Watched{"_set_qengine", Effect::Changes, "torch._C", false},
    Watched{"_set_sm_carveout_experimental", Effect::Changes, "torch._C", false},
    Watched{"_set_cudnn_depthwise_kernel", Effect::Changes, "torch._C", false},
    Watched{"_set_cublaslt_prefer_grouped_gemm", Effect::Changes, "torch._C", false},
    Watched{"_cuda_set_cudnn_benchmark_limit", Effect::Changes, "torch._C", false},
    Watched{"_cuda_tunableop_enable", Effect::Changes, "torch._C", false},
    Watched{"_cuda_tunableop_tuning_enable", Effect::Changes, "torch._C", false},
    Watched{"_cuda_synchronize", Effect::Reads, "torch._C", false},
    Watched{"_accelerator_synchronizeDevice", Effect::Reads, "torch._C", false},
    Watched{"_cuda_getCurrentRawStream", Effect::Reads, "torch._C", false},
    Watched{"record", Effect::Reads, "_CudaEventBase", false},
    Watched{"synchronize", Effect::Reads, "_CudaEventBase", false},
    Watched{"ipc_handle", Effect::Reads, "_CudaEventBase", false},
    Watched{"synchronize", Effect::Reads, "_CudaStreamBase", false},
    Watched{"query", Effect::Reads, "_CudaStreamBase", false},
    Watched{"record", Effect::Reads, "Event", false},
    Watched{"synchronize", Effect::Reads, "Event", false},
    Watched{"ipc_handle", Effect::Reads, "Event", false},
    Watched{"synchronize", Effect::Reads, "Stream", false},
    Watched{"query", Effect::Reads, "Stream", false},
    Watched{"record_event", Effect::Reads, "Stream", false},
    Watched{"wait_stream", Effect::Reads, "Stream", false},
    Watched{"_set_and_start_rpc_agent", Effect::Serves, "torch._C._distributed_rpc", false},
    // Of a backend by itself; those of a process group are operators.
    Watched{"allreduce", Effect::Exchanges, "Backend", false},
    Watched{"allreduce_coalesced", Effect::Exchanges, "Backend", false},
    Watched{"allgather", Effect::Exchanges, "Backend", false},
    Watched{"_allgather_base", Effect::Exchanges, "Backend", false},
    Watched{"allgather_coalesced", Effect::Exchanges, "Backend", false},
    Watched{"alltoall", Effect::Exchanges, "Backend", false},
    Watched{"alltoall_base", Effect::Exchanges, "Backend", false},
    Watched{"barrier", Effect::Exchanges, "Backend", false},
    Watched{"broadcast", Effect::Exchanges, "Backend", false},
    Watched{"gather", Effect::Exchanges, "Backend", false},
    Watched{"recv", Effect::Exchanges, "Backend", false},
    Watched{"recv_anysource", Effect::Exchanges, "Backend", false},
    Watched{"reduce", Effect::Exchanges, "Backend", false},
    Watched{"reduce_scatter", Effect::Exchanges, "Backend", false},
    Watched{"_reduce_scatter_base", Effect::Exchanges, "Backend", false},
    Watched{"scatter", Effect::Exchanges, "Backend", false},
    Watched{"send", Effect::Exchanges, "Backend", false},
    // Kernels on tensors without an operator: of `torch.cuda.jiterator`, `torch.cuda.nccl`, `torch.cuda.comm`.
    Watched{"_cuda_jiterator_compile_and_launch_kernel", Effect::Exchanges, "torch._C", false},
    Watched{"_nccl_all_reduce", Effect::Exchanges, "torch._C", false},
    Watched{"_nccl_reduce", Effect::Exchanges, "torch._C", false},
    Watched{"_nccl_broadcast", Effect::Exchanges, "torch._C", false},
    Watched{"_nccl_all_gather", Effect::Exchanges, "torch._C", false},
    Watched{"_nccl_reduce_scatter", Effect::Exchanges, "torch._C", false},
    Watched{"_broadcast", Effect::Exchanges, "torch._C", false},
    Watched{"_broadcast_out", Effect::Exchanges, "torch._C", false},
    Watched{"_broadcast_coalesced", Effect::Exchanges, "torch._C", false},
    // Issues what was called since the coalescing began.
    Watched{"_end_coalescing", Effect::Exchanges, "Backend", false},
    Watched{"_end_coalescing", Effect::Exchanges, "ProcessGroup", false},
    // A callback runs on the thread that completes the future, where no operator is seen.
    Watched{"then", Effect::Reads, "Future", false},
    Watched{"add_done_callback", Effect::Reads, "Future", false},
    Watched{"set_result", Effect::Reads, "Future", false},
};

inline constexpr size_t DATA_PTR = 1;
static_assert(std::string_view(WATCHED[DATA_PTR].name) == "data_ptr");

struct Readers {
  static inline Engine* engine = nullptr;
  static inline std::string own_folder;  // of Grape's Python

  // False: an exception is set.
  static bool prepare(PyObject* value, Effect effect) {
    if (!engine || !engine->is_alive()) return true;
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
    if (effect == Effect::Exposes && value && THPVariable_Check(value)) {
      const at::Tensor& t = THPVariable_Unpack(value);
      if (t.defined() && is_plain(t) && !(engine->is_paused() && asked_by_grape())) engine->expose(storage_of(t));
    }
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
      constexpr std::string_view RNN = "torch/nn/modules/rnn.py";  // before Python 3.12 a comprehension is a function in it
      return name.find("flatten_parameters") != name.npos && file.size() >= RNN.size() && file.substr(file.size() - RNN.size()) == RNN;
    });
  }

  // Regions of another run of a cell ask for addresses. What they do there, they do during a pause, behind what was pending.
  static bool asked_by_grape() {
    return !own_folder.empty() && in_frame([](std::string_view, std::string_view file) { return file.substr(0, own_folder.size()) == own_folder; });
  }

  // Of the Python code that calls: `test` is told its qualified name and its file.
  template <class F>
  static bool in_frame(F test) {
    PyFrameObject* frame = PyEval_GetFrame();
    PyCodeObject* code = frame ? PyFrame_GetCode(frame) : nullptr;
    if (!code) return false;
    const char* name = PyUnicode_AsUTF8(code->co_qualname);
    const char* file = PyUnicode_AsUTF8(code->co_filename);
    bool found = name && file && test(name, file);
    PyErr_Clear();
    Py_DECREF(code);
    return found;
  }

  static bool is_of_the_cpu(PyObject* value) {
    if (!value || !THPVariable_Check(value)) return false;
    const at::Tensor& t = THPVariable_Unpack(value);
    return t.defined() && is_plain(t) && t.is_cpu();
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
      if (N == DATA_PTR && compares_addresses()) return original(self, args);
      Engine::Inside inside(waits());
      return prepare(target(self, args), effect) ? call([&] { return original(self, args); }) : nullptr;
    }
    static PyObject* with_keywords(PyObject* self, PyObject* args, PyObject* kwargs) {
      auto run = [&] { return reinterpret_cast<PyCFunctionWithKeywords>(reinterpret_cast<void*>(original))(self, args, kwargs); };
      if (effect == Effect::Spreads && Scripts::differentiates(args)) return differentiate(run);
      Engine::Inside inside(waits());
      return prepare(target(self, args), effect) ? call(run) : nullptr;
    }
    static PyObject* fast(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
      Engine::Inside inside(waits());
      if (!prepare(nullptr, effect)) return nullptr;
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
      } else if (kind == (METH_FASTCALL | METH_KEYWORDS) && effect != Effect::Exposes) {
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
    return found && Py_IS_TYPE(found, &PyMethodDescr_Type) ? reinterpret_cast<PyMethodDescrObject*>(found)->d_method : nullptr;
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
