// Rules about models: whether resources can compute them, tenants can train adapters on them, and
// nodes can read their tokenizers.
#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <utility>

#include "graph/check/names.h"
#include "graph/check/rules.h"

namespace primerl {

namespace {

/// An error if the resource cannot compute its model; ok if that is known only when it is created.
Status usable_model(const Draft& draft, const DraftResource& resource, const DraftModel& model) {
  if (!resource.contract->check_model) return ok();
  Status usable = resource.contract->check_model(resource.options.get(), model.path);
  if (usable.ok() || usable.error().code() != Code::kNotFound) return usable;
  return draft.may_lack_weights || !is_used_here(draft, resource) ? ok() : std::move(usable);
}

/// The models whose tokenizers are read by processes of this machine, each with one reader.
std::map<int32_t, std::string> tokenizer_readers(const Draft& draft) {
  std::map<int32_t, std::string> readers;
  for (const auto& node : draft.nodes) {
    if (node.contract == nullptr || !is_here(draft, node)) continue;
    for (size_t i = 0; i < node.uses.size(); ++i)
      if (node.contract->resources[i].kind == kTokenizerKind && node.uses[i] >= 0)
        readers.try_emplace(node.uses[i], fmt::format("node '{}'", node.spec->name));
  }
  const bool has_stops = std::ranges::any_of(
      draft.tenants, [](const DraftTenant& each) { return !each.tenant.sampling.stop.empty(); });
  for (const auto& resource : draft.resources)
    if (has_stops && resource.common.kind == "engine" && resource.model >= 0 &&
        resource.contract->needs_model && is_used_here(draft, resource))
      readers.try_emplace(resource.model, fmt::format("engine '{}', for the stop texts of tenants",
                                                      resource.spec->name));
  return readers;
}

/// Whether texts of the tokenizer never become tokens of the resource: a judge has a tokenizer of
/// its own.
bool are_apart(const Draft& draft, const DraftModel& tokenizer, const DraftResource& resource) {
  const auto is_of_tokenizer = [&](const DraftResource& each) {
    return each.model >= 0 && &draft.models[static_cast<size_t>(each.model)] == &tokenizer;
  };
  if (is_of_tokenizer(resource)) return false;
  return is_frozen(draft, resource) ||
         std::ranges::any_of(draft.resources, [&](const DraftResource& each) {
           return is_of_tokenizer(each) && is_frozen(draft, each);
         });
}

/// Reports token ids of the tokenizer that are not in the vocabulary of a model on this machine.
/// One finding per pair of models.
void check_ids(Draft& draft, const DraftModel& tokenizer, const TokenizerFacts& facts) {
  std::set<int32_t> seen;
  for (const auto& resource : draft.resources) {
    if (resource.contract == nullptr || !resource.contract->needs_model || resource.model < 0 ||
        !is_used_here(draft, resource) || are_apart(draft, tokenizer, resource) ||
        !seen.insert(resource.model).second)
      continue;
    const DraftModel& model = draft.models[static_cast<size_t>(resource.model)];
    const int64_t rows = model.facts ? model.facts->vocab_size : 0;
    if (rows <= 0 || !usable_model(draft, resource, model).ok()) continue;
    std::string fault;
    if (facts.vocab_size > rows)
      fault = fmt::format("'{}' has token ids up to {}", facts.file, facts.vocab_size - 1);
    for (const int32_t id : facts.end_ids)
      if (fault.empty() && id >= rows) fault = fmt::format("{} is {}", facts.end_source, id);
    if (fault.empty()) continue;
    draft.diagnostics
        .error("G044", tokenizer.path_span,
               "the tokenizer of model '{}' does not fit model '{}': {}, the embedding has {} rows",
               tokenizer.spec->name, model.spec->name, fault, rows)
        .note(fmt::format("'vocab_size' in '{}/config.json' is {}", model.path, rows))
        .suggest("use the tokenizer that the model was trained with");
  }
}

/// Reports keys of config.json that may change the arithmetic, and what is passed over.
void report_doubts(Draft& draft, const DraftModel& model) {
  const std::string& unknown = model.facts->unknown_keys;
  if (!unknown.empty() && model.is_strict)
    draft.diagnostics
        .error("G044", model.path_span, "model '{}' cannot be used: {}", model.spec->name, unknown)
        .note("'strict' is true: without it this is a warning");
  if (!unknown.empty() && !model.is_strict)
    draft.diagnostics.warning("G095", model.path_span, "model '{}': {}", model.spec->name, unknown)
        .note("the model is computed without them; with strict = true this is an error");
  for (const std::string& warning : model.facts->warnings)
    draft.diagnostics.warning("G095", model.path_span, "model '{}': {}", model.spec->name, warning);
}

void refuse_transformers(Draft& draft, const DraftResource& resource, const DraftModel& model) {
  draft.diagnostics
      .error("G044", model.impl_span,
             "model '{}' cannot be used: {} '{}' cannot compute it with "
             "transformers",
             model.spec->name, resource.common.kind, resource.spec->name)
      .note(
          "training needs our gradients, weights that change in a run, and log-probabilities "
          "that are equal in engine and learner")
      .suggest("write impl = \"native\"; `score` and `generate` have --impl transformers");
}

}  // namespace

/// One finding per model, however many resources name it.
void check_models(Draft& draft) {
  std::set<int> refused, seen;
  for (const auto& resource : draft.resources) {
    if (resource.contract == nullptr || resource.model < 0) continue;
    const DraftModel& model = draft.models[static_cast<size_t>(resource.model)];
    if (!model.facts || refused.contains(resource.model)) continue;
    if (model.impl == "transformers" && resource.contract->needs_model) {
      refused.insert(resource.model);
      refuse_transformers(draft, resource, model);
      continue;
    }
    const Status usable = usable_model(draft, resource, model);
    if (usable.ok()) {
      if (resource.contract->needs_model && seen.insert(resource.model).second)
        report_doubts(draft, model);
      continue;
    }
    refused.insert(resource.model);
    auto& found = draft.diagnostics.error("G044", model.path_span, "model '{}' cannot be used: {}",
                                          model.spec->name, usable.error().message());
    for (const auto& note : usable.error().notes()) found.note(note);
    // Faults of weights have the name of another file.
    const auto config = (std::filesystem::path(model.path) / "config.json").string();
    if (model.impl == "auto" && usable.error().message().find(config) != std::string::npos)
      found.note("`score` and `generate` may compute it with transformers; a run cannot");
  }
}

/// bind_tenants() reports a missing folder, and check_models() an unusable model.
void check_adapters(Draft& draft) {
  for (const auto& resource : draft.resources) {
    if (resource.contract == nullptr || !resource.contract->check_adapter || resource.model < 0)
      continue;
    const DraftModel& model = draft.models[static_cast<size_t>(resource.model)];
    if (!model.facts || !usable_model(draft, resource, model).ok()) continue;
    for (const auto& tenant : draft.tenants) {
      const std::string& path = tenant.tenant.adapter.path;
      std::error_code fault;  // G046 reports a missing folder, G083 an unknown target
      if (!tenant.tenant.adapter.is_there() || path.empty()) continue;
      if (!std::filesystem::is_directory(path, fault)) continue;
      const Status usable = resource.contract->check_adapter(model.path, tenant.tenant);
      if (usable.ok()) continue;
      auto& found = draft.diagnostics.error("G044", nested_span(*tenant.spec, "adapter.path"),
                                            "the adapter of tenant '{}' cannot be used: {}",
                                            tenant.spec->name, usable.error().message());
      for (const auto& note : usable.error().notes()) found.note(note);
    }
  }
}

void check_tokenizers(Draft& draft) {
  if (!draft.for_run || !draft.catalog.tokenizer_facts) return;
  // The end of a supervised turn matters only where rows are read: no engine generates there.
  const bool is_supervised = std::ranges::none_of(
      draft.resources, [](const DraftResource& each) { return each.common.kind == "engine"; });
  for (const auto& [index, reader] : tokenizer_readers(draft)) {
    const DraftModel& model = draft.models[static_cast<size_t>(index)];
    if (!model.facts) continue;  // reported already
    const auto facts = draft.catalog.tokenizer_facts(model.path);
    if (facts.ok()) {
      if (!facts->warning.empty() && is_supervised)
        draft.diagnostics.warning("G095", model.path_span, "model '{}': {}", model.spec->name,
                                  facts->warning);
      check_ids(draft, model, *facts);
      continue;
    }
    auto& found = draft.diagnostics.error("G044", model.path_span,
                                          "the tokenizer of model '{}' cannot be used: {}",
                                          model.spec->name, facts.error().message());
    found.note(fmt::format("{} reads it", reader));
    for (const auto& note : facts.error().notes()) found.note(note);
  }
}

}  // namespace primerl
