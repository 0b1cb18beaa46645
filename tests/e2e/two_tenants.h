/// Two tenants on one model as a user runs them: examples/two_tenants with its real model, changed,
/// in one process or three.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "tests/cli/program.h"
#include "tests/e2e/run_files.h"

namespace primerl {

namespace fs = std::filesystem;

inline constexpr const char* kExample = "examples/two_tenants/graph.toml";
inline const std::vector<std::string> kTenants = {"copy", "reverse"};

class TwoTenants : public ::testing::Test {
 protected:
  std::vector<std::string> words(const std::string& graph, const fs::path& folder,
                                 std::vector<std::string> more) const {
    std::vector<std::string> words{
        "run",   graph,
        "--out", folder.string(),
        "--set", "model.policy.path=\"" + source_path("examples/reverse_text/model") + "\""};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  /// The example with only one of its tenants.
  std::string alone(const std::string& tenant) const {
    const std::string text = read_text_file(source_path(kExample)).value();
    const size_t reverse = text.find("[tenant.reverse]");
    const size_t copy = text.find("[tenant.copy]"), end = text.find("[model.");
    const std::string table = tenant == "reverse" ? text.substr(reverse, copy - reverse)
                                                  : text.substr(copy, end - copy);
    const fs::path file = folder("alone.toml");
    std::ofstream(file) << text.substr(0, reverse) << table << text.substr(end);
    return file.string();
  }
  /// The example in three processes.
  std::string apart() const {
    std::string text = read_text_file(source_path(kExample)).value();
    const std::string memory = "backend = \"memory\"";
    text.replace(text.find(memory), memory.size(), "backend = \"auto\"  ");
    const fs::path file = folder("apart.toml");
    std::ofstream(file) << text.replace(
        text.find("[tenant.reverse]"), 0,
        "[place]\n"
        "driver = { nodes = [\"env\", \"rollout\", \"router\"] }\n"
        "inference = { nodes = [\"prefill\", \"decode\"] }\n"
        "training = { nodes = [\"trainer\", \"broadcaster\"] }\n\n");
    return file.string();
  }
  /// The example with a plugin's actor `node.NAME` inserted into the edge `old`, in the process of
  /// `neighbour`; it causes trouble for one tenant.
  std::string with_trouble(bool is_apart, const std::string& name, const std::string& neighbour,
                           const std::string& old, const std::string& by) const {
    std::string text = read_text_file(is_apart ? apart() : source_path(kExample)).value();
    const auto replace = [&text](const std::string& from, const std::string& to) {
      text.replace(text.find(from), from.size(), to);
    };
    replace("[graph]\n", "[graph]\nplugins = [\"" PRIMERL_BINARY_DIR "/plugins/troubles.so\"]\n");
    replace("[edges]\n",
            fmt::format("[node.{0}]\nactor = \"{0}\"\ntenant = \"reverse\"\n[edges]\n", name));
    replace(old, by);
    if (is_apart)
      replace(fmt::format("\"{}\"]", neighbour), fmt::format("\"{}\", \"{}\"]", neighbour, name));
    const fs::path file = folder(name + ".toml");
    std::ofstream(file) << text;
    return file.string();
  }
  /// An actor between rollouts and trainers that serves only one tenant.
  std::string with_picky(bool is_apart) const {
    return with_trouble(is_apart, "picky", "router",
                        "{ path = \"rollout.group -> trainer.group\", capacity = 64 },",
                        "\"rollout.group -> picky.group\", \"picky.kept -> trainer.group\",");
  }
  /// An actor between trainers and broadcaster that announces versions which do not exist.
  std::string with_boaster(bool is_apart) const {
    return with_trouble(is_apart, "boaster", "broadcaster",
                        "\"trainer.weights     -> broadcaster.weights\",",
                        "\"trainer.weights -> boaster.ready\", "
                        "\"boaster.told -> broadcaster.weights\",");
  }
  /// Every rollout of `reverse` is cut off after one token and dropped for that, so that none of
  /// its groups trains.
  static std::vector<std::string> reverse_fails(std::vector<std::string> more) {
    more.insert(more.end(), {"--no-rehearsal", "--set", "node.trainer.lost_batches_max=1"});
    // At first nearly all rewards of `copy` are 0, which must not end it.
    more.insert(more.end(), {"--set", "tenant.copy.filters={ zero_advantage = false }"});
    for (const char* option :
         {"sampling.max_tokens=1", "sampling.ignore_eos=true", "filters.truncated=true"})
      more.insert(more.end(), {"--set", std::string("tenant.reverse.") + option});
    return more;
  }
  fs::path folder(const std::string& name) const { return scratch_.path() / name; }
  /// With a tenant filter, `stat` counts that tenant's edges and messages; shared ones are in
  /// neither.
  void expect_that_stat_counts_each(const fs::path& run) const {
    const auto counts = [&](std::vector<std::string> more) {
      more.insert(more.begin(), {"trace", "stat", run.string(), "--json"});
      const auto end = run_graph_program(more);
      EXPECT_EQ(end.code, 0) << end.err;
      std::map<std::string, int64_t> by_edge;
      const Json stat = parse_json(end.out, "stat").value();
      for (const Json& edge : stat.find("edges")->as_array())
        by_edge[*edge.get_string("edge")] = *edge.get_int("num_messages");
      return by_edge;
    };
    const auto all = counts({});
    auto sum = counts({"--tenant", "reverse"});
    const auto other = counts({"--tenant", "copy"});
    auto both = counts({"--tenant", "reverse", "--tenant", "copy"});
    for (const auto& [edge, count] : other) sum[edge] += count;
    for (const auto& [edge, count] : all) {  // an edge that carried nothing belongs to no tenant
      EXPECT_EQ(sum[edge], count) << edge;
      EXPECT_EQ(both[edge], count) << edge;
    }
    EXPECT_GT(other.at("rollout.generate -> router.generate"), 0);
    EXPECT_LT(other.at("rollout.generate -> router.generate"),
              all.at("rollout.generate -> router.generate"));
  }
  /// With a tenant filter, `trace` shows the tenant's messages and all steps of its own actors.
  void expect_that_the_trace_has_each(const fs::path& run) const {
    for (const auto& tenant : kTenants) {
      const auto listed = run_graph_program(
          {"trace", "ls", run.string(), "--tenant", tenant, "--limit", "1000000", "--json"});
      ASSERT_EQ(listed.code, 0) << listed.err;
      const Json found = parse_json(listed.out, "steps").value();
      std::set<std::string> kinds;
      for (const Json& step : found.find("steps")->as_array()) {
        // A work call belongs to a whole group.
        const bool is_hers = step.find("tenant") != nullptr
                                 ? *step.get_string("tenant") == tenant
                                 : (step.find("instance") == nullptr ||
                                    step.get_string("instance")->ends_with("." + tenant));
        EXPECT_TRUE(is_hers) << step.dump();
        kinds.insert(*step.get_string("kind"));
      }
      EXPECT_TRUE(kinds.contains("message") && kinds.contains("drain")) << tenant;
      const fs::path file = folder("trace.json");
      const auto exported = run_graph_program(
          {"trace", "export", run.string(), "--tenant", tenant, "--out", file.string()});
      EXPECT_EQ(exported.code, 0) << exported.err;
      EXPECT_LT(fs::file_size(file), 64U << 20);
    }
    expect_that_stat_counts_each(run);
    for (const char* action : {"ls", "stat", "export"}) {
      const auto unknown = run_graph_program({"trace", action, run.string(), "--tenant", "nobody"});
      EXPECT_EQ(unknown.code, 3) << action;
      EXPECT_THAT(unknown.err, ::testing::HasSubstr("its tenants: copy and reverse"))
          << action;
    }
  }

  /// The lines of one tenant's steps, without times.
  static std::vector<std::string> steps(const fs::path& run, const std::string& tenant) {
    std::vector<std::string> steps;
    for (const Json& line : steps_of(run)) {
      if (*line.get_string("tenant") != tenant) continue;
      std::string text;
      for (const auto& [name, value] : line.as_object())
        if (name != "time" && !name.starts_with("time/") && !name.starts_with("perf/"))
          text += name + "=" + value.dump() + " ";
      steps.push_back(std::move(text));
    }
    return steps;
  }
  static std::vector<std::string> trained(const fs::path& file) {
    std::vector<std::string> lines;
    for (const Json& line : lines_of(file))
      if (*line.get_string("end") == "trained") lines.push_back(line.dump());
    std::sort(lines.begin(), lines.end());
    return lines;
  }
  static std::string bytes(const fs::path& file) {
    std::ifstream in(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  }

  /// Checks that the results of `tenant` in three steps of `both` are equal to those of its own
  /// run. `words_of_own` is that run's command; it writes to folder(tenant).
  void expect_as_alone(const fs::path& both, const std::string& tenant,
                       const std::vector<std::string>& words_of_own) const {
    const fs::path own = folder(tenant);
    const auto single = run_graph_program(words_of_own);
    ASSERT_EQ(single.code, 0) << single.err;
    EXPECT_EQ(steps(both, tenant), steps(own, tenant));
    EXPECT_EQ(trained(both / "rollouts" / (tenant + ".jsonl")), trained(own / "rollouts.jsonl"));
    const fs::path weights = fs::path("step_3") / "weights" / "adapter_model.safetensors";
    EXPECT_TRUE(bytes(both / "checkpoints" / tenant / weights) ==
                bytes(own / "checkpoints" / weights))
        << "the adapter of " << tenant;
  }

  ScratchFolder scratch_;
};

}  // namespace primerl
