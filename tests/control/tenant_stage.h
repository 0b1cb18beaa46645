/// A TenantControl of three processes that exist only in the test: their messages are texts, and
/// the test says what each of them answers. Not thread-safe.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "graph/base/files.h"
#include "runtime/backends/resource_catalog.h"
#include "runtime/control/tenant_control.h"
#include "runtime/store/run_folder.h"
#include "tests/store/scratch_folder.h"

namespace primerl::testing {

namespace fs = std::filesystem;
using Kind = TenantChange::Kind;

inline constexpr ProcessId kDriver(0), kServing(1), kTraining(2);
inline const std::vector<ProcessId> kAll = {kDriver, kServing, kTraining};

/// examples/hosted with two slots, in three processes; one more for each further copy of inference.
inline std::shared_ptr<const Plan> hosted_plan(const std::string& tenants = "",
                                               int num_inference = 1) {
  const std::string folder = std::string(PRIMERL_SOURCE_DIR) + "/examples/hosted";
  std::string text = read_text_file(folder + "/graph.toml").value();
  text.replace(text.find("tenants_max = 8"), 15, "tenants_max = 2");
  text +=
      "\n[resource.weights]\nbackend = \"shm\"\n"
      "\n[place]\ndriver = { nodes = [\"env\", \"rollout\", \"router\"] }\n"
      "inference = { nodes = [\"prefill\", \"decode\"], replicas = " +
      std::to_string(num_inference) +
      " }\n"
      "training = { nodes = [\"trainer\", \"broadcaster\"] }\n";
  Overrides overrides;
  overrides.cores = 2;
  const auto graph =
      load_graph_text(text + tenants, "graph.toml", folder, overrides, full_catalog());
  CHECK(graph.plan != nullptr, render(graph.diagnostics, graph.sources));
  return graph.plan;
}

/// A disk that can be full.
class FullDisk final : public FileOps {
 public:
  bool is_full = false;
  Status make_folder(const fs::path& folder) override { return system_files().make_folder(folder); }
  Status write_file(const fs::path& file, std::string_view bytes) override {
    if (is_full) return error(Code::kIo, "writing '{}': No space left on device", file.string());
    return system_files().write_file(file, bytes);
  }
  Status sync(const fs::path& path) override { return system_files().sync(path); }
  Status rename(const fs::path& from, const fs::path& to) override {
    return system_files().rename(from, to);
  }
  Status exchange(const fs::path& one, const fs::path& other) override {
    return system_files().exchange(one, other);
  }
  Status remove_all(const fs::path& path) override { return system_files().remove_all(path); }
};

struct TenantStage : ::testing::Test {
  void SetUp() override { open(); }

  /// A start of the run. The processes are not ready yet.
  void open() {
    TenantControl::Setup setup;
    setup.run_folder = scratch.path();
    setup.send = [this](ProcessId to, const Payload& message) { note(to, message); };
    setup.answer = [this](const std::string& id, const Json& answer) { answers[id] = answer; };
    setup.warn = [this](const std::string& line) { warnings.push_back(line); };
    setup.files = &disk;
    control = std::make_unique<TenantControl>(*plan, std::move(setup));
    const Status opened = control->open();
    ASSERT_TRUE(opened.ok()) << opened.error().text();
  }
  void all_ready() {
    for (const ProcessId process : kAll) control->process_ready(process, now);
  }
  /// The run starts again after everything was killed: the file is what is left.
  void crash() {
    open();
    sent.clear();
    all_ready();
  }

  void note(ProcessId to, const Payload& message) {
    if (const auto* change = as_if<ChangeTenant>(message)) {
      const TenantChange& of = change->change;
      sent.push_back(fmt::format("{}: {} {} {}~{}", to.value, to_string(of.kind), of.slot.value,
                                 of.name, of.tenancy));
      if (of.kind == TenantChange::Kind::kJoin) {
        EXPECT_THAT(of.table, ::testing::HasSubstr("[tenant." + of.name + "]"));
      }
    } else if (const auto* drain = as_if<DrainTenant>(message)) {
      sent.push_back(fmt::format("{}: drain {} ~{} round {}", to.value, drain->slot.value,
                                 drain->tenancy, drain->round));
    } else {
      ADD_FAILURE() << message.type->name;
    }
  }
  std::vector<std::string> take_sent() { return std::exchange(sent, {}); }

  Json ask(const std::string& verb, const std::string& name, const std::string& files = "keep",
           const std::string& why_not = "") {
    Json content = Json::object();
    content.set("tenant_verb", verb).set("name", name).set("files", files);
    control->ask("1", content, why_not, now);
    return answers["1"];
  }
  /// Adds a tenant that has the file alice.toml, with another name.
  Json add(const std::string& name, const std::string& from = "environment",
           const std::string& to = "environment") {
    std::string text =
        read_text_file(std::string(PRIMERL_SOURCE_DIR) + "/examples/hosted/alice.toml").value();
    text = text.substr(text.find("[tenant"));
    for (size_t at = text.find("alice"); at != std::string::npos; at = text.find("alice", at + 1))
      text.replace(at, 5, name);
    text.replace(text.find(from), from.size(), to);
    const fs::path file = scratch.path() / (name + ".toml");
    std::ofstream(file) << text;
    control->ask("1", Json::object().set("tenant_verb", "add").set("file", file.string()), "", now);
    return answers["1"];
  }
  static std::string why(const Json& answer) {
    const Json* error = answer.find("error");
    return error == nullptr ? "" : error->as_string();
  }
  /// A process has carried out the change of the tenant that has the slot.
  void carried_out(ProcessId from, TenantChange::Kind kind, const HostedTenant& tenant,
                   const std::string& fault = "") {
    TenantAnswered answered{tenant.slot, tenant.tenancy, static_cast<uint8_t>(kind)};
    answered.text = fault;
    ASSERT_TRUE(control->handle(from, answered, now).ok());
  }
  void all_carried_out(TenantChange::Kind kind, const HostedTenant& tenant) {
    for (const ProcessId process : kAll) carried_out(process, kind, tenant);
  }
  void drained(ProcessId from, const HostedTenant& tenant, uint32_t round, uint64_t steps = 5) {
    TenantAnswered answered{tenant.slot, tenant.tenancy};
    answered.round = round;
    answered.num_steps = steps;
    ASSERT_TRUE(control->handle(from, answered, now).ok());
  }
  Status finished(const HostedTenant& tenant, const std::string& fault = "") {
    return control->on_finished({tenant.slot, fault, tenant.tenancy}, now);
  }
  void all_drained(const HostedTenant& tenant, uint32_t first_round = 1) {
    for (uint32_t round = first_round; round < first_round + 2; ++round)
      for (const ProcessId process : kAll) drained(process, tenant, round);
  }
  /// A tenant that trains. The messages are forgotten.
  HostedTenant join(const std::string& name) {
    EXPECT_EQ(why(add(name)), "");
    const HostedTenant tenant = *control->table().find(name);
    all_carried_out(TenantChange::Kind::kJoin, tenant);
    EXPECT_EQ(state(name), TenantState::kTraining);
    sent.clear();
    return tenant;
  }
  TenantState state(const std::string& name) const {
    const HostedTenant* tenant = control->table().find(name);
    EXPECT_NE(tenant, nullptr) << name;
    return tenant == nullptr ? TenantState::kEnded : tenant->state;
  }
  std::string saved() const { return read_text_file(tenants_file(scratch.path())).value(); }

  const ScratchFolder scratch;
  std::shared_ptr<const Plan> plan = hosted_plan();
  FullDisk disk;
  Time now = Time::from_nanoseconds(1'000'000'000);
  std::vector<std::string> sent, warnings;
  std::map<std::string, Json> answers;
  std::unique_ptr<TenantControl> control;
};

}  // namespace primerl::testing
