// The run as one JSON value, for /status and `ps`.
#include <algorithm>
#include <cmath>

#include "runtime/exec/handler_watch.h"
#include "runtime/exec/stall.h"
#include "runtime/monitor/status_store.h"

namespace primerl {
namespace {

// Heartbeats come one second apart and not all at the same time, so only a longer pause is shown.
constexpr Duration kIdleShownAfter = Duration::seconds(3);

/// Rounded to milliseconds.
double seconds_of(double seconds) {
  return static_cast<double>(std::llround(seconds * 1e3)) * 1e-3;
}

/// Rounded to a tenth of a percent.
double part(double part) { return static_cast<double>(std::llround(part * 1e3)) * 1e-3; }

/// A run that is served says the state itself.
std::string state_of(const TenantPicture& tenant) {
  if (!tenant.state.empty()) return tenant.state;
  if (!tenant.why_set_aside.empty()) return "set aside";
  const bool is_done =
      tenant.newest != nullptr && tenant.max_steps > 0 && tenant.newest->step >= tenant.max_steps;
  return is_done ? "done" : "training";
}

Json tenant_json(const TenantPicture& tenant, Time now) {
  Json one = Json::object();
  one.set("name", tenant.name)
      .set("state", state_of(tenant))
      .set("max_steps", tenant.max_steps > 0 ? Json(tenant.max_steps) : Json())
      .set("share", tenant.share);
  if (!tenant.why_set_aside.empty()) one.set("why", tenant.why_set_aside);
  if (tenant.served.engine) one.set("engine_share", part(*tenant.served.engine));
  if (tenant.served.learner) one.set("learner_share", part(*tenant.served.learner));
  if (tenant.served.engine) one.set("tokens_per_second", part(tenant.served.tokens_per_second));
  if (!tenant.alarms.empty()) {
    Json alarms = Json::array();
    for (const AlarmChange& alarm : tenant.alarms) alarms.push_back(alarm.json());
    one.set("alarms", std::move(alarms));
  }
  if (tenant.newest != nullptr) {
    Json values = Json::object();
    for (const auto& [name, value] : tenant.newest->values) values.set(name, value);
    one.set("step", tenant.newest->step)
        .set("last_step_age_seconds", seconds_of(age(now, tenant.step_at)))
        .set("metrics", std::move(values));
  }
  return one;
}

Json tenants_json(const RunSnapshot& picture, Time now) {
  Json tenants = Json::array();
  for (const TenantPicture& tenant : picture.tenants)
    if (!tenant.name.empty()) tenants.push_back(tenant_json(tenant, now));
  for (const TenantPicture& tenant : picture.left) tenants.push_back(tenant_json(tenant, now));
  return tenants;
}

std::string names_of_links(const Plan& plan, const std::vector<uint32_t>& links,
                           const Wiring& wiring) {
  std::vector<std::string> names;
  for (const uint32_t link : links)
    if (link < wiring.links.size()) names.push_back(plan.edge(wiring.links[link].edge).name);
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return fmt::format("{}", fmt::join(names, ", "));
}

Json group_json(const Plan& plan, const Wiring& wiring, const GroupReport& group) {
  Json one = Json::object();
  one.set("name", plan.groups[group.group].name)
      .set("steps", group.num_steps)
      .set("busy_seconds", seconds_of(static_cast<double>(group.busy_ns) * kNanosecond))
      .set("waiting", group.num_waiting);
  if (group.num_waiting > 0)
    one.set("oldest_seconds", seconds_of(static_cast<double>(group.oldest_ns) * kNanosecond));
  if (group.is_running) {
    const bool is_known = group.handling < plan.instances.size();
    one.set("handling", is_known ? plan.instances[group.handling].name : "work")
        .set("handling_seconds", seconds_of(static_cast<double>(group.running_ns) * kNanosecond));
    if (!group.handling_type.empty()) one.set("message", group.handling_type);
  }
  if (!group.full.empty()) one.set("full", names_of_links(plan, group.full, wiring));
  if (!group.paused.empty()) one.set("paused", names_of_links(plan, group.paused, wiring));
  return one;
}

/// Whether it is the actor group of an environment, which has its own deadline
/// (ActorGroup::may_run_apart()).
bool runs_apart(const Plan& plan, const GroupReport& report) {
  const PlanGroup& group = plan.groups[report.group];
  // In a graph with slots each may ask outside, whether its tenant does or not.
  const auto is_of_slot = [&plan](int32_t resource) {
    return !plan.resources[static_cast<size_t>(resource)].slot.is_none();
  };
  return group.own_thread && group.instances.size() == 1 &&
         std::ranges::all_of(group.resources, is_of_slot);
}

/// Whether a handler has shown no sign of life for longer than handler_alarm_after.
bool is_alarm_due(const Plan& plan, const GroupReport& group) {
  const Duration after = plan.settings.handler_alarm_after;
  return after != Duration() && group.is_running && group.group < plan.groups.size() &&
         Duration::nanoseconds(group.silent_ns) >= after && !runs_apart(plan, group);
}

Json alarms_json(const Plan& plan, const Wiring& wiring, const RunSnapshot& picture) {
  Json alarms = Json::array();
  for (size_t i = 0; i < picture.processes.size(); ++i) {
    if (picture.processes[i].beat == nullptr) continue;
    for (const GroupReport& group : picture.processes[i].beat->groups) {
      if (!is_alarm_due(plan, group)) continue;
      const auto view = to_view(plan, wiring, group, Time());
      if (!view) continue;
      alarms.push_back(
          Json::object()
              .set("process", plan.processes[i].name)
              .set("group", plan.groups[group.group].name)
              .set("handling", handling_text(plan, wiring, *view))
              .set("seconds", seconds_of(static_cast<double>(group.running_ns) * kNanosecond))
              .set("silent_seconds",
                   seconds_of(static_cast<double>(group.silent_ns) * kNanosecond)));
    }
  }
  return alarms;
}

Json engine_json(const Plan& plan, const RunSnapshot& picture, const EngineReport& engine) {
  return Json::object()
      .set("name", plan.resources[engine.resource].name)
      .set("group", plan.groups[engine.group].name)
      .set("tenant",
           engine.tenant < picture.tenants.size() ? picture.tenants[engine.tenant].name : "")
      .set("adapter", engine.adapter)
      .set("policy_version", engine.version)
      .set("applied_versions", engine.num_applied)
      .set("apply_seconds", seconds_of(static_cast<double>(engine.apply_ns) * kNanosecond));
}

Json connection_json(const Plan& plan, const ConnectionReport& connection) {
  return Json::object()
      .set("peer", plan.processes[connection.peer].name)
      .set("up", connection.is_up)
      .set("sent_bytes", connection.sent_bytes)
      .set("received_bytes", connection.received_bytes)
      .set("unacknowledged_bytes", connection.unacknowledged_bytes)
      .set("sent_stream_bytes", connection.sent_stream_bytes)
      .set("received_stream_bytes", connection.received_stream_bytes)
      .set("frames_resent", connection.num_frames_resent)
      .set("breaks", connection.num_breaks);
}

/// The paused engines, with all owners of their pauses.
Json held_engines_json(const Plan& plan, const RunSnapshot& picture) {
  Json held = Json::array();
  for (const ProcessPicture& process : picture.processes) {
    if (process.beat == nullptr) continue;
    for (const EngineUse& engine : process.beat->engine_uses)
      if (engine.is_held && engine.group < plan.groups.size())
        held.push_back(plan.groups[engine.group].name);
  }
  return held;
}

Json holds_json(const Plan& plan, const RunSnapshot& picture, Time now) {
  Json holds = Json::array();
  for (const HoldPicture& hold : picture.holds) {
    Json one = Json::object();
    one.set("owner", hold.owner).set("seconds_left", seconds_of(age(hold.until, now)));
    if (!hold.tenant.is_none()) one.set("tenant", plan.tenants[hold.tenant.index()].name);
    holds.push_back(std::move(one));
  }
  return holds;
}

std::string_view state_of(const Plan& plan, const ProcessPicture& process) {
  if (process.state != ProcessState::kRunning || process.beat == nullptr)
    return to_string(process.state);
  const auto still = Duration::milliseconds(process.beat->still_ms);
  if (process.beat->is_waiting && still >= plan.settings.stall_after) return "stalled";
  return process.beat->is_draining ? "draining" : "running";
}

Json process_json(const Plan& plan, const Wiring& wiring, const RunSnapshot& picture, size_t index,
                  Time now) {
  const ProcessPicture& process = picture.processes[index];
  const PlanProcess& planned = plan.processes[index];
  Json one = Json::object();
  one.set("name", planned.name);
  if (!planned.machine.empty()) one.set("host", planned.machine);
  one.set("pid", process.pid)
      .set("incarnation", process.incarnation)
      .set("restarts", process.num_restarts)
      .set("state", state_of(plan, process));
  Json nodes = Json::array(), groups = Json::array(), connections = Json::array(),
       engines = Json::array();
  for (const GroupId group : planned.groups)
    for (const InstanceId instance : plan.group(group).instances)
      nodes.push_back(Json::object().set("name", plan.instance(instance).name));
  const Heartbeat* beat = process.beat.get();
  if (beat == nullptr) return one.set("nodes", std::move(nodes));
  one.set("steps", beat->num_steps)
      .set("last_progress_age_seconds",
           seconds_of(static_cast<double>(beat->still_ms) * 1e-3 + age(now, process.beat_at)))
      .set("heartbeat_age_seconds", seconds_of(age(now, process.beat_at)));
  for (const InstanceLoad& load : beat->instances)
    for (Json& node : nodes.as_array())
      if (load.instance < plan.instances.size() &&
          *node.get_string("name") == plan.instances[load.instance].name)
        node.set("handled", load.num_handled)
            .set("failed", load.num_failed)
            .set("waiting", load.num_waiting);
  for (const GroupReport& group : beat->groups)
    if (group.group < plan.groups.size()) groups.push_back(group_json(plan, wiring, group));
  for (const ConnectionReport& connection : beat->connections)
    if (connection.peer < plan.processes.size())
      connections.push_back(connection_json(plan, connection));
  for (const EngineReport& engine : beat->engines)
    if (engine.resource < plan.resources.size() && engine.group < plan.groups.size())
      engines.push_back(engine_json(plan, picture, engine));
  return one.set("nodes", std::move(nodes))
      .set("groups", std::move(groups))
      .set("links", std::move(connections))
      .set("engines", std::move(engines));
}

/// Whether a source fills the edge in advance: then the edge is full in normal operation.
bool is_prefetched(const Plan& plan, const PlanEdge& edge) {
  return plan.node(edge.from).contract->is_source && !edge.feedback;
}

Json edge_json(const Plan& plan, const RunSnapshot& picture, size_t index) {
  const PlanEdge& edge = plan.edges[index];
  EdgeLedger sum;
  EdgeLoad load;
  for (const ProcessPicture& process : picture.processes) {
    if (process.beat == nullptr) continue;
    if (index < process.beat->edges.size()) {
      const EdgeLedger& part = process.beat->edges[index];
      sum.sent += part.sent;
      sum.handled += part.handled;
      sum.failed += part.failed;
      sum.returned += part.returned;
      sum.dropped += part.dropped;
      sum.waiting_max = std::max(sum.waiting_max, part.waiting_max);
    }
    if (index < process.beat->loads.size()) {
      const EdgeLoad& part = process.beat->loads[index];
      load.num_waiting += part.num_waiting;
      load.num_held_back += part.num_held_back;
      load.unsettled_max = std::max(load.unsettled_max, part.unsettled_max);
      load.blocked_ns += part.blocked_ns;
    }
  }
  // Processes report at different moments, and a restarted process counts from 0.
  sum.sent = std::max(sum.sent, sum.handled + sum.failed + sum.returned + sum.dropped);
  const auto capacity = static_cast<uint64_t>(edge.capacity);
  return Json::object()
      .set("name", edge.name)
      .set("feedback", edge.feedback)
      .set("prefetched", is_prefetched(plan, edge))
      .set("transport", to_string(edge.transport))
      .set("sent", sum.sent)
      .set("handled", sum.handled)
      .set("failed", sum.failed)
      .set("returned", sum.returned)
      .set("dropped", sum.dropped)
      .set("waiting", load.num_waiting)
      .set("held_back", load.num_held_back)
      .set("waiting_max", sum.waiting_max)
      .set("credit", capacity - std::min(capacity, load.unsettled_max))
      .set("capacity", edge.capacity)
      .set("bound", edge.bound)
      .set("blocked_seconds", seconds_of(static_cast<double>(load.blocked_ns) * kNanosecond));
}

}  // namespace

Json status_json(const Plan& plan, const Wiring& wiring, const RunFacts& facts,
                 const RunSnapshot& picture, Time now) {
  Json processes = Json::array(), edges = Json::array();
  for (size_t i = 0; i < picture.processes.size(); ++i)
    processes.push_back(process_json(plan, wiring, picture, i, now));
  for (size_t e = 0; e < plan.edges.size(); ++e) edges.push_back(edge_json(plan, picture, e));
  Json status = Json::object();
  status.set("schema", "primerl.status/1")
      .set("name", plan.settings.name)
      .set("run_id", facts.run_id)
      .set("version", facts.version)
      .set("folder", facts.folder)
      .set("state", "running")
      .set("phase", picture.phase.empty() ? "training" : picture.phase)
      .set("age_seconds", seconds_of(age(now, picture.began)))
      .set("tenants", tenants_json(picture, now))
      .set("processes", std::move(processes))
      .set("edges", std::move(edges));
  if (Json alarms = alarms_json(plan, wiring, picture); !alarms.as_array().empty())
    status.set("alarms", std::move(alarms));
  if (Json held = held_engines_json(plan, picture); !held.as_array().empty())
    status.set("held_engines", std::move(held));
  if (!picture.holds.empty()) status.set("holds", holds_json(plan, picture, now));
  if (is_stalled_for(picture, kIdleShownAfter)) {
    const StallReport report = stall_report_of(plan, wiring, picture);
    status.set("still", report.text());
    if (!report.wait_cycle.empty()) status.set("wait_cycle", Json::list(report.wait_cycle));
  }
  return status;
}

}  // namespace primerl
