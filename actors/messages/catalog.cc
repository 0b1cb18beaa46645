#include "actors/messages/catalog.h"

#include "actors/messages/client.h"
#include "actors/messages/generation.h"
#include "actors/messages/judge.h"
#include "actors/messages/load.h"
#include "actors/messages/policy.h"
#include "actors/messages/rollout.h"
#include "actors/messages/run.h"

namespace primerl {

std::vector<const MessageType*> message_catalog() {
  return {
      &message_type<Abort>(),
      &message_type<Action>(),
      &message_type<Cancel>(),
      &message_type<CancelRuns>(),
      &message_type<CheckpointRequest>(),
      &message_type<Completion>(),
      &message_type<EngineHold>(),
      &message_type<EngineLoad>(),
      &message_type<GatewayAddress>(),
      &message_type<GenerateRequest>(),
      &message_type<GroupEnded>(),
      &message_type<JudgeQuestion>(),
      &message_type<JudgeScore>(),
      &message_type<MemberClosed>(),
      &message_type<MemberTurn>(),
      &message_type<Observation>(),
      &message_type<PassDone>(),
      &message_type<PassRequest>(),
      &message_type<PolicyApplied>(),
      &message_type<PolicyLive>(),
      &message_type<PolicyUpdate>(),
      &message_type<PrefillDone>(),
      &message_type<Run>(),
      &message_type<RunAnswered>(),
      &message_type<Task>(),
      &message_type<TrajectoryGroup>(),
      &message_type<UpdateDone>(),
      &message_type<UpdateRequest>(),
      &message_type<WeightsDone>(),
      &message_type<WeightsReady>(),
      &message_type<WeightsRequest>(),
  };
}

std::optional<double> mean_reward(const TrajectoryGroup& group) {
  double sum = 0;
  int64_t count = 0;
  for (const Trajectory& member : group.members) {
    if (member.is_failed) continue;
    sum += member.reward;
    ++count;
  }
  if (count == 0) return std::nullopt;
  return sum / static_cast<double>(count);
}

std::string_view to_string(RolloutEnd end) {
  switch (end) {
    case RolloutEnd::kTrained:
      return "trained";
    case RolloutEnd::kFiltered:
      return "filtered";
    case RolloutEnd::kStale:
      return "stale";
    case RolloutEnd::kFailed:
      return "failed";
    case RolloutEnd::kCancelled:
      return "cancelled";
    case RolloutEnd::kEvaluated:
      return "evaluated";
  }
  return "failed";
}

}  // namespace primerl
