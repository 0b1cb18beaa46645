// Runs in a chat, with a real engine and learner: a history that the template renders again, and a
// template that prints the date.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "tests/e2e/run_files.h"
#include "tests/e2e/workers.h"

namespace primerl {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

namespace fs = std::filesystem;

/// The reverse_text model of letters, with a template and an environment of two turns.
struct ChatRun : ::testing::Test {
  ChatRun() {
    fs::copy(source_path("examples/reverse_text/model"), scratch.path() / "model",
             fs::copy_options::recursive);
    write_text(scratch.path() / "env.py",
               "class Environment:\n"
               "    def __init__(self, ordinal, seed): self.turns = 0\n"
               "    def task(self): return {'messages': [{'role': 'user', 'content': 'r:ab>'}]}\n"
               "    def step(self, action):\n"
               "        self.turns += 1\n"
               "        said = [{'role': 'user', 'content': 'r:c>'}]\n"
               "        if self.turns < 2: return {'messages': said}\n"
               "        return {'reward': float('c' in action)}\n");
  }
  /// `lines`: of [tenant.main].
  std::vector<std::string> words(const std::string& text, const std::string& lines,
                                 std::vector<std::string> more = {}) {
    write_text(scratch.path() / "model" / "chat_template.jinja", text);
    write_text(scratch.path() / "graph.toml",
               "[graph]\nname = \"chat\"\nseed = 17\n\n"
               "[tenant.main]\nenvironment = { name = \"python\", file = \"env.py\", python = "
               "\"" PRIMERL_PYTHON "\" }\n"
               "group_size = 4\nbatch_size = 8\nmax_steps = 3\nturns_max = 3\n"
               "sampling = { max_tokens = 6 }\nfilters = { zero_advantage = false }\n" +
                   lines +
                   "\n[model.policy]\npath = \"model\"\n"
                   "[node.rollout]\nlog_tokens = true\nmax_inflight = 16\n");
    std::vector<std::string> all{"run", (scratch.path() / "graph.toml").string(), "--out",
                                 folder.string()};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  ScratchFolder scratch;
  const fs::path folder = scratch.path() / "run";
};

TEST_F(ChatRun, AHistoryThatIsRenderedAgainTrainsOneSampleATurn) {
  // The last answer is followed by no earlier one, as some templates drop earlier reasoning.
  const auto end = run_graph_program(
      words("{% for m in messages %}{% if m.role == 'user' or loop.last %}{{ m.content }}<eos>"
            "{% endif %}{% endfor %}",
            "chat = { history = \"template\" }\n"));
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_EQ(num_lines(folder / "metrics.jsonl"), 3U);
  int num_of_two_turns = 0;
  for (const Json& line : lines_of(folder / "rollouts.jsonl")) {
    if (*line.get_string("end") != "trained") continue;
    ASSERT_EQ(*line.get_int("turns"), 2);
    EXPECT_EQ(*line.get_int("samples"), 2) << "the first answer is not in the second prompt";
    EXPECT_EQ(line.find("sample_begins")->as_array().size(), 1U);
    EXPECT_EQ(line.find("messages")->as_array().size(), 4U);
    ++num_of_two_turns;
  }
  EXPECT_EQ(num_of_two_turns, 24);
  for (const std::string depth : {"control", "full"}) {
    const auto replay = run_graph_program({"replay", folder.string(), "--depth", depth});
    EXPECT_EQ(replay.code, 0) << depth << replay.out << replay.err;
    EXPECT_THAT(replay.out, HasSubstr("identical")) << depth;
  }
}

/// The days that the prompts of a run begin with.
std::set<std::string> days_of(const fs::path& folder) {
  std::set<std::string> days;
  for (const Json& line : lines_of(folder / "rollouts.jsonl")) {
    std::string ids;
    for (const Json& id : line.find("prompt_tokens")->as_array()) ids += id.dump() + " ";
    days.insert(ids);
  }
  return days;
}

TEST_F(ChatRun, ARunThatIsResumedOnAnotherDayKeepsTheDateOfItsFirstStart) {
  const std::string text =
      "{{ strftime_now('%d') }}{% for m in messages %}{{ m.content }}<eos>{% endfor %}";
  auto first = words(text, "", {"--max-steps", "1000", "--set", "graph.restarts_max=0"});
  first.insert(first.begin(), "primerl-graph");
  Program run(first);
  ASSERT_TRUE(wait_until([&] { return num_lines(folder / "metrics.jsonl") >= 2; }));
  ::kill(worker_of(run), SIGKILL);
  EXPECT_EQ(run.wait().code, 1);
  const auto dates = [](const fs::path& run_folder) {
    const std::string resolved = *read_text_file(run_folder / "graph.resolved.toml");
    return resolved.substr(resolved.find("date = "), 20);
  };
  const std::string date = dates(folder);
  EXPECT_THAT(date, StartsWith("date = \"20"));
  const auto days = days_of(folder);
  EXPECT_EQ(days.size(), 1U);
  const size_t num_before = num_lines(folder / "metrics.jsonl");

  const std::vector<std::string> later = {"LD_PRELOAD=" PRIMERL_LATER_DAY,
                                          "PRIMERL_TEST_DAYS_LATER=3"};
  const auto last = std::to_string(num_before + 2);
  Program resumed({"primerl-graph", "run", "--resume", folder.string(), "--max-steps", last},
                  later);
  const auto end = resumed.wait();
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_EQ(dates(folder), date);
  EXPECT_EQ(days_of(folder), days) << "prompts of both days have the date of the first";
  EXPECT_EQ(std::to_string(expect_steps_and_rollouts_once(folder)), last);

  // A new run on that day has the date of that day.
  const fs::path other = scratch.path() / "other";
  auto fresh = words(text, "", {"--max-steps", "1"});
  fresh.insert(fresh.begin(), "primerl-graph");
  *std::ranges::find(fresh, folder.string()) = other.string();
  Program another(fresh, later);
  ASSERT_EQ(another.wait().code, 0);
  EXPECT_THAT(dates(other), Not(date));
  EXPECT_NE(days_of(other), days);
}

}  // namespace
}  // namespace primerl
