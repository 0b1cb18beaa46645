// Finds which tenant had which slot, once, when a trace is opened.
#include <algorithm>

#include "runtime/trace/read/open_trace.h"
#include "runtime/trace/tenant_note.h"

namespace primerl {

void OpenTrace::find_tenants() {
  tenants_ = TenantUses(files_.catalog);
  for (const CutHead& cut : files_.saved) tenants_.add(cut);
  std::vector<TenantStep> steps;
  for (uint32_t i = 0; i < groups_.size(); ++i)
    for (const KeyPiece& piece : groups_[i].tenant_steps)
      for (const uint32_t position : piece.positions) {
        const auto frame = piece.segment->frame(position, TraceFrameKind::kDelivery);
        if (!frame.ok()) continue;
        const uint64_t step = frame->as<DeliveryFrame>().step;
        // A later start may have recorded the step again, and then that record counts.
        const TraceSegment* counted = nullptr;
        const auto found = frame_of(GroupId(i), step, &counted);
        if (found && counted == piece.segment && found->offset == frame->offset)
          read_tenant_step(GroupId(i), step, steps);
      }
  std::ranges::stable_sort(steps, {}, &TenantStep::began);
  for (const TenantStep& each : steps) tenants_.add(each.group, each.step, each.began, each.change);
}

void OpenTrace::read_tenant_step(GroupId group, uint64_t number, std::vector<TenantStep>& steps) {
  const auto step = this->step(group, number);
  if (!step || step->kind != StepKind::kTenant) return;
  Result<TenantChange> change = error(Code::kCorrupt, "it has no note");
  visit_notes(group, number, [&](NoteKind kind, InstanceId, std::span<const std::byte> bytes) {
    if (kind == NoteKind::kTenant) change = read_tenant_note(bytes);
  });
  if (change.ok() && (change->slot != step->tenant || change->tenancy != step->sequence ||
                      static_cast<uint32_t>(change->kind) != step->subject ||
                      tenant_check(*change).value != step->payload_check))
    change = error(Code::kCorrupt, "its note is of another event");
  // A tenant that could not join left the group as it was.
  if (change.ok() && change->kind == TenantChange::Kind::kJoin && step->is_failed()) return;
  if (change.ok()) return steps.push_back({group, number, step->began, *std::move(change)});
  TraceFault fault;
  fault.kind = TraceFault::Kind::kDamage;
  fault.group = group;
  fault.first = fault.last = number;
  fault.text = fmt::format("the tenant event of '{}' cannot be read: {}",
                           step_text(files_.catalog, group, number), change.error().message());
  faults_.push_back(std::move(fault));
}

/// A mark of an index has no number, because the join may be in another segment. A slot is given
/// away again only after its last message, so the time decides.
void OpenTrace::place_versions() {
  for (VersionMark& mark : summary_.versions)
    if (const TenantUse* use =
            tenants_.at(Time::from_nanoseconds(mark.at_ns), TenantSlot(mark.tenant)))
      mark.tenancy = use->tenancy;
}

}  // namespace primerl
