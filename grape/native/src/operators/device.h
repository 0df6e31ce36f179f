// Where a session defers operators: the memory there, copies, and the stream on which it launches. Operators without a
// tensor of the device run as if no session were open.
#pragma once
#include "operators/values.h"

#include <ATen/Context.h>
#include <ATen/ops/_foreach_copy.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>

#include <atomic>
#include <optional>
#include <string>
#include <unordered_map>

namespace grape {

// A moment on the device's clock.
using Mark = std::optional<c10::Event>;

struct Copy {
  char* to;
  const char* from;
  size_t n;
};

// The CPU: what is launched is computed at once.
class Device {
 public:
  Device(c10::Device place, c10::DispatchKey key, size_t alignment) : place(place), key(key), alignment(alignment), allocator(c10::GetAllocator(place.type())), deleter_(allocator->raw_deleter()) {}
  explicit Device() : Device(c10::Device(c10::kCPU), c10::DispatchKey::CPU, 64) {}
  virtual ~Device() = default;

  const c10::Device place;
  const c10::DispatchKey key;
  const size_t alignment;  // by which kernels may choose their code
  c10::Allocator* const allocator;

  bool is_cpu() const { return place.is_cpu(); }
  bool holds(const at::Tensor& t) const { return is_plain(t) && t.device() == place; }

  // A number in all but type: what an operator reads on the host, when it is issued.
  bool is_scalar(const at::Tensor& t) const { return is_number(t) || (!is_cpu() && t.is_cpu() && t.dim() == 0 && is_plain(t)); }

  virtual at::DataPtr allocate(size_t n) const { return allocator->allocate(n); }
  c10::Storage storage(size_t n) const { return c10::Storage(c10::Storage::use_byte_size_t(), n, allocate(n), allocator, true); }

  // Memory that only operators reach, and streams only as far as the allocator knows.
  bool allocated(const StorageImpl* storage) const { return storage->data_ptr().get_deleter() == deleter_; }

  // On the current stream.
  virtual void copy(const Copy& copy) const { std::memcpy(copy.to, copy.from, copy.n); }
  // Of which none writes what another one reads or writes.
  virtual void copy(const std::vector<Copy>& copies) const {
    for (const Copy& one : copies) copy(one);
  }

  at::Tensor tensor(c10::Storage storage, caffe2::TypeMeta dtype, c10::IntArrayRef sizes, c10::IntArrayRef strides, int64_t offset = 0) const {
    auto impl = c10::make_intrusive<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), dtype);
    impl->set_sizes_and_strides(sizes, strides, offset);
    return at::Tensor(std::move(impl));
  }

  // A number that lies there, of another's memory.
  at::Tensor word(int64_t* address) const {
    c10::Storage storage(c10::Storage::use_byte_size_t(), sizeof(int64_t), at::DataPtr(address, place), nullptr, false);
    return tensor(std::move(storage), caffe2::TypeMeta::Make<int64_t>(), {}, {});
  }
  // Numbers, before what comes next on the current stream. They may go as soon as this returns.
  virtual void upload(void* to, const std::vector<int64_t>& numbers) const { std::memcpy(to, numbers.data(), numbers.size() * sizeof(int64_t)); }

  // True where an operator has something to do with the device.
  virtual bool concerns(size_t arguments, const Stack& stack) const { return true; }
  // True where an operator would be issued on the stream that the session defers on.
  virtual bool is_current() const { return true; }
  // True where autograd runs operators on threads of its own.
  virtual bool has_threads() const { return false; }

  virtual void enter_stream(std::optional<c10::StreamGuard>& guard) const {}
  // The current stream waits for what was launched so far.
  virtual void let_wait(uint64_t launched) {}

  // Of the current stream: when it comes there. False where it has no clock, or none now.
  virtual bool mark(Mark& mark) const { return false; }

  // The allocator waits for the current stream before it gives the tensor's memory to others.
  virtual void used_here(const at::Tensor& t) {}

  // Of the default generator: what changes whenever an operator draws from it.
  virtual std::string generator_state() const {
    auto state = at::globalContext().defaultGenerator(place).get_state();
    return std::string(static_cast<const char*>(state.const_data_ptr()), state.nbytes());
  }

 private:
  const at::DeleterFnPtr deleter_;
};

// One CUDA device and the stream that is current when the session opens. No header of CUDA's: there may be none.
class Cuda final : public Device {
 public:
  explicit Cuda(c10::DeviceIndex index)
      : Device(c10::Device(c10::kCUDA, index), c10::DispatchKey::CUDA, 256),  // cuBLASLt looks at so much of an address
        impl_(c10::kCUDA), stream_(impl_.getStream(place)), handle_(stream_.native_handle()) {
    find(copy_, "cudaMemcpyAsync");
    find(launch_, "cudaGraphLaunch");
    find(capturing_, "cudaStreamIsCapturing");
    find(last_error_, "cudaGetLastError");
  }

  // Whoever asks: the allocator gives memory that is freed to the stream that it was allocated on.
  at::DataPtr allocate(size_t n) const override {
    c10::StreamGuard guard(stream_);
    return allocator->allocate(n);
  }

  void copy(const Copy& copy) const override {
    constexpr int device_to_device = 3;
    check(copy_(copy.to, copy.from, copy.n, device_to_device, impl_.getStream(place).native_handle()), "cudaMemcpyAsync");
  }

  void upload(void* to, const std::vector<int64_t>& numbers) const override {
    constexpr int host_to_device = 1;
    check(copy_(to, numbers.data(), numbers.size() * sizeof(int64_t), host_to_device, handle_), "cudaMemcpyAsync");
  }

  // Many small ones as one kernel: the host takes as long for each copy as for a kernel. The first launch of it loads its
  // module, in 12 to 20 ms on an H100: single copies come first, until they have taken as long.
  void copy(const std::vector<Copy>& copies) const override {
    bool single = copies.size() < FEW || (copied_ < LOADED && (copied_ += copies.size()) < LOADED);
    std::vector<at::Tensor> to, from;
    for (const Copy& one : copies) {
      bool whole = (reinterpret_cast<uintptr_t>(one.to) | reinterpret_cast<uintptr_t>(one.from) | one.n) % sizeof(int32_t) == 0;
      if (single || one.n > SMALL || !whole) copy(one);
      else to.push_back(words(one.to, one.n)), from.push_back(words(const_cast<char*>(one.from), one.n));
    }
    if (to.empty()) return;
    BelowEverything guard;
    at::_foreach_copy_(to, from, /*non_blocking=*/true);
  }

  // Seed and offset are all of it. `get_state` makes a tensor of them, which took a fifth of what recording an operator does.
  std::string generator_state() const override {
    const at::Generator& generator = at::globalContext().defaultGenerator(place);
    uint64_t state[] = {generator.current_seed(), generator.get_offset()};
    return std::string(reinterpret_cast<const char*>(state), sizeof state);
  }

  bool launch(void* executable) const {
    if (!launch_(executable, handle_)) return true;
    last_error_();
    return false;
  }

  bool concerns(size_t arguments, const Stack& stack) const override {
    bool tensors = false, here = false;
    for (size_t i = stack.size() - arguments; i < stack.size() && !here; i++)
      for_each_tensor(stack[i], [&](const at::Tensor& t) {
        if (here || !t.defined()) return;
        tensors = true;
        here = t.device() == place;
      });
    if (here || tensors) return here;
    for (size_t i = stack.size() - arguments; i < stack.size(); i++)
      if (stack[i].isDevice() && stack[i].toDevice().is_cuda()) {
        c10::Device given = stack[i].toDevice();
        return (given.has_index() ? given : impl_.getDevice()) == place;
      }
    return false;
  }

  bool is_current() const override { return impl_.getStream(place) == stream_; }
  bool has_threads() const override { return true; }
  void enter_stream(std::optional<c10::StreamGuard>& guard) const override { guard.emplace(stream_); }

  void let_wait(uint64_t launched) override {
    c10::Stream other = impl_.getStream(place);
    uint64_t& waited = waited_[other.id()];
    int capturing = 0;
    check(capturing_(other.native_handle(), &capturing), "cudaStreamIsCapturing");
    if (waited == launched || capturing) return;
    waited = launched;
    c10::Event event(c10::kCUDA);
    event.record(stream_);
    event.block(other);
  }

  bool mark(Mark& mark) const override {
    c10::Stream stream = impl_.getStream(place);
    int capturing = 0;
    if (capturing_(stream.native_handle(), &capturing) || capturing) return last_error_(), false;
    if (!mark) mark.emplace(c10::kCUDA, c10::EventFlag::BACKEND_DEFAULT);  // the one with a time
    mark->record(stream);
    return true;
  }

  void used_here(const at::Tensor& t) override { t.record_stream(impl_.getStream(place)); }

 private:
  template <class F>
  static void find(F*& function, const char* name) {
    void* found = dlsym(RTLD_DEFAULT, name);
    for (const char* library : {"libcudart.so.13", "libcudart.so.12"})
      if (!found)
        if (void* loaded = dlopen(library, RTLD_LAZY | RTLD_NOLOAD)) found = dlsym(loaded, name);
    TORCH_CHECK(found, "the CUDA runtime that torch loaded has no ", name);
    function = reinterpret_cast<F*>(found);
  }
  void check(int error, const char* what) const {
    if (!error) return;
    last_error_();  // else torch would find it
    TORCH_CHECK(false, what, " failed with error ", error);
  }

  at::Tensor words(char* where, size_t n) const {
    c10::Storage storage(c10::Storage::use_byte_size_t(), n, at::DataPtr(where, place), nullptr, false);
    return tensor(std::move(storage), caffe2::TypeMeta::Make<int32_t>(), {static_cast<int64_t>(n / sizeof(int32_t))}, {1});
  }

  static constexpr size_t FEW = 3, SMALL = 1 << 16, LOADED = 4000;
  inline static std::atomic<size_t> copied_{0};  // one by one, by this process

  c10::impl::VirtualGuardImpl impl_;
  const c10::Stream stream_;
  void* const handle_;
  std::unordered_map<c10::StreamId, uint64_t> waited_;
  int (*copy_)(void*, const void*, size_t, int, void*) = nullptr;
  int (*launch_)(void*, void*) = nullptr;
  int (*capturing_)(void*, int*) = nullptr;
  int (*last_error_)() = nullptr;
};

}  // namespace grape
