/// The first prompt of each tenant, as the policy would read it, for `check --show-prompt`. Starts
/// no process. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "graph/base/json.h"
#include "graph/plan.h"

namespace primerl {

struct ShownPrompt {
  struct Part {
    bool is_template = false;  // else it is data: only the template's special tokens count
    std::string text;
  };
  std::string tenant;
  std::string source;         // "task 0 of environment 'dataset'", "train.jsonl:1"
  std::string template_file;  // empty: a plain text
  std::vector<Part> parts;
  std::vector<int32_t> ids;
  std::vector<uint8_t> trains;  // of a supervised row, one for each id; else empty
  std::string fault;            // not empty: why there is no prompt
};

std::vector<ShownPrompt> shown_prompts(const Plan& plan);

/// Lines for a person: control characters are escaped.
std::string prompt_text(const ShownPrompt& prompt);
Json prompt_json(const ShownPrompt& prompt);

}  // namespace primerl
