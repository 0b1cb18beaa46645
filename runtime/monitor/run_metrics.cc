// The run as Prometheus text. Every sample names its process, so a restarted process resets only
// its own counters.
#include <algorithm>
#include <functional>
#include <map>

#include "graph/base/histogram.h"
#include "runtime/monitor/prometheus.h"
#include "runtime/monitor/status_store.h"
#include "runtime/monitor/tenant_metrics.h"

namespace primerl {
namespace {

/// A family of metrics: its name, its help text, and how to read the value of one item.
template <class Thing>
struct Family {
  bool is_counter;
  std::string_view name;
  std::string_view help;
  double (*value)(const Thing&);
};

/// A heartbeat and the process that sent it.
struct Said {
  const PlanProcess* planned;
  const ProcessPicture* process;
  const Heartbeat* beat;  // never null
};

class Metrics {
 public:
  Metrics(const Plan& plan, const RunSnapshot& picture, Time now)
      : plan_(plan), picture_(picture), now_(now) {
    for (size_t i = 0; i < picture.processes.size(); ++i)
      if (const auto& process = picture.processes[i]; process.beat != nullptr)
        said_.push_back({&plan.processes[i], &process, process.beat.get()});
  }

  void run(const RunFacts& facts) {
    const std::string hash = fmt::format("{:016x}", plan_.graph_hash);
    out_.gauge("primerl_run_info", "Always 1; the labels say which run this is.");
    out_.sample({{"name", plan_.settings.name},
                 {"run_id", facts.run_id},
                 {"version", facts.version},
                 {"graph_hash", hash}},
                1.0);
    out_.gauge("primerl_run_age_seconds", "Since this start of the run.");
    out_.sample({}, age(now_, picture_.began));
  }

  void processes();
  void groups();
  void instances();
  void counts();
  void edges();
  void edge_totals();
  void connections();
  void engines();
  void engine_uses();
  void engine_requests();
  void tenants() { write_tenant_metrics(out_, picture_, now_); }

  std::string text() const { return out_.text(); }

 private:
  template <class Thing>
  void begin(const Family<Thing>& family) {
    family.is_counter ? out_.counter(family.name, family.help)
                      : out_.gauge(family.name, family.help);
  }
  bool has_tenant(size_t slot) const {
    return slot < picture_.tenants.size() && !picture_.tenants[slot].name.empty();
  }
  /// The tenant of the slot; of a free one the name that it has in the plan.
  std::string_view name_in(size_t slot) const {
    return has_tenant(slot) ? picture_.tenants[slot].name
                            : plan_.in_slot(TenantSlot(static_cast<uint32_t>(slot))).name;
  }
  bool has_end_in(const PlanEdge& edge, const PlanProcess* process) const {
    const auto is_here = [&](NodeId node) {
      const auto& instances = plan_.node(node).instances;
      return std::any_of(instances.begin(), instances.end(), [&](InstanceId instance) {
        return &plan_.process(plan_.process_of(instance)) == process;
      });
    };
    return is_here(edge.from) || is_here(edge.to);
  }

  const Plan& plan_;
  const RunSnapshot& picture_;
  const Time now_;
  std::vector<Said> said_;
  const std::vector<bool> is_labelled_ = labelled_tenants(picture_);  // by slot
  PrometheusText out_;
};

void Metrics::processes() {
  const Family<ProcessPicture> always[] = {
      {false, "primerl_process_up", "1 while the process runs and reports.",
       [](const ProcessPicture& one) { return one.state == ProcessState::kRunning ? 1.0 : 0.0; }},
      {false, "primerl_process_incarnation", "How often the process was started, in all starts.",
       [](const ProcessPicture& one) { return as_number(one.incarnation); }},
      {true, "primerl_process_restarts_total", "Times it died and was started again.",
       [](const ProcessPicture& one) { return as_number(one.num_restarts); }}};
  for (const auto& family : always) {
    begin(family);
    for (size_t i = 0; i < picture_.processes.size(); ++i)
      out_.sample({{"process", plan_.processes[i].name}}, family.value(picture_.processes[i]));
  }
  const Family<Heartbeat> reported[] = {
      {true, "primerl_process_steps_total", "Steps of all its groups: inputs and work calls.",
       [](const Heartbeat& beat) { return as_number(beat.num_steps); }},
      {true, "primerl_process_dropped_reports_total",
       "Log and metric lines that were dropped, because the outbox was full.",
       [](const Heartbeat& beat) { return as_number(beat.num_dropped_reports); }}};
  for (const auto& family : reported) {
    begin(family);
    for (const Said& one : said_)
      out_.sample({{"process", one.planned->name}}, family.value(*one.beat));
  }
  out_.gauge("primerl_process_last_progress_age_seconds",
             "Since its last step or sign of life of a handler.");
  for (const Said& one : said_)
    out_.sample({{"process", one.planned->name}},
                as_number(one.beat->still_ms) * 1e-3 + age(now_, one.process->beat_at));
  out_.gauge("primerl_process_heartbeat_age_seconds", "Time since its last heartbeat.");
  for (const Said& one : said_)
    out_.sample({{"process", one.planned->name}}, age(now_, one.process->beat_at));
}

void Metrics::groups() {
  const Family<GroupReport> families[] = {
      {true, "primerl_group_steps_total", "Steps of the group: inputs and work calls.",
       [](const GroupReport& group) { return as_number(group.num_steps); }},
      {true, "primerl_group_busy_seconds_total", "Time of its thread in handlers and work calls.",
       [](const GroupReport& group) { return as_number(group.busy_ns) * kNanosecond; }},
      {false, "primerl_group_waiting_inputs", "Inputs in its inbox: messages, timers, control.",
       [](const GroupReport& group) { return as_number(group.num_waiting); }},
      {false, "primerl_group_oldest_input_age_seconds", "Age of the oldest of those.",
       [](const GroupReport& group) { return as_number(group.oldest_ns) * kNanosecond; }},
      {false, "primerl_group_handler_age_seconds",
       "How long the handler that runs has run; else 0.",
       [](const GroupReport& group) { return as_number(group.running_ns) * kNanosecond; }},
      {false, "primerl_group_handler_silent_seconds",
       "Since the handler that runs began or gave a sign of life; else 0.",
       [](const GroupReport& group) { return as_number(group.silent_ns) * kNanosecond; }},
      {true, "primerl_group_handler_alarms_total", "Handlers that passed handler_alarm_after.",
       [](const GroupReport& group) { return as_number(group.num_alarms); }}};
  for (const auto& family : families) {
    begin(family);
    for (const Said& one : said_)
      for (const GroupReport& group : one.beat->groups)
        if (group.group < plan_.groups.size())
          out_.sample({{"process", one.planned->name}, {"group", plan_.groups[group.group].name}},
                      family.value(group));
  }
}

void Metrics::instances() {
  const Family<InstanceLoad> families[] = {
      {true, "primerl_node_handled_messages_total", "Messages the instance was given.",
       [](const InstanceLoad& load) { return as_number(load.num_handled); }},
      {true, "primerl_node_failed_messages_total", "Of those, messages whose handler failed.",
       [](const InstanceLoad& load) { return as_number(load.num_failed); }},
      {false, "primerl_node_waiting_messages", "Messages in the inbox for it.",
       [](const InstanceLoad& load) { return as_number(load.num_waiting); }}};
  for (const auto& family : families) {
    begin(family);
    for (const Said& one : said_)
      for (const InstanceLoad& load : one.beat->instances) {
        if (load.instance >= plan_.instances.size()) continue;
        const PlanInstance& instance = plan_.instances[load.instance];
        out_.sample({{"process", one.planned->name},
                     {"node", plan_.node(instance.node).name},
                     {"instance", instance.name}},
                    family.value(load));
      }
  }
}

/// Counts made by actors. An actor chooses the names, so two names may become one family; their
/// values are added.
void Metrics::counts() {
  struct Of {
    std::string_view process;
    const PlanInstance* instance;
    auto operator<=>(const Of&) const = default;
  };
  std::map<std::string, std::map<Of, uint64_t>> families;
  for (const Said& one : said_)
    for (const InstanceLoad& load : one.beat->instances) {
      if (load.instance >= plan_.instances.size()) continue;
      const TenantSlot slot = plan_.instances[load.instance].tenant;
      if (!slot.is_none() && !is_labelled_[slot.index()]) continue;
      for (const NamedCount& count : load.counts)
        families[prometheus_name("primerl_actor_", count.name) + "_total"]
                [{one.planned->name, &plan_.instances[load.instance]}] +=
            static_cast<uint64_t>(std::max<int64_t>(count.value, 0));
    }
  for (const auto& [name, values] : families) {
    out_.counter(name, "Counted by the actor itself.");
    for (const auto& [of, value] : values) {
      const TenantSlot tenant = of.instance->tenant;
      PrometheusLabels labels = {{"process", of.process},
                                 {"node", plan_.node(of.instance->node).name},
                                 {"instance", of.instance->name}};
      if (!tenant.is_none()) labels.emplace_back("tenant", name_in(tenant.index()));
      out_.sample(labels, value);
    }
  }
}

void Metrics::edges() {
  const auto each = [this](const auto& families, const auto& of_beat) {
    for (const auto& family : families) {
      begin(family);
      for (const Said& one : said_) {
        const auto& all = of_beat(*one.beat);
        for (size_t e = 0; e < std::min(all.size(), plan_.edges.size()); ++e)
          if (has_end_in(plan_.edges[e], one.planned))
            out_.sample({{"edge", plan_.edges[e].name}, {"process", one.planned->name}},
                        family.value(all[e]));
      }
    }
  };
  const Family<EdgeLedger> counts[] = {
      {true, "primerl_edge_sent_messages_total", "Messages emitted over the edge.",
       [](const EdgeLedger& edge) { return as_number(edge.sent); }},
      {true, "primerl_edge_handled_messages_total", "Messages handled.",
       [](const EdgeLedger& edge) { return as_number(edge.handled); }},
      {true, "primerl_edge_failed_messages_total", "Of those, messages whose handler failed.",
       [](const EdgeLedger& edge) { return as_number(edge.failed); }},
      {true, "primerl_edge_returned_messages_total", "Messages given back: the receiver died.",
       [](const EdgeLedger& edge) { return as_number(edge.returned); }},
      {true, "primerl_edge_dropped_messages_total",
       "Messages overtaken on a latest_wins edge, or of a sender that died.",
       [](const EdgeLedger& edge) { return as_number(edge.dropped); }},
      {false, "primerl_edge_waiting_max_messages",
       "The largest number of messages that waited between two instances.",
       [](const EdgeLedger& edge) { return as_number(edge.waiting_max); }}};
  each(
      counts, [](const Heartbeat& beat) -> const auto& { return beat.edges; });
  const Family<EdgeLoad> loads[] = {
      {false, "primerl_edge_waiting_messages", "Messages in inboxes of the receivers here.",
       [](const EdgeLoad& load) { return as_number(load.num_waiting); }},
      {false, "primerl_edge_held_back_messages", "Messages at the senders here, without credit.",
       [](const EdgeLoad& load) { return as_number(load.num_held_back); }},
      {true, "primerl_edge_blocked_seconds_total",
       "How long the edge was full, summed over its pairs of instances with a sender here.",
       [](const EdgeLoad& load) { return as_number(load.blocked_ns) * kNanosecond; }}};
  each(
      loads, [](const Heartbeat& beat) -> const auto& { return beat.loads; });
}

/// Values of whole edges.
void Metrics::edge_totals() {
  const Family<PlanEdge> bounds[] = {
      {false, "primerl_edge_capacity_messages",
       "Messages that a sender may have in flight to one receiver.",
       [](const PlanEdge& edge) { return as_number(edge.capacity); }},
      {false, "primerl_edge_bound_messages",
       "The largest number of messages that may wait between two instances.",
       [](const PlanEdge& edge) { return as_number(edge.bound); }}};
  for (const auto& family : bounds) {
    begin(family);
    for (const PlanEdge& edge : plan_.edges) out_.sample({{"edge", edge.name}}, family.value(edge));
  }
  out_.gauge("primerl_edge_credit_messages",
             "Messages that may still be sent between the two instances with the least credit.");
  for (size_t e = 0; e < plan_.edges.size(); ++e) {
    const auto capacity = static_cast<uint64_t>(plan_.edges[e].capacity);
    uint64_t unsettled = 0;
    for (const Said& one : said_)
      if (e < one.beat->loads.size())
        unsettled = std::max(unsettled, one.beat->loads[e].unsettled_max);
    out_.sample({{"edge", plan_.edges[e].name}}, capacity - std::min(capacity, unsettled));
  }
}

void Metrics::connections() {
  const Family<ConnectionReport> families[] = {
      {false, "primerl_connection_up", "1 while the connection to the peer is up.",
       [](const ConnectionReport& connection) { return connection.is_up ? 1.0 : 0.0; }},
      {true, "primerl_connection_sent_messages_total", "Messages given to the connection.",
       [](const ConnectionReport& connection) { return as_number(connection.sent_messages); }},
      {true, "primerl_connection_sent_bytes_total", "Bytes given to the link, Blobs included.",
       [](const ConnectionReport& connection) { return as_number(connection.sent_bytes); }},
      {true, "primerl_connection_received_messages_total", "Messages taken from the connection.",
       [](const ConnectionReport& connection) { return as_number(connection.received_messages); }},
      {true, "primerl_connection_received_bytes_total",
       "Bytes taken from the link, Blobs included.",
       [](const ConnectionReport& connection) { return as_number(connection.received_bytes); }},
      {false, "primerl_connection_unacknowledged_messages",
       "Messages the peer has not acknowledged.",
       [](const ConnectionReport& connection) {
         return as_number(connection.unacknowledged_messages);
       }},
      {false, "primerl_connection_unacknowledged_bytes", "Bytes the peer has not acknowledged.",
       [](const ConnectionReport& connection) {
         return as_number(connection.unacknowledged_bytes);
       }},
      {true, "primerl_connection_sent_stream_bytes_total",
       "Bytes of weights sent, beside the messages.",
       [](const ConnectionReport& connection) { return as_number(connection.sent_stream_bytes); }},
      {true, "primerl_connection_received_stream_bytes_total", "Bytes of weights received.",
       [](const ConnectionReport& connection) {
         return as_number(connection.received_stream_bytes);
       }},
      {true, "primerl_connection_resent_frames_total", "Frames sent again.",
       [](const ConnectionReport& connection) { return as_number(connection.num_frames_resent); }},
      {true, "primerl_connection_breaks_total", "Times the connection broke.",
       [](const ConnectionReport& connection) { return as_number(connection.num_breaks); }}};
  for (const auto& family : families) {
    begin(family);
    for (const Said& one : said_)
      for (const ConnectionReport& connection : one.beat->connections)
        if (connection.peer < plan_.processes.size())
          out_.sample(
              {{"process", one.planned->name}, {"peer", plan_.processes[connection.peer].name}},
              family.value(connection));
  }
}

void Metrics::engines() {
  const Family<EngineReport> families[] = {
      {false, "primerl_engine_policy_version",
       "Version of the weights that the engine applied last; -1 before the first.",
       [](const EngineReport& engine) { return as_number(engine.version); }},
      {true, "primerl_engine_applied_versions_total", "Versions that the engine applied.",
       [](const EngineReport& engine) { return as_number(engine.num_applied); }},
      {true, "primerl_engine_apply_seconds_total", "How long it stopped for them.",
       [](const EngineReport& engine) { return as_number(engine.apply_ns) * kNanosecond; }},
      {true, "primerl_engine_served_tokens_total",
       "Prompt tokens not found in the cache, and sampled tokens, of the tenant's ended requests.",
       [](const EngineReport& engine) { return as_number(engine.num_tokens); }}};
  if (plan_.num_slots() == 0) return;
  for (const auto& family : families) {
    begin(family);
    for (const Said& one : said_)
      for (const EngineReport& engine : one.beat->engines)
        if (engine.resource < plan_.resources.size() && engine.group < plan_.groups.size() &&
            has_tenant(engine.tenant) && is_labelled_[engine.tenant])
          out_.sample({{"process", one.planned->name},
                       {"group", plan_.groups[engine.group].name},
                       {"engine", plan_.resources[engine.resource].name},
                       {"tenant", name_in(engine.tenant)},
                       {"adapter", std::to_string(engine.adapter)}},
                      family.value(engine));
  }
}

/// The names are vLLM's, with primerl_engine_ instead of vllm: (a colon is not allowed in a plain
/// metric's name).
void Metrics::engine_uses() {
  const auto used = [](const EngineUse& engine) {
    return engine.num_blocks == 0 ? 0.0
                                  : 1.0 - as_number(engine.num_free_blocks) / engine.num_blocks;
  };
  const Family<EngineUse> families[] = {
      {false, "primerl_engine_num_requests_running", "Sequences that the engine decodes.",
       [](const EngineUse& engine) { return as_number(engine.num_running); }},
      {false, "primerl_engine_num_requests_waiting",
       "Sequences whose prompt is not complete, and those that were preempted.",
       [](const EngineUse& engine) { return as_number(engine.num_waiting); }},
      {false, "primerl_engine_num_requests_held",
       "Sequences whose prompt is complete and that decode has not taken over yet.",
       [](const EngineUse& engine) { return as_number(engine.num_held); }},
      {false, "primerl_engine_kv_cache_usage_ratio",
       "KV blocks that sequences hold, of all; 1 is full.", used},
      {true, "primerl_engine_prompt_tokens_total", "Prompt tokens that were computed.",
       [](const EngineUse& engine) { return as_number(engine.num_prefill_tokens); }},
      {true, "primerl_engine_generation_tokens_total", "Tokens that were sampled.",
       [](const EngineUse& engine) { return as_number(engine.num_decode_tokens); }},
      {true, "primerl_engine_num_preemptions_total", "Sequences that lost their KV blocks.",
       [](const EngineUse& engine) { return as_number(engine.num_preemptions); }},
      {true, "primerl_engine_tokens_recomputed_total", "Tokens computed again after that.",
       [](const EngineUse& engine) { return as_number(engine.num_recomputed_tokens); }},
      {true, "primerl_engine_prefix_cache_queries_total",
       "Prompt tokens that were looked up in the prefix cache.",
       [](const EngineUse& engine) { return as_number(engine.num_prefix_queries); }},
      {true, "primerl_engine_prefix_cache_hits_total", "Of them, tokens that were found.",
       [](const EngineUse& engine) { return as_number(engine.num_prefix_hits); }},
      {true, "primerl_engine_prefix_cache_evicted_blocks_total",
       "Blocks that could be found and were given to others.",
       [](const EngineUse& engine) { return as_number(engine.num_evicted_blocks); }},
      {true, "primerl_engine_adapter_loads_total",
       "Adapters that were brought into a slot because a prompt waited for them.",
       [](const EngineUse& engine) { return as_number(engine.num_adapter_loads); }},
      {true, "primerl_engine_adapter_evictions_total",
       "Of them, those that took the slot of another adapter.",
       [](const EngineUse& engine) { return as_number(engine.num_adapter_evictions); }},
      {true, "primerl_engine_kv_events_total",
       "Events of the prefix cache written to the run folder.",
       [](const EngineUse& engine) { return as_number(engine.num_kv_events); }},
      {true, "primerl_engine_kv_events_dropped_total",
       "Events of the prefix cache that were dropped, because the buffer or the file was full.",
       [](const EngineUse& engine) { return as_number(engine.num_kv_events_dropped); }}};
  for (const auto& family : families) {
    begin(family);
    for (const Said& one : said_)
      for (const EngineUse& engine : one.beat->engine_uses)
        if (engine.resource < plan_.resources.size() && engine.group < plan_.groups.size())
          out_.sample({{"process", one.planned->name},
                       {"group", plan_.groups[engine.group].name},
                       {"engine", plan_.resources[engine.resource].name}},
                      family.value(engine));
  }
}

/// A restarted replica counts from 0 again, like any counter.
void Metrics::engine_requests() {
  for (size_t kind = 0; kind < kRequestValues; ++kind) {
    const auto& [metric, help, bounds] = request_histogram_kinds()[kind];
    out_.histogram(metric, help);
    for (const Said& one : said_)
      for (const EngineUse& engine : one.beat->engine_uses) {
        const bool is_known =
            engine.resource < plan_.resources.size() && engine.group < plan_.groups.size();
        if (!is_known || engine.requests.size() != kRequestValues) continue;
        const RequestHistogram& requests = engine.requests[kind];
        if (requests.counts.size() != bounds.size() + 1) continue;
        out_.sample({{"process", one.planned->name},
                     {"group", plan_.groups[engine.group].name},
                     {"engine", plan_.resources[engine.resource].name}},
                    bounds, requests.counts, requests.sum);
      }
  }
}

}  // namespace

std::string metrics_text(const Plan& plan, const RunFacts& facts, const RunSnapshot& picture,
                         Time now) {
  Metrics metrics(plan, picture, now);
  metrics.run(facts);
  metrics.processes();
  metrics.groups();
  metrics.instances();
  metrics.counts();
  metrics.edges();
  metrics.edge_totals();
  metrics.connections();
  metrics.engines();
  metrics.engine_uses();
  metrics.engine_requests();
  metrics.tenants();
  return metrics.text();
}

}  // namespace primerl
