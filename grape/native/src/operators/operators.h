// What an operator's schema, tags and kernels say of it, found once, when it is first called.
#pragma once
#include "operators/values.h"

#include <ATen/core/enum_tag.h>

#include <array>
#include <atomic>
#include <string>
#include <vector>

namespace grape {

// Why an operator runs as written. The names are what the evidence says.
enum class Reason : uint8_t {
  None, Random, Read, Effect, Metadata, Alias, Checks, Integers, PythonKernel, Foreign, Opaque, Number, Memory,
  Aliased, Raised, Thread, Mode, Divergence, Observed, Host, Stream, Capturing, Uncaptured, Moves, Fused, Unearned, Profiled, Room, Collective, Remote, Sizes, Strides, Count
};
inline constexpr std::array<const char*, static_cast<size_t>(Reason::Count)> REASONS = {
    "none", "random numbers", "host read", "effect", "changes metadata", "returns an alias", "checks its data",
    "integers on the CPU", "a kernel in Python", "not of torch", "arguments that cannot be compared", "number changed",
    "memory that is not torch's alone", "other aliases than recorded", "raised", "another thread", "a mode or subclass",
    "another operator than recorded", "nothing recorded yet", "a tensor on the CPU", "another stream",
    "a capture of the person's", "cannot be captured", "memory that moves", "a call of TorchScript",
    "not worth a capture yet", "a profiler's",
    "no room for its results", "a collective", "beside torch.distributed.rpc", "sizes that grow", "strides that change"};

enum class Treatment : uint8_t { Boxed, Transparent };

// What attention tells its backward pass of the random numbers that it drew.
enum class Drawn : uint8_t { No, Seed, Offset };

struct Operator {
  c10::OperatorHandle handle;
  size_t arguments, returns;
  std::vector<bool> writes;           // by argument
  std::vector<int> returned_argument; // by return; -1: a fresh tensor
  Reason always = Reason::None;       // runs as written for this reason at every call
  bool pointwise = false;
  bool checks_integers = false;       // on the CPU: positions, divisors
  bool exact = false;                 // in its integers: wherever they lie, the same bits come out
  bool changes = false;               // any argument
  bool index = false;                 // by tensors: what of booleans makes lengths that the host reads
  int dropout = -1;                   // the argument without which attention and recurrent layers draw nothing
  int training = -1;                  // the same of what draws
  int lengths = -1;                   // of packed sequences
  std::vector<bool> seed;             // by argument: what was drawn, if anything was
  std::vector<Drawn> drawn;           // by return: the same
  bool has_state = false;             // of its own, that random numbers come from
  bool hands_on = false;              // an argument, as a result of which its schema does not say so
  bool refers = false;                // has a tensor refer to another storage
  bool rounds_once = false;           // exact in its floats as well: IEEE says what comes out, wherever they lie
  int scale = -1;                     // if this argument is one
  bool meets = false;                 // other ranks, which wait for this one
  bool multiplies = false;            // matrices, perhaps by cuBLASLt
  bool plans = false;                 // for the sizes of its tensors, when it first meets them
  bool compares = false;              // its arguments with each other: the very same tensor again is computed another way
  bool lends = false;                 // memory to another stream, or to a copy that is made later
  uint64_t kernel_checked = 0;        // when `registrations` was that
  bool in_python = false;

  explicit Operator(const c10::OperatorHandle& op) : handle(op) {
    const auto& schema = op.schema();
    arguments = schema.arguments().size();
    returns = schema.returns().size();
    bool generator = false, any_write = false;
    for (const auto& argument : schema.arguments()) {
      const auto* alias = argument.alias_info();
      // batch_norm changes its running statistics, and a recurrent backward what the forward pass kept for it; their
      // schemas do not say so.
      bool write = (alias && alias->isWrite()) || argument.name().rfind("running_", 0) == 0 ||
          (argument.name() == "reserve" && schema.name().find("_rnn_backward") != std::string::npos);
      writes.push_back(write);
      any_write = any_write || write;
      generator = generator || argument.type()->str().find("Generator") != std::string::npos;
    }
    bool aliases = false, tensors_only = true;
    for (const auto& value : schema.returns()) {
      int from = -1;
      const auto* alias = value.alias_info();
      if (alias && alias->isWrite()) {
        for (size_t i = 0; i < arguments && from < 0; i++) {
          const auto* other = schema.arguments()[i].alias_info();
          if (other && other->isWrite() && other->beforeSets() == alias->beforeSets()) from = static_cast<int>(i);
        }
        if (from < 0) aliases = true;
      } else if (alias) {
        aliases = true;
      }
      returned_argument.push_back(from);
      auto kind = value.type()->kind();
      bool tensors = kind == c10::TypeKind::TensorType ||
          (kind == c10::TypeKind::ListType && value.type()->containedType(0)->kind() == c10::TypeKind::TensorType);
      tensors_only = tensors_only && tensors;
      drawn.push_back(value.name() == "philox_seed" ? Drawn::Seed : value.name() == "philox_offset" ? Drawn::Offset : Drawn::No);
    }
    pointwise = op.hasTag(at::Tag::pointwise);
    exact = pointwise || by_position(schema.name());
    checks_integers = !pointwise || divides(schema.name());
    rounds_once = is_one_operation(schema);
    for (size_t i = 0; i < arguments; i++)
      if (schema.arguments()[i].name() == "alpha") scale = static_cast<int>(i);
    changes = any_write;
    hands_on = schema.name() == "aten::_cudnn_rnn";
    for (const char* part : {"mm", "linear", "matmul", "transformer", "multi_head"}) multiplies = multiplies || schema.name().find(part) != std::string::npos;
    refers = schema.name() == "aten::set_";
    compares = schema.name().find("_multi_head_attention") != std::string::npos;
    plans = !is_of_torch(schema.name());
    for (const char* part : {"conv", "cudnn", "miopen", "_attention", "fft"}) plans = plans || schema.name().find(part) != std::string::npos;
    const bool recurs = schema.name().rfind("aten::_cudnn_rnn", 0) == 0;
    const bool attends = schema.name().find("_attention") != std::string::npos;
    for (size_t i = 0; i < arguments; i++) {
      const std::string& name = schema.arguments()[i].name();
      if ((attends && name == "dropout_p") || (hands_on && name == "dropout")) dropout = static_cast<int>(i);
      if (name == "train" || name == "training") training = static_cast<int>(i);
      if (recurs && name == "batch_sizes") lengths = static_cast<int>(i);
      seed.push_back(attends && (name == "philox_seed" || name == "philox_offset"));
    }
    lends = schema.name() == "aten::record_stream" || schema.name() == "aten::_lazy_clone";
    has_state = keeps_state(schema.name());
    meets = is_collective(schema.name()) && !is_of_two(schema.name());
    if (is_collective(schema.name())) always = Reason::Collective;
    else if (!is_of_torch(schema.name())) always = Reason::Foreign;
    else if (generator || op.hasTag(at::Tag::nondeterministic_seeded) || has_state) always = Reason::Random;
    else if (indexes(schema.name())) index = true, always = Reason::Read;
    else if (!tensors_only || op.hasTag(at::Tag::data_dependent_output) || op.hasTag(at::Tag::dynamic_output_shape)) always = Reason::Read;
    else if (op.hasTag(at::Tag::inplace_view) || lends || flattens(schema.name()) || copies_storage(schema.name())) always = Reason::Metadata;
    else if (returns == 0 && !any_write) always = Reason::Effect;
    else if (asks_for_gradients(schema.name()) || casts_within(schema.name())) always = Reason::Mode;
    else if (aliases) always = Reason::Alias;
    else if (checks_data(schema.name())) always = Reason::Checks;
  }

  bool draws_nothing(const Stack& stack) const {
    auto is = [&](int argument, const IValue& value) {
      return argument >= 0 && same_number(stack[stack.size() - arguments + argument], value);
    };
    return is(dropout, 0.0) || (always == Reason::Random && is(training, false));
  }

  // cuDNN copies the lengths from memory of its caller's.
  bool is_packed(const Stack& stack) const {
    return lengths >= 0 && !same_number(stack[stack.size() - arguments + lengths], std::vector<int64_t>());
  }

  // Positions, and no masks.
  bool is_by_position(const Stack& stack) const {
    bool only = index;
    for (size_t i = stack.size() - arguments; i < stack.size() && only; i++)
      if (stack[i].isOptionalTensorList())
        for_each_tensor(stack[i], [&](const at::Tensor& t) {
          only = only && (!t.defined() || t.scalar_type() == at::kLong || t.scalar_type() == at::kInt);
        });
    return only;
  }

  // What tells iterations apart: see `Periods`.
  static constexpr uint8_t READ = 1, WRITES = 2;
  uint8_t kind() const { return (always == Reason::Read && !index ? READ : 0) | (changes ? WRITES : 0); }

  // A library of the person's may define an operator anew.
  bool is_still(const c10::FunctionSchema& schema) const {
    return schema.arguments().size() == arguments && schema.returns().size() == returns;
  }

  // Views, `empty` and the profiler's marks touch no memory: a fallthrough costs them nothing. Composite operators
  // arrive whole under inference mode only; passed over, their parts arrive one by one as everywhere else.
  static Treatment treatment(const c10::OperatorHandle& op) {
    const auto& schema = op.schema();
    const std::string& name = schema.name();
    using K = c10::DispatchKey;
    if (op.hasKernelForDispatchKey(K::CompositeImplicitAutograd) && !op.hasKernelForDispatchKey(K::CPU) &&
        !op.hasKernelForDispatchKey(K::CUDA) && !op.hasKernelForDispatchKey(K::CompositeExplicitAutograd))
      return Treatment::Transparent;
    if (name.rfind("profiler::", 0) == 0 || name == "aten::is_same_size" || name == "aten::_has_same_storage_numel")
      return Treatment::Transparent;
    if (name == "aten::empty" || name == "aten::empty_strided" || name == "aten::empty_like" || name == "aten::new_empty" ||
        name == "aten::new_empty_strided" || name == "aten::empty_permuted")
      return op.schema().overload_name().find("out") == std::string::npos ? Treatment::Transparent : Treatment::Boxed;
    if (name == "aten::_unsafe_view" || name == "aten::unsafe_split" || name == "aten::unsafe_split_with_sizes") return Treatment::Transparent;
    if (multiplies_within(name)) return Treatment::Transparent;
    if (name.rfind("aten::", 0) != 0 || schema.returns().empty()) return Treatment::Boxed;
    for (const auto& argument : schema.arguments())
      if (argument.alias_info() && argument.alias_info()->isWrite()) return Treatment::Boxed;
    for (const auto& value : schema.returns())
      if (!value.alias_info()) return Treatment::Boxed;
    return maybe_copies(name) ? Treatment::Boxed : Treatment::Transparent;
  }

  static inline std::atomic<uint64_t> registrations{1};  // times that kernels may have come or gone

  // A kernel that Python registered may do anything; found at the first record only, for the text is slow to make.
  bool has_python_kernel() {
    if (kernel_checked != registrations) {
      kernel_checked = registrations;
      in_python = python_registered(handle.dumpState());
    }
    return in_python;
  }

 private:
  static bool is_of_torch(const std::string& name) { return name.rfind("aten::", 0) == 0; }

  // Other processes wait for it, so it is issued where the person's code issues it, behind what is pending: whether ranks
  // serve, diverge or capture at the same places does not matter then.
  static bool is_collective(const std::string& name) {
    for (const char* start : {"c10d::", "c10d_functional::", "_c10d_functional::", "_c10d_functional_autograd::", "_dtensor::", "symm_mem::"})
      if (name.rfind(start, 0) == 0) return true;
    return false;
  }

  // Exchanges between two ranks, and waits for what is under way.
  static bool is_of_two(const std::string& name) {
    for (const char* part : {"::send", "::recv", "::isend", "::irecv", "::batch_p2p", "::wait_tensor"})
      if (name.find(part) != std::string::npos) return true;
    return false;
  }

  // What no tag says. Recurrent layers keep the state of their dropout in a tensor that they are given. Their backward
  // pass draws nothing: it finds what was dropped where the forward pass kept it.
  static bool keeps_state(const std::string& n) {
    return n == "aten::rrelu_with_noise" || n == "aten::_cudnn_rnn" || n == "aten::miopen_rnn" || n == "aten::_cudnn_init_dropout_state";
  }

  // Autocast does not know it, but the products that it is made of, which a recorded operator runs without.
  static bool multiplies_within(const std::string& n) {
    return n == "aten::affine_grid_generator" || n == "aten::affine_grid_generator_backward" || n == "aten::_trilinear";
  }

  // The same on the CPU, where it is called under autocast as well; on CUDA `nn` asks for autocast before.
  static bool casts_within(const std::string& n) {
    return n == "aten::_transformer_encoder_layer_fwd" || n == "aten::_native_multi_head_attention";
  }

  // Has weights refer to memory that it makes.
  static bool flattens(const std::string& n) { return n == "aten::_cudnn_rnn_flatten_weight"; }

  // Its kernel asks whether gradients are recorded: it makes more then, and rounds otherwise. They may be recorded no
  // more, or again, when it is issued, or where the same operator comes next time.
  static bool asks_for_gradients(const std::string& n) { return n == "aten::mkldnn_rnn_layer"; }

  // Its result lies in a storage like its argument's, as large and as far from the begin. That is in no layout.
  static bool copies_storage(const std::string& n) {
    return n == "aten::slice_scatter" || n == "aten::select_scatter" || n == "aten::diagonal_scatter" || n == "aten::as_strided_scatter" ||
        n == "aten::_new_zeros_with_same_feature_meta";
  }

  static bool indexes(const std::string& n) {
    return n == "aten::index" || n == "aten::index_put" || n == "aten::index_put_" || n == "aten::_index_put_impl_" ||
        n == "aten::_unsafe_index" || n == "aten::_unsafe_index_put";
  }

  // Integers are positions, or copied. Not products: of quantized weights, kernels may sum in another order.
  static bool by_position(const std::string& n) {
    for (const char* start : {"aten::embedding", "aten::nll_loss", "aten::index", "aten::gather", "aten::scatter", "aten::take"})
      if (n.rfind(start, 0) == 0) return true;
    return n == "aten::clone" || n == "aten::copy_" || n == "aten::_to_copy" || n == "aten::cat" || n == "aten::stack";
  }

  static bool divides(const std::string& n) {
    for (const char* start : {"aten::div", "aten::floor_divide", "aten::true_divide", "aten::remainder", "aten::fmod", "aten::gcd", "aten::lcm"})
      if (n.rfind(start, 0) == 0) return true;
    return false;
  }

  // Of each element one operation that IEEE rounds, or none.
  static bool is_one_operation(const c10::FunctionSchema& schema) {
    if (schema.overload_name().find("mode") != std::string::npos) return false;  // of a division
    if (schema.name().rfind("aten::", 0) != 0) return false;
    std::string name = schema.name().substr(std::strlen("aten::"));
    if (name.size() > 1 && name.back() == '_') name.pop_back();
    for (const char* one : {"add", "sub", "mul", "div", "neg", "abs", "sqrt", "reciprocal", "eq", "ne", "lt", "le", "gt", "ge", "maximum",
                            "minimum", "clamp", "clamp_min", "clamp_max", "relu", "where", "masked_fill", "copy", "clone", "_to_copy"})
      if (name == one) return true;
    return false;
  }

  static bool maybe_copies(const std::string& n) {
    return n == "aten::reshape" || n == "aten::contiguous" || n == "aten::to" || n == "aten::flatten" || n == "aten::ravel" ||
        n == "aten::_lazy_clone" || n == "aten::_nested_get_values" || n == "aten::coalesce";
  }

  // Kernels of the CPU that look at their data and raise. Issued later, they would raise at another place.
  static bool checks_data(const std::string& n) {
    for (const char* start :
         {"aten::linalg_", "aten::_linalg", "aten::cholesky", "aten::lu_", "aten::binary_cross_entropy", "aten::_assert",
          "aten::triangular_solve", "aten::ormqr", "aten::histogram", "aten::_histogram", "aten::histc", "aten::quantile",
          "aten::searchsorted", "aten::bucketize", "aten::segment_reduce", "aten::_ctc", "aten::embedding", "aten::nll_loss",
          "aten::index", "aten::gather", "aten::scatter", "aten::masked_scatter", "aten::take", "aten::put_", "aten::one_hot", "aten::multi_margin",
          "aten::multilabel_margin", "aten::max_unpool", "aten::_validate", "aten::cross_entropy", "aten::_index_put",
          "aten::_unsafe_index", "aten::geqrf", "aten::grid_sampler", "aten::repeat_interleave", "aten::kthvalue"})
      if (n.rfind(start, 0) == 0) return true;
    return false;
  }

  static bool python_registered(const std::string& state) {
    size_t begin = 0;
    while (begin < state.size()) {
      size_t end = state.find('\n', begin);
      if (end == std::string::npos) end = state.size();
      std::string line = state.substr(begin, end - begin);
      begin = end + 1;
      if (line.find("/dev/null") == std::string::npos && line.find(".py:") == std::string::npos) continue;
      for (const char* key : {"CPU", "CUDA", "CompositeImplicitAutograd", "CompositeExplicitAutograd", "BackendSelect",
                              "CompositeExplicitAutogradNonFunctional"}) {
        size_t length = std::strlen(key);
        if (line.compare(0, length, key) == 0 && (line[length] == ':' || line[length] == '[')) return true;
      }
    }
    return false;
  }
};

// Of the operator and of all tensors that it is given, those in lists as well: `exact` with their sizes, for a cache that grows
// by `cat` is another iteration at each length; `loose` without.
struct Signature {
  uint64_t exact, loose;

  Signature(const Operator& op, const Stack& stack) : exact(reinterpret_cast<uint64_t>(&op)), loose(~exact) {
    Met met;
    for (size_t i = stack.size() - op.arguments; i < stack.size(); i++)
      for_each_tensor(stack[i], [&](const at::Tensor& t) {
        take(t);
        if (op.compares) both(static_cast<uint64_t>(met_before(met, t)));
      });
  }

 private:
  void take(const at::Tensor& t) {
    if (!t.defined()) return both(77);
    if (!is_plain(t)) return both(t.key_set().raw_repr());  // it may have no sizes
    for (auto size : t.sizes()) exact = mix(exact, static_cast<uint64_t>(size));
    auto kind = static_cast<uint64_t>(c10::typeMetaToScalarType(t.dtype()));
    exact = mix(exact, kind);
    loose = mix(loose, kind << 32 | static_cast<uint64_t>(t.dim()));
  }
  void both(uint64_t value) { exact = mix(exact, value), loose = mix(loose, value); }
};

}  // namespace grape
