// A fragment: operators that came one after the other and may come again, with the memory that they expect.
#pragma once
#include "memory.h"
#include "operators.h"

#include <memory>
#include <unordered_map>
#include <vector>

namespace grape {

// Memory that a fragment's operators name by number: a home, or where something from outside lay when it was recorded.
// Where a tensor lies elsewhere, its bytes are copied to the slot before the launch and, if written, back behind it.
struct Slot {
  char* address = nullptr;
  size_t span = 0;
  bool written = false;         // made or changed by an operator of the fragment: no other slot may share its storage
  bool changed = false;         // changed in place
  bool kept = false;            // its results outlived a pass: they get memory of their own from the start
  std::unique_ptr<Home> home;   // of what the fragment makes
  at::DataPtr floating;         // of what comes from outside and lies elsewhere each time
  size_t nbytes = 0;            // of a made storage
  c10::Storage over;            // the engine's own storage over the address

  uint64_t epoch = 0;           // in which the two below hold
  StorageImpl* storage = nullptr;
  char* base = nullptr;         // where the slot's first byte lies in that storage

  char* last = nullptr;         // where it lay before, to settle there if it stays
  int same = 0, settled = 0;

  bool owned() const { return home || floating; }
  void lies_at(char* where) {
    address = where;
    over = c10::Storage(c10::Storage::use_byte_size_t(), span, at::DataPtr(where, c10::Device(c10::kCPU)), nullptr, false);
  }
  at::Tensor tensor(const Layout& layout, int64_t at) const {
    auto impl = c10::make_intrusive<c10::TensorImpl>(c10::Storage(over), c10::DispatchKeySet(c10::DispatchKey::CPU), layout.dtype);
    impl->set_sizes_and_strides(layout.sizes, layout.strides, at / static_cast<int64_t>(layout.dtype.itemsize()));
    return at::Tensor(std::move(impl));
  }
};

struct Input {
  enum Kind : uint8_t { Undefined, Number, Empty, Outside } kind = Undefined;
  bool written = false;
  uint8_t bumps = 0;  // of the version counter, by the kernel itself: foreach and fused operators do what autograd does for others
  int slot = -1;
  int64_t at = 0;  // bytes from the slot's begin to the tensor's first element
  Layout layout;
  at::Tensor number;
};

struct Argument {
  enum Kind : uint8_t { Plain, Tensor, Tensors } kind = Plain;
  IValue value;             // of a plain one
  uint32_t first = 0, end = 0;  // into the step's inputs
};

struct Made {
  int slot = -1;  // -1: undefined, -2: without elements
  uint8_t version = 0;  // `full` fills, and so counts, what it returns
  int64_t at = 0;
  Layout layout;
};

struct Output {
  int argument = -1;  // the argument that is returned
  bool list = false;
  std::vector<Made> made;
};

struct Step {
  Operator* op;
  Reason run = Reason::None;  // why it runs as written, if it does
  bool ends = false;          // its segment
  bool bumps = false;         // a version counter
  uint32_t refused = 0;       // times that it matched but for where its tensors lie
  uint64_t signature = 0;
  std::vector<Argument> arguments;
  std::vector<Input> inputs;
  std::vector<Output> outputs;
  Stack issue;                // its arguments over the slots, as of `built`
  uint64_t built = ~0ull;
};

struct Fragment;
struct Side {
  Fragment* fragment = nullptr;
  int times = 0;
};

// The trie: a fragment's sides are what came instead of its operators, by position and signature.
struct Fragment {
  std::vector<Step> steps;
  std::vector<Slot> slots;
  std::unordered_map<uint64_t, Side> sides;
  uint64_t head = 0;        // the context in front of its first operator
  uint64_t generation = 0;  // counts the slots' moves
  uint64_t entered = 0, failed = 0;
  bool dead = false;

  // Segments: operators that nothing has to run between, and no more than `longest`.
  void cut(size_t longest) {
    size_t n = 0;
    for (size_t i = 0; i < steps.size(); i++) {
      n = steps[i].run == Reason::None ? n + 1 : 0;
      bool last = i + 1 == steps.size() || steps[i + 1].run != Reason::None || n >= longest;
      steps[i].ends = n > 0 && last;
      if (steps[i].ends) n = 0;
    }
  }

  void build(Step& step) {
    step.issue.clear();
    step.built = generation;
    auto tensor = [&](const Input& in) -> at::Tensor {
      if (in.kind == Input::Undefined) return at::Tensor();
      if (in.kind == Input::Number) return in.number;
      if (in.kind == Input::Outside) return slots[in.slot].tensor(in.layout, in.at);
      Slot none;
      none.lies_at(nullptr);
      return none.tensor(in.layout, 0);
    };
    for (const Argument& argument : step.arguments) {
      if (argument.kind == Argument::Plain) step.issue.push_back(argument.value);
      else if (argument.kind == Argument::Tensor) step.issue.emplace_back(tensor(step.inputs[argument.first]));
      else {
        c10::List<at::Tensor> list;
        for (uint32_t k = argument.first; k < argument.end; k++) list.push_back(tensor(step.inputs[k]));
        step.issue.emplace_back(std::move(list));
      }
    }
  }
};

}  // namespace grape
