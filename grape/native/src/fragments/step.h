// One operator of a fragment: what it was given when it was recorded, what it made, and whether it runs as written.
#pragma once
#include "operators/draws.h"
#include "serving/alignments.h"
#include "told/as_written.h"

#include <vector>

namespace grape {

struct Input {
  // A seed is one of attention's two numbers: another one each time.
  enum Kind : uint8_t { Undefined, Number, Empty, Outside, Any, Seed } kind = Undefined;
  bool written = false;
  uint8_t bumps = 0;  // of the version counter, by the kernel itself: foreach and fused operators do what autograd does for others
  int slot = -1;
  int again = -1;  // the input that this very tensor is, where the operator compares them
  int64_t at = 0;  // bytes from the slot's begin to the tensor's first element
  Layout layout;
  at::Tensor number;
};

struct Argument {
  enum Kind : uint8_t { Plain, Tensor, Tensors, Optionals } kind = Plain;
  IValue value;             // of a plain one
  uint32_t first = 0, end = 0;  // into the step's inputs
};

struct Made {
  static constexpr int UNDEFINED = -1, EMPTY = -2, UNREAD = -3, SEED = -4, OFFSET = -5;  // the last three: numbers on the CPU
  int slot = UNDEFINED;
  uint8_t version = 0;  // `full` fills, and so counts, what it returns
  int64_t at = 0;
  Layout layout;
};

struct Output {
  int argument = -1;  // the argument that is returned
  bool list = false;
  IValue number;
  std::vector<Made> made;
};

struct Step {
  static constexpr uint32_t REFUSED = 3;  // times that an operator matches but for where its tensors lie, or that its
                                          // segment was launched behind it, unforeseen

  Operator* op;
  Reason run = Reason::None;  // why it runs as written, if it does
  bool ends = false;          // its segment, which has this number
  size_t segment = 0;
  bool bumps = false;         // a version counter
  bool counts_below = false;  // versions of what it makes are those of such a call
  uint32_t refused = 0;       // times that it matched but for where its tensors lie
  Alignments* alignments = nullptr;  // of its tensors, once it was refused for them
  uint32_t splits = 0;        // times that its segment was launched behind it, unforeseen
  bool last = false;          // and so it ends there
  Stop stop;                  // where it runs as written
  uint64_t signature = 0;
  uint64_t kind_of_sizes = 0, sizes = 0;  // see `Growth`; where they grow, those that came last
  uint32_t same = 0;          // times in a row that they did
  uint32_t came = 0;          // times that it was not other ones that came
  uint64_t moves = 0;         // the generator, so far
  Draw drawn;                 // while it is pending: what the generator was in front of it
  std::vector<Argument> arguments;
  std::vector<Input> inputs;
  std::vector<Output> outputs;
  Stack issue;                // its arguments over the slots, as of `built`
  uint64_t built = ~0ull;

  uint8_t kind() const { return op->kind() | (run == Reason::Read && !op->index ? Operator::READ : 0); }
};

// A step that runs as written now.
struct Written {
  Step* step = nullptr;
  Reason reason = Reason::None;
  bool cuts = false;       // what was pending
  bool earns = false;      // no `step`: it would be answered, were its fragment worth the captures
  uint64_t forgotten = 0;  // with a later count there is no such step any more
  AsWritten::Run run;
};

}  // namespace grape
