// What an operator is given and returns: tensors, numbers, layouts. Nothing here dispatches an operator.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/ScalarTypeToTypeMeta.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <utility>

namespace grape {

using c10::IValue;
using c10::StorageImpl;
using torch::jit::Stack;

// Below autograd and above the backends, in no alias of keys, and without kernels of torch's own in 2.11 to 2.13.
inline constexpr c10::DispatchKey KEY = c10::DispatchKey::Fake;

// The dispatch state in which recorded operators run: no autograd, autocast, mode or engine above the backend.
class BelowEverything {
  static c10::DispatchKeySet excluded() {
    return c10::DispatchKeySet(KEY) | c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset |
        c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot, c10::DispatchKey::FuncTorchDynamicLayerFrontMode,
                             c10::DispatchKey::FuncTorchDynamicLayerBackMode, c10::DispatchKey::Functionalize});
  }
  c10::impl::ForceDispatchKeyGuard guard_{c10::DispatchKeySet(c10::DispatchKey::BackendSelect), excluded()};
};

struct Layout {
  c10::SmallVector<int64_t, 5> sizes, strides;
  caffe2::TypeMeta dtype;

  static Layout of(const at::Tensor& t) {
    Layout layout;
    layout.sizes.assign(t.sizes().begin(), t.sizes().end());
    layout.strides.assign(t.strides().begin(), t.strides().end());
    layout.dtype = t.dtype();
    return layout;
  }
  bool fits(const at::Tensor& t) const { return fits_but_for_strides(t) && t.strides().equals(c10::IntArrayRef(strides)); }
  bool fits_but_for_strides(const at::Tensor& t) const { return t.dtype() == dtype && t.sizes().equals(c10::IntArrayRef(sizes)); }
  // Bytes from the first element to the end of the last.
  size_t span() const {
    int64_t last = 0;
    for (size_t i = 0; i < sizes.size(); i++) {
      if (sizes[i] == 0) return 0;
      last += (sizes[i] - 1) * strides[i];
    }
    return static_cast<size_t>(last + 1) * dtype.itemsize();
  }
  // No byte lies between its elements, and each belongs to one of them.
  bool is_dense() const {
    c10::SmallVector<std::pair<int64_t, int64_t>, 5> steps;  // stride, size
    for (size_t i = 0; i < sizes.size(); i++)
      if (sizes[i] != 1) steps.emplace_back(strides[i], sizes[i]);
    std::sort(steps.begin(), steps.end());
    int64_t all = 1;
    for (auto [stride, size] : steps) {
      if (stride != all) return false;
      all *= size;
    }
    return true;
  }
  // The same elements, each once as far as that is easy to see: of what was expanded.
  Layout once() const {
    Layout layout = *this;
    for (size_t i = 0; i < sizes.size(); i++)
      if (strides[i] == 0 && sizes[i] > 1) layout.sizes[i] = 1;
    return layout;
  }
};

// On the CPU, without dimensions.
inline at::Tensor zero(at::ScalarType type) {
  auto dtype = c10::scalarTypeToTypeMeta(type);
  c10::Storage storage(c10::Storage::use_byte_size_t(), dtype.itemsize(), c10::GetCPUAllocator(), /*resizable=*/true);
  std::memset(storage.mutable_data(), 0, dtype.itemsize());
  auto impl = c10::make_intrusive<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), dtype);
  impl->set_sizes_contiguous({});
  return at::Tensor(std::move(impl));
}

inline int64_t byte_offset(const at::Tensor& t) {
  return t.storage_offset() * static_cast<int64_t>(t.itemsize());
}

inline StorageImpl* storage_of(const at::Tensor& t) {
  return t.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

inline bool is_number(const at::Tensor& t) {
  return t.unsafeGetTensorImpl()->is_wrapped_number();
}

// A dense tensor and nothing more: no subclass, transform, conjugate, quantized, sparse, meta or fake tensor.
inline bool is_plain(const at::Tensor& t) {
  constexpr auto ordinary = c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset |
      c10::DispatchKeySet({c10::DispatchKey::CPU, c10::DispatchKey::CUDA});
  return (t.key_set().raw_repr() & ~ordinary.raw_repr()) == 0 && t.has_storage();  // `-` would leave the backend's bits
}

// Which of those before it this very tensor is; -1: none is. It is one of them from now on.
using Met = c10::SmallVector<const c10::TensorImpl*, 8>;
inline int met_before(Met& met, const at::Tensor& t) {
  const c10::TensorImpl* impl = t.defined() ? t.unsafeGetTensorImpl() : nullptr;
  auto found = impl ? std::find(met.begin(), met.end(), impl) : met.end();
  int before = found == met.end() ? -1 : static_cast<int>(found - met.begin());
  met.push_back(impl);
  return before;
}

inline bool has_python_key(const at::Tensor& t) {
  return t.key_set().has(c10::DispatchKey::Python);
}

template <class F>
inline void for_each_tensor(const IValue& value, F f) {
  if (value.isTensor()) {
    f(value.toTensor());
  } else if (value.isOptionalTensorList()) {
    for (const IValue& element : value.toListRef()) f(element.isTensor() ? element.toTensor() : at::Tensor());
  } else if (value.isList()) {
    for (const IValue& element : value.toListRef())
      if (element.isTensor()) f(element.toTensor());
  }
}

inline bool holds_tensor(const IValue& value) {
  if (value.isTensor()) return true;
  if (!value.isList()) return false;
  for (const IValue& element : value.toListRef())
    if (element.isTensor()) return true;
  return false;
}

// Whether kernels count versions by the operators that they call: nothing of autograd's came before. So it is for what
// takes tensors of the inference mode outside of it, and for factories.
inline bool counts_below() {
  return !c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::ADInplaceOrView) && !c10::InferenceMode::is_enabled();
}

// Equal by bits, so that 0.0 is not -0.0 and a NaN is itself; what cannot be compared is not equal.
inline bool same_number(const IValue& a, const IValue& b) {
  if (a.isNone() || b.isNone()) return a.isNone() && b.isNone();
  if (a.isInt() && b.isInt()) return a.toInt() == b.toInt();
  if (a.isBool() && b.isBool()) return a.toBool() == b.toBool();
  if (a.isDouble() && b.isDouble()) {
    double x = a.toDouble(), y = b.toDouble();
    return std::memcmp(&x, &y, sizeof x) == 0;
  }
  if (a.isComplexDouble() && b.isComplexDouble()) {
    auto x = a.toComplexDouble(), y = b.toComplexDouble();
    return std::memcmp(&x, &y, sizeof x) == 0;
  }
  if (a.isString() && b.isString()) return a.toStringRef() == b.toStringRef();
  if (a.isDevice() && b.isDevice()) return a.toDevice() == b.toDevice();
  if (a.isList() && b.isList()) {
    auto x = a.toListRef(), y = b.toListRef();
    if (x.size() != y.size()) return false;
    for (size_t i = 0; i < x.size(); i++)
      if (!same_number(x[i], y[i])) return false;
    return true;
  }
  return false;
}

inline uint64_t mix(uint64_t hash, uint64_t value) {
  hash ^= value;
  hash *= 0x9E3779B97F4A7C15ull;
  return hash ^ (hash >> 29);
}

}  // namespace grape
