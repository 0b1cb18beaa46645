/// Tenancies: numbers of the uses of slots. A slot and a name are used again after a tenant has
/// left; the number distinguishes the uses (docs/design/hosted.md). A pair (slot, number) and a
/// pair (name, number) are given once in a run. The first use of a slot by a name that is new has
/// number 0, and then all keys, names and random numbers are those of a graph whose tenants never
/// leave.
///
/// At most kTenancyNamesMax names are known. Beyond it, the name whose newest number is smallest is
/// forgotten, and names that are not known get numbers above it. So no pair comes back.
///
/// Not thread-safe. json() is its whole state.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "graph/base/ids.h"
#include "graph/base/json.h"
#include "graph/base/result.h"
#include "graph/tenant.h"

namespace primerl {

/// Largest number of a use.
inline constexpr uint32_t kTenancyMax = (1U << 14) - 1;

/// Names that are known by their own numbers: more than the slots of a graph.
inline constexpr size_t kTenancyNamesMax = 4096;

class Tenancies {
 public:
  /// The number of the next use of `slot` by a tenant called `name`. kExhausted beyond kTenancyMax;
  /// then nothing changed.
  Result<uint32_t> begin(TenantSlot slot, const std::string& name);

  Json json() const;
  /// The state that json() wrote; kCorrupt if it is none.
  static Result<Tenancies> read(const Json& json);
  size_t num_names() const { return by_name_.size(); }

 private:
  void forget_a_name();

  std::map<TenantSlot, uint32_t> by_slot_;   // newest number
  std::map<std::string, uint32_t> by_name_;  // newest number
  std::optional<uint32_t> forgotten_;        // largest number of a name that was forgotten
};

/// Request and session numbers of a tenancy begin here: those of different tenancies of a slot are
/// different, and below 2^46, where those of other actors begin.
constexpr uint64_t first_request_of(uint32_t tenancy) { return uint64_t{tenancy} << 32; }

/// "alice", of a later use "alice~2": the tenant in names of files.
std::string tenancy_name(const Tenant& tenant);

/// The salt of KV blocks that is `salt` for the first tenant of a slot: "judge", "judge~2".
std::string tenancy_salt(std::string_view salt, const Tenant& tenant);

/// The key of the random numbers that a tenant draws under `seed`. It follows from the name, so a
/// tenant draws the same alone and beside others; and from the number, so a later use draws others.
uint64_t tenancy_key(const Tenant& tenant, uint64_t seed);

}  // namespace primerl
