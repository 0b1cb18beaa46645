/// The values of a tenant that a person may set while it trains (`primerl-graph tenant set`,
/// docs/design/hosted.md). Actors read them from their tenant whenever they need them, so a new
/// value counts from the next decision on.
///
///   max_off_policy_steps, inflight, max_steps   as in its file
///   share                                       also engines and the learner get it
///
/// A set of values is kept as text, one line for each key in alphabetical order: "inflight = 4\n".
/// A record has this text. Plain values, any thread.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "graph/base/json.h"
#include "graph/base/result.h"
#include "graph/tenant.h"

namespace primerl {

class TenantValues {
 public:
  /// In alphabetical order.
  static std::vector<std::string> keys();
  /// Reads text(). kCorrupt: it is another text.
  static Result<TenantValues> read(std::string_view text);
  /// Reads an object of numbers, as a request has it. kInvalid names a key that cannot be set, or a
  /// value of another type. The range of a value is checked with the whole table, as in a file.
  static Result<TenantValues> of(const Json& numbers);

  bool empty() const { return values_.empty(); }
  bool has(std::string_view key) const { return values_.contains(key); }
  std::string text() const;
  /// The values of `newer` replace those here.
  void merge(const TenantValues& newer);
  /// The tenant's table with these values, which is otherwise unchanged (graph/joining.h).
  std::string in_table(std::string_view table) const;
  /// A copy of the tenant with these values; everything else that it points to is shared.
  std::shared_ptr<const Tenant> applied_to(const std::shared_ptr<const Tenant>& tenant) const;
  /// Keys whose value in `tenant` is another one: a rule of the graph has changed it.
  std::vector<std::string> other_than(const Tenant& tenant) const;

 private:
  std::map<std::string, double, std::less<>> values_;  // by key; a whole number where needed
};

}  // namespace primerl
