"""Names of torch and of the libraries around it, as far as inference from source needs them."""

from __future__ import annotations


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


FRAMEWORKS = _names("torch transformers diffusers timm torchvision torch_geometric torchaudio einops")
"""Packages whose values are tensors and modules."""

NOT_TENSORS = _names("""
    no_grad inference_mode enable_grad set_grad_enabled device manual_seed compile set_default_dtype set_num_threads
    Generator autocast save load Size finfo iinfo get_default_dtype typename seed numel
    use_deterministic_algorithms set_float32_matmul_precision device_count synchronize current_stream
    Stream Event empty_cache get_rng_state get_device_name memory_allocated
    max_memory_allocated reset_peak_memory_stats script trace freeze clip_grad_norm_ result_type promote_types can_cast
    is_available current_device init_process_group destroy_process_group is_initialized get_rank get_world_size
    get_local_rank get_node_local_rank get_backend new_group init_device_mesh barrier
""")
"""Functions of torch that return no tensor."""

NUMBERS = _names("""
    item tolist numpy size dim numel stride element_size data_ptr storage_offset is_contiguous is_floating_point
    backward ndimension get_device nelement type register_hook untyped_storage is_pinned
""")
"""Methods of a tensor that return none."""

PLAIN_ATTRIBUTES = _names("shape dtype device ndim requires_grad is_cuda layout itemsize nbytes is_leaf names grad_fn")
"""Attributes of a tensor that are none."""

MASKING = _names("""
    isnan isfinite isinf eq ne lt le gt ge logical_and logical_or logical_not logical_xor any all isin isclose bool
    signbit
""")
"""Functions and methods whose result is a boolean tensor."""

MODULES = _names("to cuda cpu eval train half float double bfloat16 requires_grad_ compile")
"""Methods of a module that return it."""

BATCHES = _names("DataLoader split chunk unbind NeighborLoader")
"""Names of objects that give tensors when they are iterated."""

ONLY_TENSORS = _names("""
    detach unsqueeze squeeze softmax sigmoid argmax argmin masked_fill masked_fill_ permute contiguous backward
    scatter topk requires_grad_ flatten log_softmax nonzero cuda tanh relu matmul index_select index_add scatter_add
    bmm cumsum
""")
"""Methods that tensors have and hardly anything else."""

CONVERSIONS = _names("float int bool len str repr range enumerate sum min max")
"""Builtins whose result is no tensor, or not known to be one."""
