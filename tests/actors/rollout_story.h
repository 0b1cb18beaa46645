/// The fixture for tests of Rollout: one tenant, a byte tokenizer, answers given by hand.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "actors/rollout/rollout.h"
#include "graph/testing/node_runner.h"
#include "tests/actors/fakes.h"

namespace primerl::testing {

struct RolloutStory : ::testing::Test {
  explicit RolloutStory(RolloutOptions options = {}, Tenant tenant = a_tenant())
      : rollout(std::move(options)) {
    rollout.set_tenants({std::move(tenant)});
    rollout.use("tokenizer", tokenizer);
    rollout.set_targets("generate", {kRouter});
    rollout.set_targets("action", {kEnvironment});
  }
  void live(int64_t version) {
    ASSERT_TRUE(rollout.give("policy", PolicyLive{PolicyVersion(version)}).ok());
  }
  void task(uint64_t ordinal, const std::string& prompt = "ab") {
    ASSERT_TRUE(rollout.give("task", Task{ordinal, prompt}).ok());
  }
  std::vector<GenerateRequest> requests() {
    auto made = rollout.take<GenerateRequest>("generate");
    for (const auto& request : made) requests_seen.push_back(request);
    return made;
  }
  void complete(const GenerateRequest& request, const std::string& text = "xy\n",
                FinishReason end = FinishReason::kStop, int64_t version = 0) {
    Completion completion;
    completion.request = request.request;
    completion.session = request.session;
    completion.attempt = request.attempt;
    completion.end = end;
    completion.detail = "as the test says";
    for (const char c : text) completion.tokens.push_back(static_cast<unsigned char>(c));
    if (text == "\n") completion.tokens = {1};  // no token has this id
    completion.logprobs.assign(completion.tokens.size(), -0.25F);
    completion.kept = kept(completion.tokens);
    if (!completion.tokens.empty())
      completion.spans = {
          {PolicyVersion(version), 0, static_cast<int32_t>(completion.tokens.size())}};
    ASSERT_TRUE(rollout.give("completion", completion).ok());
  }
  void end_without_tokens(const GenerateRequest& request, FinishReason end) {
    complete(request, "", end);
  }
  /// The kept sets of a completion's tokens; a test can replace them.
  std::function<Blob(const std::vector<int32_t>&)> kept = [](const auto&) { return Blob(); };
  std::vector<Action> actions() { return rollout.take<Action>("action"); }
  void observe(const Action& action, double reward, bool is_done = true,
               const std::string& text = "", const std::string& fault = "") {
    Observation observation;
    observation.trajectory = action.trajectory;
    observation.attempt = action.attempt;
    observation.turn = action.turn;
    observation.text = text;
    observation.reward = reward;
    observation.is_done = is_done;
    observation.fault = fault;
    ASSERT_TRUE(rollout.give("observation", observation).ok());
  }
  /// Answers every request and its action: member i gets reward i.
  void play(const std::vector<GenerateRequest>& made) {
    for (const auto& request : made) complete(request);
    double reward = 0;
    for (const auto& action : actions()) observe(action, reward++);
  }
  void end(const TrajectoryGroup& group, RolloutEnd how, int64_t step = 0) {
    ASSERT_TRUE(
        rollout.give("ended", GroupEnded{group.ordinal, group.attempt, how, step, "why"}).ok());
  }
  std::vector<TrajectoryGroup> groups() { return rollout.take<TrajectoryGroup>("group"); }
  /// The lines of rollouts.jsonl.
  std::vector<Json> ends() {
    std::vector<Json> lines;
    for (const auto& line : rollout.lines("rollouts.jsonl"))
      lines.push_back(*parse_json(line, "rollouts.jsonl"));
    return lines;
  }
  std::vector<std::string> end_names() {
    std::vector<std::string> names;
    for (const auto& line : ends()) names.push_back(*line.get_string("end"));
    return names;
  }

  static constexpr InstanceId kRouter{40};
  static constexpr InstanceId kEnvironment{50};
  ByteTokenizer tokenizer;
  NodeRunner<Rollout> rollout;
  std::vector<GenerateRequest> requests_seen;
};

}  // namespace primerl::testing
