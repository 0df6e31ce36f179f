// What became of each fragment, for whoever asks why a loop is not served.
#pragma once
#include "fragments/fragment.h"

#include <map>

namespace grape {

struct Described {
  size_t operators = 0, segments = 0, graphs = 0, copied = 0;
  uint64_t entered = 0;
  bool live = false, dead = false, large = false;
  double earned_ms = 0, price_ms = 0, saved_ms = 0, spent_ms = 0;
  std::map<std::string, size_t> as_written;  // operators, by reason

  Described(const Fragment& fragment, double price_ms)
      : operators(fragment.steps.size()), segments(fragment.segments.size()), entered(fragment.entered), live(fragment.live),
        dead(fragment.dead), large(fragment.large), earned_ms(fragment.earned), price_ms(price_ms), saved_ms(fragment.saved_ns / 1e6),
        spent_ms(fragment.spent_ns / 1e6) {
    for (const Segment& segment : fragment.segments)
      if (segment.graph) graphs++, copied += segment.copied;
    for (const Step& step : fragment.steps)
      if (step.run != Reason::None) as_written[REASONS[static_cast<size_t>(step.run)]]++;
  }
};

}  // namespace grape
