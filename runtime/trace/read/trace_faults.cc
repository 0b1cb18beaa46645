// Finds missing parts of a trace, and describes them.
#include <algorithm>
#include <map>
#include <set>

#include "runtime/trace/read/open_trace.h"
#include "runtime/trace/segment_files.h"

namespace primerl {
namespace {

TraceFault fault_of(TraceFault::Kind kind, const TraceSegment* segment, std::string text) {
  TraceFault fault;
  fault.kind = kind;
  if (segment != nullptr) fault.file = segment->file.filename().string();
  fault.text = std::move(text);
  return fault;
}

std::string steps_text(uint64_t first, uint64_t last, const std::string& group) {
  return first == last ? fmt::format("step {} of '{}'", first, group)
                       : fmt::format("steps {} to {} of '{}'", first, last, group);
}

std::string segments_text(uint64_t first, uint64_t last) {
  return first == last ? fmt::format("segment {}", first)
                       : fmt::format("segments {} to {}", first, last);
}

std::string name_of(const TraceCatalog& catalog, uint32_t process) {
  return process < catalog.processes.size() ? catalog.processes[process] : std::to_string(process);
}

}  // namespace

std::string_view to_string(TraceFault::Kind kind) {
  switch (kind) {
    case TraceFault::Kind::kCutTail:
      return "cut_tail";
    case TraceFault::Kind::kHole:
      return "hole";
    case TraceFault::Kind::kDamage:
      return "damage";
    case TraceFault::Kind::kGap:
      return "gap";
    case TraceFault::Kind::kMissingSegment:
      return "missing_segment";
    case TraceFault::Kind::kRetired:
      return "retired";
    case TraceFault::Kind::kMissingBlob:
      return "missing_blob";
    case TraceFault::Kind::kMissingStep:
      return "missing_step";
    case TraceFault::Kind::kReplaced:
      return "replaced";
    case TraceFault::Kind::kExcerpt:
      return "excerpt";
    case TraceFault::Kind::kOlderMissing:
      return "older_missing";
    case TraceFault::Kind::kSnapshot:
      return "snapshot";
  }
  return "unknown";
}

void OpenTrace::find_faults() {
  faults_.insert(faults_.begin(), files_.faults.begin(), files_.faults.end());
  summary_.num_indexed = files_.num_indexed;
  find_segment_faults();
  if (begins_with_cut() && !files_.catalog.recovers.empty() && files_.is_run)
    faults_.push_back(fault_of(
        TraceFault::Kind::kOlderMissing, nullptr,
        fmt::format("the older record '{}' is not there: the run is read from the saved state that "
                    "'{}' begins with",
                    files_.catalog.recovers, oldest_folder().filename().string())));
  if (const auto& excerpt = files_.excerpt) {
    auto fault = fault_of(TraceFault::Kind::kExcerpt, nullptr, "");
    fault.group = excerpt->group;
    fault.first = 1;
    fault.last = excerpt->last_step;
    fault.text = fmt::format(
        "an excerpt: {}, and where its messages were handled",
        steps_text(1, excerpt->last_step, files_.catalog.groups[excerpt->group.index()].name));
    faults_.push_back(std::move(fault));
  }
  for (uint32_t h = 0; h < groups_.size(); ++h) find_missing_steps(GroupId(h));
  find_cut_tails();
  find_missing_blobs();
}

/// Finds damage inside segments, and segments that do not continue each other.
void OpenTrace::find_segment_faults() {
  const TraceSegment* before = nullptr;
  for (size_t i = 0; i < files_.segments.size(); ++i) {
    const TraceSegment& segment = *files_.segments[i];
    find_order_faults(before != nullptr && segment.continues(*before) ? before : nullptr, segment);
    const bool is_last =
        i + 1 == files_.segments.size() || !files_.segments[i + 1]->continues(segment);
    find_damage(segment, is_last);
    find_gaps(segment);
    if (is_last) find_snapshot(segment);
    before = &segment;
  }
}

void OpenTrace::find_order_faults(const TraceSegment* before, const TraceSegment& segment) {
  const std::string process = name_of(files_.catalog, segment.process);
  const std::string file = segment.file.filename().string();
  const uint64_t expected = before != nullptr ? before->number + 1 : 1;
  const uint64_t retired = retired_through_number(segment);
  if (expected <= retired && segment.number > expected)
    faults_.push_back(
        fault_of(TraceFault::Kind::kRetired, &segment,
                 fmt::format("{} of process '{}' (incarnation {}) retired to free space",
                             segments_text(expected, std::min(retired, segment.number - 1)),
                             process, segment.incarnation)));
  if (const uint64_t from = std::max(expected, retired + 1); segment.number > from)
    faults_.push_back(fault_of(
        TraceFault::Kind::kMissingSegment, &segment,
        fmt::format("{} of process '{}' (incarnation {}) missing before '{}'",
                    segments_text(from, segment.number - 1), process, segment.incarnation, file)));
  if (before != nullptr && segment.number == before->number + 1 &&
      segment.index->header().previous_seed != before->index->header().seed)
    faults_.push_back(fault_of(
        TraceFault::Kind::kDamage, &segment,
        fmt::format("'{}' was not written behind '{}'", file, before->file.filename().string())));
}

void OpenTrace::find_snapshot(const TraceSegment& newest) {
  const std::string process = name_of(files_.catalog, newest.process);
  if (!is_snapshot(newest.folder(), process, newest.incarnation)) return;
  faults_.push_back(
      fault_of(TraceFault::Kind::kSnapshot, &newest,
               fmt::format("a snapshot: process '{}' (incarnation {}) was asked for it "
                           "and went on",
                           process, newest.incarnation)));
}

void OpenTrace::find_damage(const TraceSegment& segment, bool is_last) {
  const std::string file = segment.file.filename().string();
  for (const IndexSection& section : segment.index->sections(IndexKind::kDamage))
    for (const IndexDamage& damage : segment.index->items<IndexDamage>(section)) {
      // The last write of a process that died; kCutTail reports the missing part. If a later start
      // resumed from a cut, the record up to the cut was synced, and later damage does not count.
      const bool is_torn = (damage.is_tail != 0 || segment.start + 1 < files_.starts.size()) &&
                           is_last && segment.index->header().has_end == 0;
      const bool is_hole = damage.is_hole != 0 || is_torn;
      auto fault =
          fault_of(is_hole ? TraceFault::Kind::kHole : TraceFault::Kind::kDamage, &segment,
                   fmt::format("{} bytes at {} of '{}' {}", damage.num_bytes, damage.offset, file,
                               is_torn               ? "are a write that did not finish"
                               : damage.is_hole != 0 ? "were reserved and never written"
                                                     : "are damaged"));
      fault.offset = damage.offset;
      faults_.push_back(std::move(fault));
    }
  if (segment.index->header().num_strange > 0)
    faults_.push_back(fault_of(TraceFault::Kind::kDamage, &segment,
                               fmt::format("{} frames of '{}' name things that are not in the "
                                           "catalog",
                                           segment.index->header().num_strange, file)));
}

void OpenTrace::find_gaps(const TraceSegment& segment) {
  for (const IndexSection& section : segment.index->sections(IndexKind::kGaps))
    for (const uint32_t position : segment.index->items<uint32_t>(section)) {
      const auto frame = segment.frame(position, TraceFrameKind::kGap);
      if (!frame.ok()) continue;
      const auto& gap = frame->as<GapFrame>();
      auto fault = fault_of(TraceFault::Kind::kGap, &segment, "");
      fault.offset = frame->offset;
      fault.text = fmt::format("the recorder could not keep up and lost {} records", gap.num_lost);
      if (gap.header.group < groups_.size()) {
        fault.group = GroupId(gap.header.group);
        fault.first = gap.first_step;
        fault.last = gap.last_step;
        fault.text += ", " + steps_text(gap.first_step, gap.last_step,
                                        files_.catalog.groups[gap.header.group].name);
      }
      faults_.push_back(std::move(fault));
    }
}

/// Whether bytes or frames of a segment could not be read.
bool OpenTrace::is_damaged(const TraceSegment& segment) const {
  if (segment.index->header().num_strange > 0) return true;
  for (const IndexSection& section : segment.index->sections(IndexKind::kDamage))
    for (const IndexDamage& damage : segment.index->items<IndexDamage>(section))
      if (damage.is_hole == 0) return true;
  return false;
}

/// The number of the newest segment of this incarnation that was retired or skipped. It explains
/// missing steps before it.
uint64_t OpenTrace::retired_through_number(const TraceSegment& segment) const {
  const auto& gone = files_.starts[segment.start].gone;
  const auto found = gone.find({name_of(files_.catalog, segment.process), segment.incarnation});
  return found == gone.end() ? 0 : found->second;
}

/// Why steps of a group from `first` on are missing between two of its pieces.
TraceFault::Kind OpenTrace::why_missing(const StepPiece* before, const StepPiece* after,
                                        GroupId group, uint64_t first) const {
  for (const TraceFault& fault : faults_)
    if (fault.kind == TraceFault::Kind::kGap &&
        (fault.group.is_none() ||
         (fault.group == group && fault.first <= first && first <= fault.last)))
      return TraceFault::Kind::kGap;
  const TraceSegment* const to = after->segment;
  const TraceSegment* const from = before == nullptr ? nullptr : before->segment;
  bool is_between = from == nullptr;
  bool has_damage = false;
  uint64_t expected = 1;
  const TraceSegment* last = nullptr;
  for (const auto& segment : files_.segments) {
    if (segment->process != to->process) continue;
    if (segment.get() == from) {
      is_between = true;
      expected = segment->number;
      last = from;
    }
    if (!is_between) continue;
    if (last == nullptr || !segment->continues(*last)) expected = 1;
    last = segment.get();
    const uint64_t retired = retired_through_number(*segment);
    if (segment->number > std::max(expected, retired + 1)) return TraceFault::Kind::kMissingSegment;
    if (segment->number > expected) return TraceFault::Kind::kRetired;
    expected = segment->number + 1;
    has_damage |= is_damaged(*segment);
    if (segment.get() == to) break;
  }
  return has_damage ? TraceFault::Kind::kDamage : TraceFault::Kind::kMissingStep;
}

void OpenTrace::find_missing_steps(GroupId group) {
  const std::string& name = files_.catalog.groups[group.index()].name;
  const auto report = [&](const StepPiece* before, const StepPiece& after, uint64_t first,
                          uint64_t last) {
    if (const auto& excerpt = files_.excerpt)
      if (excerpt->group != group || first > excerpt->last_step) return;
    const bool is_before_base =
        before == nullptr && last <= files_.starts.front().base_steps[group.index()].value_or(0);
    auto fault = fault_of(
        is_before_base ? TraceFault::Kind::kRetired : why_missing(before, &after, group, first),
        after.segment, "");
    const char* why = "";
    if (fault.kind == TraceFault::Kind::kGap) why = ": lost by the recorder";
    if (fault.kind == TraceFault::Kind::kMissingSegment) why = ": in a segment that is not there";
    if (fault.kind == TraceFault::Kind::kDamage) why = ": in a damaged segment";
    if (fault.kind == TraceFault::Kind::kRetired) why = ": in a retired segment";
    if (is_before_base) why = ": before the cut that this start went on from";
    if (fault.kind == TraceFault::Kind::kMissingStep) why = ", although nothing around is damaged";
    fault.text = fmt::format("{} missing{}", steps_text(first, last, name), why);
    fault.group = group;
    fault.first = first;
    fault.last = last;
    faults_.push_back(std::move(fault));
  };
  const StepPiece* before = nullptr;
  for (const StepPiece& piece : groups_[group.index()].steps) {
    const uint64_t expected = before == nullptr ? 1 : before->last + 1;
    if (piece.first > expected) report(before, piece, expected, piece.first - 1);
    if (piece.num_missing > 0) {
      uint64_t first = 0;  // first step of a missing range
      for (uint64_t step = piece.first; step <= piece.last; ++step) {
        const bool is_there = piece.positions[step - piece.positions_first] != 0;
        if (!is_there && first == 0) first = step;
        if (is_there && first != 0) {
          report(&piece, piece, first, step - 1);
          first = 0;
        }
      }
    }
    before = &piece;
  }
}

void OpenTrace::find_cut_tails() {
  is_closed_ = !files_.segments.empty();
  // By process and incarnation. Segments after the end frame were prepared and not used: a process
  // that was killed while it closed its trace leaves them.
  std::set<std::pair<uint32_t, uint32_t>> ended;
  for (const auto& segment : files_.segments)
    if (segment->index->header().has_end != 0)
      ended.emplace(segment->process, segment->incarnation);
  for (size_t i = 0; i < files_.segments.size(); ++i) {
    const TraceSegment& segment = *files_.segments[i];
    const TraceSegment* next =
        i + 1 < files_.segments.size() ? files_.segments[i + 1].get() : nullptr;
    if (next != nullptr && next->continues(segment)) continue;
    if (ended.contains({segment.process, segment.incarnation})) continue;
    // An incarnation that died and has a successor ended where the successor continues.
    if (next != nullptr && next->process == segment.process) continue;
    is_closed_ = false;
    for (uint32_t h = 0; h < groups_.size(); ++h) {
      if (files_.catalog.groups[h].process != segment.process) continue;
      const uint64_t last = last_step(GroupId(h));
      auto fault = fault_of(
          TraceFault::Kind::kCutTail, &segment,
          fmt::format("tail cut after step {} of '{}'", last, files_.catalog.groups[h].name));
      fault.group = GroupId(h);
      fault.offset = segment.index->header().end_offset;
      fault.first = fault.last = last;
      faults_.push_back(std::move(fault));
    }
  }
  if (files_.excerpt) return;
  // A process without any segment recorded nothing.
  std::set<uint32_t> seen;
  for (const auto& segment : files_.segments) seen.insert(segment->process);
  for (uint32_t p = 0; p < files_.catalog.processes.size(); ++p)
    if (!seen.contains(p)) {
      is_closed_ = false;
      faults_.push_back(
          fault_of(TraceFault::Kind::kMissingSegment, nullptr,
                   fmt::format("no segment of process '{}'", files_.catalog.processes[p])));
    }
}

void OpenTrace::find_missing_blobs() {
  std::map<std::filesystem::path, std::set<std::string>> listed;  // by folder
  for (const auto& segment : files_.segments)
    for (const IndexSection& section : segment->index->sections(IndexKind::kBlobs))
      for (const auto& hash : segment->index->items<std::array<std::byte, 32>>(section)) {
        const auto [there, is_new] = listed.try_emplace(segment->folder());
        if (is_new) {
          std::error_code ignored;
          for (std::filesystem::directory_iterator it(segment->folder() / "blobs", ignored), end;
               !ignored && it != end; it.increment(ignored))
            there->second.insert(it->path().filename().string());
        }
        std::string name;
        for (const std::byte byte : hash) name += fmt::format("{:02x}", static_cast<int>(byte));
        if (there->second.contains(name)) continue;
        auto fault = fault_of(TraceFault::Kind::kMissingBlob, segment.get(),
                              fmt::format("blob '{}' is missing", name));
        faults_.push_back(std::move(fault));
      }
}

}  // namespace primerl
