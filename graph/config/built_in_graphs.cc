#include "graph/config/built_in_graphs.h"

#include <fmt/format.h>

#include <algorithm>

#include "graph/base/assert.h"

namespace primerl {
namespace {

constexpr std::string_view kBuiltInPrefix = "primerl:";

constexpr std::string_view kAsyncRl = R"([resource.engine]
kind = "engine"
[resource.learner]
kind = "learner"
[resource.weights]
kind = "weight_channel"

[node.env]
actor = "env"
per_tenant = true
[node.rollout]
actor = "rollout"
per_tenant = true
[node.router]
actor = "router"
[node.prefill]
actor = "prefill"
engine = "engine"
weights = "weights"
[node.decode]
actor = "decode"
engine = "engine"
weights = "weights"
[node.trainer]
actor = "trainer"
learner = "learner"
weights = "weights"
[node.broadcaster]
actor = "broadcaster"

[edges]
forward = [
  "env.task            -> rollout.task",
  "rollout.generate    -> router.generate",
  "router.prefill      -> prefill.request",
  "prefill.done        -> decode.request",
  "rollout.group       -> trainer.group",
  "trainer.weights     -> broadcaster.weights",
]
feedback = [
  "decode.completion   -> rollout.completion",
  "router.refused      -> rollout.completion",
  "prefill.refused     -> rollout.completion",
  "trainer.ended       -> rollout.ended",
  "rollout.cancel      -> router.cancel",
  "router.abort        -> prefill.abort",
  "router.abort        -> decode.abort",
  "rollout.action      -> env.action",
  "env.observation     -> rollout.observation",
  "prefill.load        -> router.load",
  "decode.load         -> router.load",
  "broadcaster.update  -> prefill.update",
  "broadcaster.update  -> decode.update",
  "prefill.applied     -> broadcaster.applied",
  "decode.applied      -> broadcaster.applied",
  "broadcaster.live    -> rollout.policy",
]
)";

/// The node NAME, which asks, and its engine: a router, a prefill and a decode of its own.
constexpr std::string_view kAskerNodes = R"(
[node.{0}]
actor = "{0}"
per_tenant = true
{1}[node.{0}_router]
actor = "router"
[node.{0}_prefill]
actor = "prefill"
engine = "{0}"
weights = "none"
[node.{0}_decode]
actor = "decode"
engine = "{0}"
weights = "none"

[edges]
forward = [
{2}  "{0}.generate          -> {0}_router.generate",
  "{0}_router.prefill    -> {0}_prefill.request",
  "{0}_prefill.done      -> {0}_decode.request",
]
feedback = [
  "{0}_decode.completion -> {0}.completion",
  "{0}_router.refused    -> {0}.completion",
  "{0}_prefill.refused   -> {0}.completion",
{3}  "{0}.cancel            -> {0}_router.cancel",
  "{0}_router.abort      -> {0}_prefill.abort",
  "{0}_router.abort      -> {0}_decode.abort",
  "{0}_prefill.load      -> {0}_router.load",
  "{0}_decode.load       -> {0}_router.load",
]
)";

constexpr std::string_view kGroupEdge = "  \"rollout.group       -> trainer.group\",\n";
constexpr std::string_view kTaughtEdges =
    "  \"rollout.group       -> teacher.group\",\n"
    "  \"teacher.scored      -> trainer.group\",\n";

constexpr std::string_view kExamplesEdge =
    "  { path = \"data.group -> trainer.group\", capacity = 16 },\n";
constexpr std::string_view kTaughtExamplesEdges =
    "  { path = \"data.group -> teacher.group\", capacity = 16 },\n"
    "  \"teacher.scored -> trainer.group\",\n";

constexpr std::string_view kGateway = R"([resource.gateway]
kind = "outside"
backend = "http"
listen = "127.0.0.1:0"

[node.gateway]
actor = "gateway"
listener = "gateway"
)";

constexpr std::string_view kGatewayEdges = R"(
[edges]
forward = [
  "gateway.generate    -> router.generate",
  "gateway.turn        -> rollout.turn",
]
feedback = [
  "decode.completion   -> gateway.completion",
  "router.refused      -> gateway.completion",
  "prefill.refused     -> gateway.completion",
  "gateway.cancel      -> router.cancel",
  "broadcaster.live    -> gateway.policy",
  "gateway.address     -> rollout.address",
  "rollout.closed      -> gateway.closed",
  "rollout.run         -> env.run",
  "rollout.cancel_runs -> env.cancel_runs",
  "env.run_answered    -> rollout.run_answered",
]
)";

constexpr std::string_view kTinker = R"([resource.tinker]
kind = "outside"
backend = "http"
listen = "127.0.0.1:8000"
key_prefix = "tml-"
tenant_tokens = true

[node.tinker]
actor = "tinker"
listener = "tinker"
)";

constexpr std::string_view kTinkerEdges = R"(
[edges]
forward = [
  "tinker.generate      -> router.generate",
  "tinker.pass          -> trainer.pass",
  "tinker.update        -> trainer.update",
  "tinker.weights       -> trainer.weights_request",
]
feedback = [
  "decode.completion    -> tinker.completion",
  "router.refused       -> tinker.completion",
  "prefill.refused      -> tinker.completion",
  "tinker.cancel        -> router.cancel",
  "broadcaster.live     -> tinker.policy",
  "trainer.passed       -> tinker.passed",
  "trainer.updated      -> tinker.updated",
  "trainer.weights_done -> tinker.weights_done",
]
)";

constexpr std::string_view kSft = R"([resource.learner]
kind = "learner"
loss = { kind = "cross_entropy" }
[resource.weights]
kind = "weight_channel"

[node.data]
actor = "data"
per_tenant = true
[node.trainer]
actor = "trainer"
learner = "learner"
weights = "weights"

[edges]
forward = [
  { path = "data.group -> trainer.group", capacity = 16 },
]
)";

constexpr BuiltInGraph kBuiltInGraphs[] = {
    {"primerl:async_rl", "asynchronous RL: rollouts continue while the trainer works", kAsyncRl},
    {kSupervisedGraph, "supervised training on given answers", kSft},
};

std::string_view without_comma(std::string_view text) {
  const size_t begin = text.find_first_not_of(" ");
  if (begin == std::string_view::npos) return {};
  text.remove_prefix(begin);
  if (text.ends_with(',')) text.remove_suffix(1);
  return text;
}

}  // namespace

std::span<const BuiltInGraph> built_in_graphs() { return kBuiltInGraphs; }

std::vector<std::string> built_in_names() {
  std::vector<std::string> names;
  for (const auto& graph : kBuiltInGraphs) names.emplace_back(graph.name);
  return names;
}

const BuiltInGraph* find_built_in(std::string_view name) {
  const auto found = std::ranges::find(kBuiltInGraphs, name, &BuiltInGraph::name);
  return found != std::end(kBuiltInGraphs) ? found : nullptr;
}

const BuiltInGraph& standard_graph() { return kBuiltInGraphs[0]; }

namespace {

std::string model_line(const std::string& model) {
  return model.empty() ? "" : fmt::format("model = \"{}\"\n", model);
}

/// The tables of the asking node `name`, with its own forward and feedback edges.
std::string asker_part(std::string_view name, const FrozenModels& models, std::string_view forward,
                       std::string_view feedback) {
  std::string text;
  if (!models.policy.empty())
    for (const std::string& table : models.tables)
      text += fmt::format("[{}]\n{}", table, model_line(models.policy));
  text += fmt::format("[resource.{}]\nkind = \"engine\"\n{}", name, model_line(models.frozen));
  return text + fmt::format(kAskerNodes, name, model_line(models.frozen), forward, feedback);
}

}  // namespace

std::string judge_part(const FrozenModels& models) {
  return asker_part("judge", models, "  \"env.question            -> judge.question\",\n",
                    "  \"judge.score             -> env.score\",\n");
}

std::string teacher_part(const FrozenModels& models) {
  return asker_part("teacher", models, "", "");
}

std::string with_teacher(std::string loop) {
  for (const auto& [edge, taught] :
       {std::pair{kGroupEdge, kTaughtEdges}, std::pair{kExamplesEdge, kTaughtExamplesEdges}})
    if (const size_t at = loop.find(edge); at != std::string::npos)
      return loop.replace(at, edge.size(), taught);
  CHECK(false, "a built-in graph has another edge to the trainer");
  return loop;
}

std::string gateway_part(const std::string& model) {
  return fmt::format("{}{}{}", kGateway, model_line(model), kGatewayEdges);
}

std::string tinker_part(const std::string& model) {
  return fmt::format("{}{}{}", kTinker, model_line(model), kTinkerEdges);
}

bool is_built_in_name(std::string_view name) { return name.starts_with(kBuiltInPrefix); }

std::string built_in_line(std::string_view text, uint32_t line) {
  std::string_view header, last;
  for (uint32_t at = 1; at <= line && !text.empty(); ++at) {
    const size_t end = std::min(text.find('\n'), text.size());
    last = text.substr(0, end);
    if (last.starts_with('[')) header = last;
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  last = without_comma(last);
  return last == header ? std::string(header) : fmt::format("{} {}", header, last);
}

void complete(Table& own, const Table& built_in) {
  for (const Entry& entry : built_in.entries) {
    Entry* written = own.find(entry.key);
    if (written == nullptr)
      own.entries.push_back(entry);
    else if (written->value.is_table() && entry.value.is_table())
      complete(written->value.as_table(), entry.value.as_table());
  }
}

}  // namespace primerl
