// Merges the pieces of all segments, once, when a trace is opened.
#include <algorithm>
#include <map>

#include "runtime/trace/read/open_trace.h"

namespace primerl {

OpenTrace::OpenTrace(TraceFiles files)
    : files_(std::move(files)),
      groups_(files_.catalog.groups.size()),
      links_(files_.catalog.links.size()),
      num_left_(files_.starts.size(), 0) {
  summary_.links.resize(links_.size());
  summary_.groups.resize(groups_.size());
  const TraceSegment* before = nullptr;
  for (const auto& segment : files_.segments) {
    if (before != nullptr && before->process == segment->process && before->start < segment->start)
      begin_start(*segment);
    add(*segment);
    before = segment.get();
  }
  for (OfLink& link : links_)
    for (auto* pieces : {&link.deliveries, &link.payloads})
      std::ranges::stable_sort(*pieces, {}, [](const KeyPiece& piece) {
        return std::pair(piece.first_incarnation, piece.first);
      });
  for (size_t i = 0; i < num_left_.size(); ++i) {
    if (num_left_[i] == 0) continue;
    TraceFault fault;
    fault.kind = TraceFault::Kind::kReplaced;
    fault.file = files_.starts[i].folder.filename().string();
    fault.text = fmt::format(
        "the run was resumed: {} steps that '{}' holds after the saved state do not count",
        num_left_[i], fault.file);
    faults_.push_back(std::move(fault));
  }
  find_tenants();
  add_digests();
  count_skipped();
  find_faults();
}

void OpenTrace::add(const TraceSegment& segment) {
  const SegmentIndex& index = *segment.index;
  for (const IndexSection& section : index.sections()) {
    const bool is_host_section =
        section.kind == IndexKind::kSteps || section.kind == IndexKind::kEmissions ||
        section.kind == IndexKind::kNotes || section.kind == IndexKind::kLifecycle ||
        section.kind == IndexKind::kTenantSteps;
    const bool is_link_section =
        section.kind == IndexKind::kDeliveries || section.kind == IndexKind::kPayloads;
    if ((is_host_section && section.id >= groups_.size()) ||
        (is_link_section && section.id >= links_.size()) || (!is_host_section && !is_link_section))
      continue;
    const auto positions = index.items<uint32_t>(section);
    const KeyPiece piece{section.first_incarnation,
                         section.last_incarnation,
                         section.first,
                         section.last,
                         &segment,
                         positions};
    if (section.kind == IndexKind::kSteps)
      add_steps(groups_[section.id], {section.first, section.last, &segment, positions,
                                      section.first, section.num_missing});
    if (section.kind == IndexKind::kEmissions) groups_[section.id].emissions.push_back(piece);
    if (section.kind == IndexKind::kNotes) groups_[section.id].notes.push_back(piece);
    if (section.kind == IndexKind::kLifecycle) groups_[section.id].lifecycle.push_back(piece);
    if (section.kind == IndexKind::kTenantSteps) groups_[section.id].tenant_steps.push_back(piece);
    if (section.kind == IndexKind::kDeliveries) links_[section.id].deliveries.push_back(piece);
    if (section.kind == IndexKind::kPayloads) links_[section.id].payloads.push_back(piece);
  }
  add_summary(segment);
}

/// A process resumed from a cut: its older record after that cut is no longer part of the run.
void OpenTrace::begin_start(const TraceSegment& segment) {
  const auto& base_steps = files_.starts[segment.start].base_steps;
  for (uint32_t i = 0; i < groups_.size(); ++i) {
    if (files_.catalog.groups[i].process != segment.process || !base_steps[i]) continue;
    subtract_steps(groups_[i], *base_steps[i] + 1);
    drop_steps(groups_[i], *base_steps[i] + 1);
  }
}

void OpenTrace::add_steps(OfGroup& group, StepPiece piece) {
  if (!group.steps.empty() && group.steps.back().last >= piece.first) {
    TraceFault fault;
    fault.kind = piece.segment->continues(*group.steps.back().segment)
                     ? TraceFault::Kind::kDamage
                     : TraceFault::Kind::kReplaced;
    fault.file = piece.segment->file.filename().string();
    fault.group = GroupId(static_cast<uint32_t>(&group - groups_.data()));
    fault.first = piece.first;
    fault.last = group.steps.back().last;
    fault.text =
        fmt::format("steps {} to {} of '{}' were recorded again in '{}': those count", fault.first,
                    fault.last, files_.catalog.groups[fault.group.index()].name, fault.file);
    faults_.push_back(std::move(fault));
    drop_steps(group, piece.first);
  }
  group.steps.push_back(piece);
}

/// Another segment has the steps from `first` on.
void OpenTrace::drop_steps(OfGroup& group, uint64_t first) {
  if (group.steps.empty() || group.steps.back().last < first) return;
  group.replaced.emplace_back(first, group.steps.back().last);
  while (!group.steps.empty() && group.steps.back().first >= first) group.steps.pop_back();
  if (!group.steps.empty()) group.steps.back().last = std::min(group.steps.back().last, first - 1);
}

/// Removes the steps from `first` on from the totals, because they are recorded again.
void OpenTrace::subtract_steps(const OfGroup& group, uint64_t first) {
  subtract_payloads(group, first);
  std::map<uint32_t, std::pair<uint32_t, uint64_t>> before;  // by link: incarnation and sequence
  for (const StepPiece& piece : group.steps)
    for (uint64_t step = std::max(first, piece.first); step <= piece.last; ++step) {
      const uint32_t position = piece.positions[step - piece.positions_first];
      if (position == 0) continue;
      const auto frame = piece.segment->frame(position, TraceFrameKind::kDelivery);
      if (!frame.ok() || !is_of(files_.catalog, frame->as<DeliveryFrame>())) continue;
      const auto& delivery = frame->as<DeliveryFrame>();
      const bool is_failed = (delivery.header.flags & kFailed) != 0;
      --summary_.num_steps;
      ++num_left_[piece.segment->start];
      GroupStats& of_group = summary_.groups[delivery.header.group][delivery.step_kind];
      --of_group.num_steps;
      of_group.num_failed -= is_failed;
      of_group.num_abandoned -= (delivery.header.flags & kAbandoned) != 0;
      of_group.num_emissions -= delivery.header.count;
      of_group.busy_us -= delivery.duration_us;
      of_group.handler_us.remove(delivery.duration_us);
      if (delivery.step_kind != static_cast<uint8_t>(StepKind::kMessage)) continue;
      LinkStats& of_link = summary_.links[delivery.subject].stats;
      --of_link.num_messages;
      of_link.num_bytes -= delivery.payload_bytes;
      of_link.num_failed -= is_failed;
      of_link.busy_us -= delivery.duration_us;
      of_link.handler_us.remove(delivery.duration_us);
      auto& [incarnation, sequence] = before[delivery.subject];
      if (incarnation == delivery.incarnation && sequence < delivery.sequence)
        summary_.links[delivery.subject].num_skipped -= delivery.sequence - sequence - 1;
      incarnation = delivery.incarnation;
      sequence = delivery.sequence;
    }
}

void OpenTrace::add_summary(const TraceSegment& segment) {
  const SegmentIndex& index = *segment.index;
  const IndexHeader& header = index.header();
  if (header.num_deliveries > 0) {
    if (summary_.num_steps == 0) summary_.first_ns = header.first_ns;
    summary_.first_ns = std::min(summary_.first_ns, header.first_ns);
    summary_.last_ns = std::max(summary_.last_ns, header.last_ns);
  }
  summary_.num_steps += header.num_deliveries;
  summary_.num_payloads += header.num_payloads;
  summary_.payload_bytes += header.payload_bytes;
  summary_.file_bytes += header.source_bytes;
  summary_.num_segments += 1;
  summary_.newest_incarnation = std::max(summary_.newest_incarnation, header.incarnation);
  for (const IndexSection& section : index.sections(IndexKind::kLinkStats)) {
    if (section.id >= links_.size()) continue;
    const LinkStats& more = index.items<LinkStats>(section).front();
    LinkStats& sum = summary_.links[section.id].stats;
    if (sum.num_messages == 0) sum.first_ns = more.first_ns;
    sum.last_ns = more.last_ns;
    sum.num_messages += more.num_messages;
    sum.num_bytes += more.num_bytes;
    sum.num_failed += more.num_failed;
    sum.busy_us += more.busy_us;
    sum.handler_us.add(more.handler_us);
    summary_.links[section.id].num_skipped += more.num_skipped;
  }
  for (const IndexSection& section : index.sections(IndexKind::kPayloads))
    if (section.id < links_.size()) summary_.links[section.id].num_stored += section.count;
  for (const IndexSection& section : index.sections(IndexKind::kGroupStats)) {
    const auto kinds = index.items<GroupStats>(section);
    if (section.id >= groups_.size() || kinds.size() != summary_.groups[section.id].size())
      continue;
    for (size_t i = 0; i < kinds.size(); ++i) {
      GroupStats& sum = summary_.groups[section.id][i];
      sum.num_steps += kinds[i].num_steps;
      sum.num_failed += kinds[i].num_failed;
      sum.num_abandoned += kinds[i].num_abandoned;
      sum.num_emissions += kinds[i].num_emissions;
      sum.busy_us += kinds[i].busy_us;
      sum.handler_us.add(kinds[i].handler_us);
    }
  }
  for (const IndexSection& section : index.sections(IndexKind::kVersions))
    for (const VersionMark& mark : index.items<VersionMark>(section))
      summary_.versions.push_back(mark);
}

void OpenTrace::add_digests() {
  for (OfGroup& group : groups_) {
    if (group.steps.empty()) continue;
    group.first_block = group.steps.front().first / kDigestSteps;
    const uint64_t num_blocks = group.steps.back().last / kDigestSteps - group.first_block + 1;
    // No table if one step number is far from the others, because numbers in a header may be
    // forged.
    uint64_t num_steps = 0;
    for (const StepPiece& piece : group.steps) num_steps += piece.last - piece.first + 1;
    if (num_blocks <= num_steps) group.digests.resize(num_blocks);
  }
  for (const auto& segment : files_.segments)
    for (const IndexKind kind : {IndexKind::kStepDigests, IndexKind::kPayloadDigests})
      for (const IndexSection& section : segment->index->sections(kind)) {
        if (section.id >= groups_.size()) continue;
        OfGroup& group = groups_[section.id];
        const auto sums = segment->index->items<uint64_t>(section);
        for (size_t i = 0; i < sums.size(); ++i) {
          const uint64_t block = section.first + i - group.first_block;
          if (block >= group.digests.size()) continue;
          Digest& digest = group.digests[block];
          (kind == IndexKind::kStepDigests ? digest.steps : digest.payloads) += sums[i];
        }
      }
  // Keeps the first occurrence of each version, over all segments.
  place_versions();
  std::ranges::stable_sort(summary_.versions, {}, &VersionMark::at_ns);
  std::map<std::pair<uint32_t, uint32_t>, int64_t> newest;
  std::erase_if(summary_.versions, [&](const VersionMark& mark) {
    const auto [known, is_new] = newest.try_emplace({mark.tenant, mark.tenancy}, mark.version);
    if (is_new) return false;
    if (known->second >= mark.version) return true;
    known->second = mark.version;
    return false;
  });
}

void OpenTrace::count_skipped() {
  for (size_t l = 0; l < links_.size(); ++l) {
    const KeyPiece* before = nullptr;  // of the pieces that begin earlier, the one that ends last
    for (const KeyPiece& piece : links_[l].deliveries) {
      const bool is_same = before != nullptr && before->last_incarnation == piece.first_incarnation;
      if (is_same && piece.last <= before->last) continue;  // recorded again
      if (is_same && before->last < piece.first)
        summary_.links[l].num_skipped += piece.first - before->last - 1;
      // Sequences begin at 1, except after a cut.
      if (before == nullptr && piece.segment->number == 1 && !begins_with_cut() &&
          piece.first_incarnation == piece.last_incarnation)
        summary_.links[l].num_skipped += piece.first - 1;
      before = &piece;
    }
  }
}

}  // namespace primerl
