#include "runtime/query/step_text.h"

#include "runtime/trace/read/tenant_uses.h"

namespace primerl {
namespace {

/// "joins slot 1"; the index is a TenantChange::Kind.
constexpr std::string_view kChanges[] = {"joins",      "starts in", "pauses in",
                                         "resumes in", "leaves",    "has other values in"};

std::string flags_text(const TraceStep& step) {
  std::string text;
  if ((step.flags & kFailed) != 0) text += "  FAILED";
  if ((step.flags & kAbandoned) != 0) text += "  ABANDONED";
  if ((step.flags & kInjected) != 0) text += "  INJECTED";
  if ((step.flags & kGivenUp) != 0) text += "  GIVEN UP";
  return text;
}

}  // namespace

std::string step_name(const Trace& trace, const TraceStep& step) {
  const TraceCatalog& catalog = trace.catalog();
  if (step.instance.is_none()) return step_text(catalog, step.group, step.step);
  return fmt::format("{}:{}", catalog.instances[step.instance.index()].name, step.step);
}

std::string step_name(const TraceCatalog& catalog, const StepRef& step) {
  if (step.is_none() || step.instance.index() >= catalog.instances.size()) return "-";
  return fmt::format("{}:{}", catalog.instances[step.instance.index()].name, step.step);
}

double seconds_of(const TraceCatalog& catalog, Time time) {
  return static_cast<double>(time.to_nanoseconds() - catalog.zero_ns) * 1e-9;
}

std::string time_text(const TraceCatalog& catalog, Time time) {
  return fmt::format("{:.6f}", seconds_of(catalog, time));
}

std::string tenant_text(const Trace& trace, const TraceStep& step) {
  return trace.tenants().label(step.group, step.step, step.tenant);
}

std::string input_text(const Trace& trace, const TraceStep& step) {
  const TraceCatalog& catalog = trace.catalog();
  switch (step.kind) {
    case StepKind::kMessage: {
      const auto& link = catalog.links[step.link.index()];
      return fmt::format("{} <- {} #{}", link.input, catalog.instances[link.sender].name,
                         step.sequence);
    }
    case StepKind::kTimer:
      return fmt::format("timer {}", catalog.instances[step.instance.index()].timers[step.subject]);
    case StepKind::kWork:
      return "work";
    case StepKind::kDrain:
      return "drain";
    case StepKind::kPeer:
      return fmt::format(
          "peer {} is {} (incarnation {})",
          step.subject < catalog.instances.size() ? catalog.instances[step.subject].name : "?",
          step.sequence == 0 ? "down" : "up", step.incarnation);
    case StepKind::kCommand:
      return "command";
    case StepKind::kTenant:
      return fmt::format("tenant {} {} slot {}", tenant_text(trace, step),
                         step.subject < std::size(kChanges) ? kChanges[step.subject] : "?",
                         step.tenant);
  }
  return "?";
}

std::string message_text(const TraceCatalog& catalog, const MessageKey& key) {
  if (key.link.index() >= catalog.links.size()) return "?";
  const auto& link = catalog.links[key.link.index()];
  const auto& sender = catalog.instances[link.sender].name;
  const auto& target = catalog.instances[link.target].name;
  return fmt::format(
      "{}.{} -> {}.{} #{}{}", sender, link.output, target, link.input, key.sequence,
      key.incarnation > 1 ? fmt::format(" incarnation {}", key.incarnation) : std::string());
}

MessageKey key_of(const TraceStep& step) { return {step.link, step.incarnation, step.sequence}; }

std::string step_line(const Trace& trace, const TraceStep& step) {
  const TraceCatalog& catalog = trace.catalog();
  std::string line = fmt::format("{:>13}  {:<22} {:<34}", time_text(catalog, step.began),
                                 step_name(trace, step), input_text(trace, step));
  if (step.kind == StepKind::kMessage) {
    line += fmt::format(" {:<16} {:>9}", catalog.types[step.type].name,
                        rounded_bytes(step.payload_bytes));
    if (!step.tenant.is_none()) line += fmt::format("  {}", tenant_text(trace, step));
    if (!step.cause.is_none()) line += fmt::format("  cause {}", step_name(catalog, step.cause));
  }
  if (step.num_emissions > 0) line += fmt::format("  {} out", step.num_emissions);
  return line +
         fmt::format("  {}",
                     micros_text(static_cast<double>(step.duration.to_nanoseconds()) / 1e3)) +
         flags_text(step);
}

Json key_json(const TraceCatalog& catalog, const MessageKey& key) {
  if (key.link.index() >= catalog.links.size()) return {};
  const auto& link = catalog.links[key.link.index()];
  return Json::object()
      .set("edge", link.edge)
      .set("sender", catalog.instances[link.sender].name)
      .set("target", catalog.instances[link.target].name)
      .set("incarnation", key.incarnation)
      .set("sequence", key.sequence);
}

Json step_json(const Trace& trace, const TraceStep& step) {
  const TraceCatalog& catalog = trace.catalog();
  Json json = Json::object()
                  .set("at", step_name(trace, step))
                  .set("group", catalog.groups[step.group.index()].name)
                  .set("step", step.step)
                  .set("kind", to_string(step.kind))
                  .set("seconds", seconds_of(catalog, step.began))
                  .set("duration_us", step.duration.to_nanoseconds() / 1000)
                  .set("num_emissions", step.num_emissions);
  if (!step.instance.is_none()) json.set("instance", catalog.instances[step.instance.index()].name);
  if (step.kind == StepKind::kMessage) {
    json.set("message", key_json(catalog, key_of(step)))
        .set("input", catalog.links[step.link.index()].input)
        .set("type", catalog.types[step.type].name)
        .set("payload_bytes", step.payload_bytes);
    if ((step.flags & kNotChecked) == 0)
      json.set("payload_check", fmt::format("{:016x}", step.payload_check));
    if (!step.tenant.is_none()) json.set("tenant", tenant_text(trace, step));
    if (!step.cause.is_none()) json.set("cause", step_name(catalog, step.cause));
    if (!step.origin.is_none()) json.set("origin", catalog.instances[step.origin.index()].name);
  }
  if (step.kind == StepKind::kTimer || step.kind == StepKind::kPeer ||
      step.kind == StepKind::kCommand || step.kind == StepKind::kTenant)
    json.set("input", input_text(trace, step));
  if (step.kind == StepKind::kTenant)
    json.set("tenant", tenant_text(trace, step)).set("slot", step.tenant.value);
  if (step.is_failed()) json.set("failed", true);
  if ((step.flags & kAbandoned) != 0) json.set("abandoned", true);
  if ((step.flags & kInjected) != 0) json.set("injected", true);
  if ((step.flags & kGivenUp) != 0) json.set("given_up", true);
  return json;
}

Json fault_json(const TraceCatalog& catalog, const TraceFault& fault) {
  Json json = Json::object()
                  .set("kind", to_string(fault.kind))
                  .set("text", fault.text)
                  .set("file", fault.file)
                  .set("is_fault", fault.is_fault());
  if (!fault.group.is_none())
    json.set("group", catalog.groups[fault.group.index()].name)
        .set("first", fault.first)
        .set("last", fault.last);
  return json;
}

Result<Json> input_json(const Trace& trace, const TraceStep& step) {
  if (step.kind != StepKind::kMessage)
    return error(Code::kNotFound, "step {} has no message", step.step);
  ASSIGN_OR_RETURN(const StoredPayload payload, trace.payload(key_of(step)));
  return payload_json(trace.catalog().types[payload.type], payload);
}

std::string incomplete_text(const Trace& trace) {
  if (trace.is_complete()) return "";
  std::string text = "INCOMPLETE:\n";
  constexpr size_t kShown = 20;
  size_t num = 0;
  for (const TraceFault& fault : trace.faults()) {
    if (fault.kind == TraceFault::Kind::kHole || ++num > kShown) continue;
    text += fmt::format("  {}\n", fault.text);
  }
  if (num > kShown) text += fmt::format("  and {} more\n", num - kShown);
  return text;
}

std::string starts_text(size_t num_starts) {
  return num_starts > 1 ? fmt::format("{} starts, ", num_starts) : "";
}

std::string rounded_bytes(uint64_t num_bytes) {
  if (num_bytes < 10'000) return fmt::format("{} B", num_bytes);
  const auto value = static_cast<double>(num_bytes);
  if (value < 1e6) return fmt::format("{:.1f} KB", value / 1e3);
  if (value < 1e9) return fmt::format("{:.1f} MB", value / 1e6);
  return fmt::format("{:.2f} GB", value / 1e9);
}

std::string micros_text(double micros) {
  if (micros < 1e3) return fmt::format("{:.0f} us", micros);
  if (micros < 1e6) return fmt::format("{:.1f} ms", micros / 1e3);
  return fmt::format("{:.2f} s", micros / 1e6);
}

std::string pretty_json(const Json& json, const std::string& indent) {
  const std::string deeper = indent + "  ";
  if (json.is_object()) {
    std::string text = "{";
    for (const auto& [name, value] : json.as_object())
      text += fmt::format("{}\n{}{}: {}", text.size() > 1 ? "," : "", deeper, Json(name).dump(),
                          pretty_json(value, deeper));
    return text.size() > 1 ? text + "\n" + indent + "}" : "{}";
  }
  if (!json.is_array()) return json.dump();
  const auto& items = json.as_array();
  if (items.empty() || (!items.front().is_object() && !items.front().is_array()))
    return json.dump();
  std::string text = "[";
  for (const auto& item : items)
    text += fmt::format("{}\n{}{}", text.size() > 1 ? "," : "", deeper, pretty_json(item, deeper));
  return text + "\n" + indent + "]";
}

Result<TraceStep> find_step(const Trace& trace, std::string_view text) {
  ASSIGN_OR_RETURN(const StepName name, parse_step_name(trace.catalog(), text));
  const uint64_t first = trace.first_step(name.group);
  const uint64_t last = trace.last_step(name.group);
  const std::string& group = trace.catalog().groups[name.group.index()].name;
  if (!name.step)
    return error(Code::kInvalid, "'{}' names no step", text)
        .note(fmt::format("write '{}:N' with N from {} to {}", text, first, last));
  if (first == 0) return error(Code::kNotFound, "no step of '{}' was recorded", group);
  if (*name.step < first || *name.step > last)
    return error(Code::kNotFound, "'{}' has no step {}", group, *name.step)
        .note(fmt::format("its steps go from {} to {}", first, last));
  if (auto step = trace.step(name.group, *name.step)) return *step;
  Error missing = error(Code::kCorrupt, "the record of {} is missing", text);
  for (const TraceFault& fault : trace.faults())
    if (fault.group == name.group && fault.first <= *name.step && *name.step <= fault.last)
      return std::move(missing).note(fault.text);
  return missing;
}

}  // namespace primerl
