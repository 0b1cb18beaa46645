// Checks whether a plan can replay a trace, and which groups can be taken from the record.
#include <algorithm>

#include "runtime/exec/wiring.h"
#include "runtime/replay/replay.h"

namespace primerl {
namespace {

Error another(std::string_view what, std::string_view recorded, std::string_view now) {
  return error(Code::kInvalid, "the trace is of another graph: {} is '{}' there and '{}' here",
               what, recorded, now)
      .note("replay needs the same nodes, edges and tenants; options may differ");
}

Status same_count(std::string_view what, size_t recorded, size_t now) {
  if (recorded == now) return ok();
  return error(Code::kInvalid, "the trace is of another graph: it has {} {}, this graph has {}",
               recorded, what, now)
      .note("replay needs the same nodes, edges and tenants; options may differ");
}

std::string link_text(const TraceCatalog& catalog, const TraceCatalog::TraceLink& link) {
  return fmt::format("{} ({} to {})", link.edge, catalog.instances[link.sender].name,
                     catalog.instances[link.target].name);
}

Status same_schemas(const TraceCatalog& recorded, const TraceCatalog& now) {
  for (const auto& then : recorded.types)
    for (const auto& type : now.types) {
      if (type.name != then.name || type.schema_hash == then.schema_hash) continue;
      return error(Code::kInvalid, "message '{}' has another schema than when it was recorded",
                   type.name)
          .note(fmt::format("recorded: version {}, {}", then.version, then.schema))
          .note(fmt::format("now: version {}, {}", type.version, type.schema))
          .note("replay it with the program that recorded it; `trace` commands still read it");
    }
  return ok();
}

bool uses_kind(const Plan& plan, const PlanGroup& group, std::string_view kind) {
  return std::any_of(group.resources.begin(), group.resources.end(), [&](int32_t index) {
    return plan.resources[static_cast<size_t>(index)].kind == kind;
  });
}

/// Weight channels that the nodes of a group use.
std::vector<int32_t> channels_of(const Plan& plan, const PlanGroup& group) {
  std::vector<int32_t> channels;
  for (InstanceId id : group.instances)
    for (int32_t index : plan.instance(id).resources)
      if (index >= 0 && plan.resources[static_cast<size_t>(index)].kind == "weight_channel")
        channels.push_back(index);
  return channels;
}

bool share_channel(const Plan& plan, const PlanGroup& a, const PlanGroup& b) {
  const auto of_b = channels_of(plan, b);
  const auto of_a = channels_of(plan, a);
  return std::any_of(of_a.begin(), of_a.end(), [&](int32_t channel) {
    return std::find(of_b.begin(), of_b.end(), channel) != of_b.end();
  });
}

/// Groups that receive from one and send to the other.
std::vector<uint32_t> groups_between(const TraceCatalog& catalog, uint32_t from, uint32_t to) {
  const auto joins = [&](uint32_t a, uint32_t b) {
    return std::any_of(catalog.links.begin(), catalog.links.end(), [&](const auto& link) {
      return catalog.instances[link.sender].group == a && catalog.instances[link.target].group == b;
    });
  };
  std::vector<uint32_t> between;
  for (uint32_t group = 0; group < catalog.groups.size(); ++group)
    if (group != from && group != to && joins(from, group) && joins(group, to))
      between.push_back(group);
  return between;
}

}  // namespace

Status check_fits(const Plan& plan, const TraceCatalog& catalog) {
  const TraceCatalog now = make_trace_catalog(plan, *make_wiring(plan));
  RETURN_IF_ERROR(same_schemas(catalog, now));
  RETURN_IF_ERROR(same_count("actor groups", catalog.groups.size(), now.groups.size()));
  RETURN_IF_ERROR(same_count("instances", catalog.instances.size(), now.instances.size()));
  RETURN_IF_ERROR(same_count("links", catalog.links.size(), now.links.size()));
  for (size_t i = 0; i < now.groups.size(); ++i)
    if (catalog.groups[i].name != now.groups[i].name)
      return another(fmt::format("actor group {}", i), catalog.groups[i].name, now.groups[i].name);
  for (size_t i = 0; i < now.instances.size(); ++i) {
    if (catalog.instances[i].name != now.instances[i].name)
      return another(fmt::format("instance {}", i), catalog.instances[i].name,
                     now.instances[i].name);
    if (catalog.instances[i].actor != now.instances[i].actor)
      return another(fmt::format("the actor of '{}'", now.instances[i].name),
                     catalog.instances[i].actor, now.instances[i].actor);
    if (catalog.instances[i].timers != now.instances[i].timers)
      return error(Code::kInvalid, "actor '{}' declares other timers than when it was recorded",
                   now.instances[i].actor);
  }
  for (size_t i = 0; i < now.links.size(); ++i) {
    const auto& a = catalog.links[i];
    const auto& b = now.links[i];
    if (a.edge != b.edge || a.sender != b.sender || a.target != b.target)
      return another(fmt::format("link {}", i), link_text(catalog, a), link_text(now, b));
    if (catalog.types[a.type].name != now.types[b.type].name)
      return another(fmt::format("the message of '{}'", a.edge), catalog.types[a.type].name,
                     now.types[b.type].name);
  }
  return ok();
}

uint32_t recorded_incarnation(const Trace& trace, const std::vector<bool>& is_absent) {
  const TraceCatalog& catalog = trace.catalog();
  for (uint32_t i = 0; i < catalog.groups.size(); ++i) {
    const GroupId group(i);
    for (uint64_t number = trace.first_step(group); number <= trace.last_step(group); ++number) {
      const auto step = trace.step(group, number);
      if (!step || step->kind != StepKind::kMessage) continue;
      const uint32_t sender = catalog.links[step->link.index()].sender;
      if (is_absent.empty() || !is_absent[catalog.instances[sender].group])
        return step->incarnation;
    }
  }
  return 1;
}

uint32_t incarnation_of(const Plan& plan, const Trace& trace, const std::vector<bool>& is_absent,
                        const RunCuts& cuts) {
  for (uint32_t i = 0; i < plan.groups.size(); ++i)
    if (const GroupState* state = cuts.state_of(GroupId(i));
        state != nullptr && (is_absent.empty() || !is_absent[i]))
      return state->incarnation;
  return recorded_incarnation(trace, is_absent);
}

std::vector<std::string> close_over(const Plan& plan, const Trace& trace, bool generates,
                                    const std::vector<bool>& is_absent,
                                    std::vector<bool>& is_real) {
  std::vector<std::string> reasons;
  const auto make_real = [&](uint32_t group, std::string why) {
    is_real[group] = true;
    reasons.push_back(fmt::format("'{}' is replayed too: {}", plan.groups[group].name, why));
  };
  bool changed = true;
  while (changed) {
    changed = false;
    for (const auto& link : trace.catalog().links) {
      const uint32_t sender = trace.catalog().instances[link.sender].group;
      const uint32_t target = trace.catalog().instances[link.target].group;
      if (is_real[sender] || !is_real[target] || is_absent[sender]) continue;
      if (link.record == "payload" || link.record == "input") continue;
      make_real(sender, fmt::format("the messages of '{}' are not stored", link.edge));
      changed = true;
    }
    for (uint32_t engine = 0; generates && engine < plan.groups.size(); ++engine) {
      if (!is_real[engine] || !uses_kind(plan, plan.groups[engine], "engine")) continue;
      for (uint32_t learner = 0; learner < plan.groups.size(); ++learner) {
        if (is_real[learner] || !uses_kind(plan, plan.groups[learner], "learner")) continue;
        if (!share_channel(plan, plan.groups[engine], plan.groups[learner])) continue;
        make_real(learner,
                  fmt::format("'{}' needs the weights it makes", plan.groups[engine].name));
        // Also the groups that report new weights to the engine, so that the weights exist at that
        // time.
        for (uint32_t between : groups_between(trace.catalog(), learner, engine))
          if (!is_real[between])
            make_real(between, fmt::format("it tells '{}' of weights", plan.groups[engine].name));
        changed = true;
      }
    }
  }
  return reasons;
}

}  // namespace primerl
