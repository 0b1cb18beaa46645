#include "actors/common/group_bytes.h"

#include <algorithm>

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
  const int64_t empty = bytes_with(whole);
  whole.spans.resize(1);
  const int64_t span = bytes_with(whole) - empty;
  const int64_t token = is_sampled ? 9 : 5;  // id, whether sampled, log-probability
  // Spans end with a turn and with a new version; more versions than these make a group stale.
  const int64_t num_spans =
      is_sampled ? std::min(tenant.seq_len, tenant.turns_max + tenant.max_off_policy_steps + 2) : 0;
  const int64_t member =
      std::max(empty + tenant.seq_len * token + num_spans * span, bytes_with(failed));
  return static_cast<int64_t>(body_bytes_max(TrajectoryGroup())) + tenant.group_size * member;
}

Amount group_bytes(GroupKind kind) {
  return {[kind](const void*, std::span<const Tenant> tenants) {
            int64_t most = 0;
            for (const auto& tenant : tenants) most = std::max(most, group_bytes_max(tenant, kind));
            return most;
          },
          kind == GroupKind::kSampled ? "group_size * seq_len * 9 bytes, and some for each turn"
                                      : "group_size * seq_len * 5 bytes, and some for each member"};
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
      .note("lower 'seq_len' or 'group_size' of the tenant");
}

}  // namespace primerl
