/// TenantChange: a tenant joins, starts, pauses, continues or leaves a slot of a running graph, or
/// gets other values (docs/design/hosted.md). The control plane orders it; each group of the slot,
/// and each shared group, gets it as one control input, so the record has it at one position among
/// the steps.
///
/// Values, any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "graph/base/ids.h"

namespace primerl {

/// No use of a slot has this number. A report with it is about the tenant that has the slot.
inline constexpr uint32_t kTenancyUnknown = UINT32_MAX;

struct TenantChange {
  enum class Kind : uint8_t {
    kJoin,    // make the actors of the slot; they get no task yet
    kStart,   // every process has made them: sources may give tasks
    kPause,   // sources give no task; rollouts in flight end
    kResume,  // sources give tasks again
    kLeave,   // the slot has drained: destroy the actors and drop the keys
    kSet,     // values of the tenant are others from now on
  };
  Kind kind = Kind::kJoin;
  TenantSlot slot;
  uint32_t tenancy = 0;  // which use of the slot and name this is (graph/tenancies.h)
  std::string name;      // of the tenant
  std::string table;     // of kJoin: the tenant's table with all values, without secrets; of kSet:
                         // all values that were ever set, as text (graph/tenant_values.h)
  /// Of kJoin: the step of the checkpoint at which the tenant continues, because the run was
  /// resumed without its record; 0: it begins anew. The process fills it in, and the record has it.
  int64_t begins_at = 0;

  template <class F>
  static void fields(F& f) {
    using T = TenantChange;
    f("kind", &T::kind)("slot", &T::slot)("tenancy", &T::tenancy)("name", &T::name)(
        "table", &T::table)("begins_at", &T::begins_at);
  }
  friend bool operator==(const TenantChange&, const TenantChange&) = default;
};

/// "join", "start", "pause", "resume", "leave", "set".
std::string_view to_string(TenantChange::Kind kind);

}  // namespace primerl
