#include "kernels/models/summary.h"

#include <fmt/ranges.h>

#include <array>

namespace primerl {
namespace {

std::string in_words(const AttentionSpec& spec) {
  std::string text = fmt::format("attention: {} heads, {} key-value heads, {} channels",
                                 spec.num_heads, spec.num_kv_heads, spec.head_dim);
  if (spec.rotary_dim != spec.head_dim) text += fmt::format(", {} rotate", spec.rotary_dim);
  if (spec.has_qk_norm) text += ", q and k normed";
  if (spec.has_qkv_bias) text += ", q k v biases";
  if (spec.has_out_bias) text += ", output bias";
  return text;
}

std::string in_words(const MlpSpec& spec) {
  return fmt::format("mlp: width {}{}", spec.width, spec.has_bias ? ", biases" : "");
}

std::string in_words(const MoeSpec& spec) {
  std::string text = fmt::format(
      "moe: {} of {} experts of width {}, {}", spec.experts_per_token, spec.num_experts, spec.width,
      spec.score == ExpertScore::kSigmoid ? "sigmoid scores" : "softmax scores");
  if (spec.num_groups > 1)
    text += fmt::format(", {} of {} groups", spec.groups_kept, spec.num_groups);
  if (spec.shared_width > 0) text += fmt::format(", shared expert of width {}", spec.shared_width);
  return text;
}

std::vector<std::string> in_words(const LayerSpec& layer) {
  std::vector<std::string> words;
  for (const auto& stage : layer.stages)
    words.push_back(std::visit([](const auto& spec) { return in_words(spec); }, stage));
  return words;
}

using Units = std::array<const char*, 5>;

/// The first of `units` is for numbers below 1,000.
std::string scaled_text(double number, const Units& units) {
  size_t unit = 0;
  for (; number >= 1000 && unit + 1 < units.size(); ++unit) number /= 1000;
  return fmt::format("{:.{}f}{}", number, unit == 0 ? 0 : 2, units[unit]);
}

/// Parameters are counted in decimal units: "2.15 B" means billions.
std::string count_text(double count) { return scaled_text(count, {"", " k", " M", " B", " T"}); }

std::string bytes_text(double bytes) {
  return scaled_text(bytes, {" B", " kB", " MB", " GB", " TB"});
}

}  // namespace

ModelSummary summarize(const ModelConfig& config, const TensorTable& table) {
  ModelSummary summary;
  std::array<ModelSummary::Kind, 8> kinds;
  for (size_t i = 0; i < kinds.size(); ++i) kinds[i].kind = static_cast<ParameterKind>(i);
  for (const auto& parameter : table.parameters()) {
    auto& kind = kinds[static_cast<size_t>(parameter.kind)];
    kind.count += parameter.count;
    const bool is_expert = parameter.kind == ParameterKind::kExperts;
    kind.active += is_expert
                       ? parameter.count / config.moe->num_experts * config.moe->experts_per_token
                       : parameter.count;
  }
  // One row of the embedding, unless the head uses it too.
  if (!config.is_tied) kinds[0].active = config.hidden_size;
  for (const auto& kind : kinds) {
    if (kind.count == 0) continue;
    summary.kinds.push_back(kind);
    summary.num_parameters += kind.count;
    summary.num_active += kind.active;
  }
  for (int32_t i = 0; i < config.num_layers(); ++i) {
    const LayerSpec& layer = config.layers[static_cast<size_t>(i)];
    for (const auto& stage : layer.stages)
      if (const auto* attention = std::get_if<AttentionSpec>(&stage))
        summary.kv_elements_per_token += int64_t{2} * attention->num_kv_heads * attention->head_dim;
    auto words = in_words(layer);
    if (!summary.layers.empty() && summary.layers.back().stages == words)
      summary.layers.back().last = i;
    else
      summary.layers.push_back({i, i, std::move(words)});
  }
  return summary;
}

std::string to_text(const ModelConfig& config, const ModelSummary& summary) {
  std::string text =
      fmt::format("{}: {} layers, hidden {}, vocabulary {}, {} positions\n", config.model_type,
                  config.num_layers(), config.hidden_size, config.vocab_size, config.max_positions);
  for (const auto& range : summary.layers)
    for (size_t i = 0; i < range.stages.size(); ++i)
      text += fmt::format("  {:<16}{}\n",
                          i > 0 ? ""
                          : range.first == range.last
                              ? fmt::format("layer {}", range.first)
                              : fmt::format("layers {}-{}", range.first, range.last),
                          range.stages[i]);
  text += fmt::format("  {:<16}{}, theta {}\n", "rotation", config.rope.kind, config.rope.theta);
  text += fmt::format("  {:<16}{}\n", "head", config.is_tied ? "the embedding" : "its own");
  text += "parameters\n";
  for (const auto& kind : summary.kinds)
    text += fmt::format("  {:<16}{:>9}\n", to_string(kind.kind),
                        count_text(static_cast<double>(kind.count)));
  const auto all = static_cast<double>(summary.num_parameters);
  text += fmt::format("  {:<16}{:>9}, {} of them for one token\n", "all", count_text(all),
                      count_text(static_cast<double>(summary.num_active)));
  text += fmt::format("bytes\n  {:<16}{} in bf16, {} in fp32\n", "weights", bytes_text(2 * all),
                      bytes_text(4 * all));
  text += fmt::format("  {:<16}{} in fp32: weights, gradients, two moments\n", "AdamW",
                      bytes_text(16 * all));
  const auto kv = static_cast<double>(summary.kv_elements_per_token);
  text += fmt::format("  {:<16}{} in bf16, {} in fp32\n", "KV of a token", bytes_text(2 * kv),
                      bytes_text(4 * kv));
  return text;
}

Json to_json(const ModelConfig& config, const ModelSummary& summary) {
  Json kinds = Json::object(), layers = Json::array();
  for (const auto& kind : summary.kinds)
    kinds.set(to_string(kind.kind),
              Json::object().set("parameters", kind.count).set("active", kind.active));
  for (const auto& range : summary.layers)
    layers.push_back(Json::object()
                         .set("first", range.first)
                         .set("last", range.last)
                         .set("stages", Json::list(range.stages)));
  return Json::object()
      .set("schema", "primerl.model/1")
      .set("model_type", config.model_type)
      .set("num_layers", config.num_layers())
      .set("hidden_size", config.hidden_size)
      .set("vocab_size", config.vocab_size)
      .set("max_positions", config.max_positions)
      .set("layers", std::move(layers))
      .set("parameters", summary.num_parameters)
      .set("active_parameters", summary.num_active)
      .set("kinds", std::move(kinds))
      .set("weight_bytes", Json::object()
                               .set("bf16", 2 * summary.num_parameters)
                               .set("fp32", 4 * summary.num_parameters))
      .set("kv_bytes_per_token", Json::object()
                                     .set("bf16", 2 * summary.kv_elements_per_token)
                                     .set("fp32", 4 * summary.kv_elements_per_token));
}

}  // namespace primerl
