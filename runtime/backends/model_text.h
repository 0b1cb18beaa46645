/// What `generate` and `score` read and print, whichever program computes the model: the prompt as
/// ids, the sampling options, files of ids, and one line for each completion or sequence.
///
/// Plain functions; any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "graph/base/result.h"
#include "kernels/engine/engine.h"
#include "kernels/text/tokenizer.h"
#include "runtime/program/model_options.h"

namespace primerl {

/// The prompt as ids, and the tokenizer that decodes completions. Null when the folder has no
/// tokenizer and the prompt was given as ids.
struct ModelPrompt {
  std::vector<int32_t> ids;
  std::shared_ptr<Tokenizer> tokenizer;
  int32_t turn_end = -1;  // the token that ends an answer of a chat; -1: the model's own end ids
};

Result<ModelPrompt> read_prompt(const GenerateArguments& arguments);

/// The arguments were validated already; the engine may still refuse some values. The end of a
/// chat's turn is a stop id.
Result<SamplingParams> sampling_of(const GenerateArguments& arguments, const ModelPrompt& prompt);

/// The first sample uses the seed itself, so --n 1 and the first of --n 4 give the same text.
uint64_t sample_seed(const GenerateArguments& arguments, size_t sample);

/// Comma-separated ids, one sequence a line.
Result<std::vector<std::vector<int32_t>>> read_ids_file(const std::string& file);

void print_completion(const FinishEvent& event, const ModelPrompt& prompt,
                      const GenerateArguments& arguments);
void print_scores(std::span<const float> logprobs, bool json);

/// Prints the error. 2 for errors in the model or the input, 1 for other failures.
int model_exit_code(const Status& status);

}  // namespace primerl
