// Which fragments have homes, and which give theirs up. Under the engine's lock, while nothing of a fragment that gives them
// up is pending.
#pragma once
#include "learning/finder.h"
#include "serving/captures.h"

namespace grape {

class Budget {
 public:
  // `trash` takes the memory that goes.
  Budget(const Settings& settings, Finder& finder, const Worth& worth, Captures& captures, const Counts& counts, Trash& trash)
      : settings_(settings), finder_(finder), worth_(worth), captures_(captures), counts_(counts), trash_(trash) {}

  // Its operators are deferred from now on, once it has earned that and if there is room. Those in `use` keep their homes.
  void consider(Fragment& fragment, std::array<const Fragment*, 2> use) {
    if (!fragment.live && worth_.has_earned(fragment) && !worth_.overdrawn()) {
      fragment.large = !afford(fragment, use);
      if (!fragment.large) try {
        fragment.begin_to_live(worth_.price_of(fragment));
      } catch (const c10::Error&) {
        starve(fragment);
      }
    }
  }

  // It takes memory that code as written does without.
  void starve(Fragment& fragment) {
    if (!fragment.live) return;
    captures_.forget(fragment);
    finder_.release(fragment);
    fragment.starve(trash_);
  }

  // It serves no more.
  void retire(Fragment& fragment) {
    if (fragment.dead) return;
    captures_.forget(fragment);
    if (fragment.live) finder_.release(fragment);
    fragment.end(trash_);
  }

  // Nor does what leads through its operators.
  void lose(Fragment& fragment) {
    finder_.lose(fragment);
    fragment.end(trash_);
  }

 private:
  // Room for its homes. What has not served for long, as code does that ran in other cells, gives up its own.
  bool afford(const Fragment& fragment, std::array<const Fragment*, 2> use) {
    while (!finder_.could_afford(fragment)) {
      Fragment* unused = counts_.seen > settings_.unused ? finder_.unused(fragment, counts_.seen - settings_.unused) : nullptr;
      if (!unused || unused == use[0] || unused == use[1]) return false;
      captures_.forget(*unused);
      finder_.release(*unused);
      unused->rest(trash_);
    }
    return finder_.afford(fragment);
  }

  const Settings& settings_;
  Finder& finder_;
  const Worth& worth_;
  Captures& captures_;
  const Counts& counts_;
  Trash& trash_;
};

}  // namespace grape
