// Tenants that clients train join a served run: each has a key of its own, which ends with it, and
// a purge leaves none of its files. The example with three tenants loses no step.
#include <gmock/gmock.h>

#include <csignal>

#include "tests/base/raw_client.h"
#include "tests/cli/program.h"
#include "tests/e2e/run_files.h"
#include "tests/e2e/workers.h"

namespace primerl {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

namespace fs = std::filesystem;

class HostedClients : public ::testing::Test {
 protected:
  ProgramEnd tenant(std::vector<std::string> words) const {
    words.insert(words.begin(), "tenant");
    words.insert(words.end(), {"--serve", folder_.string()});
    return run_graph_program(std::move(words));
  }
  std::string member_of(const std::string& text, std::string_view key) const {
    return parse_json(text, "an answer").value().get_string(key).value();
  }
  /// Lets carol join, and returns the key.
  std::string join() const {
    const auto end = tenant({"add", source_path("examples/hosted/carol.toml"), "--wait", "--json"});
    EXPECT_EQ(end.code, 0) << end.err;
    return end.code == 0 ? member_of(end.out, "token") : "";
  }
  uint16_t port() const {
    std::string url;
    EXPECT_TRUE(wait_until([&] {
      if (!fs::exists(folder_ / "logs")) return false;
      for (const auto& entry : fs::recursive_directory_iterator(folder_ / "logs")) {
        const auto text = read_text_file(entry.path());
        const std::string mark = "'tinker' listens on http://127.0.0.1:";
        const size_t at = text.ok() ? text->rfind(mark) : std::string::npos;
        if (at != std::string::npos) url = text->substr(at + mark.size(), 5);
      }
      return !url.empty();
    }));
    return static_cast<uint16_t>(std::strtoul(url.c_str(), nullptr, 10));
  }
  std::string asked(const std::string& key, const std::string& route,
                    const std::string& body) const {
    return RawClient(port())
        .say(fmt::format("POST /api/v1/{} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                         "X-API-Key: {}\r\nContent-Length: {}\r\n\r\n{}",
                         route, key, body.size(), body))
        .hear_all();
  }
  std::string new_session(const std::string& key) const {
    return asked(key, "create_session", R"({"sdk_version":"0.38.0"})");
  }
  std::vector<std::string> files_with(const std::string& text) const {
    std::vector<std::string> found;
    for (const auto& entry : fs::recursive_directory_iterator(folder_)) {
      if (!entry.is_regular_file()) continue;
      const auto content = read_text_file(entry.path());
      if (content.ok() && content->find(text) != std::string::npos)
        found.push_back(entry.path().string());
    }
    return found;
  }

  const ScratchFolder scratch_;
  const fs::path folder_ = scratch_.path() / "run";
};

TEST_F(HostedClients, EachUseOfANameHasItsOwnKeyAndLeavesNothing) {
  Program run({"primerl-graph", "serve", source_path("examples/hosted/clients.toml"), "--out",
               folder_.string(), "--no-rehearsal", "--set",
               "resource.tinker.listen=\"127.0.0.1:0\""});
  ASSERT_TRUE(waits_for("run", run, [&] { return tenant({"ls"}).code == 0; }));
  const std::string first = join();
  ASSERT_THAT(first, StartsWith("tml-"));
  EXPECT_THAT(new_session("tml-0123456789abcdef"), StartsWith("HTTP/1.1 401"));
  EXPECT_THAT(new_session(first), AllOf(StartsWith("HTTP/1.1 200"), HasSubstr("session-1")));
  EXPECT_THAT(asked(first, "create_model",
                    R"({"session_id":"session-1","model_seq_id":0,"base_model":"demo/words",)"
                    R"("lora_config":{"rank":8}})"),
              HasSubstr("request_id"));
  ASSERT_TRUE(waits_for("folder of the client", run,
                        [&] { return fs::exists(folder_ / "clients/carol/first"); }));
  EXPECT_THAT(files_with(first), IsEmpty()) << "only its hash is kept";

  EXPECT_EQ(tenant({"remove", "carol", "--purge"}).code, 0);
  ASSERT_TRUE(waits_for("end of carol", run, [&] { return tenant({"show", "carol"}).code != 0; }));
  EXPECT_FALSE(fs::exists(folder_ / "clients/carol"));
  EXPECT_FALSE(fs::exists(folder_ / "checkpoints/carol"));
  EXPECT_THAT(new_session(first), AllOf(StartsWith("HTTP/1.1 404"), HasSubstr("has left the run")));

  const std::string second = join();
  EXPECT_NE(second, first);
  // The listener looks at the file of keys every second.
  EXPECT_TRUE(waits_for("end of the earlier tenant's key", run,
                        [&] { return new_session(first).starts_with("HTTP/1.1 401"); }));
  EXPECT_THAT(new_session(second), StartsWith("HTTP/1.1 200"));
  const auto rotated = tenant({"token", "carol", "--rotate"});
  EXPECT_EQ(rotated.code, 0) << rotated.err;
  EXPECT_THAT(new_session(rotated.out.substr(0, rotated.out.find('\n'))),
              StartsWith("HTTP/1.1 200"));
  EXPECT_TRUE(waits_for("end of the replaced key", run,
                        [&] { return new_session(second).starts_with("HTTP/1.1 401"); }));

  ::kill(run.pid(), SIGINT);
  EXPECT_EQ(run.wait().code, 130);
  EXPECT_EQ(run_graph_program({"trace", "verify", folder_.string()}).code, 0);
  const auto replayed = run_graph_program({"replay", folder_.string()});
  EXPECT_EQ(replayed.code, 0) << replayed.out << replayed.err;
}

TEST_F(HostedClients, InTheExampleOneLeavesAWorkerIsKilledAndNobodyLosesAStep) {
  Program script({PRIMERL_PYTHON, source_path("examples/hosted/three_tenants.py"), "--program",
                  std::string(PRIMERL_BINARY_DIR) + "/bin/primerl-graph", "--out", folder_.string(),
                  "--steps", "4", "--", "--no-rehearsal"},
                 {"PYTHONDONTWRITEBYTECODE=1"});
  const auto end = script.wait();
  EXPECT_EQ(end.code, 0) << end.err << end.out;
  EXPECT_THAT(end.out, HasSubstr("no tenant lost a step"));
}

}  // namespace
}  // namespace primerl
