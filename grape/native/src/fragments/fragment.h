// A fragment: operators that came one after the other and may come again, with the memory that they expect.
#pragma once
#include "fragments/segment.h"
#include "fragments/slot.h"
#include "fragments/step.h"
#include "worth/pace.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <unordered_map>
#include <vector>

namespace grape {

struct Fragment;
struct Side {
  Fragment* fragment = nullptr;
  int times = 0;
};

// The trie: a fragment's sides are what came instead of its operators, by position and signature.
struct Fragment {
  explicit Fragment(const Device& device) : device(device) {}

  const Device& device;
  std::vector<Step> steps;
  std::vector<Slot> slots;
  std::vector<Segment> segments;
  std::unordered_map<uint64_t, Side> sides;
  uint64_t head = 0;        // the context in front of its first operator
  uint64_t generation = 0;  // counts the slots' moves
  uint64_t entered = 0, failed = 0;
  uint64_t last = 0;        // operators that had been seen when it was entered last
  int ended = 0;            // times that nothing was known of what came behind it
  bool dead = false;
  bool outdated = false;    // and what it served is recorded anew
  bool uncut = true;        // a step runs as written, or a segment ends elsewhere, since it was cut
  bool iterates = false;    // it was an iteration when it was cut
  bool inner = false;       // it was none, and shorter than a segment: an inner loop's
  bool around = false;      // an iteration around an inner loop, which led to it
  bool jumped = false;      // it was entered last from a shorter one, where it begins
  uint64_t missed = 0;      // times that something else came soon behind that: other code begins alike
  bool large = false;       // there was no room for its homes
  bool live = false;        // its operators are deferred; until it has earned that, they are only compared
  double earned = 0;        // milliseconds that its operators took as written
  double moving = 0;        // and that copies took from memory that seems to stay where it is
  size_t deferred = 0;      // operators of a pass that need not run as written, when it was cut
  double saved_ns = 0;      // that served laps took less than as written
  double spent_ns = 0;      // that captures of its segments took
  double settling = 0;      // what they have to amount to, before that memory is taken for the slot's
  int settlements = 0;      // times that they did
  Pace pace;

  // From now on results have homes. What was learned counts from here. Raises where there is no memory for them, and for
  // what an operator makes elsewhere when it is issued.
  void begin_to_live(double settling_price) {
    live = true;
    settling = settling_price;
    entered = failed = missed = 0;
    for (Step& step : steps) step.refused = step.splits = 0;
    for (Slot& slot : slots) {
      if (!slot.nbytes) continue;
      slot.home = std::make_unique<Home>(slot.nbytes, device);
      slot.lies_at(slot.home->address(), device);
    }
    device.allocate(most_at_once());
    generation++;
  }

  // It serves no more. Nothing of it is pending.
  void end(Trash& trash) {
    dead = true;
    release(trash);
  }

  // There is no memory for it: it is followed as written from now on. Nothing of it is pending.
  void starve(Trash& trash) {
    large = true;
    earned = -std::numeric_limits<double>::infinity();
    release(trash);
  }

  // Others need its memory, while nothing of it is pending. It may earn its captures again.
  void rest(Trash& trash) {
    earned = 0;
    release(trash);
  }

  // It may spend a part of what it has saved so far, also when other code has run since.
  bool pays(double share) const { return share * saved_ns > spent_ns; }

  // Too often other code begins as it does.
  bool leads_astray() const { return missed >= 3 && 16 * missed >= entered; }

  // Nothing of it is issued one by one any more.
  bool is_captured() const {
    return !uncut && std::all_of(segments.begin(), segments.end(), [](const Segment& one) { return one.graph != nullptr; });
  }

  size_t bytes() const {
    size_t all = 0;
    for (const Slot& slot : slots) all += slot.nbytes;
    return all;
  }

  void copies_from_where_it_stays(double ms) {
    moving += ms;
    if (moving < settling) return;
    moving = 0;
    settlements++;
  }

  void demote(Step& step, Reason reason) {
    step.run = reason;
    uncut = true;
  }

  // It ends in a host read, or holds numbers that are other ones each time, as steps of optimizers are.
  bool is_iteration() const {
    return std::any_of(steps.begin(), steps.end(), [](const Step& step) { return step.run == Reason::Read || step.run == Reason::Number; });
  }

  void split(Step& step) {
    step.last = true;
    uncut = true;
  }

  // Into segments of no more than `longest`. What stays one keeps its graph.
  void cut(size_t longest) {
    std::vector<Segment> before;
    std::swap(before, segments);
    uncut = false;
    iterates = is_iteration();
    inner = steps.size() < longest && !iterates;
    deferred = 0;
    size_t n = 0, next = 0;  // of those before, which come in the same order
    for (size_t i = 0; i < steps.size(); i++) {
      n = steps[i].run == Reason::None ? n + 1 : 0;
      deferred += n > 0;
      bool last = i + 1 == steps.size() || steps[i + 1].run != Reason::None || n >= longest || steps[i].last;
      steps[i].ends = n > 0 && last;
      if (!steps[i].ends) continue;
      steps[i].segment = segments.size();
      while (next < before.size() && before[next].first < i + 1 - n) next++;
      bool same = next < before.size() && before[next].first == i + 1 - n && before[next].last == i + 1;
      segments.push_back(same ? std::move(before[next]) : segment(i + 1 - n, i + 1));
      n = 0;
    }
  }

  // The segment that these steps are.
  Segment* whole(size_t first, size_t last) {
    const Step& step = steps[last - 1];
    return !uncut && step.ends && segments[step.segment].first == first ? &segments[step.segment] : nullptr;
  }

  bool lies_as_captured(Segment& segment) const {
    Graph& graph = *segment.graph;
    if (graph.checked == generation) return true;
    for (size_t k = 0; k < segment.slots.size(); k++)
      if (slots[segment.slots[k]].address != graph.frozen[k]) return false;
    graph.checked = generation;
    return true;
  }

  std::vector<char*> addresses(const Segment& segment) const {
    std::vector<char*> all;
    for (int id : segment.slots) all.push_back(slots[id].address);
    return all;
  }

  // How far it moves the generator.
  uint64_t moves(const Segment& segment) const {
    uint64_t all = 0;
    for (size_t i = segment.first; i < segment.last; i++) all += steps[i].moves;
    return all;
  }

  // Launched so often since a slot moved of itself.
  int steady(Segment& segment) const {
    uint64_t moves = 0;
    for (int id : segment.slots) moves += slots[id].moves;
    segment.steady = segment.moves == moves ? segment.steady + 1 : 0;
    segment.moves = moves;
    return segment.steady;
  }

  // Results become homes at a capture: the graph of a segment that reads them there would be stale at once.
  bool waits_for_others(const Segment& segment) const {
    return std::any_of(segments.begin(), segments.end(), [&](const Segment& other) {
      return other.last <= segment.first && !other.graph && other.makes_any_of(segment.slots);
    });
  }

  // A graph of another segment has this slot where it lies now. A copy there takes the device as long as any kernel; of
  // what is larger the home moves, and those graphs are made again.
  bool stays_at_capture(int slot, const Segment& segment) const {
    return slots[slot].nbytes <= COPIED && std::any_of(segments.begin(), segments.end(), [&](const Segment& other) {
      if (&other == &segment || !other.graph) return false;
      auto found = std::lower_bound(other.slots.begin(), other.slots.end(), slot);
      return found != other.slots.end() && *found == slot && other.graph->frozen[found - other.slots.begin()] == slots[slot].address;
    });
  }

  void build(Step& step) {
    step.issue.clear();
    step.built = generation;
    c10::SmallVector<at::Tensor, 8> met(step.op->compares ? step.inputs.size() : 0);
    auto over_slot = [&](const Input& in) -> at::Tensor {
      if (in.kind == Input::Undefined) return at::Tensor();
      if (in.kind == Input::Number || in.kind == Input::Any || in.kind == Input::Seed) return in.number;
      if (in.kind == Input::Outside) return slots[in.slot].tensor(in.layout, in.at, device);
      Slot none;
      none.lies_at(nullptr, device);
      return none.tensor(in.layout, 0, device);
    };
    auto tensor = [&](uint32_t k) -> at::Tensor {
      const Input& in = step.inputs[k];
      if (met.empty()) return over_slot(in);
      return met[k] = in.again >= 0 ? met[static_cast<size_t>(in.again)] : over_slot(in);
    };
    for (const Argument& argument : step.arguments) {
      if (argument.kind == Argument::Plain) step.issue.push_back(argument.value);
      else if (argument.kind == Argument::Tensor) step.issue.emplace_back(tensor(argument.first));
      else if (argument.kind == Argument::Optionals) {
        c10::List<std::optional<at::Tensor>> list;
        for (uint32_t k = argument.first; k < argument.end; k++) {
          at::Tensor t = tensor(k);
          list.push_back(t.defined() ? std::optional(std::move(t)) : std::nullopt);
        }
        step.issue.emplace_back(std::move(list));
      } else {
        c10::List<at::Tensor> list;
        for (uint32_t k = argument.first; k < argument.end; k++) list.push_back(tensor(k));
        step.issue.emplace_back(std::move(list));
      }
    }
  }

 private:
  static constexpr size_t COPIED = 1 << 20;

  void release(Trash& trash) {
    live = false;
    segments.clear();
    uncut = true;
    for (Slot& slot : slots) {
      if (slot.home) slot.home->retire(trash);
      slot.home.reset();
      trash.memory.push_back(std::move(slot.floating));
      slot.floating = at::DataPtr();
    }
  }

  size_t most_at_once() const {
    size_t most = 0;
    for (const Step& step : steps) {
      size_t made = 0;
      for (const Output& output : step.outputs)
        for (const Made& m : output.made)
          if (m.slot >= 0) made += slots[m.slot].nbytes;
      most = std::max(most, made);
    }
    return most;
  }

  Segment segment(size_t first, size_t last) const {
    Segment made;
    made.first = first, made.last = last;
    for (size_t i = first; i < last; i++) {
      if (made.draws < 0 && steps[i].moves) made.draws = static_cast<std::ptrdiff_t>(i);
      for (size_t a = 0; a < steps[i].arguments.size(); a++)
        for (uint32_t k = steps[i].arguments[a].first; k < steps[i].arguments[a].end; k++)
          if (steps[i].inputs[k].kind == Input::Seed) made.seeds.push_back({i, k, a});
      for (const Input& in : steps[i].inputs)
        if (in.slot >= 0) made.slots.push_back(in.slot);
      for (const Output& out : steps[i].outputs)
        for (const Made& m : out.made)
          if (m.slot >= 0) made.made.push_back(m.slot);
    }
    made.slots.insert(made.slots.end(), made.made.begin(), made.made.end());
    for (std::vector<int>* all : {&made.slots, &made.made}) {
      std::sort(all->begin(), all->end());
      all->erase(std::unique(all->begin(), all->end()), all->end());
    }
    return made;
  }
};

}  // namespace grape
