/// The note of a tenant event: a tenant joins, starts, pauses, continues or leaves a slot of a
/// running graph (docs/design/hosted.md). It has the layout of a command's note: the name and the
/// schema of TenantChange, and its fields. So it can be read without the program that wrote it.
///
/// The table of a join has every value that a replay needs to make the tenant again. No option of
/// a tenant holds a secret: an option may name the environment variable that has one. Any thread.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "graph/base/json.h"
#include "graph/tenant_change.h"

namespace primerl {

/// Most bytes of such a note. A table is at most about this long.
inline constexpr size_t kTenantNoteBytesMax = size_t{1} << 20;

/// kExhausted when the table is too long for a note: such a tenant cannot be recorded.
Result<std::vector<std::byte>> write_tenant_note(const TenantChange& change);
/// kCorrupt when the bytes are not such a note; kInvalid when it was written by a program whose
/// events have other fields.
Result<TenantChange> read_tenant_note(std::span<const std::byte> bytes);
/// DeliveryFrame::payload_check of such a step: equal events have equal checks.
struct TenantCheck {
  uint64_t value = 0;
  uint64_t num_bytes = 0;
};
TenantCheck tenant_check(const TenantChange& change);

}  // namespace primerl
