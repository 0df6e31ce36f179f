// Operators that are launched together, and the graph of them.
#pragma once
#include "operators/draws.h"

#include <algorithm>
#include <memory>
#include <vector>

namespace grape {

// A segment as it was when it was captured. It is launched only while its slots lie where they lay then.
class Graph {
 public:
  virtual ~Graph() = default;
  // On the current stream; false: nothing was launched. `draw`: from where on its operators draw, if any does.
  virtual bool launch(const Draw* draw) = 0;

  std::vector<char*> frozen;   // where the segment's slots lie
  uint64_t checked = ~0ull;    // the fragment's generation in which they did
};

// A graph's kernels read attention's numbers from memory, where they are written before each launch.
struct Seed {
  size_t step;
  uint32_t input;
  size_t argument;
};

// Operators that are launched together: between them nothing has to run.
struct Segment {
  size_t first, last;
  std::vector<Seed> seeds;
  at::DataPtr words;       // of all of them, while there is a graph
  std::vector<int> slots;  // all that it reads or writes
  std::vector<int> made;   // of them, results
  std::unique_ptr<Graph> graph;
  uint64_t moves = 0;      // of its slots, when it was launched last
  int steady = 0;          // launches since
  std::ptrdiff_t draws = -1;  // the first step that does
  int captures = 0, failed = 0;  // since one of its graphs was worth it
  int waited = 0;                // launches, for the graphs of segments whose results it reads
  size_t copied = 0;             // results that its graph copies to their homes
  uint64_t served = 0;     // launches of its graph
  static constexpr uint64_t WORTH = 20;  // of them make up for a capture

  // Both are sorted.
  bool makes_any_of(const std::vector<int>& others) const {
    auto mine = made.begin();
    for (int slot : others) {
      mine = std::lower_bound(mine, made.end(), slot);
      if (mine == made.end() || *mine == slot) return mine != made.end();
    }
    return false;
  }
};

}  // namespace grape
