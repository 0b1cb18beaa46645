#include "graph/config/built_in_graphs.h"

#include <fmt/format.h>

#include <algorithm>

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

constexpr std::string_view kJudgeResource = R"([resource.judge]
kind = "engine"
)";

constexpr std::string_view kJudgeNode = R"(
[node.judge]
actor = "judge"
per_tenant = true
)";

constexpr std::string_view kJudgeLoop = R"([node.judge_router]
actor = "router"
[node.judge_prefill]
actor = "prefill"
engine = "judge"
weights = "none"
[node.judge_decode]
actor = "decode"
engine = "judge"
weights = "none"

[edges]
forward = [
  "env.question            -> judge.question",
  "judge.generate          -> judge_router.generate",
  "judge_router.prefill    -> judge_prefill.request",
  "judge_prefill.done      -> judge_decode.request",
]
feedback = [
  "judge_decode.completion -> judge.completion",
  "judge_router.refused    -> judge.completion",
  "judge_prefill.refused   -> judge.completion",
  "judge.score             -> env.score",
  "judge.cancel            -> judge_router.cancel",
  "judge_router.abort      -> judge_prefill.abort",
  "judge_router.abort      -> judge_decode.abort",
  "judge_prefill.load      -> judge_router.load",
  "judge_decode.load       -> judge_router.load",
]
)";

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
    {"primerl:sft", "supervised training on given answers", kSft},
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

std::string judge_part(const JudgeModels& models) {
  const auto line = [](const std::string& model) {
    return model.empty() ? "" : fmt::format("model = \"{}\"\n", model);
  };
  std::string text;
  if (!models.policy.empty())
    for (const std::string_view table : {"resource.engine", "resource.learner", "node.rollout"})
      text += fmt::format("[{}]\n{}", table, line(models.policy));
  return fmt::format("{}{}{}{}{}{}", text, kJudgeResource, line(models.judge), kJudgeNode,
                     line(models.judge), kJudgeLoop);
}

std::string gateway_part(const std::string& model) {
  return fmt::format("{}{}{}", kGateway,
                     model.empty() ? "" : fmt::format("model = \"{}\"\n", model), kGatewayEdges);
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
