#include "runtime/trace/read/open_trace.h"

#include <algorithm>
#include <cstring>
#include <queue>
#include <tuple>

#include "runtime/trace/content_store.h"

namespace primerl {
namespace {

/// Reads the fields from the frame, because the index may be wrong.
TraceStep step_of(const DeliveryFrame& frame) {
  TraceStep step;
  step.group = GroupId(frame.header.group);
  step.step = frame.step;
  step.kind = static_cast<StepKind>(frame.step_kind);
  step.flags = frame.header.flags;
  step.num_notes = frame.num_notes;
  step.instance = InstanceId(frame.instance);
  step.num_emissions = frame.header.count;
  step.began = Time::from_nanoseconds(frame.began_ns);
  step.duration = Duration::microseconds(frame.duration_us);
  step.tenant = TenantSlot(frame.tenant);
  step.origin = InstanceId(frame.origin);
  step.cause = {InstanceId(frame.cause_instance), frame.cause_step};
  step.sender_step = frame.sender_step;
  step.sequence = frame.sequence;
  step.incarnation = frame.incarnation;
  if (step.kind == StepKind::kMessage)
    step.link = LinkId(frame.subject);
  else
    step.subject = frame.subject;
  step.type = frame.type;
  step.payload_check = frame.payload_check;
  step.payload_bytes = frame.payload_bytes;
  return step;
}

/// Whether the payload was stored when it was sent. Otherwise it was stored where it was handled.
bool is_sent_by(const TraceCatalog& catalog, const PayloadFrame& frame) {
  return catalog.instances[catalog.links[frame.link].sender].group == frame.header.group;
}

struct FrameKey {
  uint32_t link = 0;
  uint32_t incarnation = 0;
  uint64_t sequence = 0;
  bool matches(const MessageKey& key) const {
    return link == key.link.value && incarnation == key.incarnation && sequence == key.sequence;
  }
  bool is_before(const MessageKey& key) const {
    return std::pair(incarnation, sequence) < std::pair(key.incarnation, key.sequence);
  }
};

FrameKey key_of(const Frame& frame) {
  if (frame.kind() == TraceFrameKind::kDelivery) {
    const auto& delivery = frame.as<DeliveryFrame>();
    return {delivery.subject, delivery.incarnation, delivery.sequence};
  }
  const auto& payload = frame.as<PayloadFrame>();
  return {payload.link, payload.incarnation, payload.sequence};
}

uint64_t step_in(const Frame& frame) {
  switch (frame.kind()) {
    case TraceFrameKind::kPayload:
      return frame.as<PayloadFrame>().step;
    case TraceFrameKind::kNote:
      return frame.as<NoteFrame>().step;
    default:
      return frame.as<DeliveryFrame>().step;
  }
}

/// Finds the frame with a key in one piece: first at the position that it has if no sequence number
/// is missing, then by binary search.
std::optional<Frame> find_in(const KeyPiece& piece, TraceFrameKind kind, const MessageKey& key,
                             Status* fault) {
  const auto frame_at = [&](size_t i) -> std::optional<Frame> {
    auto frame = piece.segment->frame(piece.positions[i], kind);
    if (frame.ok()) return *frame;
    if (fault != nullptr && fault->ok()) *fault = frame.error();
    return std::nullopt;
  };
  size_t low = 0;
  size_t high = piece.positions.size();
  if (piece.first_incarnation == piece.last_incarnation) {
    if (key.sequence < piece.first || key.sequence > piece.last) return std::nullopt;
    const uint64_t guess = key.sequence - piece.first;
    if (guess < high) {
      const auto frame = frame_at(static_cast<size_t>(guess));
      if (!frame) return std::nullopt;
      if (key_of(*frame).matches(key)) return frame;
    }
  }
  while (low < high) {
    const size_t middle = low + (high - low) / 2;
    const auto frame = frame_at(middle);
    if (!frame) return std::nullopt;
    const FrameKey found = key_of(*frame);
    if (found.matches(key)) return frame;
    if (found.is_before(key))
      low = middle + 1;
    else
      high = middle;
  }
  return std::nullopt;
}

bool may_hold(const KeyPiece& piece, const MessageKey& key) {
  return key.incarnation >= piece.first_incarnation && key.incarnation <= piece.last_incarnation &&
         (piece.first_incarnation != piece.last_incarnation ||
          (key.sequence >= piece.first && key.sequence <= piece.last));
}

/// Visits the pieces that may contain a key, newest first. Most pieces are in order.
template <class Visit>
void newest_first(const std::vector<KeyPiece>& pieces, const MessageKey& key, const Visit& visit) {
  auto end = std::partition_point(pieces.begin(), pieces.end(), [&](const KeyPiece& piece) {
    return std::pair(piece.first_incarnation, piece.first) <=
           std::pair(key.incarnation, key.sequence);
  });
  // The sequences of a piece with several incarnations are not in order, so its neighbours are
  // visited, too.
  for (size_t i = 0; i < 2 && end != pieces.end(); ++i) ++end;
  for (auto it = end; it != pieces.begin();) {
    --it;
    if (may_hold(*it, key) && visit(*it)) return;
  }
}

Result<std::vector<std::byte>> read_blob(const std::filesystem::path& folder,
                                         const PayloadParts::Part& part) {
  ContentHash hash;
  std::memcpy(hash.data(), part.bytes.data(), hash.size());
  const ContentStore store(folder / "blobs");
  auto bytes = store.load(hash);
  if (!bytes.ok() && bytes.error().code() == Code::kNotFound)
    return error(Code::kCorrupt, "blob '{}' is missing", to_hex(hash));
  if (bytes.ok() && bytes->size() != part.num_bytes)
    return error(Code::kCorrupt, "blob '{}' has {} bytes, {} were recorded", to_hex(hash),
                 bytes->size(), part.num_bytes);
  return bytes;
}

Result<std::vector<std::byte>> read_part(const std::filesystem::path& folder,
                                         const PayloadParts::Part& part) {
  if (part.in_store) return read_blob(folder, part);
  return std::vector<std::byte>(part.bytes.begin(), part.bytes.end());
}

}  // namespace

bool OpenTrace::is_complete() const {
  for (const TraceFault& fault : faults_)
    if (fault.is_fault()) return false;
  return std::ranges::all_of(groups_, [](const OfGroup& group) {
    return group.steps.empty() || group.steps[0].first == 1;
  });
}

bool OpenTrace::begins_with_cut() const {
  return std::ranges::any_of(files_.starts.front().base_steps,
                             [](const auto& steps) { return steps.has_value(); });
}

uint64_t OpenTrace::first_step(GroupId group) const {
  const auto& steps = groups_[group.index()].steps;
  return steps.empty() ? 0 : steps.front().first;
}

uint64_t OpenTrace::last_step(GroupId group) const {
  const auto& steps = groups_[group.index()].steps;
  return steps.empty() ? 0 : steps.back().last;
}

const StepPiece* OpenTrace::piece_of(GroupId group, uint64_t step) const {
  if (group.index() >= groups_.size()) return nullptr;
  const auto& steps = groups_[group.index()].steps;
  const auto after = std::ranges::upper_bound(steps, step, {}, &StepPiece::first);
  if (after == steps.begin()) return nullptr;
  const StepPiece& piece = *std::prev(after);
  return step <= piece.last ? &piece : nullptr;
}

std::optional<Frame> OpenTrace::frame_of(GroupId group, uint64_t step,
                                         const TraceSegment** where) const {
  const StepPiece* piece = piece_of(group, step);
  if (piece == nullptr) return std::nullopt;
  const uint32_t position = piece->positions[step - piece->positions_first];
  if (position == 0) return std::nullopt;
  const auto frame = piece->segment->frame(position, TraceFrameKind::kDelivery);
  if (!frame.ok()) return std::nullopt;
  const auto& delivery = frame->as<DeliveryFrame>();
  if (delivery.step != step || delivery.header.group != group.value) return std::nullopt;
  if (where != nullptr) *where = piece->segment;
  return *frame;
}

std::optional<TraceStep> OpenTrace::step(GroupId group, uint64_t step) const {
  const auto frame = frame_of(group, step, nullptr);
  if (!frame || !is_of(files_.catalog, frame->as<DeliveryFrame>())) return std::nullopt;
  return step_of(frame->as<DeliveryFrame>());
}

std::optional<TraceStep> Trace::delivered_step(const MessageKey& key) const {
  const auto handled = delivery(key);
  if (!handled) return std::nullopt;
  return step(GroupId(catalog().instances[handled->instance.index()].group), handled->step);
}

void Trace::visit_notes(
    GroupId group, uint64_t step,
    const std::function<void(NoteKind, InstanceId, std::span<const std::byte>)>& visitor) const {
  for (const NondeterministicInput& note : notes(group, step))
    visitor(note.kind, note.instance, note.bytes);
}

template <class Visit>
void OpenTrace::for_frames_of_step(const std::vector<KeyPiece>& pieces, TraceFrameKind kind,
                                   GroupId group, uint64_t step, const Visit& visit) const {
  const StepPiece* of_step = piece_of(group, step);
  for (const KeyPiece& piece : pieces) {
    if (step < piece.first || step > piece.last) continue;
    if (of_step != nullptr && !of_step->segment->continues(*piece.segment)) continue;
    const auto frame_of_step = [&](uint32_t position) -> std::optional<Frame> {
      auto frame = piece.segment->frame(position, kind);
      if (!frame.ok() || step_in(*frame) != step || frame->header().group != group.value)
        return std::nullopt;
      return *frame;
    };
    const auto positions = piece.positions;
    auto begin = positions.end();
    // A step's frames are before its delivery, and those of later steps are after it. So they are
    // found without reading frames.
    if (of_step != nullptr && of_step->segment == piece.segment) {
      const uint32_t delivery = of_step->positions[step - of_step->positions_first];
      const auto end = std::lower_bound(positions.begin(), positions.end(), delivery);
      for (begin = end; begin != positions.begin() && frame_of_step(*std::prev(begin));) --begin;
      if (begin == end) begin = positions.end();
    }
    // This does not hold in an excerpt, or when the delivery is in the next segment.
    if (begin == positions.end())
      begin = std::partition_point(positions.begin(), positions.end(), [&](uint32_t position) {
        const auto frame = piece.segment->frame(position, kind);
        return frame.ok() && step_in(*frame) < step;
      });
    for (auto it = begin; it != positions.end(); ++it) {
      const auto frame = frame_of_step(*it);
      if (!frame) break;
      visit(*frame);
    }
  }
}

/// Removes from the totals the messages that steps from `first` on have stored.
void OpenTrace::subtract_payloads(const OfGroup& group, uint64_t first) {
  if (group.steps.empty()) return;
  const GroupId id(static_cast<uint32_t>(&group - groups_.data()));
  const auto take_out_payload = [this](const Frame& frame) {
    const auto& payload = frame.as<PayloadFrame>();
    if (!is_of(files_.catalog, payload)) return;
    --summary_.num_payloads;
    --summary_.links[payload.link].num_stored;
  };
  // The interrupted step stored messages, but was not recorded itself.
  const StepPiece newest = group.steps.back();
  std::vector<KeyPiece> stored;
  for (const KeyPiece& piece : group.emissions)
    if (piece.segment->start == newest.segment->start) stored.push_back(piece);
  for (uint64_t step = first; step <= newest.last + 1; ++step)
    for_frames_of_step(stored, TraceFrameKind::kPayload, id, step, take_out_payload);
}

void OpenTrace::visit_notes(
    GroupId group, uint64_t step,
    const std::function<void(NoteKind, InstanceId, std::span<const std::byte>)>& visitor) const {
  if (group.index() >= groups_.size()) return;
  for_frames_of_step(groups_[group.index()].notes, TraceFrameKind::kNote, group, step,
                     [&](const Frame& frame) {
                       const auto bytes = frame.after<NoteFrame>();
                       const auto& note = frame.as<NoteFrame>();
                       visitor(static_cast<NoteKind>(note.header.count), InstanceId(note.instance),
                               bytes.first(std::min<size_t>(note.num_bytes, bytes.size())));
                     });
}

std::vector<NondeterministicInput> OpenTrace::notes(GroupId group, uint64_t step) const {
  std::vector<NondeterministicInput> notes;
  visit_notes(group, step,
              [&](NoteKind kind, InstanceId instance, std::span<const std::byte> bytes) {
                notes.push_back({kind, instance, {bytes.begin(), bytes.end()}});
              });
  return notes;
}

std::optional<Time> OpenTrace::started(GroupId group) const {
  if (group.index() >= groups_.size()) return std::nullopt;
  for (const KeyPiece& piece : groups_[group.index()].lifecycle)
    for (const uint32_t position : piece.positions) {
      const auto frame = piece.segment->frame(position, TraceFrameKind::kLifecycle);
      if (!frame.ok() || frame->header().group != group.value) continue;
      if (frame->header().count == static_cast<uint16_t>(LifecycleKind::kGroupStarted))
        return Time::from_nanoseconds(frame->as<LifecycleFrame>().at_ns);
    }
  return std::nullopt;
}

std::optional<Frame> OpenTrace::find_delivery(const MessageKey& key) const {
  if (key.link.index() >= links_.size()) return std::nullopt;
  std::optional<Frame> found;
  newest_first(links_[key.link.index()].deliveries, key, [&](const KeyPiece& piece) {
    const auto frame = find_in(piece, TraceFrameKind::kDelivery, key, nullptr);
    if (!frame) return false;
    const auto& delivery = frame->as<DeliveryFrame>();
    if (!is_of(files_.catalog, delivery)) return false;
    // If a later incarnation recorded it again, only the entry in the table of steps counts.
    const StepPiece* counted = piece_of(GroupId(delivery.header.group), delivery.step);
    if (counted == nullptr || counted->segment != piece.segment) return false;
    const uint64_t position = counted->positions[delivery.step - counted->positions_first];
    if (position * kFrameAlignment != frame->offset) return false;
    found = frame;
    return true;
  });
  return found;
}

std::optional<StepRef> OpenTrace::delivery(const MessageKey& key) const {
  const auto frame = find_delivery(key);
  if (!frame) return std::nullopt;
  const auto& delivery = frame->as<DeliveryFrame>();
  return StepRef{InstanceId(delivery.instance), delivery.step};
}

std::optional<TraceStep> OpenTrace::delivered_step(const MessageKey& key) const {
  const auto frame = find_delivery(key);
  if (!frame) return std::nullopt;
  return step_of(frame->as<DeliveryFrame>());
}

/// Whether the step that stored a payload is part of the run. It is not if it comes after the cut
/// from which a later start resumed.
bool OpenTrace::is_of_run(const PayloadFrame& payload, const TraceSegment& segment) const {
  for (size_t start = segment.start + 1; start < files_.starts.size(); ++start)
    if (const auto& base = files_.starts[start].base_steps[payload.header.group];
        base && payload.step > *base)
      return false;
  return true;
}

std::optional<Frame> OpenTrace::find_payload(const MessageKey& key, Status* fault,
                                             const TraceSegment** where) const {
  if (key.link.index() >= links_.size()) return std::nullopt;
  std::optional<Frame> found;
  newest_first(links_[key.link.index()].payloads, key, [&](const KeyPiece& piece) {
    auto frame = find_in(piece, TraceFrameKind::kPayload, key, fault);
    if (!frame || !is_of(files_.catalog, frame->as<PayloadFrame>()) ||
        !is_of_run(frame->as<PayloadFrame>(), *piece.segment))
      return false;
    found = *frame;
    if (where != nullptr) *where = piece.segment;
    return true;
  });
  return found;
}

bool OpenTrace::has_payload(const MessageKey& key) const {
  return find_payload(key, nullptr).has_value();
}

Result<StoredPayload> OpenTrace::payload(const MessageKey& key) const {
  Status fault;
  const TraceSegment* where = nullptr;
  const auto frame = find_payload(key, &fault, &where);
  if (!frame && !fault.ok()) return fault.error();
  if (!frame) return error(Code::kNotFound, "not stored");
  const auto& fixed = frame->as<PayloadFrame>();
  ASSIGN_OR_RETURN(const PayloadParts parts, payload_parts(*frame));
  StoredPayload payload;
  payload.key = key;
  if (is_sent_by(files_.catalog, fixed)) {
    payload.sender_group = GroupId(fixed.header.group);
    payload.step = fixed.step;
  }
  payload.sent_at = Time::from_nanoseconds(fixed.sent_at_ns);
  payload.tenant = TenantSlot(fixed.tenant);
  payload.origin = InstanceId(fixed.origin);
  payload.cause = {InstanceId(fixed.cause_instance), fixed.cause_step};
  payload.type = fixed.type;
  payload.payload_check = fixed.payload_check;
  ASSIGN_OR_RETURN(payload.body, read_part(where->folder(), parts.body));
  for (const auto& part : parts.blobs) {
    ASSIGN_OR_RETURN(auto bytes, read_part(where->folder(), part));
    payload.blobs.emplace_back(std::move(bytes));
  }
  return payload;
}

std::vector<MessageKey> OpenTrace::stored_emissions(GroupId group, uint64_t step) const {
  std::vector<MessageKey> keys;
  if (group.index() >= groups_.size()) return keys;
  for_frames_of_step(
      groups_[group.index()].emissions, TraceFrameKind::kPayload, group, step,
      [&](const Frame& frame) {
        const auto& payload = frame.as<PayloadFrame>();
        if (is_of(files_.catalog, payload) && is_sent_by(files_.catalog, payload))
          keys.push_back({LinkId(payload.link), payload.incarnation, payload.sequence});
      });
  return keys;
}

std::optional<Trace::Digest> OpenTrace::digest(GroupId group, uint64_t block) const {
  const OfGroup& of = groups_[group.index()];
  for (const auto& [first, last] : of.replaced)
    if (first / kDigestSteps <= block && block <= last / kDigestSteps) return std::nullopt;
  if (of.digests.empty() && !of.steps.empty()) return std::nullopt;
  if (block < of.first_block || block - of.first_block >= of.digests.size()) return Digest{};
  return of.digests[block - of.first_block];
}

void OpenTrace::visit(Time from, Time to,
                      const std::function<bool(const TraceStep&)>& visitor) const {
  /// The next existing step of one group.
  const auto next_of = [&](GroupId group, uint64_t step) -> std::optional<TraceStep> {
    const auto& pieces = groups_[group.index()].steps;
    for (auto it = std::ranges::lower_bound(pieces, step, {}, &StepPiece::last); it != pieces.end();
         ++it)
      for (uint64_t at = std::max(step, it->first); at <= it->last; ++at)
        if (auto found = this->step(group, at)) return found;
    return std::nullopt;
  };
  const auto later = [](const TraceStep& a, const TraceStep& b) {
    return std::tuple(a.began, a.group, a.step) > std::tuple(b.began, b.group, b.step);
  };
  std::priority_queue<TraceStep, std::vector<TraceStep>, decltype(later)> heads(later);
  for (uint32_t h = 0; h < groups_.size(); ++h) {
    const GroupId group(h);
    if (groups_[h].steps.empty()) continue;
    // The clock of a group never goes back, so binary search finds the first step at or after
    // `from`.
    uint64_t low = first_step(group);
    uint64_t high = last_step(group) + 1;
    while (low < high) {
      const uint64_t middle = low + (high - low) / 2;
      const auto found = next_of(group, middle);
      if (found && found->began < from)
        low = found->step + 1;
      else
        high = middle;
    }
    if (const auto found = next_of(group, low)) heads.push(*found);
  }
  while (!heads.empty()) {
    const TraceStep step = heads.top();
    heads.pop();
    if (step.began > to) continue;
    if (!visitor(step)) return;
    if (const auto found = next_of(step.group, step.step + 1)) heads.push(*found);
  }
}

Result<std::shared_ptr<const Trace>> Trace::open(const std::filesystem::path& folder) {
  ASSIGN_OR_RETURN(TraceFiles files, find_trace_files(folder, nullptr));
  return std::shared_ptr<const Trace>(std::make_shared<OpenTrace>(std::move(files)));
}

Result<std::shared_ptr<const Trace>> Trace::open(const std::filesystem::path& folder,
                                                 const Part& part) {
  ASSIGN_OR_RETURN(TraceFiles files, find_trace_files(folder, &part));
  return std::shared_ptr<const Trace>(std::make_shared<OpenTrace>(std::move(files)));
}

}  // namespace primerl
