// What torch has that reads or hands out memory without an operator, waits for a device, launches by itself, or changes
// how operators compute: names of C functions, and what each does.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace grape {

enum class Effect : uint8_t {
  Reads,    // memory, or waits for the device, now
  Exposes,  // memory, for good
  Changes,  // how operators compute: what was recorded is forgotten
  Spreads,  // over autograd's threads
  Fuses,    // a call of TorchScript
  Serves,   // calls of other processes, on threads without the key, and reads what it sends
  Exchanges,  // reads, and runs operators of its own whose results it reads: none of them is deferred
  Converts,   // an element to a number: an operator, but where the key is excluded
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
    Watched{"__call__", Effect::Fuses, "StaticModule", false},
    Watched{"tolist", Effect::Reads, "Tensor", true},
    Watched{"untyped_storage", Effect::Reads, "Tensor", true},  // its object is seen while it lives
    // A storage's object may go while its address is known. One for a part of another's memory keeps that alive, and
    // nobody sees that Python reaches it; of what others refer to weakly, it is seen when it dies.
    Watched{"data_ptr", Effect::Exposes, "StorageBase", true},
    Watched{"_data_address", Effect::Exposes, "torch._C", false},
    Watched{"_write_file", Effect::Reads, "StorageBase", true},
    Watched{"_share_fd_cpu_", Effect::Reads, "StorageBase", true},
    Watched{"_share_filename_cpu_", Effect::Reads, "StorageBase", true},
    Watched{"_new_with_weak_ptr", Effect::Reads, "StorageBase", true},
    Watched{"_expired", Effect::Reads, "StorageBase", true},
    // TorchScript writes the memory of its modules' parameters to a file.
    Watched{"save", Effect::Reads, "ScriptModule", true},
    Watched{"save_to_buffer", Effect::Reads, "ScriptModule", true},
    Watched{"_save_for_mobile", Effect::Reads, "ScriptModule", false},
    Watched{"_save_to_buffer_for_mobile", Effect::Reads, "ScriptModule", false},
    Watched{"save", Effect::Reads, "ScriptFunction", true},
    Watched{"save_to_buffer", Effect::Reads, "ScriptFunction", true},
    Watched{"_export_onnx", Effect::Reads, "Graph", false},
    Watched{"_save_jit_module", Effect::Reads, "torch._C", false},
    Watched{"_save_jit_module_to_bytes", Effect::Reads, "torch._C", false},
    Watched{"_save_parameters", Effect::Reads, "torch._C", false},
    Watched{"_pickle_save", Effect::Reads, "torch._C", false},
    Watched{"write_record", Effect::Reads, "PyTorchFileWriter", false},
    // `torch.tensor` and its like exclude the key themselves, for torch has a mode of another's there, and convert what
    // tensors they find in lists.
    Watched{"__float__", Effect::Converts, "Tensor", true},
    Watched{"__index__", Effect::Converts, "Tensor", true},
    Watched{"__int__", Effect::Converts, "Tensor", true},
    Watched{"__complex__", Effect::Converts, "Tensor", true},
    Watched{"__bool__", Effect::Converts, "Tensor", true},
    Watched{"item", Effect::Converts, "Tensor", true},
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

}  // namespace grape
