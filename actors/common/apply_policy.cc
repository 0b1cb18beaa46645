#include "actors/common/apply_policy.h"

namespace primerl {

std::optional<PolicyApplied> apply_policy(PolicyVersion version, InstanceId self, Engine& engine,
                                          WeightChannel& weights) {
  PolicyApplied answer;
  answer.version = version;
  answer.engine = self;
  auto snapshot = weights.fetch(version);
  if (!snapshot.ok() && snapshot.error().code() == Code::kNotFound && weights.newest() > version) {
    answer.version = weights.newest();
    snapshot = weights.fetch(answer.version);
  }
  if (!snapshot.ok() && snapshot.error().code() == Code::kUnavailable) return std::nullopt;
  if (!snapshot.ok()) {
    answer.fault = snapshot.error().text();
    return answer;
  }
  auto num_tensors = engine.apply(**snapshot);
  if (num_tensors.ok())
    answer.num_tensors = *num_tensors;
  else
    answer.fault = num_tensors.error().text();
  return answer;
}

}  // namespace primerl
