#include "runtime/trace/read/index.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>

#include "graph/base/files.h"
#include "runtime/trace/read/index_builder.h"
#include "runtime/wire/payload_check.h"

namespace primerl {
namespace {

constexpr char kMagic[8] = {'P', 'R', 'M', 'L', 'I', 'D', 'X', '\n'};

size_t item_bytes(IndexKind kind) {
  switch (kind) {
    case IndexKind::kSteps:
    case IndexKind::kDeliveries:
    case IndexKind::kPayloads:
    case IndexKind::kEmissions:
    case IndexKind::kNotes:
    case IndexKind::kLifecycle:
    case IndexKind::kGaps:
    case IndexKind::kTenantSteps:
      return 4;
    case IndexKind::kStepDigests:
    case IndexKind::kPayloadDigests:
      return 8;
    case IndexKind::kLinkStats:
      return sizeof(LinkStats);
    case IndexKind::kGroupStats:
      return sizeof(GroupStats);
    case IndexKind::kDamage:
      return sizeof(IndexDamage);
    case IndexKind::kVersions:
      return sizeof(VersionMark);
    case IndexKind::kBlobs:
      return 32;
  }
  return 0;
}

/// Whether a section is inside the index and its fields are valid for its kind.
bool fits(const IndexSection& section, uint64_t num_bytes) {
  const size_t width = item_bytes(section.kind);
  if (width == 0 || section.offset % 8 != 0 || section.offset > num_bytes) return false;
  if (section.count > (num_bytes - section.offset) / width) return false;
  const bool is_dense = section.kind == IndexKind::kSteps ||
                        section.kind == IndexKind::kStepDigests ||
                        section.kind == IndexKind::kPayloadDigests;
  return section.first <= section.last && section.last <= kNumberMax &&
         (!is_dense || section.last - section.first == section.count - 1) &&
         (section.kind != IndexKind::kLinkStats || section.count == 1);
}

struct SourceFacts {
  int64_t mtime_ns = 0;
  uint64_t num_bytes = 0;
};
std::optional<SourceFacts> facts_of(const std::filesystem::path& file) {
  struct stat facts {};
  if (::stat(file.c_str(), &facts) != 0) return std::nullopt;
  return SourceFacts{facts.st_mtim.tv_sec * 1'000'000'000 + facts.st_mtim.tv_nsec,
                     static_cast<uint64_t>(facts.st_size)};
}

std::span<const std::byte> behind_hash(std::span<const std::byte> index) {
  return index.subspan(offsetof(IndexHeader, num_bytes));
}

}  // namespace

std::filesystem::path SegmentIndex::file_of(const std::filesystem::path& segment) {
  auto file = segment;
  return file.replace_extension(".index");
}

std::span<const IndexSection> SegmentIndex::sections(IndexKind kind) const {
  const auto order = [](const IndexSection& section) { return section.kind; };
  const auto found = std::ranges::equal_range(sections_, kind, {}, order);
  return {found.begin(), found.end()};
}

std::shared_ptr<const SegmentIndex> SegmentIndex::parse(std::shared_ptr<const void> owner,
                                                        std::span<const std::byte> bytes) {
  if (bytes.size() < sizeof(IndexHeader)) return nullptr;
  const auto* header = reinterpret_cast<const IndexHeader*>(bytes.data());
  if (std::memcmp(header->magic, kMagic, sizeof kMagic) != 0) return nullptr;
  if (header->version != kIndexVersion || header->num_bytes != bytes.size()) return nullptr;
  const size_t room = (bytes.size() - sizeof(IndexHeader)) / sizeof(IndexSection);
  if (header->num_sections > room) return nullptr;
  if (hash_bytes(behind_hash(bytes), kIndexVersion) != header->hash) return nullptr;
  std::shared_ptr<SegmentIndex> index(new SegmentIndex());
  index->owner_ = std::move(owner);
  index->bytes_ = bytes;
  index->header_ = header;
  index->sections_ = {reinterpret_cast<const IndexSection*>(header + 1), header->num_sections};
  const IndexSection* before = nullptr;
  for (const auto& section : index->sections_) {
    if (!fits(section, bytes.size())) return nullptr;
    if (before != nullptr &&
        std::pair(before->kind, before->id) > std::pair(section.kind, section.id))
      return nullptr;
    before = &section;
  }
  return index;
}

std::shared_ptr<const SegmentIndex> SegmentIndex::load(const std::filesystem::path& segment) {
  const auto source = facts_of(segment);
  const auto mapped = map_file(file_of(segment));
  if (!mapped.ok() || mapped->bytes.empty()) return nullptr;
  auto index = parse(mapped->owner, mapped->bytes);
  if (index == nullptr || !source) return nullptr;
  const bool is_fresh = index->header().source_mtime_ns == source->mtime_ns &&
                        index->header().source_bytes == source->num_bytes;
  return is_fresh ? index : nullptr;
}

void SegmentIndex::save(const std::filesystem::path& segment) const {
  const auto source = facts_of(segment);
  // If the segment grew while it was read, this index does not describe the current file.
  if (!source || source->mtime_ns != header_->source_mtime_ns ||
      source->num_bytes != header_->source_bytes)
    return;
  const auto file = file_of(segment);
  auto fresh = file;
  fresh += fmt::format(".{}.tmp", ::getpid());
  {
    std::ofstream stream(fresh, std::ios::binary | std::ios::trunc);
    stream.write(reinterpret_cast<const char*>(bytes_.data()),
                 static_cast<std::streamsize>(bytes_.size()));
    if (!stream.flush()) {
      std::error_code ignored;
      std::filesystem::remove(fresh, ignored);
      return;
    }
  }
  std::error_code fault;
  std::filesystem::rename(fresh, file, fault);
  if (fault) std::filesystem::remove(fresh, fault);
}

std::shared_ptr<const SegmentIndex> SegmentIndex::build(SegmentReader& reader,
                                                        const std::filesystem::path& segment,
                                                        const TraceCatalog& catalog) {
  // Read first, so that a later change makes the index stale.
  const auto source = facts_of(segment);
  IndexBuilder builder(catalog);
  for (auto frame = reader.next(0); frame; frame = reader.next(SegmentReader::next_offset(*frame)))
    builder.add(*frame);
  IndexHeader header = builder.finish(reader);
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.version = kIndexVersion;
  header.source_mtime_ns = source ? source->mtime_ns : 0;
  header.source_bytes = source ? source->num_bytes : 0;
  auto bytes = std::make_shared<std::vector<uint64_t>>();
  builder.write(header, *bytes);
  const std::span<std::byte> whole = std::as_writable_bytes(std::span(*bytes));
  auto* written = reinterpret_cast<IndexHeader*>(whole.data());
  written->hash = hash_bytes(behind_hash(whole), kIndexVersion);
  auto index = parse(bytes, whole);
  CHECK(index != nullptr, "a fresh index does not read back");
  return index;
}

}  // namespace primerl
