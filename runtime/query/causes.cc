#include "runtime/query/causes.h"

#include <algorithm>
#include <map>
#include <set>

#include "graph/base/counted.h"
#include "runtime/query/step_text.h"
#include "runtime/trace/schema.h"

namespace primerl {
namespace {

/// How many steps back to search for the messages that a work call used.
constexpr uint64_t kUsedMessagesMax = 64;

struct Place {
  GroupId group;
  uint64_t step = 0;
  friend auto operator<=>(const Place&, const Place&) = default;
};

std::optional<Place> place_of(const TraceCatalog& catalog, const StepRef& step) {
  if (step.is_none() || step.instance.index() >= catalog.instances.size()) return std::nullopt;
  return Place{GroupId(catalog.instances[step.instance.index()].group), step.step};
}

/// Walks from a step back to its causes.
class Walk {
 public:
  Walk(const Trace& trace, uint64_t limit, uint64_t program_order)
      : trace_(trace), program_order_(program_order) {
    chain_.limit = limit;
  }

  /// Breadth first, so that a limit removes the most distant entries, and never one of several
  /// causes. Displayed as a tree, depth first.
  Chain run(const TraceStep& first) {
    std::vector<Node> nodes{{{{first.group, first.step}, CauseKind::kAsked, 0}, {}, {}}};
    for (size_t at = 0; at < nodes.size(); ++at) {
      ChainEntry entry;
      entry.kind = nodes[at].open.kind;
      entry.depth = nodes[at].open.depth;
      const Place place = nodes[at].open.place;
      const auto step = trace_.step(place.group, place.step);
      entry.is_missing = !step.has_value();
      entry.is_seen = !seen_.insert(place).second;
      entry.step = step.value_or(TraceStep{});
      entry.step.group = place.group;
      entry.step.step = place.step;
      nodes[at].entry = entry;
      if (entry.is_missing || entry.is_seen) continue;
      for (const auto& [cause, kind] : causes_of(*step)) {
        if (nodes.size() >= chain_.limit) {
          chain_.is_cut = true;
          break;
        }
        nodes[at].children.push_back(nodes.size());
        nodes.push_back({{cause, kind, entry.depth + 1}, {}, {}});
      }
    }
    std::vector<size_t> open{0};
    while (!open.empty()) {
      const Node& node = nodes[open.back()];
      open.pop_back();
      chain_.entries.push_back(node.entry);
      open.insert(open.end(), node.children.rbegin(), node.children.rend());
    }
    return std::move(chain_);
  }

 private:
  struct Open {
    Place place;
    CauseKind kind;
    int64_t depth;
  };
  struct Node {
    Open open;
    ChainEntry entry;
    std::vector<size_t> children;
  };
  std::vector<std::pair<Place, CauseKind>> causes_of(const TraceStep& step) {
    std::vector<std::pair<Place, CauseKind>> causes;
    std::set<Place> known{{step.group, step.step}};
    const auto add = [&](const StepRef& ref, CauseKind kind) {
      const auto place = place_of(trace_.catalog(), ref);
      if (place && known.insert(*place).second) causes.emplace_back(*place, kind);
    };
    if (step.kind == StepKind::kMessage) {
      if (step.cause.is_none()) ++chain_.num_unknown;
      add(step.cause, CauseKind::kInput);
      add_references(key_of(step), add);
    }
    // Each answer refers to the message that it answers.
    for (const MessageKey& key : trace_.stored_emissions(step.group, step.step))
      if (const auto payload = trace_.payload(key); payload.ok()) {
        const auto place = place_of(trace_.catalog(), payload->cause);
        if (place && place->group == step.group && place->step <= step.step)
          add(payload->cause, CauseKind::kAnswers);
      }
    if (causes.empty() && step.kind != StepKind::kMessage && !is_source(step))
      add_used_messages(step, causes);
    for (uint64_t i = 1; i <= program_order_ && step.step > i; ++i)
      if (known.insert({step.group, step.step - i}).second)
        causes.emplace_back(Place{step.group, step.step - i}, CauseKind::kProgramOrder);
    return causes;
  }
  /// Adds the messages that a work call or a timer could use: those since the last work call that
  /// sent something.
  void add_used_messages(const TraceStep& step, std::vector<std::pair<Place, CauseKind>>& causes) {
    for (uint64_t i = 1; i <= kUsedMessagesMax && step.step > i; ++i) {
      const auto before = trace_.step(step.group, step.step - i);
      if (!before) return;
      if (before->kind == StepKind::kMessage)
        causes.emplace_back(Place{step.group, before->step}, CauseKind::kProgramOrder);
      if (before->kind == StepKind::kWork && before->num_emissions > 0) break;
    }
    if (causes.empty() && step.step > 1)
      causes.emplace_back(Place{step.group, step.step - 1}, CauseKind::kProgramOrder);
  }
  /// Whether the step is a work call of a group that receives no messages.
  bool is_source(const TraceStep& step) const {
    const TraceCatalog& catalog = trace_.catalog();
    return step.kind == StepKind::kWork &&
           std::ranges::none_of(catalog.links, [&](const auto& link) {
             return catalog.instances[link.target].group == step.group.value && !link.is_feedback;
           });
  }
  template <class Add>
  void add_references(const MessageKey& key, const Add& add) {
    const auto payload = trace_.payload(key);
    if (!payload.ok()) return;
    const auto [known, is_new] = schemas_.try_emplace(payload->type);
    if (is_new) {
      auto schema = read_schema(trace_.catalog().types[payload->type].schema);
      if (schema.ok() && schema->has_step) known->second = std::move(schema).value();
    }
    if (!known->second) return;
    const auto steps = body_steps(*known->second, payload->body, payload->blobs);
    if (!steps.ok()) return;
    for (const StepRef& ref : *steps) add(ref, CauseKind::kRefers);
  }

  const Trace& trace_;
  const uint64_t program_order_;
  Chain chain_;
  std::set<Place> seen_;
  std::map<uint32_t, std::optional<FieldSchema>> schemas_;  // by type; only those with steps
};

}  // namespace

std::string_view to_string(CauseKind kind) {
  switch (kind) {
    case CauseKind::kAsked:
      return "asked";
    case CauseKind::kInput:
      return "input";
    case CauseKind::kAnswers:
      return "answers";
    case CauseKind::kRefers:
      return "refers";
    case CauseKind::kProgramOrder:
      return "program order";
  }
  return "unknown";
}

Chain why(const Trace& trace, const TraceStep& step, uint64_t limit, uint64_t program_order) {
  return Walk(trace, limit, program_order).run(step);
}

Chain after(const Trace& trace, const TraceStep& step, uint64_t limit) {
  Chain chain;
  chain.limit = limit;
  std::map<Place, int64_t> depths{{{step.group, step.step}, 0}};
  const auto add = [&](const TraceStep& found, CauseKind kind, int64_t depth) {
    if (chain.entries.size() >= limit) {
      chain.is_cut = true;
      return false;
    }
    ChainEntry& entry = chain.entries.emplace_back();
    entry.step = found;
    entry.kind = kind;
    entry.depth = depth;
    return true;
  };
  if (!add(step, CauseKind::kAsked, 0)) return chain;
  // Effects come later, but the clock may not advance: steps with equal times are processed
  // together.
  std::vector<TraceStep> moment;
  const auto settle = [&]() -> bool {
    for (bool grew = true; grew;) {
      grew = false;
      for (auto& found : moment) {
        if (found.step == 0) continue;
        const auto cause = place_of(trace.catalog(), found.cause);
        const auto known = cause ? depths.find(*cause) : depths.end();
        if (known == depths.end()) continue;
        const int64_t depth = known->second + 1;
        if (!depths.try_emplace({found.group, found.step}, depth).second) continue;
        if (!add(found, CauseKind::kInput, depth)) return false;
        found.step = 0;
        grew = true;
      }
    }
    moment.clear();
    return true;
  };
  bool goes_on = true;
  trace.visit(step.began, Time::from_nanoseconds(INT64_MAX), [&](const TraceStep& found) {
    if (!moment.empty() && moment.front().began < found.began) goes_on = settle();
    if (found.kind == StepKind::kMessage && !found.cause.is_none()) moment.push_back(found);
    return goes_on;
  });
  if (goes_on) settle();
  return chain;
}

std::string to_text(const Trace& trace, const Chain& chain) {
  std::string text;
  for (const ChainEntry& entry : chain.entries) {
    const std::string indent(static_cast<size_t>(std::min<int64_t>(entry.depth, 40)) * 2, ' ');
    if (entry.is_missing) {
      text += fmt::format("{}{}  its record is not there\n", indent,
                          step_text(trace.catalog(), entry.step.group, entry.step.step));
      continue;
    }
    text +=
        fmt::format("{}{}  {}  at {} s", indent, step_name(trace, entry.step),
                    input_text(trace, entry.step), time_text(trace.catalog(), entry.step.began));
    if (entry.step.kind == StepKind::kMessage)
      text += fmt::format("  {}", trace.catalog().types[entry.step.type].name);
    if (entry.kind != CauseKind::kInput && entry.kind != CauseKind::kAsked)
      text += fmt::format("  [{}]", to_string(entry.kind));
    if (entry.step.is_failed()) text += "  FAILED";
    if (entry.is_seen) text += "  (its causes are shown elsewhere)";
    if (entry.kind == CauseKind::kAsked && !entry.is_seen)
      if (const auto message = input_json(trace, entry.step); message.ok())
        text += fmt::format("\n{}  {}", indent, short_json(*message, 200));
    text += "\n";
  }
  if (chain.is_cut)
    text += fmt::format("cut at {}: --limit shows more\n", counted(chain.limit, "step"));
  return text;
}

Json to_json(const Trace& trace, const Chain& chain) {
  Json entries = Json::array();
  for (const ChainEntry& entry : chain.entries) {
    Json json = entry.is_missing
                    ? Json::object()
                          .set("at", step_text(trace.catalog(), entry.step.group, entry.step.step))
                          .set("missing", true)
                    : step_json(trace, entry.step);
    json.set("relation", to_string(entry.kind)).set("depth", entry.depth);
    if (entry.is_seen) json.set("shown_elsewhere", true);
    entries.push_back(std::move(json));
  }
  return Json::object()
      .set("schema", "primerl.trace.chain/1")
      .set("complete", trace.is_complete())
      .set("cut", chain.is_cut)
      .set("limit", chain.limit)
      .set("steps", std::move(entries));
}

}  // namespace primerl
