// Operator streams. Each operator below autograd is compared with the recorded one; what matches is answered and issued
// later, with its segment; what does not match runs as written, behind what is pending.
//
// The engine takes the lock and runs operators, for which no lock is held. What is decided under the lock, `Decider` decides.
#pragma once
#include "engine/decider.h"
#include "engine/other_streams.h"
#include "engine/run.h"
#include "engine/threads.h"
#include "operators/referring.h"
#include "told/described.h"
#include "told/places.h"

namespace grape {

class Engine {
 public:
  Engine(Settings settings, std::unique_ptr<Device> device)
      : settings_(settings), device_(std::move(device)), draws_(settings.draws ? draws_of(*device_) : nullptr) {}

  // Also after a pause, and then on any thread: nothing is pending.
  void open() {
    auto lock = lock_.take();
    threads_.own(), open_ = alive_ = true;
    laps_.open();
    worth_.resume();
  }
  // Defers nothing until `open`. Fragments, the position in one and a record that is begun stay: behind a launch they
  // need nothing of what runs unseen (E1).
  void pause() {
    std::exception_ptr raised;
    Trash trash;
    {
      auto lock = lock_.take();
      follower_.launch();
      raised = pending_.take_raised();
      take_trash(trash);
      if (open_.exchange(false)) worth_.pause();
    }
    if (raised) std::rethrow_exception(raised);
  }
  void close() {
    auto raised = forget();
    {
      auto lock = lock_.take();
      open_ = alive_ = false;
      exposed_.clear();
    }
    if (raised) std::rethrow_exception(raised);
  }
  // False once it is closed, and in a forked child. Memory is exposed, and operators change, during a pause as well.
  bool is_alive() const { return alive_; }
  bool is_paused() const { return alive_ && !open_; }
  void in_forked_child() { open_ = alive_ = false; }
  const Device& device() const { return *device_; }

  // Issues what is pending, before something that launches kernels which nothing announces.
  void run_apart(Reason why) {
    flush();
    auto lock = lock_.take();
    counts.seen++, counts.write(why);
  }
  // Issues what is pending and defers nothing any more: threads may run that do not carry the key.
  void bar(Reason why) {
    flush();
    threads_.bar(why);
  }

  // A thread of Python carries the key from now on, and does no more.
  void joined() { threads_.join(); }
  void left() { threads_.leave(); }

  // A backward pass begins, which may go on in threads of autograd's.
  void begin_backward() {
    threads_.count();
    if (!open_.load(std::memory_order_relaxed)) return;
    backwards++;
    places_.begin_backward();
  }
  std::atomic<uint64_t> backwards{0};

  // While the person captures, operators are passed through.
  void pass_through(bool passing) {
    flush();
    threads_.pass_through(passing);
  }

  // What a kernel at the key does with an operator.
  void call(Operator& op, c10::DispatchKeySet keys, Stack* stack) {
    auto below = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, KEY);
    if (Heard::now) return Heard::now->operators.push_back(&op), op.handle.redispatchBoxed(below, stack);
    if (!open_.load(std::memory_order_relaxed) || !device_->concerns(op.arguments, *stack)) return run(op, below, stack);
    threads_.count();
    Reason apart = threads_.apart(below);
    if (apart != Reason::None) {
      if (!threads_.is_passing()) flush();
      if (!threads_.is_passing() && !device_->is_current()) other_streams_.leave(op, *stack);
      { auto lock = lock_.take(); counts.seen++, counts.write(apart); }
      if (op.meets && !threads_.is_passing()) places_.arrive(op);
      return run(op, below, stack);
    }
    if (op.refers && Referring::keeps_memory(op, *stack, *device_)) return run(op, below, stack);  // as a view, in no fragment
    if (op.lends) other_streams_.leave(op, *stack);
    bool times = lap_time_.timing.load(std::memory_order_relaxed) && !Within::any;
    auto entered = times ? Clock::now() : Clock::time_point();
    Decision decision;
    uint64_t recording = 0;
    bool capture_now = false;
    std::exception_ptr raised;
    Trash trash;
    uint64_t signature = 0;
    Written written;
    Places::Placer placer;
    FirstVisits::Visit visit;
    bool sampling, aside;
    {
      auto lock = lock_.take();
      sampling = (++counts.seen & 63) == 0, aside = !follower_.fragment() || !follower_.fragment()->live;
      pending_.sample(sampling);
      counts.aside += aside;
      auto begin = sampling ? Clock::now() : Clock::time_point();
      decision = open_ ? decider_.decide(op, *stack, signature) : Decision::Run;  // another thread may have paused it
      if (sampling) {
        uint64_t took = (Clock::now() - begin - pending_.take_launching()).count();
        counts.sampled++, counts.sampled_ns += took, counts.aside_ns += aside ? took : 0;
      }
      pending_.sample(false);
      raised = pending_.take_raised();
      recording = learner_.recording();
      written = follower_.take_written();
      if (written.step) placer = places_.note(op, written);
      if (op.plans && decision != Decision::Answered) visit = places_.visit(op, *stack);
      capture_now = captures_.is_due() && threads_.is_alone();
      take_trash(trash);
    }
    if (!trash.storages.empty() || !trash.memory.empty()) trash = Trash();
    bool served = decision == Decision::Answered || lap_time_.deferring;
    if (times && decision != Decision::Record) spend(served, entered);
    if (raised) std::rethrow_exception(raised);
    if (capture_now) capture();
    if (decision == Decision::Answered) return;
    if (placer) places_.place(op, written, placer);
    if (visit.first) places_.begin(visit);
    if (op.meets) places_.arrive(op);
    auto began = written.run.weight || times || visit.counts ? Clock::now() : Clock::time_point();
    Heard heard;
    try {
      Within within;  // a kernel in Python may wait for the device
      if (decision == Decision::Record) heard = run_and_listen(op, below, stack);
      else run(op, below, stack);
    } catch (...) {
      { auto lock = lock_.take(); counts.raised++; }
      throw;
    }
    if (times) LapTime::spend_inside(began);
    if (visit.counts) places_.took(visit, began);
    if (times && written.earns) worth_.note(Clock::now() - began);
    if (decision == Decision::Run) return written.run.weight ? places_.took(written, began) : void();
    auto ended = times ? Clock::now() : Clock::time_point();
    auto lock = lock_.take();
    if (!open_) return;  // its own kernel closed the session
    if (decision == Decision::Record && learner_.records(recording)) return decider_.record(op, *stack, signature, heard);
    auto begin = sampling && aside ? Clock::now() : Clock::time_point();
    decider_.observe(op, *stack, signature);
    if (sampling && aside) counts.aside_ns += (Clock::now() - begin).count();
    if (times) spend(lap_time_.deferring, ended);
  }

  // An operator that was defined after the session opened: behind everything that is pending.
  void call_unknown(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack, Reason why = Reason::Foreign) {
    if (open_ && !Heard::now) {
      flush();
      auto lock = lock_.take();
      counts.seen++, counts.write(why);
    }
    c10::impl::ExcludeDispatchKeyGuard guard(KEY);
    op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, KEY), stack);
  }

  // Of what waits for the device, or launches, whatever else it does: it counts to the lap as one operator does. The
  // engine may be gone when it ends.
  class Inside {
   public:
    explicit Inside(const Engine* engine) : times_(engine && !Within::any && engine->times_here()) {
      if (times_) Within::any = true, since_ = Clock::now();
    }
    ~Inside() {
      if (times_) Within::any = false, LapTime::spend_inside(since_);
    }
    Inside(const Inside&) = delete;

   private:
    const bool times_;
    Clock::time_point since_{};
  };

  // Issues what is pending. From any thread. In a forked child nothing is, and a thread that is not there may have had
  // the lock.
  void flush() {
    if (!alive_) return;
    Inside inside(this);
    std::exception_ptr raised;
    Trash trash;  // emptied behind the lock
    {
      auto lock = lock_.take();
      follower_.cut();
      raised = pending_.take_raised();
      take_trash(trash);
    }
    if (raised) std::rethrow_exception(raised);
  }

  // Issues what is pending and drops every record: operators compute otherwise from now on. What raised meanwhile.
  std::exception_ptr forget() {
    std::exception_ptr raised;
    try {
      flush();
    } catch (...) {
      raised = std::current_exception();
    }
    auto lock = lock_.take();
    decider_.leave();
    Operator::registrations++;
    captures_.forget();
    laps_.forget();
    finder_.clear();
    signatures_.forget();
    places_.forget();
    return raised;
  }

  // Memory that is read or written without operators from now on: nothing that touches it is deferred.
  void expose(StorageImpl* storage, bool is_part) {
    auto lock = lock_.take();
    is_part ? exposed_.add_part(storage) : exposed_.add(storage);
  }

  void on_place(Places::Placer placer) { places_.on_place(std::move(placer)); }
  void on_arrival(Places::Placer placer) { places_.on_arrival(std::move(placer)); }
  void look_anew(bool first) {
    auto lock = lock_.take();
    places_.look_anew();
    worth_.begin(first);
  }
  void charge(int user) {
    auto lock = lock_.take();
    places_.charge(user);
  }
  std::pair<std::vector<AsWritten::Row>, std::vector<FirstVisits::Row>> as_written() {
    auto lock = lock_.take();
    return {places_.rows(), places_.first_visits()};
  }
  std::pair<std::vector<Arrivals::Row>, uint64_t> arrivals() { return places_.arrivals(); }

  // What a capturer asks and says: see `Captures`.
  void on_capture(Captures::Capturer capturer) { captures_.on_capture(std::move(capturer)); }
  std::optional<at::ScalarType> kind_wanted() {
    auto lock = lock_.take();
    return captures_.kind_wanted();
  }
  size_t bytes_wanted(size_t most) {
    auto lock = lock_.take();
    return captures_.bytes_wanted(most);
  }
  bool issue_captured() {
    auto lock = lock_.take();
    follower_.launch();
    return captures_.issue();
  }
  void refused(const std::string& why) {
    auto lock = lock_.take();
    captures_.refused(why);
  }
  void captured(void* executable, uint64_t number) {
    auto lock = lock_.take();
    captures_.captured(executable, number);
  }
  const Captures& captures() const { return captures_; }
  const Launcher& launcher() const { return launcher_; }

  Counts counts;
  const Copies& copies() const { return epoch_.copies; }
  size_t fragments() const { return finder_.fragments(); }
  size_t steps() const { return finder_.steps(); }
  size_t bytes() const { return finder_.bytes(); }
  const std::string& last_divergence() const { return decider_.last_divergence(); }
  std::vector<Described> described() {
    auto lock = lock_.take();
    std::vector<Described> rows;
    finder_.each([&](const Fragment& fragment) { rows.emplace_back(fragment, worth_.price_of(fragment)); });
    return rows;
  }

 private:
  // Whether what this thread does belongs to laps.
  bool times_here() const {
    return lap_time_.timing.load(std::memory_order_relaxed) && open_.load(std::memory_order_relaxed) && threads_.is_followed();
  }
  static void spend(bool served, Clock::time_point since) { served ? LapTime::spend_inside(since) : LapTime::spend_comparing(since); }

  // With no lock held.
  void capture() {
    if (captures_.has_capturer()) {
      c10::impl::ExcludeDispatchKeyGuard guard(KEY);
      Within within;
      if (!captures_.ask()) {
        auto lock = lock_.take();
        return captures_.postpone();
      }
    }
    if (device_->is_cpu()) {
      auto lock = lock_.take();
      follower_.launch();
      captures_.pretend();
    }
    Trash trash;
    auto lock = lock_.take();
    captures_.take_trash(trash);
  }

  void take_trash(Trash& trash) {
    if (!epoch_.trash.storages.empty() || !epoch_.trash.memory.empty()) std::swap(trash, epoch_.trash);
  }

  const Settings settings_;
  const std::unique_ptr<Device> device_;
  const std::unique_ptr<Draws> draws_;  // none: what draws runs as written
  const Lock lock_;
  std::atomic<bool> open_{false}, alive_{false};
  Threads threads_{*device_};
  LapTime lap_time_;
  Places places_{*device_, lock_};
  Exposed exposed_;
  Finder finder_{settings_.budget, settings_.iteration, settings_.settled, settings_.shortest};
  Epoch epoch_{*device_, settings_.graphs};
  Launcher launcher_{*device_, draws_.get()};
  Worth worth_{settings_, counts};
  Captures captures_{settings_, *device_, draws_.get(), launcher_, worth_, counts};
  Budget budget_{settings_, finder_, worth_, captures_, counts, epoch_.trash};
  Signatures signatures_{settings_, *device_};
  Matcher matcher_{*device_, epoch_, exposed_, signatures_};
  Pending pending_{settings_, *device_, draws_.get(), epoch_, launcher_, captures_, budget_, counts};
  Follower follower_{settings_, pending_, matcher_, budget_, worth_, counts};
  OtherStreams other_streams_{*device_, lock_, finder_, epoch_, follower_, counts};
  Learner learner_{settings_, *device_, draws_.get(), finder_, exposed_, worth_, lap_time_, counts};
  Laps laps_{settings_, budget_, lap_time_, counts};
  Decider decider_{settings_, finder_, worth_, budget_, signatures_, follower_, learner_, laps_, counts};
};

}  // namespace grape
