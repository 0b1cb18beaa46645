/// The messages around a rollout: tasks and turns with the environment, groups with the trainer.
///
///   env --Task--> rollout --Action~~> env ~~Observation~~> rollout --TrajectoryGroup--> trainer
///   trainer ~~GroupEnded~~> rollout
///
/// Every TrajectoryGroup gets exactly one GroupEnded.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "actors/messages/generation.h"
#include "graph/message.h"
#include "kernels/text/chat/message.h"

namespace primerl {

/// The ordinals of evaluation rollouts. Training never has as many tasks.
inline constexpr uint64_t kEvaluationOrdinals = 1'000'000'000'000'000;
inline bool is_evaluation(uint64_t ordinal) { return ordinal >= kEvaluationOrdinals; }
/// The ordinal of `row` of `num_rows`, evaluated under `version`; none counts as 0.
inline uint64_t evaluation_ordinal(PolicyVersion version, uint64_t row, uint64_t num_rows) {
  const auto number = static_cast<uint64_t>(version.is_none() ? 0 : version.value);
  return kEvaluationOrdinals + number * num_rows + row;
}
inline uint64_t evaluation_row(uint64_t ordinal, uint64_t num_rows) {
  return (ordinal - kEvaluationOrdinals) % num_rows;
}

/// Which task of which environment. Every message of a rollout has it, because a curriculum may
/// give any row at any time (docs/design/environments.md).
struct TaskSource {
  uint32_t environment = 0;  // index of the tenant's environments
  uint64_t number = 0;       // of the task, in that environment
  uint64_t row = 0;          // with a curriculum: of the data set, from 0
  uint64_t position = 0;     // with a curriculum: in its walk over the rows
  uint32_t stage = 0;        // of the curriculum

  template <class F>
  static void fields(F& f) {
    using T = TaskSource;
    f("environment", &T::environment)("number", &T::number)("row", &T::row)(
        "position", &T::position)("stage", &T::stage);
  }
  friend bool operator==(const TaskSource&, const TaskSource&) = default;
};

/// Something to solve. Ordinals are dense from 0 per tenant. A group has the ordinal of its task,
/// so a resumed run makes the same task again. If the tenant has `epochs`, the task after the last
/// one, with ordinal Tenant::tasks_max, is empty: no task follows. A task with messages is a
/// conversation in the chat template of the model; `[tenant.x.chat] prompts = "user"` makes one of
/// a plain prompt.
/// A task with `data` is driven: its environment calls the policy itself (run.h).
struct Task {
  static constexpr std::string_view kName = "Task";
  static constexpr uint32_t kVersion = 4;

  uint64_t ordinal = 0;
  std::string prompt;
  std::vector<ChatMessage> messages = {};
  std::string tools = {};      // JSON array of the functions that the policy may call; empty: none
  std::string data = {};       // JSON object that only the server of the environment reads
  bool scores_groups = false;  // one run plays all rollouts of the group
  TaskSource source = {};

  template <class F>
  static void fields(F& f) {
    f("ordinal", &Task::ordinal)("prompt", &Task::prompt)("messages", &Task::messages)(
        "tools", &Task::tools)("data", &Task::data)("scores_groups", &Task::scores_groups)(
        "source", &Task::source);
  }
};

/// The mean reward of a group of which a member did not fail, for the curriculum of its
/// environment. NaN: there is none; this says only that the group has ended.
struct GroupScored {
  TaskSource source;
  double reward = 0;

  template <class F>
  static void fields(F& f) {
    f("source", &GroupScored::source)("reward", &GroupScored::reward);
  }
  friend bool operator==(const GroupScored&, const GroupScored&) = default;
};
/// Most groups of one Action.
inline constexpr size_t kGroupsScoredMax = 1024;
/// The turns of actions that are no turn of a policy.
inline constexpr int32_t kAsksTask = -1, kBringsScores = -2;

/// The policy's text of one turn of a trajectory, sent to the environment. Turn -1 without texts
/// asks for the task of an evaluation: the environment's answer is the first observation. Turn -2
/// brings `scored` to the instance that gives the tasks: its answer says that it has them.
struct Action {
  static constexpr std::string_view kName = "Action";
  static constexpr uint32_t kVersion = 5;

  uint64_t trajectory = 0;
  uint64_t ordinal = 0;  // of the task
  uint32_t attempt = 0;
  int32_t turn = 0;                // from 0; -1: the first observation is wanted
  int32_t first_turn = 0;          // of `texts`: the environment has the earlier ones already
  std::vector<std::string> texts;  // completions of the turns from first_turn to turn
  /// The same turns parsed: content, reasoning, tool calls. Empty without a chat template.
  std::vector<ChatMessage> messages = {};
  bool is_truncated = false;  // the last completion was cut at max_tokens
  /// The task's prompt, if first_turn is 0, the environment is outside of the process and rewards
  /// read it: the workers keep no task that they gave.
  std::string prompt = {};
  /// Trajectories that this environment instance has not ended but that have ended. Each is listed
  /// once.
  std::vector<uint64_t> ended;
  TaskSource source = {};                // of the task; evaluations have only its environment
  std::vector<GroupScored> scored = {};  // in the order in which they ended

  template <class F>
  static void fields(F& f) {
    using A = Action;
    f("trajectory", &A::trajectory)("ordinal", &A::ordinal)("attempt", &A::attempt)(
        "turn", &A::turn)("first_turn", &A::first_turn)("texts", &A::texts)(
        "messages", &A::messages)("is_truncated", &A::is_truncated)("prompt", &A::prompt)(
        "ended", &A::ended)("source", &A::source)("scored", &A::scored);
  }
};

/// The environment's answer to one Action. The first one (turn -1) has what a Task has.
struct Observation {
  static constexpr std::string_view kName = "Observation";
  static constexpr uint32_t kVersion = 5;

  uint64_t trajectory = 0;
  uint32_t attempt = 0;
  int32_t turn = 0;
  std::string text;  // appended to the trajectory when not done
  /// Messages that follow the policy's turn if the task has messages; if there are none, `text` is
  /// one message of a user.
  std::vector<ChatMessage> messages = {};
  std::string tools = {};  // of the task, in the first observation, as the next two
  std::string data = {};
  bool scores_groups = false;
  double reward = 0;                // when done
  std::vector<double> scores = {};  // of each reward of the tenant, without its weight; when done
  bool is_done = false;
  bool is_too_long = false;    // the text is left out; the trajectory ends as truncated
  bool needs_history = false;  // the earlier turns are not known: send all of them
  std::string fault;           // not empty: the environment failed, and so does the rollout

  template <class F>
  static void fields(F& f) {
    using O = Observation;
    f("trajectory", &O::trajectory)("attempt", &O::attempt)("turn", &O::turn)("text", &O::text)(
        "messages", &O::messages)("tools", &O::tools)("data", &O::data)(
        "scores_groups", &O::scores_groups)("reward", &O::reward)("scores", &O::scores)(
        "is_done", &O::is_done)("is_too_long", &O::is_too_long)("needs_history", &O::needs_history)(
        "fault", &O::fault);
  }
};

/// Most bytes of Trajectory::fault. rollouts.jsonl has the whole text.
inline constexpr size_t kFaultBytesMax = 256;

/// Most tokens of all samples of a rollout together. A sample begins only if seq_len tokens are
/// left, so this bound is kept whatever the turns are.
inline constexpr int64_t kMemberTokensMax = int64_t{1} << 24;

/// One finished rollout as the trainer sees it: samples with one reward (docs/design/samples.md).
/// A sample is one sequence for the learner. Most rollouts have one; samples follow each other in
/// the arrays. Arrays are parallel, [num_tokens].
struct Trajectory {
  uint64_t trajectory = 0;
  bool is_failed = false;        // then the arrays are empty and `fault` says why
  std::string fault;             // of a member that has not failed: why the trainer must refuse it
  std::vector<int32_t> tokens;   // prompts, completions and observations, as seen by the engine
  std::vector<uint8_t> sampled;  // 1 where the policy sampled the token
  std::vector<float> logprobs;   // 0 where not sampled
  std::vector<VersionSpan> spans;  // of sampled tokens, positions in `tokens`
  Blob kept;  // kernels/engine/kept_sets.h, one entry per sampled token; empty: all were kept
  /// Positions in `tokens` where the samples after the first begin; they rise, and each sample has
  /// a token. Empty: one sample.
  std::vector<int32_t> sample_begins = {};
  /// Log-probabilities of the tokens under the tenant's teacher, 0 where not sampled; empty: none.
  std::vector<float> reference = {};
  /// The teacher's likeliest tokens at each sampled token and their log-probabilities, [sampled
  /// tokens, k]; empty: none.
  std::vector<int32_t> top_tokens = {};
  std::vector<float> top_logprobs = {};
  std::vector<float> weights = {};  // of the loss of each token, supervised; empty: 1
  double reward = 0;
  std::vector<double> scores = {};  // of each reward of the tenant, without its weight
  int32_t num_turns = 0;
  bool is_truncated = false;

  size_t num_samples() const { return sample_begins.size() + 1; }
  /// The positions [first, second) of a sample, if `sample_begins` is valid.
  std::pair<size_t, size_t> sample(size_t index) const {
    const bool is_last = index == sample_begins.size();
    return {index == 0 ? 0 : static_cast<size_t>(sample_begins[index - 1]),
            is_last ? tokens.size() : static_cast<size_t>(sample_begins[index])};
  }
  /// The tokens of the last sample, which a running rollout extends.
  std::span<const int32_t> last_sample() const {
    return std::span(tokens).subspan(sample(sample_begins.size()).first);
  }

  template <class F>
  static void fields(F& f) {
    using T = Trajectory;
    f("trajectory", &T::trajectory)("is_failed", &T::is_failed)("fault", &T::fault)(
        "tokens", &T::tokens)("sampled", &T::sampled)("logprobs", &T::logprobs)("spans", &T::spans)(
        "kept", &T::kept)("sample_begins", &T::sample_begins)("reference", &T::reference)(
        "top_tokens", &T::top_tokens)("top_logprobs", &T::top_logprobs)("weights", &T::weights)(
        "reward", &T::reward)("scores", &T::scores)("num_turns", &T::num_turns)("is_truncated",
                                                                                &T::is_truncated);
  }
};

/// All members of one group have ended.
struct TrajectoryGroup {
  static constexpr std::string_view kName = "TrajectoryGroup";
  static constexpr uint32_t kVersion = 6;

  uint64_t ordinal = 0;  // of the task; the group's name
  uint32_t attempt = 0;
  PolicyVersion version;            // live when the group opened; staleness is counted from it
  std::vector<Trajectory> members;  // group_size members, failed ones included
  bool is_cancelled = false;        // the run ended before its teacher answered
  TaskSource source = {};           // of the task

  template <class F>
  static void fields(F& f) {
    using G = TrajectoryGroup;
    f("ordinal", &G::ordinal)("attempt", &G::attempt)("version", &G::version)(
        "members", &G::members)("is_cancelled", &G::is_cancelled)("source", &G::source);
  }
};

/// The mean reward of the members that did not fail; empty if all failed.
std::optional<double> mean_reward(const TrajectoryGroup& group);

/// How a rollout, or a group, ended. Only Rollout writes the end of a rollout.
/// kEvaluated: it measured the policy, and no trainer got it.
enum class RolloutEnd : uint8_t { kTrained, kFiltered, kStale, kFailed, kCancelled, kEvaluated };
std::string_view to_string(RolloutEnd end);  // "trained", "filtered", ...

/// A member that the trainer could not train on.
struct RefusedMember {
  uint32_t member = 0;  // its index in the group
  std::string fault;    // at most kFaultBytesMax

  template <class F>
  static void fields(F& f) {
    f("member", &RefusedMember::member)("fault", &RefusedMember::fault);
  }
  friend bool operator==(const RefusedMember&, const RefusedMember&) = default;
};

/// The trainer's one answer to a TrajectoryGroup. Refused members end as `failed`; the others end
/// as the group did.
struct GroupEnded {
  static constexpr std::string_view kName = "GroupEnded";
  static constexpr uint32_t kVersion = 2;

  uint64_t ordinal = 0;
  uint32_t attempt = 0;
  RolloutEnd end = RolloutEnd::kTrained;
  int64_t step = 0;    // of the batch it trained in; 0 when it did not
  std::string reason;  // which filter refused it, or how stale it is
  std::vector<RefusedMember> refused = {};

  template <class F>
  static void fields(F& f) {
    using G = GroupEnded;
    f("ordinal", &G::ordinal)("attempt", &G::attempt)("end", &G::end)("step", &G::step)(
        "reason", &G::reason)("refused", &G::refused);
  }
};

}  // namespace primerl
