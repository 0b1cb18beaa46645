#include "actors/common/group_bytes.h"

#include <algorithm>

#include "graph/tenant_outside.h"

namespace primerl {
namespace {

int64_t bytes_with(const Trajectory& member) {
  TrajectoryGroup group;
  group.members.push_back(member);
  return static_cast<int64_t>(body_bytes_max(group) - body_bytes_max(TrajectoryGroup()));
}

}  // namespace

int64_t group_bytes_max(const Tenant& tenant, GroupKind kind) {
  const bool is_sampled = kind == GroupKind::kSampled;
  Trajectory failed;
  failed.fault.resize(kFaultBytesMax);
  Trajectory whole;
  whole.scores.resize(tenant.rewards.size());
  const int64_t empty = bytes_with(whole);
  whole.spans.resize(1);
  const int64_t span = bytes_with(whole) - empty;
  // A turn begins at most one sample.
  const bool has_samples =
      is_sampled && (tenant.chat.history == "template" || drives_rollouts(tenant));
  const int64_t samples_max = has_samples ? std::max(tenant.turns_max, int64_t{1}) : 1;
  // A longer array is stored beside the body, which then has only its size. A shorter array may
  // therefore take more bytes in the body.
  const auto in_body = [](int64_t count, int64_t item_bytes) {
    return std::min(count, static_cast<int64_t>(kArrayBytesInBodyMax) / item_bytes) * item_bytes;
  };
  const bool is_taught = is_sampled && tenant.teacher.is_there();
  const int64_t num_tokens = std::min(tenant.seq_len * samples_max, kMemberTokensMax);
  const int64_t arrays =  // ids, whether sampled, log-probabilities, beginnings of samples
      in_body(num_tokens, sizeof(int32_t)) + in_body(num_tokens, 1) +
      in_body(num_tokens, sizeof(float)) +  // of supervised examples, weights
      (is_taught ? in_body(num_tokens, sizeof(float)) +
                       2 * in_body(num_tokens * tenant.teacher.top_k, sizeof(float))
                 : 0) +
      in_body(samples_max - 1, sizeof(int32_t));
  // A span ends with a turn or with a new version. A group with more versions than these is stale.
  const int64_t num_spans =
      is_sampled ? std::min(num_tokens, tenant.turns_max + tenant.max_off_policy_steps + 2) : 0;
  const int64_t member = std::max(empty + arrays + num_spans * span, bytes_with(failed));
  return static_cast<int64_t>(body_bytes_max(TrajectoryGroup())) + tenant.group_size * member;
}

Amount group_bytes(GroupKind kind) {
  return {[kind](const void*, std::span<const Tenant> tenants) {
            int64_t most = 0;
            for (const auto& tenant : tenants) most = std::max(most, group_bytes_max(tenant, kind));
            return most;
          },
          kind == GroupKind::kSampled ? "group_size * (3 KiB, and some for each turn); token "
                                        "arrays longer than 1 KiB are stored beside it"
                                      : "group_size * 2 KiB, and some for each member; token "
                                        "arrays longer than 1 KiB are stored beside it"};
}

std::string clipped_fault(std::string fault) {
  if (fault.size() <= kFaultBytesMax) return fault;
  size_t end = kFaultBytesMax;
  while (end > 0 && (static_cast<unsigned char>(fault[end]) & 0xC0) == 0x80) --end;
  fault.resize(end);
  return fault;
}

Status check_group_bytes(const TrajectoryGroup& group) {
  const size_t bytes = body_bytes_max(group);
  if (bytes <= kMessageBytesMax) return ok();
  return error(Code::kExhausted, "a group of {} bytes does not fit into a message of {}", bytes,
               kMessageBytesMax)
      .note("lower 'group_size' or 'turns_max' of the tenant");
}

}  // namespace primerl
