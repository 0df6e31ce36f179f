// What whoever opens a session may choose.
#pragma once
#include <cstddef>

namespace grape {

struct Settings {
  size_t longest = 100;   // operators of a segment
  size_t shortest = 32;   // of a fragment that leads back to its own head
  size_t furthest = 4000; // of a fragment that is no iteration
  size_t iteration = 16000; // of one that is
  size_t settled = 1000;  // operators for which a period without a host read has to hold before it is recorded
  size_t hot = 3;         // what has no period: a context is a head when it was met so often
  size_t patience = 4000; // and so many operators ago for the first time
  size_t budget = size_t{4} << 30;  // bytes of all homes
  size_t strays = 16;     // operators in a row that may come in between without leaving the fragment
  bool issue = true;      // false: nothing is issued, to measure what matching alone costs
  bool draws = false;     // operators that draw random numbers are deferred, too
  bool graphs = false;    // segments are captured; on the CPU, pretended to be
  int steady = 2;         // launches of a segment over the same memory before it is captured
  int captures = 6;       // of one segment
  double price = 0.5;     // milliseconds that a capture takes beside its operators, until some were measured; 0: nothing
                          // has to be earned
  size_t unused = 50'000; // operators for which a fragment does not serve, before others may have its memory
  size_t doubt = 32;      // laps of a fragment after which it is compared with code as written; 0: never
};

}  // namespace grape
