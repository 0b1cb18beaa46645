#include "graph/tenant_values.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <cmath>

#include "graph/base/suggest.h"

namespace primerl {
namespace {

struct SettableInteger {
  std::string_view key;
  int64_t Tenant::*value;
};
constexpr SettableInteger kIntegers[] = {{"inflight", &Tenant::inflight},
                                         {"max_off_policy_steps", &Tenant::max_off_policy_steps},
                                         {"max_steps", &Tenant::max_steps}};
constexpr std::string_view kShare = "share";
/// Larger ones are not exact as JSON numbers; the schema of a tenant allows less.
constexpr double kWholeMax = 9007199254740992.0;

bool is_settable(std::string_view key) {
  for (const auto& each : kIntegers)
    if (each.key == key) return true;
  return key == kShare;
}

/// As a resolved graph file has it.
std::string literal(std::string_view key, double value) {
  if (key != kShare) return fmt::format("{}", static_cast<int64_t>(value));
  const std::string text = fmt::format("{}", value);
  return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
}

Status check_value(std::string_view key, double value) {
  const bool is_whole = std::isfinite(value) && std::floor(value) == value;
  // In a file 0 rollouts in flight mean the node's number, which a tenant may not choose here.
  if (key == kShare ? value > 0 && value <= 1
                    : is_whole && value >= (key == "inflight" ? 1 : 0) && value <= kWholeMax)
    return ok();
  return error(Code::kInvalid, "'{}' is {}", key, value)
      .note(key == kShare       ? "it is above 0 and at most 1"
            : key == "inflight" ? "it is a whole number from 1 on"
                                : "it is a whole number from 0 on");
}

}  // namespace

std::vector<std::string> TenantValues::keys() {
  std::vector<std::string> all;
  for (const auto& each : kIntegers) all.emplace_back(each.key);
  all.emplace_back(kShare);
  return all;
}

Result<TenantValues> TenantValues::read(std::string_view text) {
  TenantValues read;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const size_t equals = line.find(" = ");
    const std::string_view key = line.substr(0, equals);
    double value = 0;
    const char* const stop = line.data() + line.size();
    const char* const begin = equals == std::string_view::npos ? stop : line.data() + equals + 3;
    const auto [at, fault] = std::from_chars(begin, stop, value);
    if (!is_settable(key) || fault != std::errc() || at != stop || !check_value(key, value).ok())
      return error(Code::kCorrupt, "'{}' is no value of a tenant", line);
    read.values_.insert_or_assign(std::string(key), value);
  }
  return read;
}

Result<TenantValues> TenantValues::of(const Json& numbers) {
  if (!numbers.is_object() || numbers.as_object().empty())
    return error(Code::kInvalid, "no value is given")
        .note(fmt::format("values that can be set: {}", fmt::join(keys(), ", ")));
  TenantValues made;
  for (const auto& [key, value] : numbers.as_object()) {
    if (!is_settable(key))
      return error(Code::kInvalid, "'{}' of a tenant that trains cannot be set", key)
          .note(fmt::format("values that can be set: {}", fmt::join(keys(), ", ")))
          .note("for another value, remove the tenant and add it with a changed file");
    if (!value.is_number())
      return error(Code::kInvalid, "'{}' is {}, not a number", key, value.dump());
    RETURN_IF_ERROR(check_value(key, value.as_double()));
    made.values_.insert_or_assign(key, value.as_double());
  }
  return made;
}

std::string TenantValues::text() const {
  std::string text;
  for (const auto& [key, value] : values_)
    text += fmt::format("{} = {}\n", key, literal(key, value));
  return text;
}

void TenantValues::merge(const TenantValues& newer) {
  for (const auto& [key, value] : newer.values_) values_.insert_or_assign(key, value);
}

std::string TenantValues::in_table(std::string_view table) const {
  std::string text(table);
  for (const auto& [key, value] : values_) {
    const std::string begin = fmt::format("\n{} = ", key);
    const size_t at = text.find(begin);
    if (at == std::string::npos) {
      // After the header line. The check of the table says why the tenant has no such key.
      const size_t header = std::min(text.find('\n'), text.size());
      text.insert(header, begin + literal(key, value));
      continue;
    }
    const size_t from = at + begin.size();
    text.replace(from, std::min(text.find('\n', from), text.size()) - from, literal(key, value));
  }
  return text;
}

std::shared_ptr<const Tenant> TenantValues::applied_to(
    const std::shared_ptr<const Tenant>& tenant) const {
  // The first one stays: actors may have kept what it points to.
  struct Kept {
    std::shared_ptr<const Tenant> from;
    Tenant tenant;
  };
  auto kept = std::make_shared<Kept>(Kept{tenant, *tenant});
  for (const auto& each : kIntegers)
    if (const auto found = values_.find(each.key); found != values_.end())
      kept->tenant.*each.value = static_cast<int64_t>(found->second);
  if (const auto found = values_.find(kShare); found != values_.end())
    kept->tenant.share = found->second;
  return std::shared_ptr<const Tenant>(kept, &kept->tenant);
}

std::vector<std::string> TenantValues::other_than(const Tenant& tenant) const {
  std::vector<std::string> others;
  for (const auto& each : kIntegers)
    if (const auto found = values_.find(each.key);
        found != values_.end() && tenant.*each.value != static_cast<int64_t>(found->second))
      others.emplace_back(each.key);
  return others;
}

}  // namespace primerl
