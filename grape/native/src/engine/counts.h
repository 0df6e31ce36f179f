// What was counted: the evidence of a stream, and its clock, which is how many operators were seen. Under the engine's lock,
// but for what captures take.
#pragma once
#include "operators/operators.h"

#include <array>
#include <chrono>
#include <cstdint>

namespace grape {

using Clock = std::chrono::steady_clock;

struct Counts {
  uint64_t seen = 0, matched = 0, issued = 0, segments = 0, partial = 0, diverged = 0, entered = 0, recorded = 0, raised = 0;
  uint64_t sampled = 0, sampled_ns = 0, captured = 0;
  uint64_t capture_ns = 0, issue_ns = 0;  // what captures and launches without a graph took
  uint64_t lost = 0;  // fragments that were slower than code as written
  double saved_ns = 0;  // in laps in which `timed` operators matched, of which it is known what they take as written
  double waits_ns = 0;  // that some of those laps took in waiting for the GPU
  uint64_t timed = 0;
  uint64_t record_ns = 0;  // beside the operators
  uint64_t rested = 0;     // laps that ran as written because too much was spent
  uint64_t doubted = 0;    // operators that ran as written to see what deferring them is worth
  uint64_t aside = 0, aside_ns = 0;  // operators that nothing served, and what comparing them took, of every 64th
  std::array<uint64_t, static_cast<size_t>(Reason::Count)> written{};

  void write(Reason reason) { written[static_cast<size_t>(reason)]++; }
};

// Adds how long it lives.
struct Timed {
  uint64_t& ns;
  const Clock::time_point since = Clock::now();
  explicit Timed(uint64_t& counter) : ns(counter) {}
  ~Timed() { ns += (Clock::now() - since).count(); }
};

}  // namespace grape
