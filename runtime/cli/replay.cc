#include "runtime/cli/commands.h"
#include "runtime/cli/hand_over.h"
#include "runtime/program/replay_options.h"

namespace primerl {
Command replay_command() {
  auto arguments = std::make_shared<ReplayArguments>();
  return {"replay", "replays a recorded run and compares every message",
          "primerl-graph replay runs/latest --depth control",
          [arguments](Arguments& flags) { arguments->declare(flags); },
          [arguments] { return hand_over(*arguments); }};
}

Command bisect_command() {
  auto arguments = std::make_shared<BisectArguments>();
  return {"bisect", "finds the first step of a recorded run where something holds",
          "primerl-graph bisect runs/latest --until 'trainer.reward/all/mean > 0.1'",
          [arguments](Arguments& flags) { arguments->declare(flags); },
          [arguments] { return hand_over(*arguments); }};
}

}  // namespace primerl
