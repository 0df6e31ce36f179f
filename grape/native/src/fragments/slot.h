// Where the tensors of a fragment's operators lie.
#pragma once
#include "fragments/memory.h"

#include <memory>

namespace grape {

// Memory that a fragment's operators name by number: a home, or where something from outside lay when it was recorded.
// Where a tensor lies elsewhere, its bytes are copied to the slot before the launch and, if written, back behind it.
struct Slot {
  char* address = nullptr;
  size_t span = 0;
  bool written = false;         // made or changed by an operator of the fragment: no other slot may share its storage
  bool changed = false;         // changed in place
  bool exact = false;           // integers that are only read, by operators that are exact in them
  bool kept = false;            // its results outlived a pass: they get memory of their own from the start
  c10::weak_intrusive_ptr<StorageImpl> last_kept{c10::intrusive_ptr<StorageImpl>()};
  int dead = 0, returned = 0;   // kept ones in a row that did not outlive a pass after all; times that this was believed
  std::unique_ptr<Home> home;   // of what the fragment makes
  at::DataPtr floating;         // of what comes from outside and lies elsewhere each time
  size_t nbytes = 0;            // of a made storage
  uint64_t moves = 0;           // that no graph asked for
  c10::Storage over;            // the engine's own storage over the address

  uint64_t epoch = 0;           // in which the two below hold
  StorageImpl* storage = nullptr;
  char* base = nullptr;         // where the slot's first byte lies in that storage
  size_t out = 0;               // its place among the epoch's copies back, if it is there

  char* last = nullptr;         // where it lay before, to settle there if it stays
  uint64_t lender = 0;          // which home that was, if any
  int same = 0, settled = 0;
  size_t residue = 0;           // the class of the addresses where it lay otherwise than what floats
  int otherwise = 0, turned = 0;  // times in a row, and that what floats was given that

  bool owned() const { return home || floating; }
  void lies_at(char* where, const Device& device) {
    address = where;
    over = c10::Storage(c10::Storage::use_byte_size_t(), span, at::DataPtr(where, device.place), nullptr, false);
  }
  at::Tensor tensor(const Layout& layout, int64_t at, const Device& device) const {
    return device.tensor(over, layout.dtype, layout.sizes, layout.strides, at / static_cast<int64_t>(layout.dtype.itemsize()));
  }
};

}  // namespace grape
