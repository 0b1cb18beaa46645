/// Folders and numbers that transformers made (make_models.py): the other side of the parity tests.
#pragma once

#include <filesystem>
#include <string>

#include "graph/base/json.h"

namespace primerl::testing {

/// The folder with all models; made on first use, by whichever test process comes first.
std::filesystem::path reference_models();

/// What transformers says about a model.
const Json& reference(const std::string& name);

/// The log-probabilities that transformers gives `ids` with the model in `folder`.
std::vector<double> transformers_logprobs(const std::filesystem::path& folder,
                                          const std::vector<int32_t>& ids);

/// What transformers' processors make of continuations: a list of make_models.py --processed.
Json transformers_processed(const std::filesystem::path& folder, const Json& wanted);

}  // namespace primerl::testing
