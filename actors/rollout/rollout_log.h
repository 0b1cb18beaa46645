/// The lines of rollouts.jsonl: one object per ended rollout.
#pragma once

#include <string>
#include <string_view>

#include "actors/rollout/group.h"

namespace primerl {

struct RolloutEnded {
  RolloutEnd end = RolloutEnd::kFailed;
  int64_t step = 0;       // of the batch it trained in; 0 when it did not
  int64_t staleness = 0;  // in that batch, else against the newest version known
  std::string reason;
};

/// `<tenant>-<task>-<attempt of the group>-<member>`: unique in a run and its resumed successors.
std::string rollout_name(std::string_view tenant, const Group& group, size_t member);

/// `environment` is its label if the tenant has several; else empty.
std::string rollout_line(std::string_view tenant, std::string_view environment, const Group& group,
                         size_t member, const RolloutEnded& ended, bool with_tokens);

}  // namespace primerl
