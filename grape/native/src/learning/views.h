// The memory that recorded operators were seen to use: views of storages, which become the fragment's slots.
#pragma once
#include "fragments/fragment.h"

#include <string>
#include <unordered_map>
#include <vector>

namespace grape {

// Until `become_slots`, `slot` numbers views in inputs and results.
class Views {
 public:
  explicit Views(const Device& device) : device_(device) {}

  // Weakly: autograd accumulates gradients in place only where nobody else has their storage.
  // False: its memory moved since it was seen first.
  bool hold(const at::Tensor& t) {
    StorageImpl* storage = storage_of(t);
    auto [found, is_new] = seen_.try_emplace(storage, Memory{storage->data(), storage->nbytes()});
    if (is_new) storages_.emplace_back(t.storage().getWeakStorageImpl());
    return found->second.data == storage->data() && found->second.nbytes == storage->nbytes();
  }
  bool has_seen(StorageImpl* storage) const { return seen_.count(storage) > 0; }
  size_t size() const { return views_.size(); }

  // The view that the tensor is.
  int of(const at::Tensor& t) {
    StorageImpl* storage = storage_of(t);
    auto made = made_.find(storage);
    if (made != made_.end()) return made->second;
    std::string key(reinterpret_cast<const char*>(&storage), sizeof storage);
    auto add = [&](int64_t n) { key.append(reinterpret_cast<const char*>(&n), sizeof n); };
    add(byte_offset(t));
    add(static_cast<int64_t>(t.scalar_type()));
    for (auto n : t.sizes()) add(n);
    for (auto n : t.strides()) add(n);
    auto [found, is_new] = by_view_.emplace(key, static_cast<int>(views_.size()));
    if (is_new) {
      size_t low = static_cast<size_t>(byte_offset(t));
      views_.push_back({storage, static_cast<char*>(const_cast<void*>(storage->data())), low, low + Layout::of(t).span()});
    }
    return found->second;
  }

  // The view of a storage that a recorded operator made; -1: none did.
  int made(StorageImpl* storage) const {
    auto known = made_.find(storage);
    return known == made_.end() ? -1 : known->second;
  }
  // An operator made the tensor's storage.
  void make(const at::Tensor& t) {
    StorageImpl* storage = storage_of(t);
    made_.emplace(storage, static_cast<int>(views_.size()));
    views_.push_back({storage, static_cast<char*>(const_cast<void*>(storage->data())), 0, storage->nbytes(), true, true});
    hold(t);
  }
  // It lies where the operator put it.
  void unmake(StorageImpl* storage) {
    views_[made_.at(storage)].storage = nullptr;
    made_.erase(storage);
  }
  void write(int view) { views_[view].written = true; }

  // Views of one storage that is written are one slot, other views are a slot each.
  void become_slots(Fragment& fragment) const {
    auto& slots = fragment.slots;
    std::unordered_map<StorageImpl*, bool> written;
    for (auto& view : views_)
      if (view.storage) written[view.storage] = written[view.storage] || view.written || view.made;
    std::unordered_map<StorageImpl*, int> shared;
    std::vector<int> slot_of(views_.size());
    for (size_t v = 0; v < views_.size(); v++) {
      const View& view = views_[v];
      if (!view.storage) continue;
      int id = -1;
      auto found = shared.find(view.storage);
      if (written[view.storage] && found != shared.end()) id = found->second;
      if (id < 0) {
        id = static_cast<int>(slots.size());
        slots.emplace_back();
        if (written[view.storage]) shared[view.storage] = id;
        slots[id].address = view.data + view.low;
        slots[id].span = view.high - view.low;
        slots[id].written = written[view.storage];
      } else {
        char* low = std::min(slots[id].address, view.data + view.low);
        char* high = std::max(slots[id].address + slots[id].span, view.data + view.high);
        slots[id].address = low;
        slots[id].span = high - low;
      }
      slots[id].exact = !slots[id].written;
      slots[id].changed = slots[id].changed || view.written;
      if (view.made) slots[id].nbytes = view.high;
      slot_of[v] = id;
    }
    for (Step& step : fragment.steps) {
      for (Input& in : step.inputs) {
        if (in.slot < 0) continue;
        place(in.slot, in.at, in.layout, step, fragment, slot_of);
        bool exact = step.run != Reason::None || (step.op->exact && is_integral(in.layout)) || (rounds_once(step) && is_real(in.layout));
        slots[in.slot].exact = slots[in.slot].exact && exact;
      }
      for (Output& out : step.outputs)
        for (Made& m : out.made)
          if (m.slot >= 0) place(m.slot, m.at, m.layout, step, fragment, slot_of);
    }
    for (Slot& slot : slots)
      if (!slot.nbytes) slot.lies_at(slot.address, device_);
  }

 private:
  // A tensor's bytes in a storage, as recorded.
  struct View {
    StorageImpl* storage;
    char* data;
    size_t low, high;
    bool written = false, made = false;
  };
  struct Memory {
    const void* data;
    size_t nbytes;
  };

  void place(int& slot, int64_t& at, const Layout& layout, Step& step, const Fragment& fragment, const std::vector<int>& slot_of) const {
    const View& view = views_[slot];
    slot = slot_of[slot];
    const Slot& target = fragment.slots[slot];
    at = view.data + at - target.address;
    if (at % static_cast<int64_t>(layout.dtype.itemsize()) && step.run == Reason::None) step.run = Reason::Opaque;
  }

  static bool is_integral(const Layout& layout) {
    return c10::isIntegralType(c10::typeMetaToScalarType(layout.dtype), /*includeBool=*/true);
  }

  static bool is_real(const Layout& layout) {
    return c10::isFloatingType(c10::typeMetaToScalarType(layout.dtype));
  }

  static bool rounds_once(const Step& step) {
    if (!step.op->rounds_once || step.op->scale < 0) return step.op->rounds_once;
    const IValue& scale = step.arguments[static_cast<size_t>(step.op->scale)].value;
    return (scale.isInt() && scale.toInt() == 1) || (scale.isDouble() && scale.toDouble() == 1.0);
  }

  const Device& device_;
  std::vector<View> views_;
  std::unordered_map<StorageImpl*, int> made_;
  std::unordered_map<StorageImpl*, Memory> seen_;
  std::unordered_map<std::string, int> by_view_;
  std::vector<c10::weak_intrusive_ptr<StorageImpl>> storages_;  // of everything that was seen, so that no address is used twice
};

}  // namespace grape
