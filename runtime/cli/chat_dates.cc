#include "runtime/cli/chat_dates.h"

#include <algorithm>
#include <ctime>

#include "kernels/text/chat_source.h"
#include "kernels/text/tokenizer.h"

namespace primerl {
namespace {

/// Whether a template beside a tokenizer of the plan may print the date.
bool prints_date(const Plan& plan) {
  return std::any_of(plan.resources.begin(), plan.resources.end(), [&](const auto& resource) {
    if (resource.kind != Tokenizer::kResourceKind || resource.model < 0) return false;
    const auto source = read_chat_source(plan.models[static_cast<size_t>(resource.model)].path);
    return std::any_of(source->templates.begin(), source->templates.end(), [](const auto& each) {
      return each.text.find("strftime_now") != std::string::npos;
    });
  });
}

}  // namespace

std::string utc_day(double seconds_since_1970) {
  const auto seconds = static_cast<std::time_t>(seconds_since_1970);
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  return fmt::format("{:04}-{:02}-{:02}", parts.tm_year + 1900, parts.tm_mon + 1, parts.tm_mday);
}

std::vector<std::string> dates_to_set(const Plan& plan, const Plan* before,
                                      const std::string& today) {
  std::vector<std::string> sets;
  if (!prints_date(plan)) return sets;
  for (const Tenant& tenant : plan.tenants) {
    if (!tenant.chat.date.empty()) continue;
    std::string day = today;
    if (before != nullptr)
      for (const Tenant& earlier : before->tenants)
        if (earlier.name == tenant.name && !earlier.chat.date.empty()) day = earlier.chat.date;
    sets.push_back(fmt::format("tenant.{}.chat.date=\"{}\"", tenant.name, day));
  }
  return sets;
}

}  // namespace primerl
