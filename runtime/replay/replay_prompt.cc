#include "runtime/replay/replay_prompt.h"

#include <algorithm>
#include <iostream>
#include <sstream>

#include "runtime/program/exit_code.h"
#include "runtime/program/output.h"

namespace primerl {
namespace {

constexpr std::string_view kHelp =
    "next [N]     takes one step, or N\n"
    "back [N]     goes back one step, or N (plays again from the start)\n"
    "go NAME:N    plays until step N of that group is next\n"
    "show [NAME]  prints state and queues of the group that moves next, or of NAME\n"
    "quit         leaves\n";

/// A replay that counts its steps, so that it can be repeated up to any of them.
class Stepper {
 public:
  Stepper(const ReplaySession& session, const ReplaySetup& setup)
      : session_(session), setup_(setup) {}

  Status restart() {
    replay_.reset();
    num_steps_ = 0;
    ASSIGN_OR_RETURN(replay_, Replay::make(setup_));
    return ok();
  }
  /// False at the end.
  Result<bool> next() {
    ASSIGN_OR_RETURN(const bool moved, replay_->advance());
    num_steps_ += moved ? 1 : 0;
    return moved;
  }
  Status back(uint64_t num_steps) {
    const uint64_t target = num_steps_ - std::min(num_steps_, num_steps);
    RETURN_IF_ERROR(restart());
    while (num_steps_ < target) {
      ASSIGN_OR_RETURN(const bool moved, next());
      if (!moved) break;
    }
    return ok();
  }
  Replay& replay() { return *replay_; }
  uint64_t num_steps() const { return num_steps_; }

  void print_upcoming() {
    const auto& catalog = session_.trace->catalog();
    const auto upcoming = replay_->upcoming();
    if (!upcoming) {
      fmt::print("{} steps taken; nothing more can move\n", num_steps_);
      return;
    }
    std::string input(to_string(upcoming->kind));
    if (upcoming->kind == StepKind::kMessage) {
      const auto& link = catalog.links[upcoming->link.index()];
      input = fmt::format("{} {} of '{}'", catalog.types[link.type].name, upcoming->sequence,
                          link.edge);
    }
    fmt::print("next: {} <- {}\n", step_text(catalog, upcoming->group, upcoming->step), input);
  }

 private:
  const ReplaySession& session_;
  const ReplaySetup setup_;
  std::unique_ptr<Replay> replay_;
  uint64_t num_steps_ = 0;
};

Status go_to(const ReplaySession& session, Stepper& stepper, const std::string& name) {
  ASSIGN_OR_RETURN(const StepName goal, parse_step_name(session.trace->catalog(), name));
  if (!goal.step) return error(Code::kInvalid, "'{}' names no step: NAME:N", name);
  while (true) {
    const auto upcoming = stepper.replay().upcoming();
    if (upcoming && upcoming->group == goal.group && upcoming->step >= *goal.step) return ok();
    ASSIGN_OR_RETURN(const bool moved, stepper.next());
    if (!moved) return ok();
  }
}

Status obey(const ReplaySession& session, Stepper& stepper, std::istringstream& words,
            const std::string& verb) {
  if (verb == "next" || verb == "n") {
    uint64_t count = 1;
    if (!(words >> count)) count = 1;
    for (uint64_t i = 0; i < count; ++i) {
      ASSIGN_OR_RETURN(const bool moved, stepper.next());
      if (!moved) break;
    }
    return ok();
  }
  if (verb == "back" || verb == "b") {
    uint64_t count = 1;
    if (!(words >> count)) count = 1;
    return stepper.back(count);
  }
  std::string name;
  words >> name;
  if (verb == "go") return go_to(session, stepper, name);
  if (verb == "show" || verb == "s") {
    GroupId group;
    if (!name.empty()) {
      ASSIGN_OR_RETURN(group, find_group(*session.plan, name));
    } else if (const auto upcoming = stepper.replay().upcoming()) {
      group = upcoming->group;
    } else {
      return error(Code::kInvalid, "nothing moves next: name a node");
    }
    print_json(stepper.replay().describe(group));
    return ok();
  }
  return error(Code::kInvalid, "no command '{}'; commands:\n{}", verb, kHelp);
}

}  // namespace

int step_by_hand(const ReplaySession& session, const ReplaySetup& setup, std::istream& input) {
  Stepper stepper(session, setup);
  if (const Status started = stepper.restart(); !started.ok())
    return fail(started.error(), kExitBadConfiguration);
  // The groups start at the first command.
  print_text(kHelp);
  std::string line;
  while (true) {
    stepper.print_upcoming();
    for (const auto& divergence : stepper.replay().report().divergences)
      fmt::print("diverged at {}: {}\n",
                 step_text(session.trace->catalog(), divergence.group, divergence.step),
                 divergence.what);
    if (!std::getline(input, line)) break;
    std::istringstream words(line);
    std::string verb;
    if (!(words >> verb)) verb = "next";
    if (verb == "quit" || verb == "q") break;
    if (const Status done = obey(session, stepper, words, verb); !done.ok())
      fmt::print("{}\n", done.error().text());
  }
  return stepper.replay().report().is_identical() ? kExitDone : kExitDiverged;
}

}  // namespace primerl
