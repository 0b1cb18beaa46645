#include "runtime/bin/commands/commands.h"
#include "runtime/bin/commands/model_options.h"
#include "runtime/bin/commands/output.h"
#include "runtime/bin/exit_code.h"
#include "runtime/bin/programs.h"

namespace primerl {
namespace {

template <class Chosen>
int hand_over(const Chosen& arguments) {
  if (const Status valid = arguments.validate(); !valid.ok())
    return fail(valid.error(), kExitBadCommandLine);
  return fail(exec_worker(arguments.words()), kExitFailed);
}

}  // namespace

Command generate_command() {
  auto arguments = std::make_shared<GenerateArguments>();
  return {
      "generate", "continues a prompt with a model",
      "primerl-graph generate --model examples/reverse_text/model --prompt 'abc' --max-tokens 8",
      [arguments](Arguments& flags) { arguments->declare(flags); },
      [arguments] { return hand_over(*arguments); }};
}

Command score_command() {
  auto arguments = std::make_shared<ScoreArguments>();
  return {"score", "prints the learner's log-probability of every token after the first",
          "primerl-graph score --model examples/reverse_text/model --ids-file ids.txt --json",
          [arguments](Arguments& flags) { arguments->declare(flags); },
          [arguments] { return hand_over(*arguments); }};
}

}  // namespace primerl
