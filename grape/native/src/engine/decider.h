// What becomes of each operator: it is followed in a fragment, observed, or recorded; and which fragment is followed behind
// it. Under the engine's lock.
#pragma once
#include "learning/learner.h"
#include "serving/follower.h"
#include "worth/laps.h"

namespace grape {

enum class Decision : uint8_t { Answered, Run, Observe, Record };

class Decider {
 public:
  Decider(const Settings& settings, Finder& finder, const Worth& worth, Budget& budget, Signatures& signatures, Follower& follower, Learner& learner, Laps& laps, Counts& counts)
      : settings_(settings), finder_(finder), worth_(worth), budget_(budget), signatures_(signatures), follower_(follower), learner_(learner), laps_(laps), counts_(counts) {}

  // Observe and Record: `observe` or `record` it once it ran, with its signature, which is found here.
  Decision decide(Operator& op, Stack& stack, uint64_t& sig) {
    if (follower_.fragment() && (is_refined(op, stack) || is_settled(op, stack))) {
      finder_.passed(*follower_.fragment(), follower_.at());
      follower_.leave();
    }
    if (follower_.fragment()) {
      Match match = follow(op, stack);
      if (match == Match::Yes) return Decision::Answered;
      if (match == Match::Written) return Decision::Run;
      follower_.cut();
    }
    sig = known_by(op, stack);
    if (follower_.fragment()) {
      if (!follower_.strays()) {
        Decision decision = diverge(op, stack, sig);
        if (decision != Decision::Observe) return decision;
      }
      counts_.write(Reason::Divergence);
      if (follower_.fragment()) follower_.stray();
      return Decision::Observe;
    }
    if (learner_.is_between()) {
      learner_.before(op, stack, sig, signatures_.sizes());
      return Decision::Record;
    }
    learner_.drop();  // another thread's operator came while the last one ran
    if (laps_.doubted()) counts_.doubted++;
    counts_.write(Reason::Observed);
    return Decision::Observe;
  }

  void observe(const Operator& op, const Stack& stack, uint64_t sig) {
    uint64_t context = learner_.see(op, stack, sig);
    if (learner_.wants_outer() && begin_outer(context)) return;
    if (Fragment* next = finder_.behind(context)) return arrive(next);
    laps_.judge_late();
    if (laps_.doubted() || follower_.fragment() || learner_.is_recording() || counts_.seen < resting_until_) return;
    learner_.consider(context);
  }

  void record(const Operator& op, const Stack& stack, uint64_t sig, const Heard& heard) {
    Timed timed(counts_.record_ns);
    if (Fragment* next = learner_.after(op, stack, sig, heard)) arrive(next);
  }

  // Follows and records nothing any more.
  void leave() {
    learner_.drop();
    follower_.leave();
  }

  const std::string& last_divergence() const { return last_divergence_; }

 private:
  Match follow(Operator& op, Stack& stack) {
    Match match = follower_.follow(op, stack);
    if (match != Match::Other) advance();
    return match;
  }

  void advance() {
    Fragment& fragment = *follower_.fragment();
    Step& step = follower_.advance();
    signatures_.came(fragment, step);
    bool served = !fragment.inner && step.run != Reason::Number;  // a number may be the same in an iteration around it
    finder_.followed(step.signature, step.kind(), follower_.at() == 1 || step.run != Reason::None, served);
    if (step.ends) follower_.launch();
    if (learner_.wants_outer() && begin_outer(finder_.followed_context())) return;
    if (finder_.has_outer() && follower_.at() < fragment.steps.size() && enter_outer(finder_.followed_context())) return;
    if (follower_.at() < fragment.steps.size()) return;
    follower_.leave();
    finder_.passed(fragment, fragment.steps.size());
    uint64_t context = finder_.context();
    if (Fragment* next = finder_.behind(context)) arrive(next);
    else if (++fragment.ended >= static_cast<int>(settings_.hot) && !laps_.doubted()) learner_.go_on(fragment, context);
  }

  // Nothing is pending. Where sizes do not belong to it from now on, what was recorded before serves no more, but what came
  // often with the same ones: a model trains, and makes samples with a cache in between.
  uint64_t known_by(const Operator& op, const Stack& stack) {
    uint64_t sig = signatures_.of(op, stack, counts_.seen);
    if (!signatures_.sizes().since_now) return sig;
    learner_.drop();
    finder_.each([&](Fragment& one) {
      if (!one.dead && one.entered >= OFTEN) signatures_.keep(one);
    });
    finder_.each([&](Fragment& one) {
      if (std::any_of(one.steps.begin(), one.steps.end(), [&](const Step& step) { return signatures_.is_outgrown(step); })) retire(one);
    });
    if (Fragment* followed = follower_.fragment(); followed && followed->dead) {
      finder_.passed(*followed, follower_.at());
      follower_.leave();
    }
    return sig;
  }

  // Whether the operator's alignments are seen to repeat now. Then they belong to its signature, and no fragment that was
  // recorded before knows of that.
  bool is_refined(const Operator& op, const Stack& stack) {
    Step& step = follower_.fragment()->steps[follower_.at()];
    return step.alignments && step.op == &op && refine(step, op, stack);
  }
  bool refine(Step& step, const Operator& op, const Stack& stack) {
    if (!signatures_.repeat(*follower_.fragment(), step, op, stack)) return false;
    follower_.launch();
    signatures_.refine(step);
    finder_.each([&](Fragment& one) {
      for (const Step& other : one.steps)
        if (other.signature == step.signature) return retire(one);
    });
    return true;
  }

  // Whether the operator, which the fragment has run as written because its sizes grow, has the same ones again and again.
  // Then others of the fragment have, too, and what is recorded instead defers them.
  bool is_settled(const Operator& op, const Stack& stack) {
    Fragment& fragment = *follower_.fragment();
    Step& step = fragment.steps[follower_.at()];
    if (step.run != Reason::Sizes || step.op != &op || !signatures_.settles(step, op, stack)) return false;
    for (const Step& other : fragment.steps)
      if (other.run == Reason::Sizes && 2 * other.same > step.same) signatures_.settle(other);
    follower_.launch();
    retire(fragment);
    return true;
  }

  // It serves no more. Nothing is pending.
  void retire(Fragment& fragment) {
    if (fragment.dead) return;
    laps_.forget(fragment);
    budget_.retire(fragment);
    fragment.outdated = true;
  }

  // Another operator came than the fragment's: into a side that is known, or into a record of a new one.
  Decision diverge(Operator& op, Stack& stack, uint64_t sig) {
    Fragment* parent = follower_.fragment();
    counts_.diverged++;
    last_divergence_ = "expected " + parent->steps[follower_.at()].op->handle.schema().name() + ", found " + op.handle.schema().name();
    finder_.passed(*parent, follower_.at());
    if (parent->jumped && follower_.is_early()) parent->missed++;
    uint64_t key = mix(follower_.at(), sig);
    if (parent->sides.size() >= 256 && !parent->sides.count(key)) return Decision::Observe;
    Side& side = parent->sides[key];
    if (side.fragment && side.fragment->outdated) side.fragment = nullptr;
    if (side.fragment && !side.fragment->dead) {
      enter(side.fragment);
      Match match = follow(op, stack);
      if (match == Match::Yes) return Decision::Answered;
      if (match == Match::Written) return Decision::Run;
      follower_.leave();
    } else if (learner_.wants(op, side)) {
      follower_.leave();
      learner_.begin_side(parent, key);
      learner_.before(op, stack, sig, signatures_.sizes());
      return Decision::Record;
    }
    return Decision::Observe;
  }

  // At the head of a fragment.
  void arrive(Fragment* fragment) {
    if (laps_.end(*fragment)) follower_.leave(), laps_.doubt(*fragment);
    if (!laps_.doubted() && fragment->inner) learner_.look_further(*fragment);
    bool rests = worth_.rests(*fragment), enters = !laps_.doubted() && !fragment->dead && !rests;
    if (rests) counts_.rested++, resting_until_ = counts_.seen + fragment->steps.size();  // what it would serve is recorded
    if (enters) enter(fragment);
    laps_.begin(*fragment, enters && fragment->live);
  }

  void enter(Fragment* fragment) {
    if (fragment->uncut) fragment->cut(settings_.longest);
    budget_.consider(*fragment, {follower_.fragment(), laps_.doubted()});
    follower_.enter(fragment);
    learner_.forget_period();
    fragment->entered++;
    fragment->jumped = false;
    fragment->last = counts_.seen;
    counts_.entered++;
  }

  // Behind an operator: the iteration that is wanted may begin here, whatever serves now.
  bool begin_outer(uint64_t context) {
    if (!learner_.outer_begins(context)) return false;
    if (Fragment* inner = follower_.fragment()) follower_.leave(), finder_.passed(*inner, follower_.at());
    learner_.begin_outer(context);
    return true;
  }

  // Where an iteration begins, it serves rather than what is followed there. One that no loop inside led to serves already,
  // and is longer: a part of it was recorded on its own, where the same code ran outside of the loop.
  bool enter_outer(uint64_t context) {
    Fragment* outer = finder_.outer_behind(context);
    Fragment* inner = follower_.fragment();
    if (!outer || outer == inner) return false;
    bool jumps = !outer->around;
    if (jumps && (!outer->live || outer->steps.size() <= inner->steps.size() || laps_.doubted() || worth_.rests(*outer) || outer->leads_astray())) return false;
    follower_.leave();
    finder_.passed(*inner, follower_.at());
    arrive(outer);
    outer->jumped = jumps && follower_.fragment() == outer;
    return true;
  }

  static constexpr uint64_t OFTEN = 16;  // passes

  const Settings& settings_;
  Finder& finder_;
  const Worth& worth_;
  Budget& budget_;
  Signatures& signatures_;
  Follower& follower_;
  Learner& learner_;
  Laps& laps_;
  Counts& counts_;
  uint64_t resting_until_ = 0;
  std::string last_divergence_;
};

}  // namespace grape
