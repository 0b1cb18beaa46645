#include "runtime/trace/read/index_builder.h"

#include <algorithm>
#include <cstring>

#include "graph/base/random.h"
#include "graph/tenancies.h"
#include "runtime/trace/payload_frame.h"
#include "runtime/wire/payload_check.h"

namespace primerl {
namespace {

/// A gap of this many steps or more begins a new run of positions. So a forged step number cannot
/// make the table large.
constexpr uint64_t kJumpMax = 1024;

uint32_t position_of(const Frame& frame) {
  return static_cast<uint32_t>(frame.offset / kFrameAlignment);
}

bool is_index(uint32_t number, size_t size) { return number < size; }
bool is_index_or_none(uint32_t number, size_t size) {
  return number == UINT32_MAX || number < size;
}

void add_digest(std::map<uint64_t, uint64_t>& sums, uint64_t step, uint64_t digest) {
  sums[step / kDigestSteps] += digest;
}

/// Adds a section's items and describes it; the offset is filled in by the writer.
template <class T>
void append(std::vector<uint64_t>& out, IndexSection& section, std::span<const T> items) {
  section.offset = out.size() * sizeof(uint64_t);
  section.count = items.size();
  const size_t num_words = (items.size_bytes() + 7) / 8;
  out.resize(out.size() + num_words);
  std::memcpy(out.data() + out.size() - num_words, items.data(), items.size_bytes());
}

/// Collects sections and their items; items follow all sections.
class Writer {
 public:
  template <class T>
  void add(IndexSection section, std::span<const T> items) {
    if (items.empty()) return;
    append(items_, section, items);
    sections_.push_back(section);
  }
  template <class T>
  void add(IndexKind kind, uint32_t id, std::span<const T> items) {
    add(IndexSection{kind, id, 0, 0, 0, 0, 0, 0, 0}, items);
  }
  /// The sections in order, then the items.
  void finish(IndexHeader header, std::vector<uint64_t>& out) {
    std::ranges::stable_sort(sections_, {}, [](const IndexSection& section) {
      return std::pair(section.kind, section.id);
    });
    const size_t prefix = sizeof(IndexHeader) + sections_.size() * sizeof(IndexSection);
    for (auto& section : sections_) section.offset += prefix;
    header.num_sections = static_cast<uint32_t>(sections_.size());
    header.num_bytes = prefix + items_.size() * sizeof(uint64_t);
    out.resize(header.num_bytes / sizeof(uint64_t));
    auto* at = reinterpret_cast<std::byte*>(out.data());
    std::memcpy(at, &header, sizeof header);
    if (!sections_.empty())
      std::memcpy(at + sizeof header, sections_.data(), sections_.size() * sizeof(IndexSection));
    if (!items_.empty()) std::memcpy(at + prefix, items_.data(), items_.size() * sizeof(uint64_t));
  }

 private:
  std::vector<IndexSection> sections_;
  std::vector<uint64_t> items_;
};

template <class Keyed>
std::pair<IndexSection, std::vector<uint32_t>> by_sequence(IndexKind kind, uint32_t link,
                                                           std::vector<Keyed> items) {
  // Already in file order, unless the file was forged.
  if (!std::is_sorted(items.begin(), items.end())) std::sort(items.begin(), items.end());
  std::vector<uint32_t> positions;
  positions.reserve(items.size());
  for (const auto& item : items) positions.push_back(item.position);
  IndexSection section{kind, link, 0, 0, 0, 0, 0, 0, 0};
  if (!items.empty()) {
    section.first_incarnation = items.front().incarnation;
    section.last_incarnation = items.back().incarnation;
    const auto sequence = [](const Keyed& item) { return item.sequence; };
    section.first = std::ranges::min(items, {}, sequence).sequence;
    section.last = std::ranges::max(items, {}, sequence).sequence;
  }
  return {section, std::move(positions)};
}

template <class Stepped>
std::pair<IndexSection, std::vector<uint32_t>> by_step(IndexKind kind, uint32_t group,
                                                       std::vector<Stepped> items) {
  if (!std::is_sorted(items.begin(), items.end())) std::sort(items.begin(), items.end());
  std::vector<uint32_t> positions;
  for (const auto& item : items) positions.push_back(item.position);
  IndexSection section{kind, group, 0, 0, 0, 0, 0, 0, 0};
  if (!items.empty()) {
    section.first = items.front().step;
    section.last = items.back().step;
  }
  return {section, std::move(positions)};
}

void write_digests(Writer& writer, IndexKind kind, uint32_t group,
                   const std::map<uint64_t, uint64_t>& sums) {
  // One section per run of consecutive blocks.
  std::vector<uint64_t> stretch;
  uint64_t first = 0;
  const auto flush = [&] {
    if (stretch.empty()) return;
    writer.add(IndexSection{kind, group, 0, 0, first, first + stretch.size() - 1, 0, 0, 0},
               std::span<const uint64_t>(stretch));
    stretch.clear();
  };
  for (const auto& [block, sum] : sums) {
    if (!stretch.empty() && block != first + stretch.size()) flush();
    if (stretch.empty()) first = block;
    stretch.push_back(sum);
  }
  flush();
}

}  // namespace

uint64_t digest_of(const DeliveryFrame& frame) {
  struct {
    uint64_t step, sequence, cause_step, sender_step, check;
    uint32_t instance, subject, incarnation, tenant, type, cause_instance, bytes, origin;
    uint32_t kind, flags, count, zero;
  } same{};
  same.step = frame.step;
  same.sequence = frame.sequence;
  same.cause_step = frame.cause_step;
  same.sender_step = frame.sender_step;
  same.check = frame.payload_check;
  same.instance = frame.instance;
  same.subject = frame.subject;
  same.incarnation = frame.incarnation;
  same.tenant = frame.tenant;
  same.type = frame.type;
  same.cause_instance = frame.cause_instance;
  same.bytes = frame.payload_bytes;
  same.origin = frame.origin;
  same.kind = frame.step_kind;
  same.flags = frame.header.flags & (kFailed | kAbandoned | kInjected | kNotChecked | kGivenUp);
  same.count = frame.header.count;
  return hash_bytes(std::as_bytes(std::span(&same, 1)), frame.header.group);
}

uint64_t digest_of(const Frame& payload) {
  const auto& frame = payload.as<PayloadFrame>();
  struct {
    uint64_t step, sequence, cause_step, check;
    uint32_t link, incarnation, tenant, type, cause_instance, origin, flags, count;
  } same{};
  same.step = frame.step;
  same.sequence = frame.sequence;
  same.cause_step = frame.cause_step;
  same.check = frame.payload_check;
  same.link = frame.link;
  same.incarnation = frame.incarnation;
  same.tenant = frame.tenant;
  same.type = frame.type;
  same.cause_instance = frame.cause_instance;
  same.origin = frame.origin;
  same.flags = frame.header.flags;
  same.count = frame.header.count;
  return hash_bytes(payload.after<PayloadFrame>(),
                    hash_bytes(std::as_bytes(std::span(&same, 1)), frame.header.group));
}

bool is_of(const TraceCatalog& catalog, const DeliveryFrame& frame) {
  const size_t num_instances = catalog.instances.size();
  if (!is_index(frame.header.group, catalog.groups.size()) || frame.step == 0 ||
      frame.step > kNumberMax || frame.step_kind >= kNumStepKinds ||
      !is_index_or_none(frame.instance, num_instances) ||
      !is_index_or_none(frame.origin, num_instances) ||
      !is_index_or_none(frame.cause_instance, num_instances) ||
      !is_index_or_none(frame.tenant, catalog.tenants.size()) ||
      !is_index_or_none(frame.type, catalog.types.size()))
    return false;
  if (frame.instance != UINT32_MAX && catalog.instances[frame.instance].group != frame.header.group)
    return false;
  switch (static_cast<StepKind>(frame.step_kind)) {
    case StepKind::kMessage:
      return frame.sequence <= kNumberMax && is_index(frame.subject, catalog.links.size()) &&
             is_index(frame.type, catalog.types.size()) &&
             catalog.links[frame.subject].target == frame.instance;
    case StepKind::kTimer:
      return frame.instance != UINT32_MAX &&
             is_index(frame.subject, catalog.instances[frame.instance].timers.size());
    case StepKind::kPeer:
      return is_index_or_none(frame.subject, num_instances);
    case StepKind::kCommand:
      return frame.instance != UINT32_MAX;
    case StepKind::kTenant:
      return frame.instance == UINT32_MAX && is_index(frame.tenant, catalog.tenants.size()) &&
             frame.subject <= static_cast<uint32_t>(TenantChange::Kind::kSet) &&
             frame.sequence <= kTenancyMax;
    case StepKind::kWork:
    case StepKind::kDrain:
      return true;
  }
  return false;
}

bool is_of(const TraceCatalog& catalog, const PayloadFrame& frame) {
  const size_t num_instances = catalog.instances.size();
  return is_index(frame.header.group, catalog.groups.size()) && frame.step > 0 &&
         frame.step <= kNumberMax && frame.sequence <= kNumberMax &&
         is_index(frame.link, catalog.links.size()) && is_index(frame.type, catalog.types.size()) &&
         is_index_or_none(frame.tenant, catalog.tenants.size()) &&
         is_index_or_none(frame.origin, num_instances) &&
         is_index_or_none(frame.cause_instance, num_instances) &&
         (catalog.instances[catalog.links[frame.link].sender].group == frame.header.group ||
          catalog.instances[catalog.links[frame.link].target].group == frame.header.group);
}

IndexBuilder::IndexBuilder(const TraceCatalog& catalog)
    : catalog_(catalog), groups_(catalog.groups.size()), links_(catalog.links.size()) {
  for (const auto& type : catalog.types) {
    auto& entry = version_schemas_.emplace_back();
    auto schema = read_schema(type.schema);
    if (schema.ok() && schema->has_version) entry = std::move(schema).value();
  }
  header_.first_ns = INT64_MAX;
  header_.last_ns = INT64_MIN;
}

void IndexBuilder::add(const Frame& frame) {
  header_.end_offset = SegmentReader::next_offset(frame);
  const uint32_t group = frame.header().group;
  switch (frame.kind()) {
    case TraceFrameKind::kDelivery:
      return add_delivery(frame);
    case TraceFrameKind::kPayload:
      return add_payload(frame);
    case TraceFrameKind::kCatalog:
      if (header_.catalog_hash == 0)
        header_.catalog_hash = hash_bytes(frame.bytes.subspan(sizeof(TraceFrameHeader)), 1);
      return;
    case TraceFrameKind::kEnd:
      header_.has_end = 1;
      return;
    case TraceFrameKind::kGap:
      gaps_.push_back(position_of(frame));
      return;
    case TraceFrameKind::kSync:
      return;
    case TraceFrameKind::kNote:
      if (group >= groups_.size() || frame.as<NoteFrame>().step > kNumberMax) break;
      groups_[group].notes.push_back({frame.as<NoteFrame>().step, position_of(frame)});
      return;
    case TraceFrameKind::kLifecycle:
      if (group >= groups_.size() || frame.as<LifecycleFrame>().step > kNumberMax) break;
      groups_[group].lifecycle.push_back({frame.as<LifecycleFrame>().step, position_of(frame)});
      return;
  }
  ++header_.num_strange;
}

void IndexBuilder::add_step(OfGroup& group, uint64_t step, uint32_t position) {
  const bool goes_on =
      !group.runs.empty() && step >= group.runs.back().first + group.runs.back().positions.size() &&
      step < group.runs.back().first + group.runs.back().positions.size() + kJumpMax;
  if (!goes_on) group.runs.push_back({step, {}});
  auto& run = group.runs.back();
  run.positions.resize(step - run.first);
  run.positions.push_back(position);
}

void IndexBuilder::add_delivery(const Frame& frame) {
  const auto& delivery = frame.as<DeliveryFrame>();
  if (!is_of(catalog_, delivery)) {
    ++header_.num_strange;
    return;
  }
  OfGroup& group = groups_[delivery.header.group];
  add_step(group, delivery.step, position_of(frame));
  add_digest(group.step_digests, delivery.step, digest_of(delivery));
  const bool is_failed = (delivery.header.flags & kFailed) != 0;
  GroupStats& steps = group.stats[delivery.step_kind];
  ++steps.num_steps;
  steps.num_failed += is_failed;
  steps.num_abandoned += (delivery.header.flags & kAbandoned) != 0;
  steps.num_emissions += delivery.header.count;
  steps.busy_us += delivery.duration_us;
  steps.handler_us.add(delivery.duration_us);
  ++header_.num_deliveries;
  header_.first_ns = std::min(header_.first_ns, delivery.began_ns);
  header_.last_ns = std::max(header_.last_ns, delivery.began_ns);
  if (delivery.step_kind == static_cast<uint8_t>(StepKind::kTenant)) {
    group.tenant_steps.push_back({delivery.step, position_of(frame)});
    // Versions of the next tenant of the slot begin anew.
    if (delivery.subject == static_cast<uint32_t>(TenantChange::Kind::kJoin))
      newest_.erase(delivery.tenant);
  }
  if (delivery.step_kind != static_cast<uint8_t>(StepKind::kMessage)) return;
  OfLink& link = links_[delivery.subject];
  LinkStats& stats = link.stats;
  if (!link.deliveries.empty() && link.deliveries.back().incarnation == delivery.incarnation &&
      link.deliveries.back().sequence < delivery.sequence)
    stats.num_skipped += delivery.sequence - link.deliveries.back().sequence - 1;
  link.deliveries.push_back({delivery.incarnation, delivery.sequence, position_of(frame)});
  if (stats.num_messages++ == 0) stats.first_ns = delivery.began_ns;
  stats.last_ns = delivery.began_ns;
  stats.num_bytes += delivery.payload_bytes;
  stats.num_failed += is_failed;
  stats.busy_us += delivery.duration_us;
  stats.handler_us.add(delivery.duration_us);
}

void IndexBuilder::add_payload(const Frame& frame) {
  const auto& payload = frame.as<PayloadFrame>();
  if (!is_of(catalog_, payload)) {
    ++header_.num_strange;
    return;
  }
  OfGroup& group = groups_[payload.header.group];
  group.emissions.push_back({payload.step, position_of(frame)});
  add_digest(group.payload_digests, payload.step, digest_of(frame));
  links_[payload.link].payloads.push_back(
      {payload.incarnation, payload.sequence, position_of(frame)});
  ++header_.num_payloads;
  header_.payload_bytes += frame.bytes.size() - sizeof(PayloadFrame);
  note_versions(frame);
  note_blobs(frame);
}

void IndexBuilder::note_versions(const Frame& frame) {
  const auto& payload = frame.as<PayloadFrame>();
  const auto& schema = version_schemas_[payload.type];
  if (!schema || payload.tenant == UINT32_MAX || payload.header.count > 0) return;
  const auto parts = payload_parts(frame);
  if (!parts.ok() || parts->body.in_store) return;
  const auto versions = body_versions(*schema, parts->body.bytes, {});
  if (!versions.ok()) return;
  for (const int64_t version : *versions) {
    const auto known = newest_.find(payload.tenant);
    if (known != newest_.end() && known->second >= version) continue;
    newest_[payload.tenant] = version;
    versions_.push_back({payload.sent_at_ns, version, payload.tenant, 0});
  }
}

void IndexBuilder::note_blobs(const Frame& frame) {
  const auto parts = payload_parts(frame);
  if (!parts.ok()) {
    ++header_.num_strange;
    return;
  }
  const auto note = [this](const PayloadParts::Part& part) {
    if (!part.in_store) return;
    std::array<std::byte, 32> hash;
    std::memcpy(hash.data(), part.bytes.data(), hash.size());
    blobs_.insert(hash);
  };
  note(parts->body);
  for (const auto& blob : parts->blobs) note(blob);
}

IndexHeader IndexBuilder::finish(SegmentReader& reader) {
  for (const Damage& damage : reader.damage())
    damage_.push_back({damage.offset, damage.num_bytes, damage.is_hole, damage.is_tail});
  const SegmentHeader& segment = reader.header();
  header_.run_id = segment.run_id;
  header_.seed = segment.seed;
  header_.previous_seed = segment.previous_seed;
  header_.number = segment.number;
  header_.process = segment.process;
  header_.incarnation = segment.incarnation;
  return header_;
}

void IndexBuilder::write(IndexHeader header, std::vector<uint64_t>& out) const {
  Writer writer;
  const auto add = [&](const std::pair<IndexSection, std::vector<uint32_t>>& part) {
    writer.add(part.first, std::span<const uint32_t>(part.second));
  };
  for (uint32_t h = 0; h < groups_.size(); ++h) {
    const OfGroup& group = groups_[h];
    for (const Run& run : group.runs) {
      IndexSection section{IndexKind::kSteps, h, 0, 0, run.first, 0, 0, 0, 0};
      section.last = run.first + run.positions.size() - 1;
      section.num_missing = static_cast<uint64_t>(std::ranges::count(run.positions, 0U));
      writer.add(section, std::span<const uint32_t>(run.positions));
    }
    add(by_step(IndexKind::kEmissions, h, group.emissions));
    add(by_step(IndexKind::kNotes, h, group.notes));
    add(by_step(IndexKind::kLifecycle, h, group.lifecycle));
    add(by_step(IndexKind::kTenantSteps, h, group.tenant_steps));
    write_digests(writer, IndexKind::kStepDigests, h, group.step_digests);
    write_digests(writer, IndexKind::kPayloadDigests, h, group.payload_digests);
    const bool has_steps = !group.runs.empty();
    if (has_steps) writer.add(IndexKind::kGroupStats, h, std::span<const GroupStats>(group.stats));
  }
  for (uint32_t l = 0; l < links_.size(); ++l) {
    const OfLink& link = links_[l];
    add(by_sequence(IndexKind::kDeliveries, l, link.deliveries));
    add(by_sequence(IndexKind::kPayloads, l, link.payloads));
    if (link.stats.num_messages > 0)
      writer.add(IndexKind::kLinkStats, l, std::span<const LinkStats>(&link.stats, 1));
  }
  writer.add(IndexKind::kGaps, 0, std::span<const uint32_t>(gaps_));
  writer.add(IndexKind::kVersions, 0, std::span<const VersionMark>(versions_));
  writer.add(IndexKind::kDamage, 0, std::span<const IndexDamage>(damage_));
  const std::vector<std::array<std::byte, 32>> blobs(blobs_.begin(), blobs_.end());
  writer.add(IndexKind::kBlobs, 0, std::span<const std::array<std::byte, 32>>(blobs));
  writer.finish(header, out);
}

}  // namespace primerl
