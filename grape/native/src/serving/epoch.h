// The time between two launches. What is pending, which storages its slots are bound to, what is copied before and after.
//
//   E1  Behind a launch every live storage holds what eager code would have put there: no epoch needs the one before.
//   E2  A storage that pending operators write is bound to one slot only.
//   E3  What pending operators read from outside is held, or lent, until they are issued.
//   E6  Of memory from outside a launch writes what its operators write, and nothing beside it: there a collective or
//       another thread may write at the same time.
#pragma once
#include "fragments/fragment.h"
#include "process/python_objects.h"
#include "serving/launcher.h"

namespace grape {

enum class Bound : uint8_t { Yes, Foreign, Aliased, Misaligned };

struct Copies {
  size_t in = 0, out = 0, bytes = 0, kept = 0;
};

class Epoch {
 public:
  Epoch(const Device& device, bool graphs) : device_(device), graphs_(graphs) {}

  uint64_t number() const { return number_; }

  Bound bind(Fragment& fragment, int id, const at::Tensor& t, int64_t at) {
    Slot& slot = fragment.slots[id];
    StorageImpl* storage = storage_of(t);
    char* data = static_cast<char*>(const_cast<void*>(storage->data()));
    char* base = data + byte_offset(t) - at;
    if (slot.epoch == number_) return slot.storage == storage && slot.base == base ? Bound::Yes : Bound::Aliased;
    if (!is_torchs_own(storage, device_)) return Bound::Foreign;
    if (base < data || base + slot.span > data + storage->nbytes()) return Bound::Aliased;
    if (!claim(storage, slot.written)) return Bound::Aliased;
    if (base != slot.address || lies_in_own_home(fragment, slot, tenancy_of(storage))) {
      // Kernels may choose their code, and so their rounding, by the alignment of what they are given.
      if (slot.owned() && !slot.exact && residue(slot.address) != residue(base) && !turn(fragment, slot, base)) return Bound::Misaligned;
      slot.otherwise = 0;
      make_room(fragment, slot, base, tenancy_of(storage));
      if (base != slot.address) {
        copies_in_.push_back({slot.address, base, slot.span});
        if (slot.changed) slot.out = copies_out_.size(), copies_out_.push_back({weakly(storage), base - data, id});
      }
    }
    if (Tenancy* tenancy = tenancy_of(storage)) {
      tenancy->read_in = number_;  // its home stays as it is until the launch
      pending_.push_back(weakly(storage));
    } else if (has_python_object(t)) {
      held_.push_back(c10::intrusive_ptr<StorageImpl>::reclaim_copy(storage));
    } else {  // a gradient, perhaps, that autograd adds to in place where nobody else refers to it
      leases_.emplace_back(storage);
      leases_.back().tenancy()->read_in = number_;
      pending_.push_back(weakly(storage));
    }
    take(slot, storage, base);
    return Bound::Yes;
  }

  // Whether the slot is bound since the last launch.
  bool has(const Slot& slot) const { return slot.epoch == number_; }

  // What an operator of the fragment makes, in its home if that is vacant.
  c10::Storage hand_out(Fragment& fragment, int id) {
    Slot& slot = fragment.slots[id];
    if (slot.kept && slot.returned < 2) {
      slot.dead = slot.last_kept.use_count() == 0 ? slot.dead + 1 : 0;
      if (slot.dead > 8 && slot.home->vacant()) slot.kept = false, slot.dead = 0, slot.returned++;
    }
    if (!slot.kept && !slot.home->vacant()) {
      move_home(fragment, slot);  // which fails where there is no memory
      slot.kept = true;
      copies.kept++;
    }
    c10::Storage storage;
    if (slot.kept) {
      storage = device_.storage(slot.nbytes);
      slot.last_kept = c10::weak_intrusive_ptr<StorageImpl>(storage.getWeakStorageImpl());
      copies_out_.push_back({slot.last_kept, 0, id, /*made=*/true});
    } else {
      storage = slot.home->lend();
    }
    StorageImpl* impl = storage.unsafeGetStorageImpl();
    pending_.push_back(c10::weak_intrusive_ptr<StorageImpl>(storage.getWeakStorageImpl()));
    claim(impl, true);
    take(slot, impl, static_cast<char*>(const_cast<void*>(impl->data())));
    return storage;
  }

  struct Mark { size_t in, out, held; };
  Mark mark() const { return {copies_in_.size(), copies_out_.size(), held_.size()}; }
  // An operator was refused when some of its arguments were bound already. The epoch ends behind this.
  void forget(const Mark& mark) {
    copies_in_.erase(copies_in_.begin() + mark.in, copies_in_.end());
    copies_out_.erase(copies_out_.begin() + mark.out, copies_out_.end());
    held_.erase(held_.begin() + mark.held, held_.end());
  }

  std::exception_ptr launch(Launcher& launcher, Fragment& fragment, size_t first, size_t last, Segment* whole) {
    std::exception_ptr raised;
    try {
      for (const Copy& copy : copies_in_) count(copies.in, copy.n);
      device_.copy(copies_in_);
      raised = launcher.launch(fragment, first, last, whole);
      if (!copies_out_.empty()) copy_out(fragment, first, last);
    } catch (...) {  // nothing of it is pending any more, whatever happened
      if (!raised) raised = std::current_exception();
    }
    end();
    return raised;
  }

  // What an operator elsewhere may read for longer than the host knows: the memory is the occupant's from now on.
  void give_away(Fragment& fragment, const Tenancy* tenancy) {
    for (Slot& slot : fragment.slots)
      if (slot.home && slot.home->has(tenancy)) move_home(fragment, slot), slot.kept = true;
    end_leases();
  }

  void end() {
    for (auto& storage : held_) trash.storages.push_back(std::move(storage));
    end_leases();
    held_.clear();
    pending_.clear();
    copies_in_.clear();
    copies_out_.clear();
    number_++;
    if (claims_.size() > 100'000) claims_.clear();
  }

  Copies copies;
  Trash trash;  // to be emptied without a lock

 private:
  struct Strided {
    int64_t at;
    Layout layout;

    auto key() const { return std::tie(at, layout.sizes, layout.strides); }
    bool same(const Strided& other) const { return key() == other.key() && layout.dtype == other.layout.dtype; }
  };
  // Where a slot's bytes go: all of them if it was made, else those that were changed.
  struct Out {
    c10::weak_intrusive_ptr<StorageImpl> to;
    int64_t offset;
    int slot;
    bool made = false;
    std::vector<std::pair<int64_t, int64_t>> changed = {};  // from, to
    std::vector<Strided> strided = {};  // what was changed element by element
  };
  struct Claim { uint64_t epoch = 0; bool written = false; };

  void end_leases() {
    for (Lease& lease : leases_) lease.end(trash);
    leases_.clear();
  }

  size_t residue(const char* address) const { return alignment_class(reinterpret_cast<uintptr_t>(address), device_.alignment); }

  void count(size_t& n, size_t bytes) { n++, copies.bytes += bytes; }

  void copy_out(Fragment& fragment, size_t first, size_t last) {
    for (size_t i = first; i < last; i++)
      for (const Input& in : fragment.steps[i].inputs) {
        if (!in.written || in.kind != Input::Outside) continue;
        Out* copy = out_of(fragment, in.slot);
        if (!copy || copy->made) continue;
        Layout written = in.layout.once();
        if (written.is_dense()) copy->changed.emplace_back(in.at, in.at + static_cast<int64_t>(written.span()));
        else copy->strided.push_back({in.at, std::move(written)});
      }
    copying_out_.clear();
    std::vector<std::pair<at::Tensor, at::Tensor>> elements;
    for (Out& copy : copies_out_) {
      auto storage = copy.to.lock();
      if (!storage) continue;  // nobody has it any more
      const Slot& slot = fragment.slots[copy.slot];
      char* to = static_cast<char*>(const_cast<void*>(storage->data())) + copy.offset;
      bool fits = slot.span && copy.offset + slot.span <= storage->nbytes();
      if (copy.made) copy.changed.emplace_back(0, static_cast<int64_t>(slot.span));
      if (fits) {
        for (auto [from, end] : merged(copy.changed)) {
          auto n = static_cast<size_t>(end - from);
          copying_out_.push_back({to + from, slot.address + from, n}), count(copies.out, n);
        }
        if (!copy.strided.empty()) {
          Slot outside;
          outside.span = slot.span;
          outside.lies_at(to, device_);
          for (const Strided& part : distinct(copy.strided)) {
            elements.emplace_back(outside.tensor(part.layout, part.at, device_), slot.tensor(part.layout, part.at, device_));
            count(copies.out, elements.back().first.nbytes());
          }
        }
      }
      trash.storages.push_back(std::move(storage));
    }
    device_.copy(copying_out_);
    BelowEverything guard;
    for (auto& [to, from] : elements) to.copy_(from);
  }

  Out* out_of(const Fragment& fragment, int slot) {
    size_t out = fragment.slots[slot].out;
    return out < copies_out_.size() && copies_out_[out].slot == slot ? &copies_out_[out] : nullptr;
  }

  static std::vector<Strided>& distinct(std::vector<Strided>& parts) {
    std::sort(parts.begin(), parts.end(), [](const Strided& a, const Strided& b) { return a.key() < b.key(); });
    parts.erase(std::unique(parts.begin(), parts.end(), [](const Strided& a, const Strided& b) { return a.same(b); }), parts.end());
    return parts;
  }

  static std::vector<std::pair<int64_t, int64_t>> merged(std::vector<std::pair<int64_t, int64_t>>& ranges) {
    std::sort(ranges.begin(), ranges.end());
    std::vector<std::pair<int64_t, int64_t>> all;
    for (auto& range : ranges)
      if (!all.empty() && range.first <= all.back().second) all.back().second = std::max(all.back().second, range.second);
      else all.push_back(range);
    return all;
  }

  bool claim(StorageImpl* storage, bool write) {  // E2
    Claim& claim = claims_[storage];
    if (claim.epoch == number_ && (claim.written || write)) return false;
    claim.epoch = number_;
    claim.written = write;
    return true;
  }

  void take(Slot& slot, StorageImpl* storage, char* base) {
    slot.epoch = number_;
    slot.storage = storage;
    slot.base = base;
  }

  void move_home(Fragment& fragment, Slot& slot) {
    leases_.push_back(slot.home->move_out());
    move(fragment, slot, slot.home->address());
  }

  void move(Fragment& fragment, Slot& slot, char* where) {
    slot.lies_at(where, device_);
    slot.moves++;
    fragment.generation++;
  }

  // The slot's bytes come from elsewhere: it needs memory that nobody else reads.
  void make_room(Fragment& fragment, Slot& slot, char* base, const Tenancy* lent) {
    if (slot.home) {
      if (!slot.home->vacant()) move_home(fragment, slot), slot.kept = true, copies.kept++;
      else if (slot.home->read_in(number_)) move_home(fragment, slot);
      return;
    }
    uint64_t lender = lent ? lent->home : 0;
    slot.same = base == slot.last && lender == slot.lender ? slot.same + 1 : 0;
    slot.last = base;
    slot.lender = lender;
    if (may_settle(fragment, slot, lent)) {  // it stays where it is: no more copies
      slot.settled = fragment.settlements + 1;
      trash.memory.push_back(std::move(slot.floating));
      slot.floating = at::DataPtr();
      move(fragment, slot, base);
    } else if (!slot.floating) {
      slot.same = 0;
      slot.floating = device_.allocate(slot.span + device_.alignment);
      float_at(fragment, slot, base);
    }
  }

  // Before the segment is captured, rather than after: its graph would be stale. After, the copies have to be worth it.
  bool may_settle(Fragment& fragment, const Slot& slot, const Tenancy* lent) const {
    if (!slot.floating || slot.same < (slot.settled ? 16 : 2) || (graphs_ && lent && is_made_by(fragment, lent))) return false;
    if (slot.settled && slot.settled > fragment.settlements) fragment.copies_from_where_it_stays(slot.changed ? 2 * COPY : COPY);
    return slot.settled <= fragment.settlements;
  }

  // What floats has the alignment of the first tensor that lay elsewhere. It takes another's once only those come.
  bool turn(Fragment& fragment, Slot& slot, char* base) {
    size_t now = residue(base);
    slot.otherwise = now == slot.residue ? slot.otherwise + 1 : 1;
    slot.residue = now;
    if (!slot.floating || slot.otherwise < 2 || slot.turned == 2) return false;
    slot.turned++;
    float_at(fragment, slot, base);
    return true;
  }

  void float_at(Fragment& fragment, Slot& slot, const char* base) {
    char* begin = static_cast<char*>(slot.floating.get());
    move(fragment, slot, begin + (reinterpret_cast<uintptr_t>(base) - reinterpret_cast<uintptr_t>(begin)) % device_.alignment);
  }

  // A graph may use a home's memory for something else before it writes the result there: see G3.
  static bool is_made_by(const Fragment& fragment, const Tenancy* tenancy) {
    for (const Slot& slot : fragment.slots)
      if (slot.home && slot.home->has(tenancy)) return true;
    return false;
  }

  // Memory that was somebody else's when the slot came to lie there.
  bool lies_in_own_home(const Fragment& fragment, const Slot& slot, const Tenancy* lent) const {
    return graphs_ && lent && !slot.home && lent->home != slot.lender && is_made_by(fragment, lent);
  }

  static constexpr double COPY = 0.003;  // milliseconds, of a small one

  const Device& device_;
  const bool graphs_;
  uint64_t number_ = 1;
  std::vector<Lease> leases_;  // of memory that pending operators may read
  std::vector<Copy> copies_in_, copying_out_;
  std::vector<Out> copies_out_;
  std::vector<c10::intrusive_ptr<StorageImpl>> held_;
  std::vector<c10::weak_intrusive_ptr<StorageImpl>> pending_;  // so that no address of a storage is used twice
  std::unordered_map<StorageImpl*, Claim> claims_;
};

}  // namespace grape
