#include "actors/common/tenant_chat.h"

#include <algorithm>

namespace primerl {

Result<chat::ChatFormat> chat_format_of(const Tenant& tenant, const Tokenizer& tokenizer) {
  chat::ChatOptions options;
  options.name = tenant.chat.name;
  options.parser = tenant.chat.parser;
  if (!tenant.chat.kwargs.empty()) {
    ASSIGN_OR_RETURN(options.kwargs, parse_json(tenant.chat.kwargs, "'chat.kwargs'"));
    if (!options.kwargs.is_object())
      return error(Code::kInvalid, "'chat.kwargs' is {}, not an object", options.kwargs.kind());
  }
  if (!tenant.chat.date.empty()) {
    auto day = chat::parse_day(tenant.chat.date);
    if (!day.ok()) return std::move(day).error().while_doing("'chat.date'");
    options.day = *day;
  }
  ASSIGN_OR_RETURN(auto format, chat::ChatFormat::make(tokenizer, options));
  if (format.reads_date() && tenant.chat.date.empty())
    return error(Code::kInvalid, "{}: the template prints the date", format.source().name())
        .note(fmt::format("write [tenant.{}.chat] date = \"2026-11-26\"; `run` writes the day of "
                          "the run's first start",
                          tenant.name));
  return format;
}

void add_turn_end(const chat::ChatFormat& format, SamplingParams& sampling) {
  auto& stop_ids = sampling.stop_ids;
  const int32_t end = format.end_id();
  const bool is_known = std::find(stop_ids.begin(), stop_ids.end(), end) != stop_ids.end();
  if (end < 0 || sampling.ignore_eos || is_known || stop_ids.size() >= kStopIdsMax) return;
  stop_ids.push_back(end);
}

Result<std::optional<Json>> tools_from_text(const std::string& text) {
  if (text.empty()) return std::optional<Json>();
  ASSIGN_OR_RETURN(Json tools, parse_json(text, "tools"));
  RETURN_IF_ERROR(check_tools(tools));
  return std::optional<Json>(std::move(tools));
}

}  // namespace primerl
