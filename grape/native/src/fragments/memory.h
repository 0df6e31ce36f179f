// Who lives where. A home is memory that a fragment's operator writes at every pass. It is lent to one storage at a time;
// that storage's deleter says when it died or moved away.
//
//   H1  A home is written only while it is vacant, or for the storage that lives there.
//   H2  A result that is kept keeps its bytes: its home's memory becomes its own, and the home moves.
//   H3  When a home goes away, whoever lives there gets the memory: no storage outlives its bytes.
#pragma once
#include "operators/device.h"

#include <atomic>
#include <deque>
#include <vector>

namespace grape {

// Read by deleters, which run on any thread, at any time, also at exit: never freed, and a deleter only writes a flag.
struct Tenancy {
  std::atomic<bool> occupied{false};
  uint64_t read_in = 0;  // the epoch whose pending operators read this memory
  uint64_t home = 0;     // which one, of all that there were; 0: of none
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

inline c10::weak_intrusive_ptr<StorageImpl> weakly(StorageImpl* storage) {
  return c10::weak_intrusive_ptr<StorageImpl>(c10::intrusive_ptr<StorageImpl>::reclaim_copy(storage));
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

// Memory that is lent to a storage: the storage's deleter says that it died or moved away, and nobody who counts
// references to it, as autograd does before it adds in place, sees another one.
class Lease {
 public:
  explicit Lease(at::DataPtr memory) : memory_(std::move(memory)), tenancy_(Tenancies::all().take()) { tenancy_->home = ++homes_; }
  // Of memory that a storage has.
  explicit Lease(StorageImpl* storage) : tenancy_(Tenancies::all().take()), occupant_(weakly(storage)) {
    tenancy_->home = 0;
    memory_ = storage->set_data_ptr(lent(storage->data_ptr()));
  }
  Lease(Lease&& other) noexcept
      : memory_(std::move(other.memory_)), tenancy_(std::exchange(other.tenancy_, nullptr)), occupant_(std::move(other.occupant_)) {}
  Lease& operator=(Lease&& other) noexcept {
    std::swap(memory_, other.memory_), std::swap(tenancy_, other.tenancy_), std::swap(occupant_, other.occupant_);
    return *this;
  }
  ~Lease() {
    if (tenancy_) Tenancies::all().give(tenancy_);
  }

  char* address() const { return static_cast<char*>(memory_.get()); }
  bool vacant() const { return !tenancy_->occupied.load(std::memory_order_acquire); }
  Tenancy* tenancy() const { return tenancy_; }

  // A storage of its own for each result. Resizable, as eager ones are: who moves away calls the deleter.
  c10::Storage lend(size_t nbytes, at::Allocator* allocator) {
    c10::Storage storage(c10::make_intrusive<StorageImpl>(StorageImpl::use_byte_size_t(), nbytes, lent(memory_), allocator, /*resizable=*/true));
    occupant_ = c10::weak_intrusive_ptr<StorageImpl>(storage.getWeakStorageImpl());
    return storage;
  }

  // Whoever lives here keeps the memory, under torch's own deleter; raw pointers to it stay good.
  void end(Trash& trash) {
    auto occupant = occupant_.lock();
    if (occupant && tenancy_of(occupant.get()) == tenancy_ && occupant->data() == memory_.get())
      occupant->set_data_ptr_noswap(std::move(memory_));
    else if (vacant())
      trash.memory.push_back(std::move(memory_));
    else
      memory_.release_context();  // somebody took the pointer elsewhere: it is never freed
    if (occupant) trash.storages.push_back(std::move(occupant));
  }

 private:
  at::DataPtr lent(const at::DataPtr& memory) {
    tenancy_->occupied.store(true, std::memory_order_relaxed);
    return at::DataPtr(memory.get(), tenancy_, &depart, memory.device());
  }

  static inline std::atomic<uint64_t> homes_{0};

  at::DataPtr memory_;
  Tenancy* tenancy_;
  c10::weak_intrusive_ptr<StorageImpl> occupant_{c10::intrusive_ptr<StorageImpl>()};
};

class Home {
 public:
  Home(size_t nbytes, const Device& device) : nbytes_(nbytes), device_(device), lease_(device.allocate(nbytes)) {}
  Home(const Home&) = delete;
  ~Home() {
    Trash now;
    lease_.end(now);
  }

  char* address() const { return lease_.address(); }
  bool vacant() const { return lease_.vacant(); }
  bool read_in(uint64_t epoch) const { return lease_.tenancy()->read_in == epoch; }
  bool has(const Tenancy* tenancy) const { return lease_.tenancy() == tenancy; }
  c10::Storage lend() { return lease_.lend(nbytes_, device_.allocator); }

  // H2: the home is elsewhere from now on. Whoever lives there keeps the memory, when its lease ends.
  Lease move_out() { return move_to(device_.allocate(nbytes_)); }
  // As `move_out`, into memory that is there already: a graph writes to it.
  Lease move_to(at::DataPtr memory) { return std::exchange(lease_, Lease(std::move(memory))); }

  // There is no home any more.
  void retire(Trash& trash) { move_to(at::DataPtr()).end(trash); }

 private:
  const size_t nbytes_;
  const Device& device_;
  Lease lease_;
};

}  // namespace grape
