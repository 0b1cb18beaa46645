/// StepFilter: selects steps of a trace. make() resolves the names and reports unknown ones. A
/// value afterwards.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "runtime/trace/read/trace.h"

namespace primerl {

/// Both ends included.
struct StepRange {
  uint64_t first = 0, last = UINT64_MAX;
};
/// "88", "10..20", "10.." or "..20".
Result<StepRange> parse_step_range(const std::string& text);

/// A person's query. An empty list matches everything. Within a list one match is enough; all lists
/// must match.
struct StepQuery {
  std::vector<std::string> nodes = {};  // nodes, instances or groups
  std::vector<std::string> edges = {};  // "rollout.group -> trainer.group", or a port of either end
  std::vector<std::string> types = {};  // message types
  /// The tenant of the input message, or else of the actor: "alice", or "alice~2" for one use of
  /// the name.
  std::vector<std::string> tenants = {};
  std::vector<std::string> fields = {};   // "reward>0.5", "kv.id=7"; a name without dots matches at
                                          // any depth
  std::optional<uint64_t> session = {};   // a field `session` or `trajectory`, at any depth
  std::optional<std::string> steps = {};  // "88", "10..20", "10..", "..20"
  std::optional<double> from_seconds = {}, to_seconds = {};  // since the begin of the run
  bool is_failed = false;                                    // only failed handlers
};

/// One comparison with a field of a message.
struct FieldMatch {
  enum class Sign { kEqual, kNotEqual, kLess, kLessEqual, kGreater, kGreaterEqual };
  std::vector<std::string> path;  // {"kv", "id"}
  Sign sign = Sign::kEqual;
  std::string value;

  static Result<FieldMatch> parse(std::string_view text);
  /// Whether any value at the path satisfies the comparison; lists are searched.
  bool matches(const Json& message) const;
};

class StepFilter {
 public:
  static Result<StepFilter> make(const Trace& trace, const StepQuery& query);

  Time from = Time::from_nanoseconds(INT64_MIN);
  Time to = Time::from_nanoseconds(INT64_MAX);

  /// For a step between from and to. kUnknown: the result depends on its fields, which were not
  /// stored.
  enum class Verdict { kNo, kYes, kUnknown };
  Verdict matches(const Trace& trace, const TraceStep& step) const;
  bool takes_tenant(TenantSlot slot, uint32_t tenancy) const {
    return !has_tenants_ || tenants_.contains({slot, tenancy});
  }

 private:
  Status choose_nodes(const TraceCatalog& catalog, const std::vector<std::string>& wanted);
  Status choose_links(const TraceCatalog& catalog, const std::vector<std::string>& wanted);
  Status choose_tenants(const TenantUses& uses, const std::vector<std::string>& wanted);
  Status choose_fields(const TraceCatalog& catalog, const StepQuery& query);

  std::vector<bool> instances_, groups_, links_, types_;  // empty = all
  bool has_tenants_ = false;                              // else all
  std::set<std::pair<TenantSlot, uint32_t>> tenants_;     // with the number of the use
  /// All inner lists must match; within one, one match is enough.
  std::vector<std::vector<FieldMatch>> fields_;
  std::vector<bool> may_match_;  // by type: whether its schema has all fields
  uint64_t first_step_ = 0, last_step_ = UINT64_MAX;
  bool is_failed_ = false;
};

/// The tenant of a step: for a message the message's tenant, for another input the actor's, for a
/// work call that of all actors of the group. None: the step belongs to no single tenant.
TenantSlot tenant_of(const TraceCatalog& catalog, const TraceStep& step);

/// Steps in order of time, at most `limit`; further matches are counted if `counts_rest`.
struct FoundSteps {
  std::vector<TraceStep> steps;
  uint64_t num_more = 0;     // matches beyond the limit
  uint64_t num_unknown = 0;  // steps that depend on fields whose content was not stored
};
FoundSteps find_steps(const Trace& trace, const StepFilter& filter, uint64_t limit);
std::string to_text(const Trace& trace, const FoundSteps& found, bool with_payloads);
Json to_json(const Trace& trace, const FoundSteps& found, bool with_payloads);

}  // namespace primerl
