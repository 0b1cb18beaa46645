#include "runtime/query/step_filter.h"

#include <algorithm>
#include <charconv>

#include "graph/base/counted.h"
#include "graph/base/suggest.h"
#include "runtime/query/step_text.h"
#include "runtime/trace/read/tenant_uses.h"

namespace primerl {
namespace {

std::optional<double> number_of(std::string_view text) {
  double value = 0;
  const auto [end, fault] = std::from_chars(text.begin(), text.end(), value);
  if (fault != std::errc() || end != text.end()) return std::nullopt;
  return value;
}

/// Removes spaces, for comparing the names of edges.
std::string without_spaces(std::string_view text) {
  std::string kept;
  for (const char c : text)
    if (c != ' ') kept += c;
  return kept;
}

Error unknown(std::string_view what, const std::string& name, std::vector<std::string> names) {
  std::ranges::sort(names);
  names.erase(std::unique(names.begin(), names.end()), names.end());
  const std::string near = nearest_name(name, names);
  return error(Code::kNotFound, "no {} '{}' in this trace", what, name)
      .note(near.empty() ? fmt::format("it has {}", join_names(names))
                         : fmt::format("did you mean '{}'?", near));
}

/// Marks a wanted name in `chosen`. False: it is not in `names`.
bool mark(std::vector<bool>& chosen, const std::vector<std::string>& names,
          const std::string& name) {
  chosen.resize(names.size());
  bool is_known = false;
  for (size_t i = 0; i < names.size(); ++i)
    if (names[i] == name) chosen[i] = is_known = true;
  return is_known;
}

bool compares(FieldMatch::Sign sign, std::partial_ordering order) {
  switch (sign) {
    case FieldMatch::Sign::kEqual:
      return order == 0;
    case FieldMatch::Sign::kNotEqual:
      return order != 0;
    case FieldMatch::Sign::kLess:
      return order < 0;
    case FieldMatch::Sign::kLessEqual:
      return order <= 0;
    case FieldMatch::Sign::kGreater:
      return order > 0;
    case FieldMatch::Sign::kGreaterEqual:
      return order >= 0;
  }
  return false;
}

bool value_matches(const FieldMatch& match, const Json& value) {
  const auto wanted = number_of(match.value);
  // 64-bit integers are compared exactly, because adjacent integers could be equal as doubles.
  if (value.is_integer() && wanted && match.value.find_first_of(".eEn") == std::string::npos)
    return match.value == value.dump()    ? compares(match.sign, std::partial_ordering::equivalent)
           : *wanted != value.as_double() ? compares(match.sign, value.as_double() <=> *wanted)
                                          : match.sign == FieldMatch::Sign::kNotEqual;
  if (value.is_number() && wanted) return compares(match.sign, value.as_double() <=> *wanted);
  if (value.is_bool())
    return compares(match.sign,
                    (value.as_bool() ? "true" : "false") <=> std::string_view(match.value));
  if (value.is_string())
    return compares(match.sign, std::string_view(value.as_string()) <=> match.value);
  if (value.is_null())
    return compares(match.sign, match.value == "null" ? std::partial_ordering::equivalent
                                                      : std::partial_ordering::unordered);
  return false;
}

bool matches_at(const FieldMatch& match, const Json& value, size_t depth) {
  if (value.is_array())
    return std::ranges::any_of(value.as_array(),
                               [&](const Json& item) { return matches_at(match, item, depth); });
  if (depth == match.path.size()) return value_matches(match, value);
  if (!value.is_object()) return false;
  for (const auto& [name, member] : value.as_object()) {
    if (name == match.path[depth] && matches_at(match, member, depth + 1)) return true;
    // A path may begin at any depth.
    if (depth == 0 && matches_at(match, member, 0)) return true;
  }
  return false;
}

/// Whether the last name of the path occurs anywhere in a schema.
bool has_field(const std::string& schema, const std::string& name) {
  for (size_t at = schema.find(name + ":"); at != std::string::npos;
       at = schema.find(name + ":", at + 1))
    if (at == 0 || schema[at - 1] == ';' || schema[at - 1] == '{') return true;
  return false;
}

}  // namespace

Result<StepRange> parse_step_range(const std::string& text) {
  const auto number = [](std::string_view digits) -> std::optional<uint64_t> {
    uint64_t value = 0;
    const auto [end, fault] = std::from_chars(digits.begin(), digits.end(), value);
    if (fault != std::errc() || end != digits.end()) return std::nullopt;
    return value;
  };
  const auto bad = [&] {
    return error(Code::kInvalid, "'{}' is no range of steps", text)
        .note("write 88, 10..20, 10.. or ..20");
  };
  StepRange range;
  const auto dots = text.find("..");
  if (dots == std::string::npos) {
    const auto only = number(text);
    if (!only) return bad();
    return StepRange{*only, *only};
  }
  const auto first = number(std::string_view(text).substr(0, dots));
  const auto last = number(std::string_view(text).substr(dots + 2));
  if ((dots > 0 && !first) || (dots + 2 < text.size() && !last)) return bad();
  if (first) range.first = *first;
  if (last) range.last = *last;
  if (range.first > range.last) return bad();
  return range;
}

Result<FieldMatch> FieldMatch::parse(std::string_view text) {
  static constexpr struct {
    std::string_view text;
    Sign sign;
  } kSigns[] = {{"!=", Sign::kNotEqual}, {"<=", Sign::kLessEqual}, {">=", Sign::kGreaterEqual},
                {"=", Sign::kEqual},     {"<", Sign::kLess},       {">", Sign::kGreater}};
  const size_t at = text.find_first_of("!<>=");
  FieldMatch match;
  for (const auto& sign : kSigns) {
    if (at == std::string_view::npos || at == 0 || !text.substr(at).starts_with(sign.text))
      continue;
    match.sign = sign.sign;
    match.value = text.substr(at + sign.text.size());
    // An empty value is valid only for equality, because only a text can be empty.
    const bool is_order = sign.sign != Sign::kEqual && sign.sign != Sign::kNotEqual;
    if (match.value.empty() && is_order) break;
    for (std::string_view path = text.substr(0, at); !path.empty();) {
      const size_t dot = std::min(path.find('.'), path.size());
      match.path.emplace_back(path.substr(0, dot));
      path.remove_prefix(std::min(dot + 1, path.size()));
    }
    return match;
  }
  return error(Code::kInvalid, "'{}' compares no field", text)
      .note("write field=value, or !=, <, <=, >, >=, as in 'reward<0.5'");
}

bool FieldMatch::matches(const Json& message) const { return matches_at(*this, message, 0); }

Status StepFilter::choose_nodes(const TraceCatalog& catalog,
                                const std::vector<std::string>& wanted) {
  for (const auto& name : wanted) {
    instances_.resize(catalog.instances.size());
    groups_.resize(catalog.groups.size());
    std::vector<std::string> names;
    bool is_known = false;
    for (size_t i = 0; i < catalog.instances.size(); ++i) {
      const auto& instance = catalog.instances[i];
      names.insert(names.end(),
                   {instance.name, instance.node, catalog.groups[instance.group].name});
      const bool is_host = catalog.groups[instance.group].name == name;
      if (!is_host && instance.name != name && instance.node != name) continue;
      instances_[i] = is_known = true;
      // A work call belongs to the whole group.
      groups_[instance.group] = true;
    }
    if (!is_known) return unknown("node", name, names);
  }
  return ok();
}

Status StepFilter::choose_links(const TraceCatalog& catalog,
                                const std::vector<std::string>& wanted) {
  for (const auto& name : wanted) {
    links_.resize(catalog.links.size());
    const std::string port = without_spaces(name);
    std::vector<std::string> names;
    bool is_known = false;
    for (size_t i = 0; i < catalog.links.size(); ++i) {
      const std::string edge = without_spaces(catalog.links[i].edge);
      names.push_back(catalog.links[i].edge);
      if (edge == port || edge.starts_with(port + "->") || edge.ends_with("->" + port))
        links_[i] = is_known = true;
    }
    if (!is_known) return unknown("edge", name, names);
  }
  return ok();
}

Status StepFilter::choose_tenants(const TenantUses& uses, const std::vector<std::string>& wanted) {
  has_tenants_ = !wanted.empty();
  for (const auto& name : wanted) {
    ASSIGN_OR_RETURN(const auto named, uses.named(name, "this trace"));
    for (const TenantUse* use : named) tenants_.emplace(use->slot, use->tenancy);
  }
  return ok();
}

Status StepFilter::choose_fields(const TraceCatalog& catalog, const StepQuery& query) {
  for (const auto& text : query.fields) {
    ASSIGN_OR_RETURN(FieldMatch match, FieldMatch::parse(text));
    fields_.push_back({std::move(match)});
  }
  if (query.session) {
    const std::string number = std::to_string(*query.session);
    fields_.push_back({{{"session"}, FieldMatch::Sign::kEqual, number},
                       {{"trajectory"}, FieldMatch::Sign::kEqual, number}});
  }
  for (const auto& type : catalog.types)
    may_match_.push_back(std::ranges::all_of(fields_, [&](const auto& choices) {
      return std::ranges::any_of(choices, [&](const FieldMatch& match) {
        return has_field(type.schema, match.path.back());
      });
    }));
  if (!fields_.empty() && std::ranges::none_of(may_match_, [](bool may) { return may; }))
    return error(Code::kNotFound, "no message type of this trace has all of these fields")
        .note("`primerl-graph messages` lists the fields of every message");
  return ok();
}

Result<StepFilter> StepFilter::make(const Trace& trace, const StepQuery& query) {
  const TraceCatalog& catalog = trace.catalog();
  StepFilter filter;
  RETURN_IF_ERROR(filter.choose_nodes(catalog, query.nodes));
  RETURN_IF_ERROR(filter.choose_links(catalog, query.edges));
  std::vector<std::string> types;
  for (const auto& type : catalog.types) types.push_back(type.name);
  for (const auto& name : query.types)
    if (!mark(filter.types_, types, name)) return unknown("message type", name, types);
  RETURN_IF_ERROR(filter.choose_tenants(trace.tenants(), query.tenants));
  RETURN_IF_ERROR(filter.choose_fields(catalog, query));
  if (query.steps) {
    ASSIGN_OR_RETURN(const StepRange range, parse_step_range(*query.steps));
    filter.first_step_ = range.first;
    filter.last_step_ = range.last;
  }
  if (query.from_seconds && query.to_seconds && *query.from_seconds > *query.to_seconds)
    return error(Code::kInvalid, "from {} s to {} s is no time", *query.from_seconds,
                 *query.to_seconds)
        .note("--from comes before --to, both from the start of the run");
  const auto time_at = [&](double seconds) {
    int64_t at = 0;
    const int64_t after = Duration::from_seconds(seconds).to_nanoseconds();
    return Time::from_nanoseconds(__builtin_add_overflow(catalog.zero_ns, after, &at) ? INT64_MAX
                                                                                      : at);
  };
  if (query.from_seconds) filter.from = time_at(*query.from_seconds);
  if (query.to_seconds) filter.to = time_at(*query.to_seconds);
  filter.is_failed_ = query.is_failed;
  return filter;
}

StepFilter::Verdict StepFilter::matches(const Trace& trace, const TraceStep& step) const {
  if (step.step < first_step_ || step.step > last_step_) return Verdict::kNo;
  if (is_failed_ && !step.is_failed()) return Verdict::kNo;
  if (!instances_.empty()) {
    const bool is_chosen =
        step.instance.is_none() ? groups_[step.group.index()] : instances_[step.instance.index()];
    if (!is_chosen) return Verdict::kNo;
  }
  const bool is_message = step.kind == StepKind::kMessage;
  if (!links_.empty() && (!is_message || !links_[step.link.index()])) return Verdict::kNo;
  if (!types_.empty() && (!is_message || !types_[step.type])) return Verdict::kNo;
  if (has_tenants_) {
    const TenantUse* use =
        trace.tenants().at(step.group, step.step, tenant_of(trace.catalog(), step));
    if (use == nullptr || !takes_tenant(use->slot, use->tenancy)) return Verdict::kNo;
  }
  if (fields_.empty()) return Verdict::kYes;
  if (!is_message || !may_match_[step.type]) return Verdict::kNo;
  const auto message = input_json(trace, step);
  if (!message.ok()) return Verdict::kUnknown;
  const bool all = std::ranges::all_of(fields_, [&](const auto& choices) {
    return std::ranges::any_of(choices,
                               [&](const FieldMatch& match) { return match.matches(*message); });
  });
  return all ? Verdict::kYes : Verdict::kNo;
}

TenantSlot tenant_of(const TraceCatalog& catalog, const TraceStep& step) {
  if (!step.tenant.is_none()) return step.tenant;
  if (!step.instance.is_none()) return TenantSlot(catalog.instances[step.instance.index()].tenant);
  const auto& actors = catalog.groups[step.group.index()].instances;
  if (actors.empty()) return {};
  const uint32_t first = catalog.instances[actors.front()].tenant;
  const bool is_hers = std::ranges::all_of(
      actors, [&](uint32_t actor) { return catalog.instances[actor].tenant == first; });
  return is_hers ? TenantSlot(first) : TenantSlot();
}

FoundSteps find_steps(const Trace& trace, const StepFilter& filter, uint64_t limit) {
  FoundSteps found;
  trace.visit(filter.from, filter.to, [&](const TraceStep& step) {
    const auto verdict = filter.matches(trace, step);
    if (verdict == StepFilter::Verdict::kUnknown) ++found.num_unknown;
    if (verdict != StepFilter::Verdict::kYes) return true;
    if (found.steps.size() < limit)
      found.steps.push_back(step);
    else
      ++found.num_more;
    return true;
  });
  return found;
}

std::string to_text(const Trace& trace, const FoundSteps& found, bool with_payloads) {
  std::string text;
  for (const TraceStep& step : found.steps) {
    text += step_line(trace, step) + "\n";
    if (!with_payloads || step.kind != StepKind::kMessage) continue;
    const auto message = input_json(trace, step);
    text += fmt::format("{:>15}{}\n", "",
                        message.ok() ? short_json(*message, 400) : message.error().message());
  }
  if (found.num_more > 0)
    text += fmt::format("{} more: raise --limit, or say more exactly which\n", found.num_more);
  if (found.num_unknown > 0)
    text += fmt::format(
        "{} may match too, but the content was not stored (record = \"payload\" of the edge stores "
        "it)\n",
        counted(found.num_unknown, "message"));
  return text;
}

Json to_json(const Trace& trace, const FoundSteps& found, bool with_payloads) {
  Json steps = Json::array();
  for (const TraceStep& step : found.steps) {
    Json entry = step_json(trace, step);
    if (with_payloads && step.kind == StepKind::kMessage)
      if (auto message = input_json(trace, step); message.ok())
        entry.set("payload", std::move(message).value());
    steps.push_back(std::move(entry));
  }
  return Json::object()
      .set("schema", "primerl.trace.steps/1")
      .set("complete", trace.is_complete())
      .set("num_more", found.num_more)
      .set("num_unknown", found.num_unknown)
      .set("steps", std::move(steps));
}

}  // namespace primerl
