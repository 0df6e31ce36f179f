// Which segment should be captured, and what becomes of its capture, which is made in the thread that launched the segment,
// where no lock is held. Under the engine's lock, but for `ask`.
#pragma once
#include "serving/graphs.h"
#include "worth/worth.h"

#include <functional>
#include <map>

namespace grape {

class Captures {
 public:
  // Calls back to `issue`, then `captured` or `refused`. False: not now.
  using Capturer = std::function<bool()>;

  Captures(const Settings& settings, const Device& device, const Draws* draws, Launcher& launcher, Worth& worth, Counts& counts)
      : settings_(settings), device_(device), draws_(draws), launcher_(launcher), worth_(worth), counts_(counts) {}

  void on_capture(Capturer capturer) { capturer_ = std::move(capturer); }

  // A segment without a graph was launched.
  void consider(Fragment& fragment, Segment* segment) {
    if (!settings_.graphs || !segment || segment->graph || fragment.uncut || fragment.steady(*segment) < settings_.steady << segment->captures) return;
    if (worth_.overdrawn(fragment)) return;
    if (segment->waited < PATIENT && fragment.waits_for_others(*segment)) return segment->waited++, void();
    if (++segment->captures > settings_.captures) {
      for (size_t i = segment->first; i < segment->last; i++) fragment.demote(fragment.steps[i], Reason::Moves);
      return;
    }
    if (!segment->seeds.empty() && !segment->words) try {
      segment->words = device_.allocate(segment->seeds.size() * sizeof(int64_t));
    } catch (const c10::Error&) {
      return;  // no memory
    }
    wanted_ = &fragment;
    first_ = segment->first, last_ = segment->last;
  }

  // Whether one is wanted that can be made.
  bool is_due() const { return wanted_ && (capturer_ || device_.is_cpu()); }

  // No segment of it is wanted any more; no segment at all.
  void forget(const Fragment& fragment) {
    if (wanted_ == &fragment) wanted_ = nullptr;
  }
  void forget() { wanted_ = nullptr; }

  // What the segment that is wanted multiplies matrices of: cuBLAS loads kernels for each kind. None: it multiplies none.
  // Of numbers of one byte only operators of their own make products.
  std::optional<at::ScalarType> kind_wanted() {
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
    Segment* segment = wanted();
    size_t all = 0;
    for (size_t k = 0; segment && k < segment->made.size(); k++)
      if (size_t bytes = wanted_->slots[segment->made[k]].nbytes; bytes > LARGE && bytes <= most) all += (bytes + LARGE - 1) / LARGE * LARGE;
    return all;
  }

  // Without the lock: has the segment captured. False: not now.
  bool has_capturer() const { return static_cast<bool>(capturer_); }
  bool ask() {
    size_t operators = last_ - first_;
    auto begin = began_ = Clock::now();
    if (!capturer_()) return false;
    auto took = Clock::now() - begin;
    counts_.capture_ns += took.count();
    worth_.captured(took, operators);
    return true;
  }

  // True: the segment that is wanted was issued on the stream that is captured. Nothing is pending.
  bool issue() {
    Segment* segment = wanted();
    if (!segment) return false;
    std::string why;
    auto failed = launcher_.issue_captured(*wanted_, *segment, moved_, why);
    if (failed >= 0) return refuse(&wanted_->steps[failed], why), false;
    if (segment->draws >= 0) captured_draws_ = static_cast<const Philox&>(*draws_).captured();
    if (segment->draws >= 0 && captured_draws_.offset_intragraph_ != wanted_->moves(*segment)) return refuse(nullptr, "it draws otherwise in a capture"), false;
    frozen_ = wanted_->addresses(*segment);
    return true;
  }
  void captured(void* executable, uint64_t number) {
    auto graph = std::make_unique<CudaGraph>(static_cast<const Cuda&>(device_), executable, number, dropped, captured_draws_);
    if (wanted()) keep(std::move(graph));
  }
  // No step can be blamed for what capture or executable say.
  void refused(const std::string& why) {
    if (wanted()) refuse(nullptr, why);
  }

  // On the CPU a capturer, if there is one, may only refuse. Nothing is pending.
  void pretend() {
    Segment* segment = wanted();
    if (!segment) return;
    try {
      auto graph = std::make_unique<PretendedGraph>(*wanted_, *segment, draws_, moved_);
      frozen_ = wanted_->addresses(*segment);
      keep(std::move(graph));
    } catch (const c10::Error& error) {
      refuse(nullptr, error.what_without_backtrace());
    }
  }

  // Until its segment was launched over the same memory for so often again.
  void postpone() {
    if (Segment* segment = wanted()) segment->steady = 0, segment->captures--;
    wanted_ = nullptr;
  }

  // Who lived in homes that moved at the capture, to be dropped without the lock.
  void take_trash(Trash& trash) { std::swap(trash, moved_); }

  const std::shared_ptr<Dropped> dropped = std::make_shared<Dropped>();
  std::map<std::string, uint64_t> uncaptured;  // by reason

 private:
  void keep(std::unique_ptr<Graph> graph) {
    counts_.captured++;
    graph->frozen = std::move(frozen_);
    Segment& segment = *wanted();
    segment.copied = std::count_if(segment.made.begin(), segment.made.end(), [&](int slot) { return wanted_->stays_at_capture(slot, segment); });
    segment.graph = std::move(graph);
    if (capturer_) wanted_->spent_ns += static_cast<double>((Clock::now() - began_).count());
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

  static constexpr size_t LARGE = size_t{1} << 20;  // torch's allocator asks the driver for what is larger, if not for each result
  static constexpr int PATIENT = 16;                // launches that a segment waits for others' captures

  const Settings& settings_;
  const Device& device_;
  const Draws* const draws_;
  Launcher& launcher_;
  Worth& worth_;
  Counts& counts_;
  Capturer capturer_;
  Fragment* wanted_ = nullptr;  // whose segment should be captured
  size_t first_ = 0, last_ = 0;
  Clock::time_point began_{};
  std::vector<char*> frozen_;
  at::PhiloxCudaState captured_draws_;
  Trash moved_;
};

}  // namespace grape
