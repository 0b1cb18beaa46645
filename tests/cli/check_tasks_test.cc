// `primerl-graph check` and the tasks of tenants: rows of data sets, prompts, options without
// effect.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/backends/resource_catalog.h"
#include "runtime/cli/chat_dates.h"
#include "tests/cli/program.h"

namespace primerl {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

/// The demo with a data set of its own. Its tokenizer has a token for each letter, and <eos>.
class RowsOfAGraph : public testing::Test {
 protected:
  RowsOfAGraph() {
    fs::copy(source_path("examples/reverse_text"), folder_.path(), fs::copy_options::recursive);
  }
  /// `more`: lines of [tenant.main].
  ProgramEnd check_tasks(const std::string& rows, const std::string& more,
                         std::vector<std::string> flags = {},
                         const std::string& dataset = "") const {
    write_text(folder_.path() / "train.jsonl", rows);
    write_text(folder_.path() / "task.toml",
               "[tenant.main]\nenvironment = { name = \"dataset\", file = \"train.jsonl\"" +
                   dataset + " }\n" + more);
    flags.insert(flags.begin(), {"check", (folder_.path() / "graph.toml").string(), "--overlay",
                                 (folder_.path() / "task.toml").string()});
    return run_graph_program(flags);
  }
  ProgramEnd check_examples(const std::string& rows, int64_t seq_len) const {
    write_text(folder_.path() / "examples.jsonl", rows);
    return run_graph_program({"check", (folder_.path() / "sft.toml").string(), "--set",
                              "node.data.file=" + (folder_.path() / "examples.jsonl").string(),
                              "--set", fmt::format("tenant.main.seq_len={}", seq_len)});
  }
  void write_template(const std::string& text) const {
    write_text(folder_.path() / "model" / "chat_template.jinja", text);
  }

  ScratchFolder folder_;
};

const std::string kShort = "{\"prompt\": \"r:ab>\", \"answer\": \"ba\"}\n";
const std::string kLong = "{\"prompt\": \"r:abcdefgh>\", \"answer\": \"h\"}\n";  // 11 tokens
constexpr const char* kTemplate =
    "{% for m in messages %}{{ m.content }}<eos>{% endfor %}"
    "{% if add_generation_prompt %}r:{% endif %}";

TEST_F(RowsOfAGraph, EveryPromptMustLeaveATokenToSample) {
  const std::string rows = kShort + kShort + kShort + kShort + kShort + kLong + kLong;
  EXPECT_EQ(check_tasks(rows, "seq_len = 12\n").code, 0);
  const auto end = check_tasks(rows, "seq_len = 11\n");
  EXPECT_EQ(end.code, 2);
  EXPECT_THAT(end.err, AllOf(HasSubstr("error[G086]: a row does not fit tenant 'main'"),
                             HasSubstr("train.jsonl:6:"),
                             HasSubstr("the prompt has 11 tokens, and 'seq_len' 11"),
                             HasSubstr("2 of 7 rows do not fit; this is the first")));
}

TEST_F(RowsOfAGraph, EverySupervisedRowFitsSeqLen) {
  // 11 tokens of the prompt, 8 of the completion and its end token.
  const std::string row = R"({"prompt": "r:abcdefgh>", "completion": "hgfedcba"})";
  const std::string small = R"({"prompt": "r:ab>", "completion": "ba"})";
  EXPECT_EQ(check_examples(small + "\n" + row + "\n", 20).code, 0);
  const auto end = check_examples(small + "\n\n" + row + "\n", 19);
  EXPECT_EQ(end.code, 2);
  EXPECT_THAT(end.err, AllOf(HasSubstr("examples.jsonl:3: the row has 20 tokens"),
                             HasSubstr("'seq_len' of tenant 'main' is 19")));
}

TEST_F(RowsOfAGraph, EpochsOfSupervisedTrainingAreStepsOfWholeBatches) {
  std::string rows;
  for (int i = 0; i < 10; ++i) rows += R"({"prompt": "r:ab>", "completion": "ba"})" "\n";
  write_text(folder_.path() / "examples.jsonl", rows);
  // A batch is 8 examples in groups of 4.
  const auto tenant = [this](std::vector<std::string> sets) {
    Overrides overrides;
    overrides.sets = {"node.data.file=" + (folder_.path() / "examples.jsonl").string(),
                      "tenant.main.group_size=4", "tenant.main.batch_size=8",
                      "tenant.main.max_steps=100"};
    for (auto& set : sets) overrides.sets.push_back(std::move(set));
    const auto graph =
        load_graph((folder_.path() / "sft.toml").string(), overrides, full_catalog());
    EXPECT_NE(graph.plan, nullptr) << render(graph.diagnostics, graph.sources, false);
    return graph.plan == nullptr ? Tenant() : graph.plan->tenants[0];
  };
  EXPECT_EQ(tenant({}).groups_max, 0);
  EXPECT_EQ(tenant({"tenant.main.epochs=1"}).max_steps, 1) << "10 examples are 2 whole groups";
  EXPECT_EQ(tenant({"tenant.main.epochs=1"}).groups_max, 2);
  EXPECT_EQ(tenant({"tenant.main.epochs=4"}).max_steps, 5);
  EXPECT_EQ(tenant({"tenant.main.epochs=4"}).groups_max, 10);
  EXPECT_EQ(tenant({"tenant.main.epochs=4", "tenant.main.max_steps=3"}).max_steps, 3);
  const auto refused = run_graph_program(
      {"check", (folder_.path() / "sft.toml").string(), "--set",
       "node.data.file=" + (folder_.path() / "examples.jsonl").string(), "--set",
       "tenant.main.epochs=1"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("error[G075]: 1 of 10 rows are 10 examples, fewer than the 64 "
                                     "of one batch"));
  const auto endless = run_graph_program(
      {"check", (folder_.path() / "sft.toml").string(), "--set", "tenant.main.epochs=1"});
  EXPECT_EQ(endless.code, 2);
  EXPECT_THAT(endless.err, HasSubstr("environment 'reverse_text' of tenant 'main' has no rows"));
}

TEST_F(RowsOfAGraph, ATemplateWithoutAnExactTextNamesTheOtherHistory) {
  write_template("{% for m in messages %}{{ m.content }}{{ m.content | length }}{% endfor %}");
  const std::string chat = "[tenant.main.chat]\nprompts = \"user\"\n";
  write_text(folder_.path() / "chat.toml", chat);
  const auto check = [&](const std::string& set) {
    return run_graph_program({"check", (folder_.path() / "graph.toml").string(), "--overlay",
                              (folder_.path() / "chat.toml").string(), "--set", set});
  };
  const auto exact = check("tenant.main.turns_max=2");
  EXPECT_EQ(exact.code, 2);
  EXPECT_THAT(exact.err, AllOf(HasSubstr("depends on the message"),
                               HasSubstr("history = \"template\" renders the whole conversation")));
  const auto whole = check("tenant.main.chat.history=template");
  EXPECT_EQ(whole.code, 0) << whole.err;
}

TEST_F(RowsOfAGraph, ShowPromptPrintsTheBytesOfTheTemplateAndTheIds) {
  write_template(kTemplate);
  const std::string row = "{\"prompt\": \"r:ab\", \"answer\": \"ba\"}\n";
  const auto plain = check_tasks(row, "", {"--show-prompt"});
  EXPECT_EQ(plain.code, 0) << plain.err;
  EXPECT_THAT(plain.out, AllOf(HasSubstr("task 0 of environment 'dataset', 4 tokens, a plain text"),
                               HasSubstr("  data     \"r:ab\"\n"), HasSubstr("  ids      ")));
  const std::string chat = "chat = { prompts = \"user\" }\n";
  const auto rendered = check_tasks(row, chat, {"--show-prompt"});
  EXPECT_EQ(rendered.code, 0) << rendered.err;
  EXPECT_THAT(rendered.out, AllOf(HasSubstr("rendered by "), HasSubstr("  data     \"r:ab\"\n"),
                                  HasSubstr("  template \"<eos>r:\"\n")));
  const auto json = check_tasks(row, chat, {"--show-prompt", "--json"});
  const auto parsed = parse_json(json.out, "the output");
  ASSERT_TRUE(parsed.ok()) << json.out;
  const Json& prompt = parsed->find("prompts")->as_array().at(0);
  EXPECT_EQ(*prompt.get_string("tenant"), "main");
  EXPECT_EQ(prompt.find("parts")->as_array().size(), 2U);
  EXPECT_EQ(prompt.find("token_ids")->as_array().size(), 7U);
}

TEST_F(RowsOfAGraph, ShowPromptSaysWhyThereIsNone) {
  write_text(folder_.path() / "env.py", "x = 1\n");
  write_text(folder_.path() / "task.toml",
             "[tenant.main]\nenvironment = { name = \"process\", command = [\"false\"] }\n");
  const auto end =
      run_graph_program({"check", (folder_.path() / "graph.toml").string(), "--overlay",
                         (folder_.path() / "task.toml").string(), "--show-prompt"});
  EXPECT_EQ(end.code, 0) << end.err;
  EXPECT_THAT(end.out, HasSubstr("prompt of tenant 'main': none: environment 'process' is asked "
                                 "in another process"));
}

TEST_F(RowsOfAGraph, RowsThatAreConversationsNeedAModelWithAChatTemplate) {
  const auto system = check_tasks(kShort, "", {}, ", system = \"r:\"");
  EXPECT_EQ(system.code, 2);
  EXPECT_THAT(system.err,
              AllOf(HasSubstr("task.toml:2:"),
                    HasSubstr("error[G086]: 'system' of the data set makes each task of tenant "
                              "'main' a conversation, which only a chat template can write: "),
                    HasSubstr("leave 'system' out and begin each prompt with its text"),
                    Not(HasSubstr("seq_len"))));
  const auto messages = check_tasks(
      R"({"messages": [{"role": "user", "content": "ab"}], "answer": "ba"})"
      "\n",
      "", {}, ", messages = \"messages\"");
  EXPECT_EQ(messages.code, 2);
  EXPECT_THAT(messages.err, HasSubstr("'messages' of the data set makes each task"));
  write_template(kTemplate);
  const auto chat = check_tasks(kShort, "", {}, ", system = \"r:\"");
  EXPECT_EQ(chat.code, 0) << chat.err;
}

TEST_F(RowsOfAGraph, ToolsNeedAModelWithAChatTemplate) {
  write_text(folder_.path() / "env.py", "class Environment: pass\n");
  write_text(folder_.path() / "mcp.json", "{}");
  write_text(folder_.path() / "task.toml",
             "[tenant.main]\n"
             "environment = { name = \"mcp\", file = \"env.py\", servers = \"mcp.json\" }\n");
  const auto check = [&] {
    return run_graph_program({"check", (folder_.path() / "graph.toml").string(), "--overlay",
                              (folder_.path() / "task.toml").string()});
  };
  const auto plain = check();
  EXPECT_EQ(plain.code, 2);
  EXPECT_THAT(plain.err,
              AllOf(HasSubstr("task.toml:2:"),
                    HasSubstr("error[G086]: environment 'mcp' of tenant 'main' gives the policy "
                              "tools, which only a chat template can write: "),
                    HasSubstr("has no chat template"),
                    HasSubstr("choose a chat model whose template knows tools")));
  write_template(kTemplate);
  const auto chat = check();
  EXPECT_EQ(chat.code, 0) << chat.err;
}

/// As a resume, a replay and a fork do, a graph is read again from the resolved text of the record.
TEST_F(RowsOfAGraph, FilesOfEnvironmentsOutsideAreInTheRecordAndAnotherContentIsRefusedByName) {
  write_template(kTemplate);
  const std::vector<std::pair<std::string, std::vector<std::string>>> environments = {
      {"name = \"gymnasium\", id = \"X-v1\"", {"adapter"}},
      {"name = \"skyrl_gym\"", {"file", "eval_file", "environments"}},
      {"name = \"mcp\"", {"file", "servers"}}};
  for (const auto& [start, options] : environments) {
    std::string environment = start;
    for (const std::string& option : options) {
      write_text(folder_.path() / (option + ".txt"), "content");
      environment += fmt::format(", {0} = \"{0}.txt\"", option);
    }
    write_text(folder_.path() / "task.toml",
               "[tenant.main]\nenvironment = { " + environment + " }\n");
    Overrides overrides;
    overrides.overlays = {(folder_.path() / "task.toml").string()};
    const auto graph =
        load_graph((folder_.path() / "graph.toml").string(), overrides, full_catalog());
    ASSERT_NE(graph.plan, nullptr) << render(graph.diagnostics, graph.sources, false);
    const std::string resolved = (folder_.path() / "resolved.toml").string();
    write_text(resolved, graph.plan->resolved_toml);
    for (const std::string& option : options) {
      EXPECT_THAT(graph.plan->resolved_toml, HasSubstr(option + "_bytes = 7")) << start;
      EXPECT_THAT(graph.plan->resolved_toml, HasSubstr(option + "_sha256 = \"ed7002b4")) << start;
      write_text(folder_.path() / (option + ".txt"), "another content");
      const auto again = load_graph(resolved, {}, full_catalog());
      EXPECT_EQ(again.plan, nullptr) << start << option;
      EXPECT_THAT(render(again.diagnostics, again.sources, false),
                  AllOf(HasSubstr(option + ".txt' has another content"), HasSubstr("7 bytes")));
      write_text(folder_.path() / (option + ".txt"), "content");
    }
    EXPECT_NE(load_graph(resolved, {}, full_catalog()).plan, nullptr) << start;
  }
}

TEST_F(RowsOfAGraph, OptionsWithoutEffectAreReported) {
  const auto of_chat = check_tasks(kShort, "chat = { parser = \"none\", kwargs = '{}' }\n");
  EXPECT_EQ(of_chat.code, 0);
  EXPECT_THAT(of_chat.err,
              AllOf(HasSubstr("task.toml:3:"), HasSubstr("'chat.parser' of tenant 'main' has no"),
                    HasSubstr("'chat.kwargs' of tenant 'main' has no effect: no task is a "
                              "conversation")));
  const auto of_rows = check_tasks(kShort, "", {}, ", weights = [1], shuffle = false, seed = 3");
  EXPECT_THAT(of_rows.err, AllOf(HasSubstr("warning[G090]: 'environment.weights' of tenant"),
                                 HasSubstr("warning[G090]: 'environment.seed' of tenant")));
  const auto of_none =
      check_tasks(kShort + kShort, "", {}, ", shuffle = false, seed = 3, holdout = 1");
  EXPECT_THAT(of_none.err, Not(HasSubstr("G090")));
}

TEST_F(RowsOfAGraph, ATemplateThatPrintsTheDateNeedsNoneAtCheck) {
  write_template(std::string("{{ strftime_now('%Y') }}") + kTemplate);
  const auto end = check_tasks(kShort, "chat = { prompts = \"user\" }\n");
  EXPECT_EQ(end.code, 0) << end.err;
}

TEST(ChatDates, AreTheDayOfTheFirstStartForTenantsWithoutOne) {
  const ScratchFolder folder;
  Plan plan;
  plan.models.emplace_back().path = folder.path().string();
  PlanResource tokenizer;
  tokenizer.kind = "tokenizer";
  tokenizer.model = 0;
  plan.resources.push_back(tokenizer);
  plan.tenants.resize(2);
  plan.tenants[0].name = "main";
  plan.tenants[1].name = "dated";
  plan.tenants[1].chat.date = "2020-02-29";
  EXPECT_TRUE(dates_to_set(plan, nullptr, "2026-11-26").empty()) << "no template prints it";
  write_text(folder.path() / "chat_template.jinja", "{{ strftime_now('%d') }}");
  const auto today = dates_to_set(plan, nullptr, "2026-11-26");
  EXPECT_THAT(today, testing::ElementsAre("tenant.main.chat.date=\"2026-11-26\""));
  Plan before = plan;
  before.tenants[0].chat.date = "2026-11-25";
  EXPECT_THAT(dates_to_set(plan, &before, "2026-11-26"),
              testing::ElementsAre("tenant.main.chat.date=\"2026-11-25\""));
}

TEST(ChatDates, AreInUtc) {
  EXPECT_EQ(utc_day(0), "1970-01-01");
  EXPECT_EQ(utc_day(86399.9), "1970-01-01");
  EXPECT_EQ(utc_day(86400), "1970-01-02");
}

}  // namespace
}  // namespace primerl
