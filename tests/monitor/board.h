/// A status store for tests: that of tests/cli/graphs/split.toml, filled with reports of its
/// processes.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "runtime/backends/resource_catalog.h"
#include "runtime/exec/stall.h"
#include "runtime/monitor/run_table.h"
#include "runtime/monitor/status_store.h"

namespace primerl::testing {

inline constexpr Time kNow = Time::from_nanoseconds(1'000'000'000'000);

inline std::shared_ptr<const Plan> split_plan() {
  const std::string file = std::string(PRIMERL_SOURCE_DIR) + "/tests/cli/graphs/split.toml";
  auto checked = load_graph(file, {}, full_catalog());
  EXPECT_NE(checked.plan, nullptr) << render(checked.diagnostics, checked.sources);
  return checked.plan;
}

/// Not thread-safe.
class Board {
 public:
  Board() : plan_(split_plan()), board_(plan_, kNow), wiring_(make_wiring(*plan_)) {
    board_.set_facts({"1f2e", "0.1.0", "/runs/split"});
    for (uint32_t i = 0; i < plan_->processes.size(); ++i)
      board_.process_started(ProcessId(i), 1, 100 + i);
  }

  const Plan& plan() const { return *plan_; }
  StatusStore& operator*() { return board_; }
  StatusStore* operator->() { return &board_; }

  ProcessId process(const std::string& name) const {
    return ProcessId(index_of(plan_->processes, name));
  }
  uint32_t group(const std::string& name) const { return index_of(plan_->groups, name); }
  uint32_t edge(const std::string& name) const { return index_of(plan_->edges, name); }
  /// The link of an edge between two groups.
  uint32_t link(const std::string& edge_name, uint32_t from, uint32_t to) const {
    for (uint32_t i = 0; i < wiring_->links.size(); ++i) {
      const WiredLink& link = wiring_->links[i];
      if (link.edge.value == edge(edge_name) && link.sender_group.value == from &&
          link.target_group.value == to)
        return i;
    }
    ADD_FAILURE() << "no link of " << edge_name;
    return 0;
  }

  /// A heartbeat of a process whose groups are all idle.
  Heartbeat beat_of(const std::string& name) const {
    Heartbeat beat;
    beat.edges.resize(plan_->edges.size());
    beat.loads.resize(plan_->edges.size());
    for (const GroupId id : plan_->process(process(name)).groups) {
      GroupReport report;
      report.group = id.value;
      report.handling = InstanceId::kNone;
      report.is_idle = true;
      beat.groups.push_back(report);
      for (const InstanceId instance : plan_->group(id).instances)
        beat.instances.push_back({instance.value, 0, 0, 0});
    }
    return beat;
  }
  static GroupReport& report_of(Heartbeat& beat, uint32_t group) {
    for (GroupReport& report : beat.groups)
      if (report.group == group) return report;
    ADD_FAILURE() << "the group is elsewhere";
    return beat.groups.front();
  }
  void say(const std::string& name, Heartbeat beat) {
    board_.process_said(process(name), Payload::of(std::move(beat)), kNow);
  }
  void all_say_something() {
    for (const auto& planned : plan_->processes) say(planned.name, beat_of(planned.name));
  }

  std::string metrics(Time now = kNow) const {
    return metrics_text(*plan_, board_.facts(), board_.picture(), now);
  }
  Json status(Time now = kNow) const {
    return status_json(*plan_, *wiring_, board_.facts(), board_.picture(), now);
  }

 private:
  template <class Things>
  static uint32_t index_of(const Things& things, const std::string& name) {
    for (uint32_t i = 0; i < things.size(); ++i)
      if (things[i].name == name) return i;
    ADD_FAILURE() << "there is no '" << name << "'";
    return 0;
  }

  const std::shared_ptr<const Plan> plan_;
  StatusStore board_;
  const std::shared_ptr<const Wiring> wiring_;
};

/// A heartbeat of a process whose engine has applied `version`.
inline Heartbeat with_engine(const Board& board, const std::string& process, int64_t version) {
  auto beat = board.beat_of(process);
  const auto& plan = board.plan();
  for (const GroupId id : plan.process(board.process(process)).groups)
    for (const int32_t resource : plan.group(id).resources)
      if (plan.resources[static_cast<size_t>(resource)].kind == "engine")
        beat.engines.push_back({static_cast<uint32_t>(resource), id.value, 0, 0, version,
                                static_cast<uint64_t>(version), 250'000'000});
  EXPECT_EQ(beat.engines.size(), 1u);
  return beat;
}

}  // namespace primerl::testing
