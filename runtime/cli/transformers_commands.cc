// `generate` and `score` with transformers.
#include "kernels/engine/sampling_params.h"
#include "kernels/engine/stop_rule.h"
#include "runtime/backends/model_text.h"
#include "runtime/cli/transformers_model.h"
#include "runtime/program/exit_code.h"
#include "runtime/program/output.h"

namespace primerl {
namespace {

/// Options that only our own sampler has.
Status check_options(const GenerateArguments& arguments) {
  const std::pair<bool, std::string_view> refused[] = {
      {!arguments.adapter.empty(), "--adapter"},
      {!arguments.logit_bias.empty(), "--logit-bias"},
      {arguments.repetition_penalty != 1, "--repetition-penalty"},
      {arguments.frequency_penalty != 0, "--frequency-penalty"},
      {arguments.presence_penalty != 0, "--presence-penalty"},
      {arguments.top_logprobs > 0, "--top-logprobs"}};
  for (const auto& [is_given, name] : refused)
    if (is_given)
      return error(Code::kInvalid, "{} is not there where transformers computes the model", name)
          .note("leave it out, or use a family that this program computes (--impl native)");
  return ok();
}

/// Cuts the tokens where the sequence ends, which may be at a stop text.
Result<FinishEvent> finished(TransformersModel::Sampled sampled, const SamplingParams& sampling,
                             const ModelPrompt& prompt, const std::vector<int32_t>& end_ids) {
  ASSIGN_OR_RETURN(StopRule rule, StopRule::make(sampling, prompt.tokenizer));
  FinishEvent event;
  for (size_t i = 0; i < sampled.tokens.size(); ++i) {
    event.tokens.push_back(sampled.tokens[i]);
    event.logprobs.push_back(sampled.logprobs[i]);
    if (const auto reason = rule.take(sampled.tokens[i], sampling, end_ids)) {
      event.reason = *reason;
      return event;
    }
  }
  return error(Code::kInvalid, "transformers ended after {} tokens without an end token",
               sampled.tokens.size());
}

Status generate(const GenerateArguments& arguments) {
  ASSIGN_OR_RETURN(const ModelPrompt prompt, read_prompt(arguments));
  ASSIGN_OR_RETURN(const SamplingParams sampling, sampling_of(arguments, prompt));
  RETURN_IF_ERROR(validate(sampling));
  if (!sampling.stop.empty() && prompt.tokenizer == nullptr)
    return error(Code::kInvalid, "--stop needs a tokenizer.json in '{}'", arguments.model)
        .note("stop at token ids with --stop-ids");
  ASSIGN_OR_RETURN(const auto model, TransformersModel::load(arguments));
  std::vector<float> prompt_logprobs;
  if (arguments.prompt_logprobs) {
    ASSIGN_OR_RETURN(prompt_logprobs, model->score(prompt.ids));
  }
  for (size_t i = 0; std::cmp_less(i, arguments.num_samples); ++i) {
    ASSIGN_OR_RETURN(auto sampled,
                     model->generate(prompt.ids, sampling, sample_seed(arguments, i)));
    ASSIGN_OR_RETURN(FinishEvent event,
                     finished(std::move(sampled), sampling, prompt, model->end_ids()));
    event.prompt_logprobs = prompt_logprobs;
    print_completion(event, prompt, arguments);
  }
  return ok();
}

Status score(const ScoreArguments& arguments) {
  ASSIGN_OR_RETURN(const auto sequences, read_ids_file(arguments.ids_file));
  ASSIGN_OR_RETURN(const auto model, TransformersModel::load(arguments));
  for (size_t i = 0; i < sequences.size(); ++i) {
    auto logprobs = model->score(sequences[i]);
    if (!logprobs.ok())
      return std::move(logprobs).error().while_doing(fmt::format("sequence {}", i + 1));
    print_scores(*logprobs, arguments.json);
  }
  return ok();
}

}  // namespace

int generate_with_transformers(const GenerateArguments& arguments) {
  Status valid = arguments.validate();
  if (valid.ok()) valid = check_options(arguments);
  if (!valid.ok()) return fail(valid.error(), kExitBadCommandLine);
  return model_exit_code(generate(arguments));
}

int score_with_transformers(const ScoreArguments& arguments) {
  if (const Status valid = arguments.validate(); !valid.ok())
    return fail(valid.error(), kExitBadCommandLine);
  return model_exit_code(score(arguments));
}

}  // namespace primerl
