// Who lives where. A home is memory that a fragment's operator writes at every pass. It is lent to one storage at a time;
// that storage's deleter says when it died or moved away.
//
//   H1  A home is written only while it is vacant, or for the storage that lives there.
//   H2  A result that is kept keeps its bytes: its home's memory becomes its own, and the home moves.
//   H3  When a home goes away, whoever lives there gets the memory: no storage outlives its bytes.
#pragma once
#include "device.h"

#include <atomic>
#include <deque>
#include <vector>

namespace grape {

// Read by deleters, which run on any thread, at any time, also at exit: never freed, and a deleter only writes a flag.
struct Tenancy {
  std::atomic<bool> occupied{false};
  uint64_t read_in = 0;  // the epoch whose pending operators read this memory
};

inline void depart(void* tenancy) {
  static_cast<Tenancy*>(tenancy)->occupied.store(false, std::memory_order_release);
}

class Tenancies {
 public:
  Tenancy* take() {
    for (size_t tries = 0; tries < 4 && !idle_.empty(); tries++) {
      Tenancy* t = idle_.back();
      idle_.pop_back();
      if (!t->occupied.load(std::memory_order_acquire)) return t;
      idle_.insert(idle_.begin(), t);
    }
    return new Tenancy();
  }
  void give(Tenancy* t) { idle_.push_back(t); }
  static Tenancies& all() {
    static auto* all = new Tenancies();  // outlives every deleter
    return *all;
  }

 private:
  std::vector<Tenancy*> idle_;
};

inline bool is_lent(const StorageImpl* storage) {
  return storage->data_ptr().get_deleter() == &depart;
}

inline Tenancy* tenancy_of(const StorageImpl* storage) {
  return is_lent(storage) ? static_cast<Tenancy*>(storage->data_ptr().get_context()) : nullptr;
}

// Memory that only operators reach: torch's allocator made it, or it is a home. NumPy's, shared and lazily copied memory
// has other deleters; what was handed to NumPy, whenever that was, cannot be resized any more.
inline bool is_torchs_own(const StorageImpl* storage, const Device& device) {
  return storage->resizable() && (device.allocated(storage) || is_lent(storage));
}

// What dies only when no lock is held: the last reference to a storage may need the GIL.
struct Trash {
  std::vector<c10::intrusive_ptr<StorageImpl>> storages;
  std::vector<at::DataPtr> memory;
};

class Home {
 public:
  Home(size_t nbytes, const Device& device) : nbytes_(nbytes), device_(device), memory_(device.allocate(nbytes)), tenancy_(Tenancies::all().take()) {}
  Home(const Home&) = delete;
  ~Home() {
    Trash now;
    hand_over(now);
    Tenancies::all().give(tenancy_);
  }

  char* address() const { return static_cast<char*>(memory_.get()); }
  bool vacant() const { return !tenancy_->occupied.load(std::memory_order_acquire); }
  bool read_in(uint64_t epoch) const { return tenancy_->read_in == epoch; }
  bool has(const Tenancy* tenancy) const { return tenancy_ == tenancy; }

  // A storage of its own for each result. Resizable, as eager ones are: who moves away calls the deleter.
  c10::Storage lend() {
    tenancy_->occupied.store(true, std::memory_order_relaxed);
    c10::Storage storage(c10::make_intrusive<StorageImpl>(
        StorageImpl::use_byte_size_t(), nbytes_, at::DataPtr(memory_.get(), tenancy_, &depart, memory_.device()),
        device_.allocator, /*resizable=*/true));
    occupant_ = c10::weak_intrusive_ptr<StorageImpl>(storage.getWeakStorageImpl());
    return storage;
  }

  // H2: the occupant keeps the memory, under torch's own deleter; raw pointers to it stay good.
  void move_out(Trash& trash) { move_to(device_.allocate(nbytes_), trash); }

  // Whoever lives here keeps the memory; there is no home any more.
  void retire(Trash& trash) {
    hand_over(trash);
    memory_ = at::DataPtr();
  }

  // As `move_out`, into memory that is there already: a graph writes to it.
  void move_to(at::DataPtr memory, Trash& trash) {
    hand_over(trash);
    memory_ = std::move(memory);
    if (!vacant()) tenancy_ = new Tenancy();  // whoever has the old one may still be on his way out
  }

 private:
  void hand_over(Trash& trash) {
    auto occupant = occupant_.lock();
    if (occupant && tenancy_of(occupant.get()) == tenancy_ && occupant->data() == memory_.get())
      occupant->set_data_ptr_noswap(std::move(memory_));
    else if (vacant())
      trash.memory.push_back(std::move(memory_));
    else
      memory_.release_context();  // somebody took the pointer elsewhere: it is never freed
    if (occupant) trash.storages.push_back(std::move(occupant));
  }

  size_t nbytes_;
  const Device& device_;
  at::DataPtr memory_;
  Tenancy* tenancy_;
  c10::weak_intrusive_ptr<StorageImpl> occupant_{c10::intrusive_ptr<StorageImpl>()};
};

}  // namespace grape
