// The position in a fragment, and what becomes of the operator that comes there. Under the engine's lock.
#pragma once
#include "serving/matcher.h"
#include "serving/pending.h"

namespace grape {

class Follower {
 public:
  Follower(const Settings& settings, Pending& pending, Matcher& matcher, Budget& budget, Worth& worth, Counts& counts)
      : settings_(settings), pending_(pending), matcher_(matcher), budget_(budget), worth_(worth), counts_(counts) {}

  Fragment* fragment() const { return fragment_; }
  size_t at() const { return at_; }  // the next operator; behind `leave` still where it was
  bool is_early() const { return at_ * 4 < fragment_->steps.size(); }  // else it was worth it until here

  void launch() { pending_.launch(fragment_, at_); }

  // Launches for what is no operator that is followed.
  void cut() {
    launch();
    answering_ = false;
  }

  void enter(Fragment* fragment) {
    if (fragment_) launch();  // another of autograd's threads may have matched meanwhile
    fragment_ = fragment;
    at_ = strays_ = 0;
    pending_.begin(0);
  }

  void leave() {
    launch();
    fragment_ = nullptr;
    strays_ = 0;
  }

  // Yes: it was answered. Written: it runs as written at its place. `advance` then.
  Match follow(Operator& op, Stack& stack) {
    Step& step = fragment_->steps[at_];
    if (step.op != &op) return Match::Other;
    Reason reason = step.run;
    if (reason == Reason::None && !fragment_->live) {
      if (matcher_.compare(step, op, stack, reason) == Match::Other) return Match::Other;
      if (changes_again(reason)) fragment_->demote(step, reason);
      else if (fragment_->large) reason = Reason::Room;
      else reason = Reason::Unearned, worth_.earn(*fragment_, 1);
    } else if (reason == Reason::None) {
      Match match = matcher_.compare(step, op, stack, reason);
      if (match == Match::Yes && step.moves && !pending_.draws_next()) launch();
      if (match == Match::Yes && !fragment_->live) match = Match::Written, reason = Reason::Room;  // it starved just now
      Matcher::Handed handed;
      if (match == Match::Yes) match = matcher_.bind(*fragment_, step, op, stack, reason, handed);
      if (match == Match::Yes) {
        if (step.moves) pending_.draw(step, op, stack);
        matcher_.answer(step, op, stack, handed);
        counts_.matched++;
        answering_ = true;
        return match;
      }
      if (match == Match::Other) return match;
      if (reason == Reason::Room) launch(), budget_.starve(*fragment_);
      if (changes_again(reason) || (++step.refused >= Step::REFUSED && SELDOM_FITS * step.refused > fragment_->entered)) fragment_->demote(step, reason);
    }
    counts_.write(reason);
    bool cuts = std::exchange(answering_, false);
    if (reason == Reason::Unearned) written_.earns = true;
    else if (reason != Reason::Room) written_ = {&step, reason, cuts, false, 0, {}};
    launch();
    pending_.cut_anew(*fragment_);
    pending_.begin(at_ + 1);
    return Match::Written;
  }

  // The step that was followed.
  Step& advance() {
    strays_ = 0;
    return fragment_->steps[at_++];
  }

  // Another operator came than the step's, also the last time; it runs as written. After some in a row the fragment is left.
  bool strays() const { return strays_ > 0; }
  void stray() {
    if (++strays_ <= settings_.strays) return;
    if (is_early() && !fragment_->jumped && ++fragment_->failed > 30 + fragment_->entered / 2) fragment_->dead = true;
    leave();
  }

  Written take_written() { return std::exchange(written_, {}); }

 private:
  // What changed once will change again; memory elsewhere may have been an exception.
  static bool changes_again(Reason reason) { return reason == Reason::Number || reason == Reason::Strides; }

  static constexpr uint32_t SELDOM_FITS = 4;  // in one of so many passes

  const Settings& settings_;
  Pending& pending_;
  Matcher& matcher_;
  Budget& budget_;
  Worth& worth_;
  Counts& counts_;
  Fragment* fragment_ = nullptr;  // that is followed
  size_t at_ = 0;
  size_t strays_ = 0;
  bool answering_ = false;  // the operator before was answered
  Written written_;         // of the operator that is compared now
};

}  // namespace grape
