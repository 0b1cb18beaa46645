/// Folders and values made by transformers (make_models.py) and peft (make_adapters.py), for the
/// parity tests.
#pragma once

#include <filesystem>
#include <string>

#include "graph/base/json.h"

namespace primerl::testing {

/// The folder with all models; made on first use, by the first test process.
std::filesystem::path reference_models();

/// The folder with adapters for some of them, with the same names.
std::filesystem::path reference_adapters();

/// peft's results for an adapter.
const Json& adapter_reference(const std::string& name);

/// The log-probabilities of `ids` with an adapter: `how` is "logprobs", by peft, or "merged", by
/// transformers with the adapter added to the weights.
std::vector<double> peft_logprobs(const std::string& how, const std::filesystem::path& base,
                                  const std::filesystem::path& adapter,
                                  const std::vector<int32_t>& ids);

/// transformers' results for a model.
const Json& reference(const std::string& name);

/// The log-probabilities that transformers gives `ids` with the model in `folder`.
std::vector<double> transformers_logprobs(const std::filesystem::path& folder,
                                          const std::vector<int32_t>& ids);

/// The results of transformers' processors for continuations: a list of make_models.py --processed.
Json transformers_processed(const std::filesystem::path& folder, const Json& wanted);

}  // namespace primerl::testing
