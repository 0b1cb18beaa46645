#include "runtime/cli/commands.h"
#include "runtime/cli/hand_over.h"
#include "runtime/cli/transformers_model.h"
#include "runtime/program/model_options.h"

namespace primerl {
namespace {

void declare_impl(Arguments& flags, std::string& impl) {
  flags.choice(impl, "--impl", {"auto", "native", "transformers"},
               "who computes the model; auto: transformers, in Python, if this program cannot");
}

}  // namespace

Command generate_command() {
  auto arguments = std::make_shared<GenerateArguments>();
  auto impl = std::make_shared<std::string>("auto");
  return {
      "generate", "continues a prompt with a model",
      "primerl-graph generate --model examples/reverse_text/model --prompt 'abc' --max-tokens 8",
      [arguments, impl](Arguments& flags) {
        arguments->declare(flags);
        declare_impl(flags, *impl);
      },
      [arguments, impl] {
        return is_for_transformers(*impl, arguments->model) ? generate_with_transformers(*arguments)
                                                            : hand_over(*arguments);
      }};
}

Command score_command() {
  auto arguments = std::make_shared<ScoreArguments>();
  auto impl = std::make_shared<std::string>("auto");
  return {"score", "prints the learner's log-probability of every token after the first",
          "echo 5,6,7,8 > ids.txt\n"
          "primerl-graph score --model examples/reverse_text/model --ids-file ids.txt --json",
          [arguments, impl](Arguments& flags) {
            arguments->declare(flags);
            declare_impl(flags, *impl);
          },
          [arguments, impl] {
            return is_for_transformers(*impl, arguments->model)
                       ? score_with_transformers(*arguments)
                       : hand_over(*arguments);
          }};
}

Command train_step_command() {
  auto arguments = std::make_shared<TrainStepArguments>();
  return {"train-step", "runs one training step on a batch that a run kept",
          "primerl-graph run examples/reverse_text/graph.toml --max-steps 3 --out runs/kept "
          "--set resource.learner.debug.batch_folder=batches\n"
          "primerl-graph train-step --model examples/reverse_text/model --batch "
          "batches/step_000003.safetensors",
          [arguments](Arguments& flags) { arguments->declare(flags); },
          [arguments] { return hand_over(*arguments); }};
}

}  // namespace primerl
