#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "kernels/models/summary.h"
#include "kernels/weights/safetensors.h"
#include "runtime/cli/commands.h"
#include "runtime/cli/model_fetch.h"
#include "runtime/program/exit_code.h"
#include "runtime/program/output.h"

namespace primerl {
namespace {

struct ModelArguments {
  std::string folder;  // or "fetch", and then:
  std::string fetched;
  std::string to;
  bool json = false;
};

/// Number of tensors in the folder's weights, by type; empty if the folder has only a config.
Result<std::map<std::string, int64_t>> read_weights(const std::string& folder,
                                                    const TensorTable& table) {
  const auto tensors = read_model_tensors(folder);
  if (!tensors.ok() && tensors.error().code() == Code::kNotFound)
    return std::map<std::string, int64_t>();
  if (!tensors.ok()) return tensors.error();
  const auto match = match_tensors(table, *tensors);
  if (!match.ok()) return Error(match.error()).while_doing(folder);
  std::map<std::string, int64_t> types;
  for (const auto& tensor : *tensors) ++types[std::string(to_string(tensor.type))];
  return types;
}

std::string weights_text(const std::map<std::string, int64_t>& types) {
  if (types.empty()) return "none in the folder";
  std::vector<std::string> counts;
  for (const auto& [type, count] : types) counts.push_back(fmt::format("{} {}", count, type));
  return fmt::format("complete, tensors: {}", fmt::join(counts, ", "));
}

/// Sentences about keys and tensors that are passed over.
std::vector<std::string> notes_of(const std::string& folder, const ModelConfig& config) {
  std::vector<std::string> notes = unused_tensors_text(folder, config);
  if (std::string unknown = unknown_keys_text(config); !unknown.empty())
    notes.insert(notes.begin(), std::move(unknown));
  return notes;
}

int run_model(const ModelArguments& arguments) {
  if (arguments.folder == "fetch") return run_model_fetch(arguments.fetched, arguments.to);
  if (!arguments.fetched.empty())
    return fail(error(Code::kInvalid, "'{}' is one argument too many", arguments.fetched)
                    .note("primerl-graph model DIR, or primerl-graph model fetch NAME DIR"),
                kExitBadCommandLine);
  const auto config = read_model_config(arguments.folder);
  if (!config.ok()) return fail(config.error(), kExitBadConfiguration);
  const TensorTable table(*config);
  const ModelSummary summary = summarize(*config, table);
  const auto types = read_weights(arguments.folder, table);
  if (!types.ok()) return fail(types.error(), kExitBadConfiguration);
  const Status supported = check_is_supported(*config);
  const std::string why = supported.ok() ? "" : supported.error().message();
  if (arguments.json) {
    Json weights = Json::object();
    for (const auto& [type, count] : *types) weights.set(type, count);
    print_json(to_json(*config, summary)
                   .set("tensors", std::move(weights))
                   .set("notes", Json::list(notes_of(arguments.folder, *config)))
                   .set("runs", supported.ok())
                   .set("why_not", why.empty() ? Json() : Json(why)));
    return kExitDone;
  }
  print_text(to_text(*config, summary));
  print_text(fmt::format("files\n  {:<16}{}\n", "weights", weights_text(*types)));
  for (const std::string& note : notes_of(arguments.folder, *config))
    print_text(fmt::format("  {:<16}{}\n", "note", note));
  print_text(fmt::format("this build\n  {:<16}{}\n", "engine, learner",
                         why.empty() ? "run it on the CPU, in fp32" : why));
  return kExitDone;
}

}  // namespace

Command model_command() {
  auto arguments = std::make_shared<ModelArguments>();
  return {"model", "says what a model folder has and what it needs, or fetches one",
          "primerl-graph model examples/reverse_text/model",
          [arguments](Arguments& flags) {
            flags.positional(arguments->folder, "DIR",
                             "a Hugging Face folder; or 'fetch', then NAME and TO");
            flags.positional(arguments->fetched, "NAME",
                             "fetch: the model, such as smollm2-135m-instruct", false);
            flags.positional(arguments->to, "TO", "fetch: the folder to make", false);
            flags.flag(arguments->json, "--json", "prints JSON");
          },
          [arguments] { return run_model(*arguments); }};
}

}  // namespace primerl
