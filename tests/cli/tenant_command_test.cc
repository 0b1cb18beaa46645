// `serve` and `tenant`: what is refused before any run is asked, and the table of one that has
// ended. tests/e2e/serve_test.cc asks a run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "graph/base/files.h"
#include "tests/cli/program.h"

namespace primerl {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
namespace fs = std::filesystem;

class TenantCommand : public ::testing::Test {
 protected:
  ProgramEnd tenant(std::vector<std::string> words) const {
    words.insert(words.begin(), "tenant");
    words.insert(words.end(), {"--serve", run().string()});
    return run_graph_program(std::move(words));
  }
  fs::path run() const { return scratch_.path() / "run"; }
  static void write(const fs::path& file, const std::string& text) {
    fs::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  void has_ended() const {
    write(run() / "run.json", R"({"end": "interrupted", "ended": "2026-11-27T06:00:00Z"})");
  }

  const ScratchFolder scratch_;
};

TEST_F(TenantCommand, NeedsARunFolder) {
  const auto end = tenant({"ls"});
  EXPECT_EQ(end.code, 2);
  EXPECT_THAT(end.err, HasSubstr("no run folder '" + run().string() + "'"));
  fs::create_directories(run());
  EXPECT_THAT(tenant({"pause", "alice"}).err, HasSubstr("it has no run.json"));
}

TEST_F(TenantCommand, AsksNoRunThatHasEnded) {
  has_ended();
  for (const auto& words :
       std::vector<std::vector<std::string>>{{"add", source_path("examples/hosted/alice.toml")},
                                             {"show", "alice"},
                                             {"pause", "alice"},
                                             {"resume", "alice"},
                                             {"remove", "alice"}}) {
    const auto end = tenant(words);
    EXPECT_EQ(end.code, 2) << words[0];
    EXPECT_THAT(end.err, HasSubstr("has ended (interrupted, at 2026-11-27T06:00:00Z)"));
  }
}

TEST_F(TenantCommand, ATokenIsPrintedOnceAndOnlyItsHashIsKept) {
  has_ended();
  write(run() / "tenants.json", R"({"tenants": [{"name": "alice", "number": 1}]})");
  const auto made = tenant({"token", "alice"});
  EXPECT_EQ(made.code, 0) << made.err;
  EXPECT_THAT(made.out, StartsWith("pg_"));
  const std::string token = made.out.substr(3, 64);
  const std::string kept = read_text_file(run() / "control_tokens.json").value();
  EXPECT_THAT(kept, AllOf(HasSubstr("alice"), Not(HasSubstr(token))));
  const auto again = tenant({"token", "alice"});
  EXPECT_EQ(again.code, 3);
  EXPECT_THAT(again.err, HasSubstr("the tenant alice~1 has a token already"));
  const auto rotated = tenant({"token", "alice", "--rotate"});
  EXPECT_EQ(rotated.code, 0) << rotated.err;
  EXPECT_NE(rotated.out, made.out);
  EXPECT_EQ(tenant({"token", "--operator"}).code, 0);
}

TEST_F(TenantCommand, TheTokenOfAClientsTenantIsItsKeyAndAPersonMayChooseIt) {
  has_ended();
  write(run() / "tenants.json",
        R"({"tenants": [{"name": "alice", "number": 2, )"
        R"("table": "[tenant.alice]\nclient = true\n"}, {"name": "bob", "number": 0}]})");
  const auto made = tenant({"token", "alice"});
  EXPECT_EQ(made.code, 0) << made.err;
  EXPECT_THAT(made.out, StartsWith("tml-"));
  write(scratch_.path() / "key", "tml-0123456789abcdef\n");
  const std::string file = (scratch_.path() / "key").string();
  const auto chosen = tenant({"token", "alice", "--rotate", "--key-file", file});
  EXPECT_EQ(chosen.out, "tml-0123456789abcdef\n") << chosen.err;
  EXPECT_EQ(tenant({"token", "bob", "--key-file", file}).code, 3) << "no client trains bob";
  write(scratch_.path() / "key", "secret-0123456789abcdef\n");
  const auto wrong = tenant({"token", "alice", "--rotate", "--key-file", file});
  EXPECT_EQ(wrong.code, 3);
  EXPECT_THAT(wrong.err, AllOf(HasSubstr("begin with 'tml-'"), Not(HasSubstr("secret"))));
}

TEST_F(TenantCommand, ATokenIsForATenantThatThereIsOrForTheOperator) {
  has_ended();
  write(run() / "tenants.json", R"({"tenants": [{"name": "alice", "number": 1}]})");
  EXPECT_EQ(tenant({"token"}).code, 3);
  EXPECT_EQ(tenant({"token", "alice", "--operator"}).code, 3);
  const auto unknown = tenant({"token", "bob"});
  EXPECT_EQ(unknown.code, 3);
  EXPECT_THAT(unknown.err, HasSubstr("no tenant 'bob'"));
  EXPECT_FALSE(fs::exists(run() / "control_tokens.json"));
}

TEST_F(TenantCommand, TheControlApiListensBeyondThisMachineOnlyBehindAProxy) {
  const auto refused =
      run_graph_program({"serve", source_path("examples/hosted/graph.toml"), "--control-address",
                         "0.0.0.0:0", "--out", run().string()});
  EXPECT_EQ(refused.code, 3);
  EXPECT_THAT(refused.err, HasSubstr("--behind-proxy"));
  EXPECT_FALSE(fs::exists(run()));
}

TEST_F(TenantCommand, AsksNoRunWhoseControlPlaneIsGone) {
  char host[256] = {};
  ::gethostname(host, sizeof host - 1);
  write(run() / "run.json", R"({"end": "running", "host": ")" + std::string(host) +
                                R"(", "control": {"pid": 1, "start_ticks": 1}})");
  const auto end = tenant({"ls"});
  EXPECT_EQ(end.code, 1);
  EXPECT_THAT(end.err, AllOf(HasSubstr("its primerl-graph process ended"),
                             HasSubstr("primerl-graph run --resume " + run().string())));
}

TEST_F(TenantCommand, ListsTheTenantsOfARunThatHasEnded) {
  has_ended();
  EXPECT_THAT(tenant({"ls"}).err,
              AllOf(HasSubstr("has no table of tenants"), HasSubstr("primerl-graph serve")));
  write(run() / "tenants.json",
        R"({"schema": "primerl.tenants/1", "numbers": {}, "tenants": [
          {"name": "alice", "slot": 0, "number": 1, "state": "ended", "why": ""},
          {"name": "bob", "slot": 1, "number": 0, "state": "failed", "why": "no data\nmore"}]})");
  const auto end = tenant({"ls"});
  EXPECT_EQ(end.code, 0) << end.err;
  EXPECT_THAT(end.out, AllOf(HasSubstr("alice   ended"), HasSubstr("bob     failed"),
                             HasSubstr("bob: no data\n")));
  EXPECT_THAT(tenant({"ls", "--json"}).out, HasSubstr("\"failed\""));
  write(run() / "tenants.json", "{");
  EXPECT_EQ(tenant({"ls"}).code, 1);
}

TEST_F(TenantCommand, RefusesABadCommandLine) {
  EXPECT_EQ(run_graph_program({"tenant"}).code, 3);
  EXPECT_EQ(tenant({"add"}).code, 3);
  EXPECT_EQ(tenant({"pause"}).code, 3);
  EXPECT_THAT(tenant({"lss"}).err, HasSubstr("ls"));
  const auto both = tenant({"remove", "alice", "--keep-checkpoints", "--purge"});
  EXPECT_EQ(both.code, 3);
  EXPECT_THAT(both.err, HasSubstr("exclude each other"));
}

TEST_F(TenantCommand, ServeNeedsAGraphWithSlots) {
  const auto end = run_graph_program(
      {"serve", source_path("examples/reverse_text/graph.toml"), "--out", run().string()});
  EXPECT_EQ(end.code, 2);
  EXPECT_THAT(end.err, AllOf(HasSubstr("has no slots for tenants that join"),
                             HasSubstr("write [graph.tenant_limits] with tenants_max and rank")));
  EXPECT_FALSE(fs::exists(run())) << "nothing is left";
}

TEST_F(TenantCommand, RunNamesServeForAGraphWithoutATenant) {
  const auto end = run_graph_program(
      {"run", source_path("examples/hosted/graph.toml"), "--out", run().string()});
  EXPECT_EQ(end.code, 2);
  EXPECT_THAT(end.err, AllOf(HasSubstr("has slots, but no tenant to train"),
                             HasSubstr("primerl-graph serve GRAPH")));
  EXPECT_FALSE(fs::exists(run()));
}

}  // namespace
}  // namespace primerl
