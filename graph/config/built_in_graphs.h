/// Built-in graphs: loops that a short graph file leaves out. Their texts are TOML, as a person
/// would write them. A built-in graph completes the file: every value of the file, of its includes
/// and of its overlays wins over it.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "graph/value.h"

namespace primerl {

struct BuiltInGraph {
  std::string_view name;  // "primerl:async_rl", as `include` names it
  std::string_view doc;
  std::string_view text;
};

std::span<const BuiltInGraph> built_in_graphs();
std::vector<std::string> built_in_names();
/// Null if there is none of this name.
const BuiltInGraph* find_built_in(std::string_view name);
inline constexpr std::string_view kSupervisedGraph = "primerl:sft";
/// The graph that completes a file without [edges] that names none.
const BuiltInGraph& standard_graph();

/// The models of a loop with a frozen engine beside the policy's; empty = the only model of the
/// file.
struct FrozenModels {
  std::string frozen;
  std::string policy;
  std::vector<std::string> tables = {"resource.engine", "resource.learner",
                                     "node.rollout"};  // they get the policy's model
};
/// The tables that a judge adds to the standard graph: its engine, its nodes and their edges.
std::string judge_part(const FrozenModels& models);
/// The same for a teacher, for a loop or supervised graph whose groups go through it:
/// with_teacher().
std::string teacher_part(const FrozenModels& models);
std::string with_teacher(std::string loop);

/// The tables that an environment which drives rollouts adds to it: a gateway, its listener on a
/// free port of the loopback address, and their edges. `model` is the policy's; empty: the only
/// one.
std::string gateway_part(const std::string& model);

/// The tables that a tenant of clients adds to it: a tinker node, its listener on 127.0.0.1:8000,
/// and their edges. `model` is the policy's; empty: the only one.
std::string tinker_part(const std::string& model);

/// "primerl:...": `include` reads no file.
bool is_built_in_name(std::string_view name);

/// The text of a line and its table, "[node.prefill] engine = "engine""; `line` is from 1.
std::string built_in_line(std::string_view text, uint32_t line);

/// Adds to `own` what only `built_in` has, table by table. The keys of `own` keep their spans.
void complete(Table& own, const Table& built_in);

}  // namespace primerl
