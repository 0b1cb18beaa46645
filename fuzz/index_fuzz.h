/// One input of the index fuzzer: the bytes of an index file, parsed as untrusted.
/// tests/trace/decoder_fuzz_test.cc runs it over mutations of a real index.
///
/// A random change breaks the hash, so it is refused at once. Therefore every input is parsed
/// twice: unchanged, and with corrected size and hash, to test how the contents of the sections are
/// parsed.
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "runtime/trace/read/index.h"
#include "runtime/wire/payload_check.h"

namespace primerl {

/// Copies into memory with the alignment of a mapped file.
inline std::shared_ptr<std::vector<uint64_t>> aligned_copy(std::span<const std::byte> bytes) {
  auto copy = std::make_shared<std::vector<uint64_t>>((bytes.size() + 7) / 8);
  if (!bytes.empty()) std::memcpy(copy->data(), bytes.data(), bytes.size());
  return copy;
}

/// A copy with corrected size and hash.
inline std::vector<std::byte> with_good_hash(std::span<const std::byte> bytes) {
  std::vector<std::byte> good(bytes.begin(), bytes.end());
  if (good.size() < sizeof(IndexHeader)) return good;
  const uint64_t size = good.size();
  std::memcpy(good.data() + offsetof(IndexHeader, num_bytes), &size, sizeof size);
  const uint64_t hash = hash_bytes(
      std::span<const std::byte>(good).subspan(offsetof(IndexHeader, num_bytes)), kIndexVersion);
  std::memcpy(good.data() + offsetof(IndexHeader, hash), &hash, sizeof hash);
  return good;
}

/// Parses an index and touches every byte of its sections.
inline void read_hostile_index(std::span<const std::byte> bytes) {
  const auto owner = aligned_copy(bytes);
  const auto index =
      SegmentIndex::parse(owner, std::as_bytes(std::span(*owner)).first(bytes.size()));
  if (index == nullptr) return;
  uint64_t sum = 0;
  for (const IndexSection& section : index->sections()) {
    CHECK(!index->sections(section.kind).empty(), "a section that its kind does not have");
    CHECK(section.first <= section.last, "a section that ends before it begins");
    switch (section.kind) {
      case IndexKind::kSteps:
        CHECK(section.count == section.last - section.first + 1, "steps that are not dense");
        [[fallthrough]];
      case IndexKind::kDeliveries:
      case IndexKind::kPayloads:
      case IndexKind::kEmissions:
      case IndexKind::kNotes:
      case IndexKind::kLifecycle:
      case IndexKind::kGaps:
      case IndexKind::kTenantSteps:
        for (const uint32_t position : index->items<uint32_t>(section)) sum += position;
        break;
      case IndexKind::kStepDigests:
      case IndexKind::kPayloadDigests:
        for (const uint64_t digest : index->items<uint64_t>(section)) sum += digest;
        break;
      case IndexKind::kLinkStats:
        sum += index->items<LinkStats>(section).front().num_messages;
        break;
      case IndexKind::kGroupStats:
        for (const GroupStats& stats : index->items<GroupStats>(section)) sum += stats.num_steps;
        break;
      case IndexKind::kDamage:
        for (const IndexDamage& damage : index->items<IndexDamage>(section)) sum += damage.offset;
        break;
      case IndexKind::kVersions:
        for (const VersionMark& mark : index->items<VersionMark>(section)) sum += mark.tenant;
        break;
      case IndexKind::kBlobs:
        for (const auto& hash : index->items<std::array<std::byte, 32>>(section))
          sum += std::to_integer<uint64_t>(hash[31]);
        break;
    }
  }
  [[maybe_unused]] volatile uint64_t kept = sum;
}

inline void fuzz_index(std::span<const std::byte> bytes) {
  read_hostile_index(bytes);
  read_hostile_index(with_good_hash(bytes));
}

}  // namespace primerl
