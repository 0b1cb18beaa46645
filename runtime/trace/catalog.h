/// TraceCatalog: explains the numbers in a trace: groups, instances, links, message types. It is
/// JSON at the beginning of every segment, so other programs can read a trace, and its graph is not
/// needed. A value.
#pragma once

#include <string>
#include <vector>

#include "graph/base/json.h"
#include "graph/plan.h"
#include "runtime/exec/wiring.h"

namespace primerl {

struct TraceCatalog {
  struct Instance {
    std::string name;  // "rollout.main"
    std::string node, actor;
    uint32_t group = 0;
    uint32_t tenant = UINT32_MAX;
    std::vector<std::string> timers;  // by index
  };
  struct TraceGroup {
    std::string name;
    uint32_t process = 0;
    std::vector<uint32_t> instances;
  };
  struct TraceLink {
    std::string edge;                 // "rollout.group -> trainer.group"
    uint32_t sender = 0, target = 0;  // instances
    std::string output, input;        // ports
    uint32_t type = 0;
    bool is_feedback = false;
    bool latest_wins = false;
    std::string record;  // to_string(RecordPolicy)
  };
  struct Type {
    std::string name;
    uint32_t version = 0;
    std::string schema;  // MessageType::schema: decodes a body without the struct
    uint64_t schema_hash = 0;
  };

  std::string program_version;
  std::string graph_text;                 // the resolved graph, TOML
  std::vector<std::string> resumed_from;  // checkpoint folders by tenant slot; empty: a fresh run
  std::string recovers;  // sibling folder whose record this start follows first; empty: none
  std::vector<std::pair<std::string, uint64_t>> bytes_before;  // sizes of line files at its start
  std::string graph_name;
  uint64_t graph_hash = 0;
  uint64_t run_id = 0;
  int64_t seed = 0;
  bool is_virtual = false;       // times are virtual nanoseconds from the start of the run
  double wall_zero_seconds = 0;  // Unix time at began_ns = zero_ns
  int64_t zero_ns = 0;
  std::vector<std::string> tenants, processes;
  std::vector<TraceGroup> groups;   // index = GroupId
  std::vector<Instance> instances;  // index = InstanceId
  std::vector<TraceLink> links;     // index = LinkId
  std::vector<Type> types;          // index = `type` of the frames

  Json to_json() const;
  /// kCorrupt, with the member's name, when an index is outside its table.
  static Result<TraceCatalog> from_json(const Json& json);
};

/// Makes the tables of a plan; the types are those of its links, in order of first use. The caller
/// fills in run, versions and clock.
TraceCatalog make_trace_catalog(const Plan& plan, const Wiring& wiring);

}  // namespace primerl
