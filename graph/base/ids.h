/// The small numbers that name things at run time; the plan resolves names to them.
///
/// Each is a type of its own, so a node cannot be passed as an edge. All are dense from 0 inside
/// one Plan and equal in every process, because every process builds the same Plan.
#pragma once

#include <fmt/format.h>

#include <compare>
#include <cstdint>
#include <functional>
#include <limits>

namespace primerl {

/// A typed number. `Id()` means none.
template <class Tag, class Rep = uint32_t>
struct Id {
  static constexpr Rep kNone = std::numeric_limits<Rep>::max();

  constexpr Id() = default;
  constexpr explicit Id(Rep number) : value(number) {}
  static constexpr Id none() { return Id(); }
  constexpr bool is_none() const { return value == kNone; }
  constexpr size_t index() const { return static_cast<size_t>(value); }
  friend constexpr auto operator<=>(Id, Id) = default;

  Rep value = kNone;
};

using NodeId = Id<struct NodeTag>;          // a node of the graph
using InstanceId = Id<struct InstanceTag>;  // (node, tenant slot, replica)
using EdgeId = Id<struct EdgeTag>;          // an edge of the graph, not one per instance
using GroupId = Id<struct GroupTag>;        // an actor group
using ProcessId = Id<struct ProcessTag>;    // a process of the plan
using TenantSlot = Id<struct TenantTag>;    // in the order of the file; none = for all tenants

/// The number of published weights of one tenant; 0 is what was loaded, -1 means none yet.
struct PolicyVersion {
  constexpr PolicyVersion() = default;
  constexpr explicit PolicyVersion(int64_t number) : value(number) {}
  constexpr bool is_none() const { return value < 0; }
  constexpr PolicyVersion next() const { return PolicyVersion(value + 1); }
  friend constexpr auto operator<=>(PolicyVersion, PolicyVersion) = default;

  int64_t value = -1;
};

/// One step of the actor group of one instance; it names a cause.
struct StepRef {
  InstanceId instance;
  uint64_t step = 0;  // dense from 1 within the actor group; 0 = none
  bool is_none() const { return step == 0; }
  friend constexpr auto operator<=>(const StepRef&, const StepRef&) = default;
};

}  // namespace primerl

template <class Tag, class Rep>
struct std::hash<primerl::Id<Tag, Rep>> {
  size_t operator()(primerl::Id<Tag, Rep> id) const { return std::hash<Rep>()(id.value); }
};

template <class Tag, class Rep>
struct fmt::formatter<primerl::Id<Tag, Rep>> : fmt::formatter<Rep> {
  auto format(primerl::Id<Tag, Rep> id, format_context& context) const {
    if (id.is_none()) return fmt::format_to(context.out(), "none");
    return fmt::formatter<Rep>::format(id.value, context);
  }
};

template <>
struct fmt::formatter<primerl::PolicyVersion> : fmt::formatter<int64_t> {
  auto format(primerl::PolicyVersion version, format_context& context) const {
    return fmt::formatter<int64_t>::format(version.value, context);
  }
};
