#include "runtime/trace/record/gap_ledger.h"

#include <algorithm>
#include <cstring>

namespace primerl {
namespace {

uint64_t step_of(std::span<const std::byte> head, const TraceFrameHeader& header) {
  const bool is_lifecycle = header.kind == static_cast<uint8_t>(TraceFrameKind::kLifecycle);
  const size_t at = is_lifecycle ? offsetof(LifecycleFrame, step) : sizeof(TraceFrameHeader);
  uint64_t step = 0;
  if (head.size() >= at + sizeof(step)) std::memcpy(&step, head.data() + at, sizeof(step));
  return step;
}

}  // namespace

TraceFrameHeader frame_head(TraceFrameKind kind, uint32_t group) {
  return {.length = 0,
          .crc = 0,
          .kind = static_cast<uint8_t>(kind),
          .flags = 0,
          .count = 0,
          .group = group};
}

void GapLedger::lose(std::span<const std::byte> head) {
  TraceFrameHeader header{};
  std::memcpy(&header, head.data(), sizeof(header));
  const uint64_t step = step_of(head, header);
  auto [place, is_first] = gaps_.try_emplace(header.group);
  GapFrame& gap = place->second;
  if (is_first)
    gap = {.header = frame_head(TraceFrameKind::kGap, header.group),
           .num_lost = 0,
           .first_step = step,
           .last_step = step};
  ++gap.num_lost;
  gap.first_step = std::min(gap.first_step, step);
  gap.last_step = std::max(gap.last_step, step);
}

std::vector<GapFrame> GapLedger::take() {
  std::vector<GapFrame> gaps;
  for (const auto& [group, gap] : gaps_) gaps.push_back(gap);
  gaps_.clear();
  return gaps;
}

}  // namespace primerl
