// Where in the person's code operators stand that run as written, and collectives. Python says where, and is asked with no
// lock held.
#pragma once
#include "engine/lock.h"
#include "fragments/step.h"
#include "told/arrivals.h"
#include "told/first_visits.h"
#include "worth/lap_time.h"

#include <torch/csrc/autograd/graph_task.h>

#include <functional>

namespace grape {

class Places {
 public:
  // Where in the person's code the caller stands, as a number that Python gives; `NOT_NOW` where it cannot say.
  using Placer = std::function<int()>;

  Places(const Device& device, const Lock& lock) : device_(device), lock_(lock) {}

  void on_place(Placer placer) { exchange(placer_, placer); }
  // Where the caller stands, at a collective or a pass backward: asked as `Placer`s are.
  void on_arrival(Placer placer) { exchange(meeting_, placer); }

  // Under the lock, as what follows.
  void look_anew() {
    stops_.look_anew();
    arrivals_.look_anew();
    visits_.look_anew();
  }
  void charge(int user) { stops_.charge(user), visits_.charge(user); }
  const std::vector<FirstVisits::Row>& first_visits() const { return visits_.rows(); }

  // An operator that makes plans is about to run as written.
  FirstVisits::Visit visit(const Operator& op, const Stack& stack) { return visits_.begin(op, stack); }
  const std::vector<AsWritten::Row>& rows() const { return stops_.rows(); }

  // There are no steps any more that were written before.
  void forget() { forgotten_++; }

  // Counts it, unless whom this returns should be asked first.
  Placer note(const Operator& op, Written& written) {
    written.forgotten = forgotten_;
    if (placer_ && stops_.wants_place(written.step->stop)) return placer_;
    count(op, written);
    return {};
  }

  // Without the lock, as what follows. Asks where it stands. May raise: Ctrl-C.
  void place(const Operator& op, Written& written, const Placer& placer) {
    c10::impl::ExcludeDispatchKeyGuard guard(KEY);
    Within within;
    int found = placer();
    auto lock = lock_.take();
    if (written.forgotten != forgotten_) return;
    stops_.found(written.step->stop, found);
    count(op, written);
  }
  void took(const Written& written, std::chrono::steady_clock::time_point began) {
    auto took = std::chrono::steady_clock::now() - began;
    auto lock = lock_.take();
    stops_.took(written.run, took.count());
  }

  // Asks where it stands, once for each operator. May raise: Ctrl-C.
  void begin(const FirstVisits::Visit& visit) {
    bool wants = false;
    {
      auto lock = lock_.take();
      wants = placer_ && visits_.wants_place(visit);
    }
    if (!wants) return;
    int found = stands(placer_);
    auto lock = lock_.take();
    visits_.found(visit, found);
  }
  void took(const FirstVisits::Visit& visit, std::chrono::steady_clock::time_point began) {
    auto took = std::chrono::steady_clock::now() - began;
    auto lock = lock_.take();
    visits_.took(visit, took.count());
  }

  // Behind what is pending. May raise: Ctrl-C.
  void arrive(const Operator& op) {
    int pass = torch::autograd::get_current_graph_task_id();
    arrivals_.arrive(op.handle.schema().name(), arrivals_.wants_place() ? stands(meeting_) : AsWritten::NOT_NOW, pass, device_);
  }
  void begin_backward() {
    if (arrivals_.wants_pass()) arrivals_.begin_pass(stands(meeting_));
  }
  // The collectives of the run so far, which are forgotten here, and how many there were. Nothing is pending.
  std::pair<std::vector<Arrivals::Row>, uint64_t> arrivals() { return arrivals_.take(device_); }

 private:
  void exchange(Placer& mine, Placer& placer) {
    auto lock = lock_.take();
    std::swap(mine, placer);
    lock.unlock();  // what is dropped may need the GIL
  }

  void count(const Operator& op, Written& written) {
    bool waits = written.reason == Reason::Read && !device_.is_cpu();
    written.run = stops_.count(op, written.reason, written.step->stop, written.cuts, waits);
  }

  int stands(const Placer& of) {
    c10::impl::ExcludeDispatchKeyGuard guard(KEY);
    Within within;
    Placer placer;
    {
      auto lock = lock_.take();
      placer = of;
    }
    return placer ? placer() : AsWritten::NOT_NOW;
  }

  const Device& device_;
  const Lock& lock_;
  Placer placer_, meeting_;
  AsWritten stops_;
  Arrivals arrivals_;
  FirstVisits visits_;
  uint64_t forgotten_ = 0;  // times that all fragments were
};

}  // namespace grape
