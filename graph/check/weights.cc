// Rules about weight channels: weights that a learner publishes must fit the engines that apply
// them.
#include <algorithm>

#include "graph/check/names.h"
#include "graph/check/rules.h"

namespace primerl {
namespace {

constexpr std::string_view kWeightChannelUse = "weights";  // the option of prefill and decode

bool uses(const DraftResource& resource, int32_t node) {
  return std::find(resource.users.begin(), resource.users.end(), node) != resource.users.end();
}

bool shares_a_node(const DraftResource& one, const DraftResource& other) {
  return std::any_of(one.users.begin(), one.users.end(),
                     [&](int32_t node) { return uses(other, node); });
}

const DraftModel* model_of(const Draft& draft, const DraftResource& resource) {
  if (resource.model < 0 || !resource.contract->needs_model) return nullptr;
  const auto& model = draft.models[static_cast<size_t>(resource.model)];
  return model.facts ? &model : nullptr;
}

/// For example "hidden_size is 64 and 128": the first number that both models state and that
/// differs.
std::string difference(const ModelFacts& one, const ModelFacts& other) {
  if (one.model_type != other.model_type)
    return fmt::format("model_type is '{}' and '{}'", one.model_type, other.model_type);
  for (const auto& [key, value] : one.shape)
    for (const auto& [other_key, other_value] : other.shape)
      if (key == other_key && value != other_value)
        return fmt::format("{} is {} and {}", key, value, other_value);
  return "";
}

void check_pair(Draft& draft, const DraftResource& learner, const DraftResource& engine) {
  const auto span = [&](std::string_view key) {
    return written_span(draft, {value_span(*engine.spec, key), value_span(*learner.spec, key)});
  };
  if (learner.contract->needs_model != engine.contract->needs_model) {
    draft.diagnostics
        .error("G087", span("backend"), "{} '{}' ({}) cannot apply the weights of {} '{}' ({})",
               engine.common.kind, engine.spec->name, engine.contract->backend, learner.common.kind,
               learner.spec->name, learner.contract->backend)
        .note("one has the tensors of a model, the other none")
        .suggest(fmt::format("write backend = \"{}\" for both", learner.contract->needs_model
                                                                    ? learner.contract->backend
                                                                    : engine.contract->backend));
    return;
  }
  const DraftModel* trained = model_of(draft, learner);
  const DraftModel* loaded = model_of(draft, engine);
  if (trained == nullptr || loaded == nullptr || trained == loaded) return;
  const auto adapts = [](const DraftTenant& tenant) { return tenant.tenant.adapter.is_there(); };
  if (std::any_of(draft.tenants.begin(), draft.tenants.end(), adapts)) {
    draft.diagnostics
        .error("G087", span("model"),
               "an adapter that is trained on model '{}' would be applied to model '{}'",
               trained->spec->name, loaded->spec->name)
        .note("with an adapter, the weights of the model itself are not sent")
        .suggest(fmt::format("write model = \"{}\"", trained->spec->name));
    return;
  }
  const std::string differs = difference(*trained->facts, *loaded->facts);
  if (differs.empty()) return;
  draft.diagnostics
      .error("G087", span("model"),
             "model '{}' of {} '{}' has another shape than model '{}' of {} '{}'",
             loaded->spec->name, engine.common.kind, engine.spec->name, trained->spec->name,
             learner.common.kind, learner.spec->name)
      .note(fmt::format("config.json of '{}' and of '{}': {}", trained->spec->name,
                        loaded->spec->name, differs))
      .suggest(fmt::format("write model = \"{}\"", trained->spec->name));
}

/// Bound options of a resource as text, for example "fp8" with its quotes; empty if its contract
/// has no such option.
std::string option_value(const DraftResource& resource, std::string_view option) {
  const OptionField* field = resource.contract->options.find(option);
  return field == nullptr ? "" : field->print(resource.options.get());
}

/// "graph.toml:12:12", or that nothing was written.
std::string position_text(const Draft& draft, const DraftResource& resource,
                          std::string_view option) {
  const Entry* entry = resource.spec->table->find(option);
  if (entry == nullptr || entry->value.span.is_none()) return "the default";
  const Span& span = entry->value.span;
  return fmt::format("{}:{}:{}", shown_text(draft.sources.get(span.source).name, 200),
                     span.begin.line, span.begin.column);
}

/// With FP8 on one side the policy that samples is not the one that trains.
void check_products(Draft& draft, const DraftResource& learner, const DraftResource& engine) {
  constexpr std::string_view kOption = "products";
  const std::string trained = option_value(learner, kOption);
  const std::string sampled = option_value(engine, kOption);
  if (trained.empty() || sampled.empty() || trained == sampled) return;
  const bool is_engine_written = engine.spec->table->find(kOption) != nullptr;
  const DraftResource& shown = is_engine_written ? engine : learner;
  draft.diagnostics
      .warning("G091", value_span(*shown.spec, kOption),
               "engine '{}' and learner '{}' multiply different numbers: products is {} and {}",
               engine.spec->name, learner.spec->name, sampled, trained)
      .note(fmt::format("engine '{}': {}; learner '{}': {}", engine.spec->name,
                        position_text(draft, engine, kOption), learner.spec->name,
                        position_text(draft, learner, kOption)))
      .note("mismatch_kl then stays above 0 without any staleness")
      .suggest(fmt::format("write products = {} for both, or watch mismatch_kl", sampled));
}

/// A frozen engine gets no new weights, and all its nodes say so.
void check_frozen(Draft& draft) {
  for (const auto& node : draft.nodes) {
    if (!has_no_weights(node)) continue;
    const Span span = value_span(*node.spec, kWeightChannelUse);
    for (const auto& edge : draft.edges) {
      if (!edge.is_whole() || &draft.nodes[static_cast<size_t>(edge.to)] != &node) continue;
      if (node.contract->inputs[static_cast<size_t>(edge.input)].name != "update") continue;
      draft.diagnostics
          .error("G087", span, "node '{}' has no weight channel, but '{}' sends it new weights",
                 node.spec->name, draft.nodes[static_cast<size_t>(edge.from)].spec->name)
          .suggest("remove the edge, or name a weight channel");
    }
  }
  for (const auto& resource : draft.resources) {
    if (resource.common.kind != "engine" || is_frozen(draft, resource)) continue;
    for (const int32_t user : resource.users) {
      const auto& node = draft.nodes[static_cast<size_t>(user)];
      if (!has_no_weights(node)) continue;
      draft.diagnostics
          .error("G087", value_span(*node.spec, kWeightChannelUse),
                 "node '{}' has no weight channel, but other nodes of engine '{}' have one",
                 node.spec->name, resource.spec->name)
          .suggest("write weights = \"none\" for all nodes of an engine, or for none");
    }
  }
}

}  // namespace

void check_weights(Draft& draft) {
  check_frozen(draft);
  for (const auto& channel : draft.resources) {
    if (channel.common.kind != kWeightChannelKind) continue;
    const auto joins = [&](const DraftResource& resource, bool is_learner) {
      return resource.contract != nullptr && resource.contract->computes &&
             resource.contract->one_per_graph == is_learner && shares_a_node(resource, channel);
    };
    for (const auto& learner : draft.resources)
      for (const auto& engine : draft.resources)
        if (joins(learner, true) && joins(engine, false)) {
          check_pair(draft, learner, engine);
          check_products(draft, learner, engine);
        }
  }
}

}  // namespace primerl
