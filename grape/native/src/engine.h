// Operator streams. Each operator below autograd is compared with the recorded one; what matches is answered and issued
// later, with its segment; what does not match runs as written, behind what is pending.
#pragma once
#include "allowance.h"
#include "arrivals.h"
#include "as_written.h"
#include "described.h"
#include "epoch.h"
#include "finder.h"
#include "graphs.h"
#include "python_objects.h"
#include "recorder.h"
#include "referring.h"

#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/profiler/orchestration/observer.h>

#include <chrono>
#include <functional>
#include <map>
#include <mutex>
#include <thread>

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
  uint64_t aside = 0, aside_ns = 0;  // operators that nothing served, and what comparing them took, of every 64th
  std::array<uint64_t, static_cast<size_t>(Reason::Count)> written{};
};

class Engine {
 public:
  Engine(Settings settings, std::unique_ptr<Device> device)
      : settings_(settings), device_(std::move(device)), draws_(settings.draws ? draws_of(*device_) : nullptr), price_(settings.price),
        finder_(settings.budget, settings.iteration, settings.settled, settings.shortest),
        epoch_(*device_, settings.graphs), launcher_(*device_, draws_.get()) {}

  // Also after a pause, and then on any thread: nothing is pending.
  void open() {
    auto lock = locked();
    owner_ = std::this_thread::get_id(), open_ = alive_ = true;
    opened_++, deferring_ = false;
    allowance_.resume();
  }
  // Defers nothing until `open`. Fragments, the position in one and a record that is begun stay: behind a launch they
  // need nothing of what runs unseen (E1).
  void pause() {
    std::exception_ptr raised;
    Trash trash;
    {
      auto lock = locked();
      launch();
      raised = std::exchange(raised_, nullptr);
      take_trash(trash);
      if (open_.exchange(false)) allowance_.pause();
    }
    if (raised) std::rethrow_exception(raised);
  }
  void close() {
    auto raised = forget();
    {
      auto lock = locked();
      open_ = alive_ = false;
      exposed_.clear();
    }
    if (raised) std::rethrow_exception(raised);
  }
  // False once it is closed, and in a forked child. Memory is exposed, and operators change, during a pause as well.
  bool is_alive() const { return alive_; }
  bool is_paused() const { return alive_ && !open_; }
  // Issues what is pending and defers nothing any more: kernels that nothing announces may run at any time, or threads
  // that do not carry the key.
  void bar(Reason why) {
    flush();
    barred_ = why;
  }
  bool is_barred() const { return barred_ != Reason::None; }
  void in_forked_child() { open_ = alive_ = false; }
  const Device& device() const { return *device_; }

  // Threads of Python that carry the key. Once one of them runs an operator or a backward, and until it ends, only the
  // owner's operators are deferred; many never do.
  void joined() { of_python_ = true; }
  void left() {
    of_python_ = false;
    if (std::exchange(counted_by_, nullptr) == this) others_--;
  }
  std::atomic<uint64_t> backwards{0};
  void count_thread() {
    if (of_python_ && counted_by_ != this) counted_by_ = this, others_++;
  }

  // A backward pass begins, which may go on in threads of autograd's.
  void begin_backward() {
    count_thread();
    if (!open_.load(std::memory_order_relaxed)) return;
    backwards++;
    if (arrivals_.wants_pass()) arrivals_.begin_pass(stands());
  }

  // While the person captures, operators are passed through.
  void pass_through(bool passing) {
    flush();
    passing_ = passing;
  }

  // What a kernel at the key does with an operator.
  void call(Operator& op, c10::DispatchKeySet keys, Stack* stack) {
    auto below = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, KEY);
    if (!open_.load(std::memory_order_relaxed) || !device_->concerns(op.arguments, *stack)) return run(op, below, stack);
    count_thread();
    Reason apart = is_barred() ? barred_.load() : passing_ ? Reason::Capturing : torch::profiler::impl::profilerEnabled() ? Reason::Profiled
        : !is_followed() ? Reason::Thread : below.has(c10::DispatchKey::Python) ? Reason::Mode
        : !device_->is_current()                                ? Reason::Stream : Reason::None;
    if (apart != Reason::None) {
      if (!passing_) flush();
      if (!passing_ && !device_->is_current()) leave_to_other_stream(op, *stack);
      { auto lock = locked(); counts.seen++, counts.written[index(apart)]++; }
      if (op.meets && !passing_) arrive(op);
      return run(op, below, stack);
    }
    if (op.refers && Referring::keeps_memory(op, *stack, *device_)) return run(op, below, stack);  // as a view, in no fragment
    if (op.lends) leave_to_other_stream(op, *stack);
    bool times = timing_.load(std::memory_order_relaxed) && !Within::any;
    auto entered = times ? Clock::now() : Clock::time_point();
    Decision decision;
    uint64_t recording = 0;
    bool capture_now = false;
    std::exception_ptr raised;
    Trash trash;
    uint64_t signature = 0;
    Written written;
    Placer placer;
    {
      auto lock = locked();
      sampling_ = (++counts.seen & 63) == 0;
      bool aside = !fragment_ || !fragment_->live;
      counts.aside += aside;
      auto begin = sampling_ ? Clock::now() : Clock::time_point();
      decision = open_ ? decide(op, *stack, signature) : Decision::Run;  // another thread may have paused it
      if (sampling_) {
        uint64_t took = (Clock::now() - begin - std::exchange(launching_, {})).count();
        counts.sampled++, counts.sampled_ns += took, counts.aside_ns += aside ? took : 0;
      }
      sampling_ = false;
      raised = std::exchange(raised_, nullptr);
      recording = recording_;
      written = std::exchange(written_, {});
      if (written.step && placer_ && stops_.wants_place(written.step->stop)) placer = placer_;
      else if (written.step) count(op, written);
      capture_now = wanted_ && others_ == 0 && (capturer_ || device_->is_cpu());
      take_trash(trash);
    }
    if (!trash.storages.empty() || !trash.memory.empty()) trash = Trash();
    bool served = decision == Decision::Answered || deferring_;
    if (times && decision != Decision::Record) spend(served ? inside_ns_ : compared_ns_, entered);
    if (raised) std::rethrow_exception(raised);
    if (capture_now) capture();
    if (decision == Decision::Answered) return;
    if (placer) place(op, written, placer);
    if (op.meets) arrive(op);
    auto began = written.run.weight || times ? Clock::now() : Clock::time_point();
    size_t warned = 0;
    try {
      Within within;  // a kernel in Python may wait for the device
      if (decision == Decision::Record) warned = run_and_listen(op, below, stack);
      else run(op, below, stack);
    } catch (...) {
      auto lock = locked();
      counts.raised++;
      recorder_.reset();
      leave();
      throw;
    }
    if (times) spend(inside_ns_, began);
    if (times && written.earns) saves_.note(Clock::now() - began);
    if (decision == Decision::Run) return written.run.weight ? took(written, began) : void();
    auto ended = times ? Clock::now() : Clock::time_point();
    auto lock = locked();
    if (!open_) return;  // its own kernel closed the session
    if (decision == Decision::Record && recorder_ && recording == recording_) return record(op, *stack, signature, warned > 0);
    observe(op, *stack, signature);
    if (times) spend(deferring_ ? inside_ns_ : compared_ns_, ended);
  }

  // An operator that was defined after the session opened: behind everything that is pending.
  void call_unknown(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    if (open_) {
      flush();
      auto lock = locked();
      counts.seen++, counts.written[index(Reason::Foreign)]++;
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
      if (times_) Within::any = false, spend(inside_ns_, since_);
    }
    Inside(const Inside&) = delete;

   private:
    const bool times_;
    std::chrono::steady_clock::time_point since_{};
  };

  // Issues what is pending. From any thread. In a forked child nothing is, and a thread that is not there may have had
  // the lock.
  void flush() {
    if (!alive_) return;
    Inside inside(this);
    std::exception_ptr raised;
    Trash trash;  // emptied behind the lock
    {
      auto lock = locked();
      launch();
      answering_ = false;
      raised = std::exchange(raised_, nullptr);
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
    auto lock = locked();
    leave();
    recorder_.reset();
    Operator::registrations++;
    wanted_ = nullptr;
    doubted_ = nullptr;
    deferring_ = timing_ = false;
    finder_.clear();
    alignments_.clear();
    forgotten_++;
    return raised;
  }

  // Memory that is read or written without operators from now on: nothing that touches it is deferred.
  void expose(StorageImpl* storage) {
    auto lock = locked();
    if (exposed_.size() > 1024)
      for (auto it = exposed_.begin(); it != exposed_.end();) it = it->second.use_count() == 0 ? exposed_.erase(it) : std::next(it);
    exposed_.emplace(storage, c10::weak_intrusive_ptr<StorageImpl>(c10::intrusive_ptr<StorageImpl>::reclaim_copy(storage)));
  }

  // How a segment is captured, in the thread that launched it, where no lock is held: calls `issue_captured`, then
  // `captured` or `refused`. False: not now.
  void on_capture(std::function<bool()> capturer) { capturer_ = std::move(capturer); }

  // Where in the person's code the caller stands, as a number that Python gives; `NOT_NOW` where it cannot say.
  using Placer = std::function<int()>;
  void on_place(Placer placer) {
    auto lock = locked();
    std::swap(placer_, placer);
    lock.unlock();  // what is dropped may need the GIL
  }
  void look_anew(bool first) {
    auto lock = locked();
    stops_.look_anew();
    arrivals_.look_anew();
    allowance_.begin(totals(), first);
  }
  void charge(int user) {
    auto lock = locked();
    stops_.charge(user);
  }
  std::vector<AsWritten::Row> as_written() {
    auto lock = locked();
    return stops_.rows();
  }

  // Where the caller stands, at a collective or a pass backward: asked as `Placer`s are.
  void on_arrival(Placer placer) {
    auto lock = locked();
    std::swap(meeting_, placer);
    lock.unlock();
  }
  // The collectives of the run so far, which are forgotten here, and how many there were. Nothing is pending.
  std::pair<std::vector<Arrivals::Row>, uint64_t> arrivals() { return arrivals_.take(*device_); }

  // What the segment that is wanted multiplies matrices of: cuBLAS loads kernels for each kind. None: it multiplies none.
  // Of numbers of one byte only operators of their own make products.
  std::optional<at::ScalarType> kind_wanted() {
    auto lock = locked();
    Segment* segment = wanted();
    for (size_t i = segment ? segment->first : 0; segment && i < segment->last; i++) {
      if (!wanted_->steps[i].op->multiplies) continue;
      for (const Input& in : wanted_->steps[i].inputs)
        if (auto kind = c10::typeMetaToScalarType(in.layout.dtype); in.kind == Input::Outside && c10::isFloatingType(kind) && c10::elementSize(kind) > 1) return kind;
      return at::kFloat;
    }
    return std::nullopt;
  }

  // Bytes that it will take for large results, of which none takes more than `most`.
  size_t bytes_wanted(size_t most) {
    auto lock = locked();
    Segment* segment = wanted();
    size_t all = 0;
    for (size_t k = 0; segment && k < segment->made.size(); k++)
      if (size_t bytes = wanted_->slots[segment->made[k]].nbytes; bytes > LARGE && bytes <= most) all += (bytes + LARGE - 1) / LARGE * LARGE;
    return all;
  }

  // True: the segment that is wanted was issued on the stream that is captured.
  bool issue_captured() {
    auto lock = locked();
    launch();
    Segment* segment = wanted();
    if (!segment) return false;
    std::string why;
    auto failed = launcher_.issue_captured(*wanted_, *segment, captured_, why);
    if (failed >= 0) return refuse(&wanted_->steps[failed], why), false;
    if (segment->draws >= 0) captured_draws_ = static_cast<const Philox&>(*draws_).captured();
    if (segment->draws >= 0 && captured_draws_.offset_intragraph_ != wanted_->moves(*segment)) return refuse(nullptr, "it draws otherwise in a capture"), false;
    frozen_ = wanted_->addresses(*segment);
    return true;
  }
  // No step can be blamed for what capture or executable say.
  void refused(const std::string& why) {
    auto lock = locked();
    if (wanted()) refuse(nullptr, why);
  }
  void captured(void* executable, uint64_t number) {
    auto lock = locked();
    auto graph = std::make_unique<CudaGraph>(static_cast<const Cuda&>(*device_), executable, number, dropped, captured_draws_);
    if (wanted()) keep(std::move(graph));
  }
  const std::shared_ptr<Dropped> dropped = std::make_shared<Dropped>();
  std::map<std::string, uint64_t> uncaptured;  // by reason
  const Launcher& launcher() const { return launcher_; }

  Counts counts;
  const Copies& copies() const { return epoch_.copies; }
  size_t fragments() const { return finder_.fragments(); }
  size_t steps() const { return finder_.steps(); }
  size_t bytes() const { return finder_.bytes(); }
  const std::string& last_divergence() const { return last_divergence_; }
  std::vector<Described> described() {
    auto lock = locked();
    std::vector<Described> rows;
    finder_.each([&](const Fragment& fragment) { rows.emplace_back(fragment, price_of(fragment)); });
    return rows;
  }

 private:
  using Clock = std::chrono::steady_clock;
  enum class Decision : uint8_t { Answered, Run, Observe, Record };
  enum class Match : uint8_t { Yes, Other, Written };

  // Adds how long it lives.
  struct Timed {
    uint64_t& ns;
    const Clock::time_point since = Clock::now();
    explicit Timed(uint64_t& counter) : ns(counter) {}
    ~Timed() { ns += (Clock::now() - since).count(); }
  };

  // An operator of a fragment that runs as written now.
  struct Written {
    Step* step = nullptr;
    Reason reason = Reason::None;
    bool cuts = false;       // what was pending
    bool earns = false;      // no `step`: it would be answered, were its fragment worth the captures
    uint64_t forgotten = 0;  // with a later count there is no such step any more
    AsWritten::Run run;
  };

  // K5: who has the lock may need the GIL, to drop a tensor that Python has as well.
  std::unique_lock<std::mutex> locked() const {
    std::unique_lock lock(mutex_, std::try_to_lock);
    if (lock) return lock;
    PyThreadState* thread = PyGILState_Check() ? PyEval_SaveThread() : nullptr;
    lock.lock();
    if (thread) PyEval_RestoreThread(thread);
    return lock;
  }

  static double milliseconds(Clock::duration time) { return std::chrono::duration<double, std::milli>(time).count(); }
  static size_t index(Reason reason) { return static_cast<size_t>(reason); }

  // The owner's operators, and those of a backward, which autograd runs on threads of its own for some devices. Nobody
  // else calls a backward while no other thread carries the key.
  bool is_followed() const {
    return std::this_thread::get_id() == owner_ ||
        (device_->has_threads() && others_ == 0 && torch::autograd::get_current_graph_task_id() != -1);
  }

  // An operator of another stream: it waits for everything that was launched late, and what it is given is no home's any
  // more, for the host does not know how long it is read. Autograd tells the allocator of the streams that a gradient
  // goes to, which hears nothing of memory that is lent at that moment: here it is told again.
  void leave_to_other_stream(Operator& op, const Stack& stack) {
    std::vector<at::Tensor> lent;
    bool gradients = !device_->is_current() && torch::autograd::get_current_graph_task_id() != -1;
    {
      auto lock = locked();
      for (size_t i = stack.size() - op.arguments; i < stack.size(); i++)
        for_each_tensor(stack[i], [&](const at::Tensor& t) {
          if (!t.defined() || !device_->holds(t)) return;
          if (Tenancy* tenancy = tenancy_of(storage_of(t))) {
            launch();
            finder_.each([&](Fragment& fragment) { epoch_.give_away(fragment, tenancy); });
          } else if (!gradients) {
            return;
          }
          lent.push_back(t);
        });
      if (device_->is_current()) return;
      device_->let_wait(counts.segments);
    }
    c10::impl::ExcludeDispatchKeyGuard guard(KEY);
    for (const at::Tensor& t : lent) device_->used_here(t);
  }

  // Behind what is pending. May raise: Ctrl-C.
  void arrive(const Operator& op) {
    int pass = torch::autograd::get_current_graph_task_id();
    arrivals_.arrive(op.handle.schema().name(), arrivals_.wants_place() ? stands() : AsWritten::NOT_NOW, pass, *device_);
  }
  int stands() {
    c10::impl::ExcludeDispatchKeyGuard guard(KEY);
    Within within;
    Placer placer;
    {
      auto lock = locked();
      placer = meeting_;
    }
    return placer ? placer() : AsWritten::NOT_NOW;
  }

  // Asks where it stands, with no lock held. May raise: Ctrl-C.
  void place(Operator& op, Written& written, const Placer& placer) {
    c10::impl::ExcludeDispatchKeyGuard guard(KEY);
    Within within;
    int found = placer();
    auto lock = locked();
    if (written.forgotten != forgotten_) return;
    stops_.found(written.step->stop, found);
    count(op, written);
  }
  void count(Operator& op, Written& written) {
    bool waits = written.reason == Reason::Read && !device_->is_cpu();
    written.run = stops_.count(op, written.reason, written.step->stop, written.cuts, waits);
  }
  // What is in here is timed as a whole, or not to be timed.
  struct Within {
    const bool before = std::exchange(any, true);
    ~Within() { any = before; }
    static inline thread_local bool any = false;
  };
  // Whether what this thread does belongs to laps.
  bool times_here() const {
    return timing_.load(std::memory_order_relaxed) && open_.load(std::memory_order_relaxed) && is_followed();
  }
  static void spend(std::atomic<uint64_t>& ns, Clock::time_point since) {
    ns.fetch_add((Clock::now() - since).count(), std::memory_order_relaxed);
  }
  void took(const Written& written, Clock::time_point began) {
    auto took = Clock::now() - began;
    auto lock = locked();
    stops_.took(written.run, took.count());
  }

  void capture() {
    if (capturer_) {
      c10::impl::ExcludeDispatchKeyGuard guard(KEY);
      Within within;
      double length = static_cast<double>(last_ - first_);
      auto begin = capture_began_ = Clock::now();
      if (!capturer_()) return postpone();
      auto took = Clock::now() - begin;
      counts.capture_ns += took.count();
      // One that took far longer waited for something else.
      if (price_ > 0 && is_warm_.exchange(true)) {
        double beside = std::max(0.1, milliseconds(took) - CAPTURED * length);
        price_ += 0.2 * (std::min(beside, std::max(0.1, 4 * price_)) - price_);
      }
    }
    if (device_->is_cpu()) pretend();
    Trash trash;
    auto lock = locked();
    std::swap(trash, captured_);
  }

  // On the CPU a capturer, if there is one, may only refuse.
  void pretend() {
    auto lock = locked();
    launch();
    Segment* segment = wanted();
    if (!segment) return;
    try {
      auto graph = std::make_unique<PretendedGraph>(*wanted_, *segment, draws_.get(), captured_);
      frozen_ = wanted_->addresses(*segment);
      keep(std::move(graph));
    } catch (const c10::Error& error) {
      refuse(nullptr, error.what_without_backtrace());
    }
  }

  void keep(std::unique_ptr<Graph> graph) {
    counts.captured++;
    graph->frozen = std::move(frozen_);
    Segment& segment = *wanted();
    segment.copied = std::count_if(segment.made.begin(), segment.made.end(), [&](int slot) { return wanted_->stays_at_capture(slot, segment); });
    segment.graph = std::move(graph);
    if (capturer_) wanted_->spent_ns += static_cast<double>((Clock::now() - capture_began_).count());
    wanted_ = nullptr;
  }

  // Until its segment was launched over the same memory for so often again.
  void postpone() {
    auto lock = locked();
    if (Segment* segment = wanted()) segment->steady = 0, segment->captures--;
    wanted_ = nullptr;
  }

  // The segment that should be captured, unless other threads had its fragment cut otherwise.
  Segment* wanted() {
    if (wanted_ && !wanted_->uncut)
      for (Segment& segment : wanted_->segments)
        if (segment.first == first_ && segment.last == last_) return &segment;
    return wanted_ = nullptr, nullptr;
  }

  void refuse(Step* step, const std::string& why) {
    Segment& segment = *wanted();
    uncaptured[why.substr(0, why.find('\n'))]++;
    if (step) wanted_->demote(*step, Reason::Uncaptured);
    else if (++segment.failed == 2)  // whatever it is, it is in there
      for (size_t i = segment.first; i < segment.last; i++) wanted_->demote(wanted_->steps[i], Reason::Uncaptured);
    wanted_ = nullptr;
  }

  // What a fragment's operators have to take as written before captures are made of it: so much as those take. Then both
  // together cost at most twice what the better of the two would have cost, however often it comes.
  double price_of(const Fragment& fragment) const {
    if (!settings_.graphs || price_ <= 0) return 0;
    if (fragment.segments.empty()) return 0;
    return price_ * static_cast<double>(fragment.segments.size() + (is_warm_ ? 0 : COLD)) + CAPTURED * static_cast<double>(fragment.steps.size());
  }

  // What serves is set against a lap as written; a side of another fragment has no laps.
  bool has_earned(const Fragment& fragment) const {
    double price = price_of(fragment);
    return fragment.earned >= price && (price == 0 || fragment.pace.laps_without() > 0 || fragment.entered >= 3);
  }

  Allowance::Totals totals() const { return {static_cast<double>(counts.capture_ns + counts.record_ns), counts.saved_ns}; }
  bool overdrawn() const { return settings_.graphs && settings_.price > 0 && allowance_.overdrawn(totals()); }
  bool overdrawn(const Fragment& fragment) const { return !fragment.pays(Allowance::REINVESTED) && overdrawn(); }

  // A fragment that still costs, while no more may be spent: it runs as written.
  bool rests(const Fragment& fragment) const {
    return fragment.live && (fragment.saved_ns < 0 || !fragment.is_captured()) && overdrawn(fragment);
  }

  // A segment without a graph was launched.
  void consider_capture(Segment* segment) {
    if (!settings_.graphs || !segment || segment->graph || fragment_->uncut || fragment_->steady(*segment) < settings_.steady << segment->captures) return;
    if (overdrawn(*fragment_)) return;
    if (segment->waited < PATIENT && fragment_->waits_for_others(*segment)) return segment->waited++, void();
    if (++segment->captures > settings_.captures) {
      for (size_t i = segment->first; i < segment->last; i++) fragment_->demote(fragment_->steps[i], Reason::Moves);
      return;
    }
    if (!segment->seeds.empty() && !segment->words) try {
      segment->words = device_->allocate(segment->seeds.size() * sizeof(int64_t));
    } catch (const c10::Error&) {
      return;  // no memory
    }
    wanted_ = fragment_;
    first_ = segment->first, last_ = segment->last;
  }

  static void run(Operator& op, c10::DispatchKeySet below, Stack* stack) {
    c10::impl::ExcludeDispatchKeyGuard guard(KEY);
    op.handle.redispatchBoxed(below, stack);
  }

  // How many warnings a kernel gave. Issued later, they would name another line.
  static size_t run_and_listen(Operator& op, c10::DispatchKeySet below, Stack* stack) {
    struct Listener final : c10::WarningHandler {
      c10::WarningHandler* plain = c10::WarningUtils::get_warning_handler();
      size_t heard = 0;
      void process(const c10::Warning& warning) override { heard++, plain->process(warning); }
    } listener;
    c10::WarningUtils::WarningHandlerGuard guard(&listener);
    run(op, below, stack);
    return listener.heard;
  }

  Decision decide(Operator& op, Stack& stack, uint64_t& sig) {
    if (fragment_ && is_refined(op, stack)) {
      finder_.passed(*fragment_, at_);
      leave();
    }
    if (fragment_) {
      Match match = follow(op, stack);
      if (match == Match::Yes) return Decision::Answered;
      if (match == Match::Written) return Decision::Run;
      launch();
      answering_ = false;
      sig = sign(op, stack);
      if (strays_ == 0) {
        Decision decision = diverge(op, stack, sig);
        if (decision != Decision::Observe) return decision;
      }
      counts.written[index(Reason::Divergence)]++;
      if (fragment_ && ++strays_ > settings_.strays) {
        if (is_early() && !fragment_->jumped && ++fragment_->failed > 30 + fragment_->entered / 2) fragment_->dead = true;
        leave();
      }
      return Decision::Observe;
    }
    sig = sign(op, stack);
    if (recorder_ && recorder_->is_between()) {
      recording_++;
      record_before(op, stack, sig);
      return Decision::Record;
    }
    recorder_.reset();  // another thread's operator came while the last one ran
    counts.written[index(Reason::Observed)]++;
    return Decision::Observe;
  }

  bool is_early() const { return at_ * 4 < fragment_->steps.size(); }  // else it was worth it until here

  uint64_t sign(const Operator& op, const Stack& stack) const {
    uint64_t sig = signature(op, stack);
    return refined_.empty() || !refined_.count(sig) ? sig : mix(sig, alignments_of(op, stack));
  }

  uint64_t alignments_of(const Operator& op, const Stack& stack) const {
    uint64_t hash = 1;
    for (size_t i = stack.size() - op.arguments; i < stack.size(); i++)
      for_each_tensor(stack[i], [&](const at::Tensor& t) {
        if (!t.defined() || !device_->holds(t)) return;
        auto address = reinterpret_cast<uintptr_t>(storage_of(t)->data()) + static_cast<uintptr_t>(byte_offset(t));
        hash = mix(hash, alignment_class(address, device_->alignment));
      });
    return hash;
  }

  // From now on it is seen what alignments come.
  void note_alignment(const Step& refused) {
    Alignments& met = alignments_[refused.signature];
    if (refused.alignments || met.is_hopeless()) return;
    for (Step& step : fragment_->steps)
      if (step.signature == refused.signature) step.alignments = &met;
  }

  // Whether the operator's alignments are seen to repeat now. Then they belong to its signature, and no fragment that was
  // recorded before knows of that.
  bool is_refined(const Operator& op, const Stack& stack) {
    Step& step = fragment_->steps[at_];
    if (!step.alignments || step.op != &op) return false;
    size_t period = step.alignments->push(alignments_of(op, stack));
    if (!period || period * fragment_->steps.size() > settings_.iteration) {
      if (step.alignments->is_hopeless()) step.alignments = nullptr;
      return false;
    }
    launch();
    refined_.insert(step.signature);
    finder_.each([&](Fragment& fragment) {
      for (const Step& other : fragment.steps)
        if (other.signature == step.signature) return retire(fragment);
    });
    return true;
  }

  // It serves no more. Nothing is pending.
  void retire(Fragment& fragment) {
    if (fragment.dead) return;
    if (wanted_ == &fragment) wanted_ = nullptr;
    if (doubted_ == &fragment) doubted_ = nullptr;
    if (fragment.live) finder_.release(fragment);
    fragment.end(epoch_.trash);
  }

  // Another operator came than the fragment's: into a side that is known, or into a record of a new one.
  Decision diverge(Operator& op, Stack& stack, uint64_t sig) {
    Fragment* parent = fragment_;
    counts.diverged++;
    last_divergence_ = "expected " + parent->steps[at_].op->handle.schema().name() + ", found " + op.handle.schema().name();
    finder_.passed(*parent, at_);
    if (parent->jumped && is_early()) parent->missed++;
    uint64_t key = mix(at_, sig);
    if (parent->sides.size() >= 256 && !parent->sides.count(key)) return Decision::Observe;
    Side& side = parent->sides[key];
    if (side.fragment && !side.fragment->dead) {
      enter(side.fragment);
      Match match = follow(op, stack);
      if (match == Match::Yes) return Decision::Answered;
      if (match == Match::Written) return Decision::Run;
      leave();
    } else if (!side.fragment && ++side.times >= 2 && finder_.room() && op.always != Reason::Read && !overdrawn()) {
      leave();
      recorder_ = std::make_unique<Recorder>(0, *device_, draws_.get());
      recording_++;
      parent_ = parent, side_ = key, planned_ = 0, is_outer_ = false;
      record_before(op, stack, sig);
      return Decision::Record;
    }
    return Decision::Observe;
  }

  void record_before(Operator& op, const Stack& stack, uint64_t sig) {
    Timed timed(counts.record_ns);
    recorder_->before(op, stack, sig, touches_exposed(op, stack));
  }

  void record(const Operator& op, const Stack& stack, uint64_t sig, bool warned) {
    Timed timed(counts.record_ns);
    recorder_->after(stack, warned);
    counts.recorded++;
    finder_.push(sig, kind_of(op, stack));
    uint64_t context = finder_.context();
    Fragment* next = finder_.behind(context);
    lost_ = finder_.is_lost(context) ? lost_ + 1 : 0;
    if (lost_ >= settings_.shortest) return recorder_.reset();  // it leads through what does not pay
    if (planned_) {
      if (!finder_.periods.holds(period_)) return recorder_.reset();  // another iteration than those before
      if (recorder_->size() < planned_) return;
    } else {
      bool back = !parent_ && context == head_ && recorder_->size() >= settings_.shortest;
      bool known = next && recorder_->size() >= (parent_ ? 1 : settings_.shortest);
      bool leads = !parent_ && recorder_->size() > settings_.furthest / 8 && finder_.periods.found();
      if (!back && !known && leads) return period_ = 0, recorder_.reset();  // into iterations, of which it is none
      if (!back && !known && recorder_->size() < settings_.furthest) return;
    }
    auto made = recorder_->finish(settings_.longest);
    recorder_.reset();
    if (!is_outer_) made->earned = saves_.milliseconds() * static_cast<double>(made->deferred) * times_as_written(*made);
    if (is_outer_ && !finder_.could_afford(*made)) return too_large_ = planned_, void();  // what serves now goes on
    Fragment* added = finder_.add(std::move(made), parent_, side_);
    timing_ = true;
    if (is_outer_ || (planned_ && planned_ == period_)) finder_.surrounds(*added);
    added->around = is_outer_;
    parent_ = nullptr;
    if ((next = finder_.behind(context))) arrive(next);
  }

  // Of an operator that ran as written. Copies to the host are reads, and no schema says which copies are.
  uint8_t kind_of(const Operator& op, const Stack& stack) const {
    const IValue* first = op.returns && !device_->is_cpu() ? &stack[stack.size() - op.returns] : nullptr;
    bool copies = first && first->isTensor() && first->toTensor().defined() && first->toTensor().is_cpu();
    return op.kind() | (copies ? Operator::READ : 0);
  }

  // How often what was recorded has run as written so far, at least: that counts as if it had been followed.
  double times_as_written(const Fragment& made) const {
    size_t operators = planned_ ? finder_.periods.held(period_).value_or(0) + period_ : 0;
    return std::max(1.0, static_cast<double>(operators) / static_cast<double>(std::max<size_t>(made.steps.size(), 1)));
  }

  void observe(const Operator& op, const Stack& stack, uint64_t sig) {
    finder_.push(sig, kind_of(op, stack));
    uint64_t context = finder_.context();
    if (outer_ && begin_outer(context)) return;
    if (Fragment* next = finder_.behind(context)) return arrive(next);
    if (doubted_ && counts.seen > doubted_until_) judge();
    if (doubted_ || fragment_ || recorder_ || counts.seen < resting_until_ || !finder_.room() || finder_.is_lost(context)) return;
    if (size_t period = finder_.periods.found(); period && period != period_) {
      period_ = period;
      iteration_ = finder_.periods.is_served(period) ? 0 : finder_.iteration(period);
    } else if (period_ && !finder_.periods.holds(period_)) {
      period_ = 0;
    }
    if (period_ && context == iteration_ && !overdrawn()) return begin(context, (settings_.shortest + period_ - 1) / period_ * period_);
    if (!finder_.hot(context, settings_.hot, settings_.patience) || !(settings_.patience == 0 || finder_.may_begin()) || overdrawn()) return;
    finder_.cool(context);
    begin(context, 0);
  }

  // A record, behind this context: of so many operators, or until something comes back.
  void begin(uint64_t context, size_t planned) {
    is_outer_ = false;
    head_ = context;
    planned_ = planned;
    parent_ = nullptr;
    recorder_ = std::make_unique<Recorder>(context, *device_, draws_.get());
  }

  // At the head of a fragment. While one is doubted, none is entered.
  void arrive(Fragment* fragment) {
    Pace& pace = fragment->pace;
    Pace::Saved saved = pace.end(doubted_ != nullptr, fragment->deferred, marks());
    fragment->saved_ns += saved.ns;
    counts.saved_ns += saved.ns;
    counts.waits_ns += saved.waits_ns;
    counts.timed += saved.matched;
    if (settings_.doubt && fragment->live) {
      if (doubted_ == fragment) {
        if (pace.laps_without() >= LAPS_WITHOUT) judge();
      } else if (!doubted_ && pace.is_due(settings_.doubt)) {
        leave();
        doubted_ = fragment;
        doubted_until_ = counts.seen + 8 * std::max(settings_.furthest, fragment->steps.size());
        pace.doubt();
      }
    }
    if (!doubted_ && fragment->inner) look_further(*fragment);
    bool rests = this->rests(*fragment), enters = !doubted_ && !fragment->dead && !rests;
    if (rests) counts.rested++, resting_until_ = counts.seen + fragment->steps.size();  // what it would serve is recorded
    if (enters) enter(fragment);
    deferring_ = enters && fragment->live;
    pace.begin(deferring_, doubted_ != nullptr, marks());
  }

  // A fragment shorter than a segment is an inner loop's. Recorded with what is around it, an iteration is launched in
  // longer segments, from memory that moves less.
  void look_further(const Fragment& fragment) {
    if (outer_ || recorder_ || counts.seen < look_at_ || overdrawn()) return;
    look_at_ = counts.seen + std::min(settings_.settled, SELDOM);
    size_t period = finder_.periods.longer(2 * fragment.steps.size());
    if (!period || period == too_large_ || finder_.periods.is_served(period)) return;
    outer_head_ = finder_.iteration(period);
    Fragment* known = finder_.behind(outer_head_);
    if ((known && known->steps.size() >= period) || finder_.is_lost(outer_head_)) return;
    outer_ = period;
    outer_until_ = counts.seen + 2 * period;
  }

  // Where an iteration begins, it serves rather than what is followed there. One that no loop inside led to serves already,
  // and is longer: a part of it was recorded on its own, where the same code ran outside of the loop.
  bool enter_outer(uint64_t context) {
    Fragment* outer = finder_.outer_behind(context);
    if (!outer || outer == fragment_) return false;
    bool jumps = !outer->around;
    if (jumps && (!outer->live || outer->steps.size() <= fragment_->steps.size() || doubted_ || rests(*outer) || outer->leads_astray())) return false;
    Fragment* inner = fragment_;
    leave();
    finder_.passed(*inner, at_);
    arrive(outer);
    outer->jumped = jumps && fragment_ == outer;
    return true;
  }

  // Behind an operator: the iteration that is wanted may begin here, whatever serves now.
  bool begin_outer(uint64_t context) {
    if (counts.seen > outer_until_ || !finder_.periods.holds(outer_)) return outer_ = 0, false;
    if (context != outer_head_) return false;
    if (Fragment* inner = fragment_) leave(), finder_.passed(*inner, at_);
    period_ = outer_;
    begin(context, std::exchange(outer_, 0));
    return is_outer_ = true;
  }

  Pace::Marks marks() const {
    uint64_t compared_ns = compared_ns_.load(std::memory_order_relaxed), inside_ns = inside_ns_.load(std::memory_order_relaxed);
    return {counts.seen, counts.matched, opened_, inside_ns, counts.capture_ns + counts.record_ns + compared_ns, counts.issue_ns};
  }

  // Whether code as written was faster than what served it. A fragment of which that is said twice serves no more; of one
  // that has saved something in all laps it is said in vain, unless it is said again and again.
  void judge() {
    Fragment* fragment = std::exchange(doubted_, nullptr);
    Pace& pace = fragment->pace;
    double ratio = pace.judge();
    if (ratio <= WORTHWHILE) return pace.wait(8 * pace.laps()), pace.lost = 0, void();
    pace.wait(pace.laps() + settings_.doubt);
    if (settings_.graphs && !fragment->is_captured() && pace.excused++ < UNFAIR) return;
    if (++pace.lost < 2 && ratio < 1.2) return;
    if (fragment->saved_ns > 0 && pace.lost < OFTEN) return;
    counts.lost++;
    finder_.lose(*fragment);
    fragment->end(epoch_.trash);
  }

  void enter(Fragment* fragment) {
    if (fragment->uncut) fragment->cut(settings_.longest);
    if (!fragment->live && has_earned(*fragment) && !overdrawn()) {
      fragment->large = !afford(*fragment);
      if (!fragment->large) try {
        fragment->begin_to_live(price_of(*fragment));
      } catch (const c10::Error&) {
        starve(*fragment);
      }
    }
    if (fragment_) launch();  // another of autograd's threads may have matched meanwhile
    fragment_ = fragment;
    at_ = from_ = strays_ = period_ = 0;
    fragment->entered++;
    fragment->jumped = false;
    fragment->last = counts.seen;
    counts.entered++;
  }

  // Room for its homes. What has not served for long, as code does that ran in other cells, gives up its own.
  bool afford(const Fragment& fragment) {
    while (!finder_.could_afford(fragment)) {
      Fragment* unused = counts.seen > settings_.unused ? finder_.unused(fragment, counts.seen - settings_.unused) : nullptr;
      if (!unused || unused == fragment_ || unused == doubted_) return false;
      if (wanted_ == unused) wanted_ = nullptr;
      finder_.release(*unused);
      unused->rest(epoch_.trash);
    }
    return finder_.afford(fragment);
  }

  // It takes memory that code as written does without.
  void starve(Fragment& fragment) {
    if (!fragment.live) return;
    if (wanted_ == &fragment) wanted_ = nullptr;
    finder_.release(fragment);
    fragment.starve(epoch_.trash);
  }

  void leave() {
    launch();
    fragment_ = nullptr;
    strays_ = 0;
  }

  void advance() {
    const Step& step = fragment_->steps[at_++];
    bool served = !fragment_->inner && step.run != Reason::Number;  // a number may be the same in an iteration around it
    finder_.followed(step.signature, step.kind(), at_ == 1 || step.run != Reason::None, served);
    strays_ = 0;
    if (step.ends) launch();
    if (outer_ && begin_outer(finder_.followed_context())) return;
    if (finder_.has_outer() && at_ < fragment_->steps.size() && enter_outer(finder_.followed_context())) return;
    if (at_ < fragment_->steps.size()) return;
    Fragment* done = fragment_;
    leave();
    finder_.passed(*done, done->steps.size());
    uint64_t context = finder_.context();
    if (Fragment* next = finder_.behind(context)) arrive(next);
    else go_on(*done, context);
  }

  // What comes behind a fragment that leads nowhere, as it was as long as one may be, is recorded like a fragment.
  void go_on(Fragment& done, uint64_t context) {
    if (++done.ended < static_cast<int>(settings_.hot) || doubted_ || recorder_ || overdrawn()) return;
    if (!finder_.room() || finder_.is_lost(context)) return;
    done.ended = -SELDOM_BEHIND;
    begin(context, 0);
  }

  Match follow(Operator& op, Stack& stack) {
    Step& step = fragment_->steps[at_];
    if (step.op != &op) return Match::Other;
    Reason reason = step.run;
    if (reason == Reason::None && !fragment_->live) {
      if (compare(step, op, stack, reason) == Match::Other) return Match::Other;
      if (reason == Reason::Number) fragment_->demote(step, reason);
      else reason = fragment_->large ? Reason::Room : Reason::Unearned, fragment_->earned += saves_.milliseconds();
    } else if (reason == Reason::None) {
      Match match = compare(step, op, stack, reason);
      if (match == Match::Yes && step.moves && !draws_next()) launch();
      auto mark = epoch_.mark();
      Handed handed;
      if (match == Match::Yes && !fragment_->live) match = Match::Written, reason = Reason::Room;  // it starved just now
      if (match == Match::Yes) try {
        match = bind(step, op, stack, reason);
        if (match == Match::Yes) handed = hand_out(step);
      } catch (const c10::Error&) {
        match = Match::Written, reason = Reason::Room;
      }
      if (match == Match::Yes) {
        if (step.moves) draw(step, op, stack);
        answer(step, op, stack, handed);
        counts.matched++;
        answering_ = true;
        advance();
        return match;
      }
      epoch_.forget(mark);
      if (match == Match::Other) return match;
      if (reason == Reason::Room) launch(), starve(*fragment_);
      // Numbers that changed will change again; memory elsewhere may have been an exception.
      if (reason == Reason::Number || (++step.refused >= REFUSED && SELDOM_FITS * step.refused > fragment_->entered)) fragment_->demote(step, reason);
    }
    counts.written[index(reason)]++;
    bool cuts = std::exchange(answering_, false);
    if (reason == Reason::Unearned) written_.earns = true;
    else if (reason != Reason::Room) written_ = {&step, reason, cuts, false, forgotten_, {}};
    launch();
    cut_anew();
    from_ = at_ + 1;
    advance();
    return Match::Written;
  }

  Match compare(Step& step, Operator& op, const Stack& stack, Reason& reason) {
    if (step.counts_below != counts_below()) return Match::Other;
    size_t base = stack.size() - op.arguments;
    for (size_t i = 0; i < op.arguments; i++) {
      const IValue& value = stack[base + i];
      const Argument& argument = step.arguments[i];
      if (argument.kind == Argument::Plain) {
        if (same_number(value, argument.value)) continue;
        if (holds_tensor(value)) return Match::Other;
        reason = Reason::Number;
        continue;
      }
      uint32_t k = argument.first;
      bool same = value.isTensor() == (argument.kind == Argument::Tensor);
      for_each_tensor(value, [&](const at::Tensor& t) {
        if (same && k < argument.end) same = same_tensor(step.inputs[k], t, reason);
        k++;
      });
      if (!same || k != argument.end) return Match::Other;
    }
    return reason == Reason::None ? Match::Yes : Match::Written;
  }

  // Everything was compared before anything is bound.
  Match bind(Step& step, Operator& op, const Stack& stack, Reason& reason) {
    for (size_t i = 0; i < op.arguments; i++) {
      uint32_t k = step.arguments[i].first;
      if (step.arguments[i].kind != Argument::Plain)
        for_each_tensor(stack[stack.size() - op.arguments + i], [&](const at::Tensor& t) {
          const Input& in = step.inputs[k++];
          if (in.kind != Input::Outside || reason != Reason::None) return;
          if (is_exposed(storage_of(t))) { reason = Reason::Memory; return; }
          Bound bound = epoch_.bind(*fragment_, in.slot, t, in.at);
          if (bound != Bound::Yes) reason = bound == Bound::Foreign ? Reason::Memory : Reason::Aliased;
          if (bound == Bound::Misaligned) note_alignment(step);
        });
    }
    return reason == Reason::None ? Match::Yes : Match::Written;
  }

  bool same_tensor(const Input& in, const at::Tensor& t, Reason& reason) const {
    if (in.kind == Input::Any) return true;
    if (in.kind == Input::Seed) return take_number(in, t);
    if (!t.defined() || in.kind == Input::Undefined) return !t.defined() && in.kind == Input::Undefined;
    if (in.kind == Input::Number) {
      if (!device_->is_scalar(t) || is_number(t) != is_number(in.number) || t.dtype() != in.layout.dtype) return false;
      if (std::memcmp(t.const_data_ptr(), in.number.const_data_ptr(), t.itemsize()) != 0) reason = Reason::Number;
      return true;
    }
    return device_->holds(t) && !is_number(t) && in.layout.fits(t);
  }

  // What it is now goes to the kernel. Nothing of the operator is pending yet.
  static bool take_number(const Input& in, const at::Tensor& t) {
    if (!t.defined() || !t.is_cpu() || t.dim() != 0 || !is_plain(t) || t.scalar_type() != at::kLong) return false;
    std::memcpy(in.number.mutable_data_ptr(), t.const_data_ptr(), t.itemsize());
    return true;
  }

  // R1: nobody but pending operators moved the generator since the first of them drew.
  bool draws_next() const { return !drawn_to_ || draws_->now() == *drawn_to_; }

  void draw(Step& step, Operator& op, const Stack& stack) {
    step.drawn = draws_->now();
    draws_->advance(op, stack, step.moves);
    drawn_to_ = draws_->now();
  }

  using Handed = c10::SmallVector<std::pair<int, c10::Storage>, 4>;  // by slot

  Handed hand_out(const Step& step) {
    Handed handed;
    for (const Output& output : step.outputs)
      for (const Made& made : output.made)
        if (made.slot >= 0 && !epoch_.has(fragment_->slots[made.slot])) handed.emplace_back(made.slot, epoch_.hand_out(*fragment_, made.slot));
    return handed;
  }

  void answer(Step& step, Operator& op, Stack& stack, const Handed& handed) {
    size_t base = stack.size() - op.arguments;
    if (step.bumps) bump(step, op, stack);
    c10::SmallVector<IValue, 4> returned;
    for (const Output& output : step.outputs)
      returned.push_back(output.argument >= 0 ? stack[base + output.argument] : IValue());
    stack.resize(base);
    size_t next = 0;  // results come in the order of what was handed out, but where two lie in one storage
    auto make = [&](const Made& made) -> at::Tensor {
      if (made.slot == Made::UNDEFINED) return at::Tensor();
      if (made.slot == Made::UNREAD || made.slot == Made::SEED || made.slot == Made::OFFSET) {
        at::Tensor number = zero(c10::typeMetaToScalarType(made.layout.dtype));
        if (made.slot != Made::UNREAD) *number.mutable_data_ptr<int64_t>() = static_cast<int64_t>(made.slot == Made::SEED ? step.drawn.seed : step.drawn.offset);
        return number;
      }
      c10::Storage storage;
      if (made.slot >= 0) {
        for (size_t tries = 0; tries < handed.size() && !storage; tries++)
          if (handed[next].first == made.slot) storage = handed[next].second;
          else next = (next + 1) % handed.size();
      }
      if (!storage) storage = device_->storage(0);
      // A new TensorImpl each time, of the current mode; nobody but the caller holds it.
      auto impl = c10::make_intrusive<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(device_->key), made.layout.dtype);
      impl->set_sizes_and_strides(made.layout.sizes, made.layout.strides, made.at / static_cast<int64_t>(made.layout.dtype.itemsize()));
      for (uint8_t n = made.version; n && !impl->is_inference(); n--) impl->bump_version();
      return at::Tensor(std::move(impl));
    };
    for (size_t r = 0; r < step.outputs.size(); r++) {
      const Output& output = step.outputs[r];
      if (output.argument >= 0) {
        stack.push_back(std::move(returned[r]));
      } else if (output.number.isInt()) {
        stack.push_back(output.number);
      } else if (output.list) {
        c10::List<at::Tensor> list;
        list.reserve(output.made.size());
        for (const Made& made : output.made) list.push_back(make(made));
        stack.emplace_back(std::move(list));
      } else {
        stack.emplace_back(make(output.made[0]));
      }
    }
  }

  static void bump(Step& step, Operator& op, const Stack& stack) {
    for (size_t i = 0; i < op.arguments; i++) {
      uint32_t k = step.arguments[i].first;
      if (step.arguments[i].kind != Argument::Plain)
        for_each_tensor(stack[stack.size() - op.arguments + i], [&](const at::Tensor& t) {
          for (uint8_t n = step.inputs[k++].bumps; n && !t.is_inference(); n--) t.unsafeGetTensorImpl()->bump_version();
        });
    }
  }

  void launch() {
    drawn_to_.reset();
    if (!fragment_ || from_ >= at_) {
      epoch_.end();
      from_ = at_;
      return;
    }
    size_t first = std::exchange(from_, at_);
    Segment* whole = fragment_->whole(first, at_);
    counts.issued += at_ - first;
    counts.segments++;
    counts.partial += !whole;
    // Something launches there each time that is no operator, or none of this fragment.
    if (Step& last = fragment_->steps[at_ - 1]; !whole && !last.ends && ++last.splits >= REFUSED && SELDOM_CUT * last.splits > fragment_->entered) fragment_->split(last);
    if (!settings_.issue) return epoch_.end();
    auto begin = sampling_ ? Clock::now() : Clock::time_point();
    std::optional<c10::StreamGuard> guard;
    device_->enter_stream(guard);
    bool by_one = !(whole && whole->graph);
    auto issued = by_one ? Clock::now() : Clock::time_point();
    auto raised = epoch_.launch(launcher_, *fragment_, first, at_, whole);
    if (raised && !raised_) raised_ = raised;
    if (by_one) counts.issue_ns += (Clock::now() - issued).count();
    if (raised && by_one) starve(*fragment_);  // of memory, as good as surely: what checks its data is not deferred
    else consider_capture(whole);
    cut_anew();
    if (sampling_) launching_ += Clock::now() - begin;
  }

  // Nothing is pending. What comes next in this pass has its graphs, too.
  void cut_anew() {
    if (fragment_->live && fragment_->uncut) fragment_->cut(settings_.longest);
  }

  bool is_exposed(StorageImpl* storage) const {
    return is_held_in_python(storage) || (!exposed_.empty() && exposed_.count(storage));
  }

  bool touches_exposed(Operator& op, const Stack& stack) const {
    bool any = false;
    for (size_t i = stack.size() - op.arguments; i < stack.size(); i++)
      for_each_tensor(stack[i], [&](const at::Tensor& t) { any = any || (t.defined() && t.has_storage() && is_exposed(storage_of(t))); });
    return any;
  }

  void take_trash(Trash& trash) {
    if (!epoch_.trash.storages.empty() || !epoch_.trash.memory.empty()) std::swap(trash, epoch_.trash);
  }

  static constexpr size_t LARGE = size_t{1} << 20;  // torch's allocator asks the driver for what is larger, if not for each result
  static constexpr double CAPTURED = 0.01;    // milliseconds, roughly, of an operator that is captured
  static constexpr size_t COLD = 40;          // captures, that the first one of a process takes as long as
  static constexpr size_t SELDOM = 1000;       // operators between two looks for an outer iteration
  static constexpr size_t LAPS_WITHOUT = 5;   // that tell what code as written takes
  static constexpr int OFTEN = 4;
  static constexpr int PATIENT = 16;          // launches that a segment waits for others' captures
  static constexpr uint32_t REFUSED = 3;      // times that an operator matches but for where its tensors lie, or that its
                                              // segment was launched behind it, unforeseen
  static constexpr uint32_t SELDOM_FITS = 4, SELDOM_CUT = 16;  // in one of so many passes: pieces of segments are issued one by
                                                               // one, which takes longer than a launch more in each pass
  static constexpr int UNFAIR = 2;            // comparisons that a fragment without all its graphs need not pass
  static constexpr int SELDOM_BEHIND = 64;    // passes between two records behind the same fragment
  static constexpr double WORTHWHILE = 0.97;  // of that
  static inline std::atomic<bool> is_warm_{false};

  const Settings settings_;
  const std::unique_ptr<Device> device_;
  const std::unique_ptr<Draws> draws_;  // none: what draws runs as written
  double price_;  // of a capture, in milliseconds
  Saves saves_;
  Finder finder_;
  mutable std::mutex mutex_;
  std::atomic<bool> open_{false}, alive_{false};
  std::atomic<Reason> barred_{Reason::None};
  std::atomic<bool> passing_{false};
  std::atomic<bool> timing_{false}, deferring_{false};  // there are laps to time; a served one was begun last
  // In operators, and in waiting for the device, while laps are timed; in comparing what runs as written.
  static inline std::atomic<uint64_t> inside_ns_{0}, compared_ns_{0};
  uint64_t opened_ = 0;  // times that it was
  std::atomic<int> others_{0};
  static inline thread_local bool of_python_ = false;  // and another thread than the owner's
  static inline thread_local const Engine* counted_by_ = nullptr;
  std::thread::id owner_;
  Epoch epoch_;
  Launcher launcher_;
  Allowance allowance_;
  std::function<bool()> capturer_;
  Placer placer_, meeting_;
  AsWritten stops_;
  Arrivals arrivals_;
  Written written_;  // of the operator that is compared now
  bool answering_ = false;  // the operator before was answered
  uint64_t forgotten_ = 0;  // times that all fragments were
  Fragment* wanted_ = nullptr;  // whose segment should be captured
  size_t first_ = 0, last_ = 0;
  std::vector<char*> frozen_;
  at::PhiloxCudaState captured_draws_;
  Trash captured_;              // who lived in homes that moved at the capture
  Fragment* fragment_ = nullptr;  // that is followed
  size_t at_ = 0, from_ = 0;      // the next operator, and the first that is pending
  size_t strays_ = 0;
  std::optional<Draw> drawn_to_;  // the generator behind the last pending operator that draws
  Clock::time_point capture_began_{};
  Fragment* doubted_ = nullptr;  // nothing is deferred, to see what that is worth
  uint64_t doubted_until_ = 0, resting_until_ = 0;
  std::unique_ptr<Recorder> recorder_;
  uint64_t recording_ = 0;  // counts the operators that are recorded
  size_t lost_ = 0;         // of them, the last ones that a lost fragment had as well
  Fragment* parent_ = nullptr;  // of the side that is recorded
  uint64_t side_ = 0, head_ = 0;
  size_t period_ = 0, planned_ = 0;  // of what repeats, and of its record
  uint64_t iteration_ = 0;           // the context behind which that begins
  size_t outer_ = 0, too_large_ = 0;  // the period of an iteration that shall be recorded; of one that there was no room for
  uint64_t outer_head_ = 0, outer_until_ = 0, look_at_ = 0;
  bool is_outer_ = false;            // what is recorded
  std::exception_ptr raised_;
  bool sampling_ = false;
  Clock::duration launching_{};  // of the operator that is sampled
  std::string last_divergence_;
  std::unordered_map<uint64_t, Alignments> alignments_;  // by signature, of what was refused for them
  std::unordered_set<uint64_t> refined_;  // signatures to which they belong
  std::unordered_map<StorageImpl*, c10::weak_intrusive_ptr<StorageImpl>> exposed_;
};

}  // namespace grape
