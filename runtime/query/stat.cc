#include "runtime/query/stat.h"

#include <algorithm>
#include <map>

#include "graph/base/counted.h"
#include "runtime/query/step_text.h"
#include "runtime/trace/frames.h"
#include "runtime/trace/read/tenant_uses.h"
#include "runtime/trace/schema.h"

namespace primerl {
namespace {

uint64_t percentile(std::vector<uint64_t>& values, double part) {
  if (values.empty()) return 0;
  const auto at = static_cast<size_t>(part * static_cast<double>(values.size() - 1));
  std::ranges::nth_element(values, values.begin() + static_cast<std::ptrdiff_t>(at));
  return values[at];
}

/// Samples messages of the links of one edge, evenly spaced over their sequence numbers.
class Samples {
 public:
  Samples(const Trace& trace, const std::vector<VersionMark>& versions)
      : trace_(trace), versions_(versions) {
    for (const auto& type : trace.catalog().types) {
      auto& entry = schemas_.emplace_back();
      auto schema = read_schema(type.schema);
      if (schema.ok() && schema->has_version) entry = std::move(schema).value();
    }
  }

  void take(const std::vector<uint32_t>& links, EdgeStat& edge) {
    const uint64_t each = std::max<uint64_t>(kStatSamples / std::max<size_t>(links.size(), 1), 1);
    for (const uint32_t link : links) take_link(LinkId(link), each);
    tell(edge);
  }
  void take(const std::vector<TraceStep>& steps, EdgeStat& edge) {
    for (const TraceStep& step : steps) take_step(step);
    tell(edge);
  }

 private:
  void tell(EdgeStat& edge) {
    edge.num_sampled = queue_us_.size();
    edge.has_queue = !queue_us_.empty();
    edge.queue_p50_us = percentile(queue_us_, 0.5);
    edge.queue_p99_us = percentile(queue_us_, 0.99);
    queue_us_.clear();
    edge.has_lag = !lags_.empty();
    if (lags_.empty()) return;
    edge.lag_max = *std::ranges::max_element(lags_);
    std::ranges::sort(lags_);
    edge.lag_p50 = lags_[lags_.size() / 2];
    lags_.clear();
  }
  void take_link(LinkId link, uint64_t count) {
    const GroupId target(
        trace_.catalog().instances[trace_.catalog().links[link.index()].target].group);
    const auto& stats = trace_.summary().links[link.index()];
    const uint64_t last = stats.stats.num_messages + stats.num_skipped;
    const uint64_t stride = std::max<uint64_t>(last / count, 1);
    uint64_t num_absent = 0;
    for (uint64_t sequence = last; sequence > 0; sequence -= std::min(sequence, stride)) {
      const MessageKey key{link, trace_.summary().newest_incarnation, sequence};
      const auto at = trace_.delivery(key);
      const auto step = at ? trace_.step(target, at->step) : std::nullopt;
      // Without a step, an older incarnation sent the message. It has its own sequence numbers.
      if (!step && ++num_absent > 64) return;
      if (step) take_step(*step);
    }
  }
  void take_step(const TraceStep& step) {
    const auto payload = trace_.payload(key_of(step));
    std::optional<Time> sent;
    if (payload.ok()) {
      sent = payload->sent_at;
    } else if (!step.cause.is_none()) {
      // Emitted in the step that caused it. If it answers an earlier message, the real time is
      // shorter.
      const auto& catalog = trace_.catalog();
      const auto& link = catalog.links[step.link.index()];
      if (step.cause.instance.value == link.sender)
        if (const auto cause =
                trace_.step(GroupId(catalog.instances[link.sender].group), step.cause.step))
          if (cause->kind == StepKind::kMessage) sent = cause->began;
    }
    if (sent && *sent <= step.began)
      queue_us_.push_back(static_cast<uint64_t>((step.began - *sent).to_nanoseconds() / 1000));
    if (!payload.ok() || step.tenant.is_none() || !schemas_[payload->type]) return;
    const auto carried = body_versions(*schemas_[payload->type], payload->body, payload->blobs);
    if (!carried.ok() || carried->empty()) return;
    const TenantUse* use = trace_.tenants().at(step.group, step.step, step.tenant);
    const uint32_t tenancy = use == nullptr ? 0 : use->tenancy;
    int64_t newest = 0;
    for (const VersionMark& mark : versions_)
      if (mark.tenant == step.tenant.value && mark.tenancy == tenancy &&
          mark.at_ns <= step.began.to_nanoseconds())
        newest = std::max(newest, mark.version);
    lags_.push_back(newest - *std::ranges::min_element(*carried));
  }

  const Trace& trace_;
  const std::vector<VersionMark>& versions_;
  std::vector<std::optional<FieldSchema>> schemas_;  // by type; only those with versions
  std::vector<uint64_t> queue_us_;
  std::vector<int64_t> lags_;
};

void add(GroupStats& sum, const GroupStats& more) {
  sum.num_steps += more.num_steps;
  sum.num_failed += more.num_failed;
  sum.num_abandoned += more.num_abandoned;
  sum.num_emissions += more.num_emissions;
  sum.busy_us += more.busy_us;
  sum.handler_us.add(more.handler_us);
}

std::vector<EdgeStat> edge_stats(const Trace& trace, double seconds) {
  const TraceCatalog& catalog = trace.catalog();
  const TraceSummary& summary = trace.summary();
  std::vector<EdgeStat> edges;
  Samples samples(trace, summary.versions);
  std::map<std::string, std::vector<uint32_t>> links_of;
  std::vector<std::string> order;
  for (uint32_t l = 0; l < catalog.links.size(); ++l) {
    auto& links = links_of[catalog.links[l].edge];
    if (links.empty()) order.push_back(catalog.links[l].edge);
    links.push_back(l);
  }
  for (const auto& name : order) {
    EdgeStat edge;
    edge.edge = name;
    Histogram handler_us;
    for (const uint32_t l : links_of[name]) {
      const auto& of_link = summary.links[l];
      const LinkStats& stats = of_link.stats;
      edge.type = catalog.types[catalog.links[l].type].name;
      edge.num_messages += stats.num_messages;
      edge.num_bytes += stats.num_bytes;
      edge.num_failed += stats.num_failed;
      edge.num_stored += of_link.num_stored;
      (catalog.links[l].latest_wins ? edge.num_overwritten : edge.num_absent) +=
          of_link.num_skipped;
      handler_us.add(stats.handler_us);
    }
    edge.handler_p50_us = handler_us.percentile(0.5);
    edge.handler_p99_us = handler_us.percentile(0.99);
    if (seconds > 0) edge.per_second = static_cast<double>(edge.num_messages) / seconds;
    samples.take(links_of[name], edge);
    edges.push_back(std::move(edge));
  }
  return edges;
}

/// Steps of one edge, evenly spaced: when there are too many, every other one is dropped.
class EvenSteps {
 public:
  void add(const TraceStep& step) {
    if (num_seen_++ % stride_ != 0) return;
    steps_.push_back(step);
    if (steps_.size() < 2 * kStatSamples) return;
    stride_ *= 2;
    for (size_t i = 0; i < kStatSamples; ++i) steps_[i] = steps_[2 * i];
    steps_.resize(kStatSamples);
  }
  const std::vector<TraceStep>& steps() const { return steps_; }

 private:
  std::vector<TraceStep> steps_;
  uint64_t num_seen_ = 0, stride_ = 1;
};

/// Counts steps, one after the other.
class StepCounts {
 public:
  explicit StepCounts(const Trace& trace) : trace_(trace) {
    groups_.resize(trace.catalog().groups.size());
  }

  void add(const TraceStep& step) {
    GroupStat& group = groups_[step.group.index()];
    group.first_step = group.first_step == 0 ? step.step : std::min(group.first_step, step.step);
    group.last_step = std::max(group.last_step, step.step);
    GroupStats& stats = step.kind == StepKind::kMessage ? group.messages
                        : step.kind == StepKind::kTimer ? group.timers
                        : step.kind == StepKind::kWork  ? group.turns
                                                        : group.others;
    const auto micros = static_cast<uint64_t>(step.duration.to_nanoseconds() / 1000);
    ++stats.num_steps;
    stats.num_failed += step.is_failed() ? 1 : 0;
    stats.num_abandoned += (step.flags & kAbandoned) != 0 ? 1 : 0;
    stats.num_emissions += step.num_emissions;
    stats.busy_us += micros;
    stats.handler_us.add(micros);
    if (step.kind == StepKind::kMessage) add_message(step, micros);
  }
  void tell(TraceStat& stat) {
    for (size_t g = 0; g < groups_.size(); ++g) {
      if (groups_[g].last_step == 0) continue;
      groups_[g].group = trace_.catalog().groups[g].name;
      stat.groups.push_back(std::move(groups_[g]));
    }
    Samples samples(trace_, trace_.summary().versions);
    for (OfEdge& each : edges_) {
      EdgeStat& edge = each.edge;
      edge.handler_p50_us = each.handler_us.percentile(0.5);
      edge.handler_p99_us = each.handler_us.percentile(0.99);
      if (stat.seconds > 0) edge.per_second = static_cast<double>(edge.num_messages) / stat.seconds;
      samples.take(each.samples.steps(), edge);
      stat.edges.push_back(std::move(edge));
    }
  }

 private:
  struct OfEdge {
    EdgeStat edge;
    Histogram handler_us;
    EvenSteps samples;
  };

  void add_message(const TraceStep& step, uint64_t micros) {
    const auto& link = trace_.catalog().links[step.link.index()];
    const auto [found, is_new] = edge_of_.try_emplace(link.edge, edges_.size());
    OfEdge& of = is_new ? edges_.emplace_back() : edges_[found->second];
    of.edge.edge = link.edge;
    of.edge.type = trace_.catalog().types[link.type].name;
    ++of.edge.num_messages;
    of.edge.num_bytes += step.payload_bytes;
    of.edge.num_failed += step.is_failed() ? 1 : 0;
    of.handler_us.add(micros);
    of.samples.add(step);
  }

  const Trace& trace_;
  std::vector<GroupStat> groups_;  // by GroupId
  std::map<std::string, size_t> edge_of_;
  std::vector<OfEdge> edges_;  // in order of their first message
};

std::string replay_text(const Trace& trace, bool& from_start) {
  const TraceCatalog& catalog = trace.catalog();
  std::string text;
  from_start = true;
  for (uint32_t h = 0; h < catalog.groups.size(); ++h)
    if (const uint64_t first = trace.first_step(GroupId(h)); first > 1) {
      from_start = false;
      text += fmt::format("{}{}:{}", text.empty() ? "" : ", ", catalog.groups[h].name, first);
    }
  if (!from_start && trace.begins_with_cut())
    return "with --depth control, from the saved state that it begins with: " + text;
  if (!from_start)
    return "not from the start, whose records were retired: only from a checkpoint at or after " +
           text;
  for (const TraceFault& fault : trace.faults())
    if (fault.is_fault() && fault.kind != TraceFault::Kind::kCutTail) {
      from_start = false;
      return fmt::format("from the start up to what is missing: {}", fault.text);
    }
  return trace.is_closed() ? "from the start to the end" : "from the start to the cut";
}

std::string group_line(const GroupStat& group) {
  GroupStats all = group.messages;
  for (const auto* more : {&group.timers, &group.turns, &group.others}) add(all, *more);
  return fmt::format("  {:<24} {:>10} {:>10} {:>9} {:>9} {:>9} {:>7} {:>10} {:>10} {:>10}\n",
                     group.group, group.first_step, group.last_step, group.messages.num_steps,
                     group.timers.num_steps, group.turns.num_steps, all.num_failed,
                     micros_text(static_cast<double>(all.handler_us.percentile(0.5))),
                     micros_text(static_cast<double>(all.handler_us.percentile(0.99))),
                     micros_text(static_cast<double>(all.busy_us)));
}

std::string edge_line(const EdgeStat& edge) {
  std::string line = fmt::format("  {:<44} {:>9} {:>9.1f} {:>10} {:>9} {:>9}", edge.edge,
                                 edge.num_messages, edge.per_second, rounded_bytes(edge.num_bytes),
                                 micros_text(static_cast<double>(edge.handler_p50_us)),
                                 micros_text(static_cast<double>(edge.handler_p99_us)));
  line += edge.has_queue
              ? fmt::format(" {:>9} {:>9}", micros_text(static_cast<double>(edge.queue_p50_us)),
                            micros_text(static_cast<double>(edge.queue_p99_us)))
              : fmt::format(" {:>9} {:>9}", "-", "-");
  if (edge.num_overwritten > 0) line += fmt::format("  {} overwritten", edge.num_overwritten);
  if (edge.num_absent > 0) line += fmt::format("  {} NOT IN THE RECORD", edge.num_absent);
  if (edge.num_failed > 0) line += fmt::format("  {} failed", edge.num_failed);
  if (edge.has_lag) line += fmt::format("  version lag {} (max {})", edge.lag_p50, edge.lag_max);
  return line + "\n";
}

Json steps_json(const GroupStats& stats) {
  return Json::object()
      .set("num_steps", stats.num_steps)
      .set("num_failed", stats.num_failed)
      .set("num_abandoned", stats.num_abandoned)
      .set("num_emissions", stats.num_emissions)
      .set("busy_us", stats.busy_us)
      .set("handler_p50_us", stats.handler_us.percentile(0.5))
      .set("handler_p99_us", stats.handler_us.percentile(0.99));
}

Json edge_json(const EdgeStat& edge, bool is_filtered) {
  Json json = Json::object()
                  .set("edge", edge.edge)
                  .set("type", edge.type)
                  .set("num_messages", edge.num_messages)
                  .set("per_second", edge.per_second)
                  .set("num_bytes", edge.num_bytes)
                  .set("num_failed", edge.num_failed)
                  .set("handler_p50_us", edge.handler_p50_us)
                  .set("handler_p99_us", edge.handler_p99_us);
  if (!is_filtered)
    json.set("num_stored", edge.num_stored)
        .set("num_overwritten", edge.num_overwritten)
        .set("num_absent", edge.num_absent);
  if (edge.has_queue)
    json.set("queue_p50_us", edge.queue_p50_us)
        .set("queue_p99_us", edge.queue_p99_us)
        .set("num_sampled", edge.num_sampled);
  if (edge.has_lag) json.set("lag_p50", edge.lag_p50).set("lag_max", edge.lag_max);
  return json;
}

}  // namespace

TraceStat stat_trace(const Trace& trace) {
  const TraceSummary& summary = trace.summary();
  TraceStat stat;
  stat.seconds = static_cast<double>(summary.last_ns - summary.first_ns) * 1e-9;
  stat.edges = edge_stats(trace, stat.seconds);
  for (uint32_t h = 0; h < trace.catalog().groups.size(); ++h) {
    GroupStat group;
    group.group = trace.catalog().groups[h].name;
    group.first_step = trace.first_step(GroupId(h));
    group.last_step = trace.last_step(GroupId(h));
    const auto& kinds = summary.groups[h];
    group.messages = kinds[static_cast<size_t>(StepKind::kMessage)];
    group.timers = kinds[static_cast<size_t>(StepKind::kTimer)];
    group.turns = kinds[static_cast<size_t>(StepKind::kWork)];
    add(group.others, kinds[static_cast<size_t>(StepKind::kDrain)]);
    add(group.others, kinds[static_cast<size_t>(StepKind::kPeer)]);
    add(group.others, kinds[static_cast<size_t>(StepKind::kCommand)]);
    add(group.others, kinds[static_cast<size_t>(StepKind::kTenant)]);
    stat.groups.push_back(std::move(group));
  }
  stat.versions = summary.versions;
  stat.replay = replay_text(trace, stat.replays_from_start);
  return stat;
}

TraceStat stat_trace(const Trace& trace, const StepFilter& filter) {
  const TraceSummary& summary = trace.summary();
  TraceStat stat;
  stat.is_filtered = true;
  stat.seconds = static_cast<double>(summary.last_ns - summary.first_ns) * 1e-9;
  StepCounts counts(trace);
  trace.visit(filter.from, filter.to, [&](const TraceStep& step) {
    if (filter.matches(trace, step) == StepFilter::Verdict::kYes) counts.add(step);
    return true;
  });
  counts.tell(stat);
  for (const VersionMark& mark : summary.versions)
    if (filter.takes_tenant(TenantSlot(mark.tenant), mark.tenancy)) stat.versions.push_back(mark);
  stat.replay = replay_text(trace, stat.replays_from_start);
  return stat;
}

std::string to_text(const Trace& trace, const TraceStat& stat) {
  const TraceCatalog& catalog = trace.catalog();
  const TraceSummary& summary = trace.summary();
  std::string text = incomplete_text(trace);
  text += fmt::format(
      "{}: {}graph '{}', seed {}, {} of {} in {:.3f} s{}, {} stored, {} in {}\n",
      trace.folder().string(), starts_text(trace.num_starts()), catalog.graph_name, catalog.seed,
      counted(summary.num_steps, "step"), counted(catalog.groups.size(), "group"), stat.seconds,
      catalog.is_virtual ? " of virtual time" : "", counted(summary.num_payloads, "message"),
      rounded_bytes(summary.file_bytes), counted(summary.num_segments, "segment"));
  text += fmt::format("replay is possible {}\n\n", stat.replay);
  text +=
      fmt::format("  {:<24} {:>10} {:>10} {:>9} {:>9} {:>9} {:>7} {:>10} {:>10} {:>10}\n", "group",
                  "first", "last", "messages", "timers", "turns", "failed", "p50", "p99", "busy");
  for (const auto& group : stat.groups) text += group_line(group);
  text += fmt::format("\n  {:<44} {:>9} {:>9} {:>10} {:>9} {:>9} {:>9} {:>9}\n", "edge", "messages",
                      "per s", "bytes", "p50", "p99", "queue p50", "p99");
  for (const auto& edge : stat.edges) text += edge_line(edge);
  if (!stat.versions.empty()) {
    text += "\n";
    std::map<std::pair<uint32_t, uint32_t>, const VersionMark*> newest;
    for (const VersionMark& mark : stat.versions) newest[{mark.tenant, mark.tenancy}] = &mark;
    for (const auto& [tenant, mark] : newest)
      text += fmt::format("  policy of '{}': version {}, first seen at {} s\n",
                          trace.tenants().label(TenantSlot(tenant.first), tenant.second),
                          mark->version, time_text(catalog, Time::from_nanoseconds(mark->at_ns)));
  }
  return text;
}

Json to_json(const Trace& trace, const TraceStat& stat) {
  const TraceCatalog& catalog = trace.catalog();
  const TraceSummary& summary = trace.summary();
  Json faults = Json::array(), groups = Json::array(), edges = Json::array();
  for (const auto& fault : trace.faults()) faults.push_back(fault_json(catalog, fault));
  for (const auto& group : stat.groups)
    groups.push_back(Json::object()
                         .set("group", group.group)
                         .set("first_step", group.first_step)
                         .set("last_step", group.last_step)
                         .set("messages", steps_json(group.messages))
                         .set("timers", steps_json(group.timers))
                         .set("turns", steps_json(group.turns))
                         .set("others", steps_json(group.others)));
  for (const auto& edge : stat.edges) edges.push_back(edge_json(edge, stat.is_filtered));
  Json versions = Json::array();
  for (const VersionMark& mark : stat.versions)
    versions.push_back(
        Json::object()
            .set("tenant", trace.tenants().label(TenantSlot(mark.tenant), mark.tenancy))
            .set("version", mark.version)
            .set("seconds", seconds_of(catalog, Time::from_nanoseconds(mark.at_ns))));
  return Json::object()
      .set("schema", "primerl.trace.stat/1")
      .set("graph", catalog.graph_name)
      .set("complete", trace.is_complete())
      .set("closed", trace.is_closed())
      .set("replays_from_start", stat.replays_from_start)
      .set("replay", stat.replay)
      .set("num_starts", trace.num_starts())
      .set("seconds", stat.seconds)
      .set("num_steps", summary.num_steps)
      .set("num_payloads", summary.num_payloads)
      .set("file_bytes", summary.file_bytes)
      .set("num_segments", summary.num_segments)
      .set("faults", std::move(faults))
      .set("groups", std::move(groups))
      .set("edges", std::move(edges))
      .set("versions", std::move(versions));
}

}  // namespace primerl
