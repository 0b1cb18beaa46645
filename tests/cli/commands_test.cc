// The commands of primerl-graph that need no worker, run as processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "graph/base/suggest.h"
#include "tests/cli/program.h"

namespace primerl {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

const std::vector<std::string> kCommands = {
    "run",        "check", "show",      "explain",  "actors",   "options", "messages",
    "schema",     "init",  "doctor",    "sft",      "generate", "score",   "ps",
    "completion", "model", "route-sim", "rollouts", "tokenize", "import"};

std::string scripted_graph() { return source_path("tests/cli/graphs/scripted.toml"); }

Json parsed(const std::string& text) {
  auto json = parse_json(text, "output");
  EXPECT_TRUE(json.ok()) << (json.ok() ? "" : json.error().text()) << "\n" << text;
  return json.ok() ? *json : Json();
}

TEST(Commands, EveryOneHasHelpWithAnExample) {
  for (const auto& name : kCommands) {
    const auto end = run_graph_program({name, "--help"});
    EXPECT_EQ(end.code, 0) << name;
    EXPECT_THAT(end.out, AllOf(HasSubstr("Example:\n  "), HasSubstr("primerl-graph " + name)))
        << name;
    EXPECT_THAT(end.err, IsEmpty()) << name;
  }
}

TEST(Commands, TheFirstHelpListsThemAll) {
  const auto end = run_graph_program({"--help"});
  EXPECT_EQ(end.code, 0);
  for (const auto& name : kCommands) EXPECT_THAT(end.out, HasSubstr("\n  " + name + " ")) << name;
}

TEST(Commands, EveryOneRefusesAnUnknownFlagWithCode3) {
  for (const auto& name : kCommands) {
    const auto end = run_graph_program({name, "--no-such-flag"});
    EXPECT_EQ(end.code, 3) << name << end.err;
    EXPECT_THAT(end.err, StartsWith("error: ")) << name;
    EXPECT_THAT(end.out, IsEmpty()) << name;
  }
}

TEST(Tokenize, RefusesWrongFlagsAndFoldersWithoutATemplate) {
  const std::string model = source_path("examples/reverse_text/model");
  EXPECT_EQ(run_graph_program({"tokenize", model}).code, 3);
  EXPECT_EQ(run_graph_program({"tokenize", model, "--text", "a", "--chat", "b"}).code, 3);
  EXPECT_EQ(run_graph_program({"tokenize", model, "--text", "a", "--train"}).code, 3);
  EXPECT_EQ(run_graph_program({"tokenize", model, "--chat", "a", "--special-tokens"}).code, 3);
  const auto without = run_graph_program({"tokenize", model, "--chat", "a"});
  EXPECT_EQ(without.code, 2);
  EXPECT_THAT(without.err, HasSubstr("has no chat template"));
  EXPECT_EQ(run_graph_program({"tokenize", "/nowhere", "--text", "a"}).code, 2);
  const auto kwargs =
      run_graph_program({"generate", "--model", model, "--chat-kwargs", "{}", "--prompt", "a"});
  EXPECT_EQ(kwargs.code, 3);
}

TEST(Tokenize, PrintsIdsAndTexts) {
  const std::string model = source_path("examples/reverse_text/model");
  const auto plain = run_graph_program({"tokenize", model, "--text", "a<eos>", "--json"});
  EXPECT_EQ(plain.code, 0) << plain.err;
  EXPECT_EQ(parsed(plain.out).find("tokens")->dump(), R"(["a","<","e","o","s",">"])");
  const auto special =
      run_graph_program({"tokenize", model, "--text", "a<eos>", "--special-tokens", "--json"});
  EXPECT_EQ(parsed(special.out).find("tokens")->dump(), R"(["a","<eos>"])");
}

TEST(Commands, AnEmptyValueDoesNotTakeTheNextWord) {
  const std::string graph = source_path("examples/reverse_text/graph.toml");
  for (const auto& words : {std::vector<std::string>{"check", "--set=", graph},
                            std::vector<std::string>{"generate", "--stop=", "--seed=5"}}) {
    const auto end = run_graph_program(words);
    EXPECT_EQ(end.code, 3) << end.out;
    EXPECT_THAT(end.err, StartsWith("error: '" + words[1] + "' has no value")) << end.err;
  }
  const auto spaced =
      run_graph_program({"generate", "--model", "m", "--prompt", "a", "--stop", "", "--seed", "5"});
  EXPECT_EQ(spaced.code, 3) << spaced.out;
  EXPECT_THAT(spaced.err, HasSubstr("a text of --stop is empty"));
  const auto prompt = run_graph_program({"generate", "--model", "m", "--prompt", ""});
  EXPECT_EQ(prompt.code, 3) << prompt.out;
  EXPECT_THAT(prompt.err, HasSubstr("and not an empty one"));
}

TEST(Commands, ModelSaysWhatAFolderHoldsAndNeeds) {
  const std::string folder = source_path("examples/reverse_text/model");
  const auto end = run_graph_program({"model", folder});
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_THAT(end.out, StartsWith("qwen3: 5 layers, hidden 128, vocabulary 97, 256 positions\n"
                                  "  layers 0-4      attention: 4 heads, 2 key-value heads"));
  EXPECT_THAT(end.out, HasSubstr("complete, tensors: "));
  EXPECT_THAT(end.out, HasSubstr("run it on the CPU, in fp32"));
  const Json json = parsed(run_graph_program({"model", folder, "--json"}).out);
  EXPECT_EQ(*json.get_string("schema"), "primerl.model/1");
  EXPECT_EQ(*json.find("kv_bytes_per_token")->get_int("fp32"), 5 * 2 * 2 * 32 * 4);
  const auto none = run_graph_program({"model", source_path("examples")});
  EXPECT_EQ(none.code, 2);
  EXPECT_THAT(none.err, HasSubstr("config.json"));
}

TEST(Commands, ModelFetchSaysWhatItCannotFetch) {
  const auto fetch = [](const std::vector<std::string>& words) {
    std::vector<std::string> all = {"model", "fetch"};
    all.insert(all.end(), words.begin(), words.end());
    return run_graph_program(all);
  };
  const auto bare = fetch({});
  EXPECT_EQ(bare.code, 3) << bare.out;
  EXPECT_THAT(bare.err, HasSubstr("'model fetch' needs a model and a folder"));
  const auto unknown = fetch({"gpt-9", "/tmp/primerl-no-model"});
  EXPECT_EQ(unknown.code, 1) << unknown.out;
  EXPECT_THAT(unknown.err, HasSubstr("error: model 'gpt-9' is not known"));
  EXPECT_THAT(unknown.err, HasSubstr("known models: smollm2-135m-instruct"));
  const auto taken = fetch({"smollm2-135m-instruct", source_path("examples")});
  EXPECT_EQ(taken.code, 1) << taken.out;
  EXPECT_THAT(taken.err, HasSubstr("examples' exists"));
  const auto extra = run_graph_program({"model", source_path("examples"), "more"});
  EXPECT_EQ(extra.code, 3) << extra.out;
  EXPECT_THAT(extra.err, HasSubstr("'more' is one argument too many"));
}

TEST(Commands, ANearMissIsNamed) {
  const auto command = run_graph_program({"chek"});
  EXPECT_EQ(command.code, 3);
  EXPECT_EQ(command.err,
            "error: no command 'chek'\n  help: did you mean 'check'?\n"
            "  see: primerl-graph --help\n");
  const auto flag = run_graph_program({"check", "--jsn", "x.toml"});
  EXPECT_EQ(flag.code, 3);
  EXPECT_EQ(flag.err,
            "error: 'check' has no flag '--jsn'\n  help: did you mean '--json'?\n"
            "  see: primerl-graph check --help\n");
}

TEST(Commands, NoCommandIsABadCommandLine) {
  const auto end = run_graph_program({});
  EXPECT_EQ(end.code, 3);
  EXPECT_THAT(end.out, IsEmpty());
}

TEST(Commands, NumbersAreRefusedOnePastTheirLimit) {
  const auto zero = run_graph_program({"run", "x.toml", "--max-steps", "0"});
  EXPECT_EQ(zero.code, 3);
  EXPECT_THAT(zero.err, HasSubstr("'0' is no whole number >= 1"));
  const auto beyond =
      run_graph_program({"check", scripted_graph(), "--max-steps", "99999999999999999999"});
  EXPECT_EQ(beyond.code, 3);
  EXPECT_THAT(beyond.err, HasSubstr("'99999999999999999999' is no whole number >= 1"));
  const auto word = run_graph_program({"run", "x.toml", "--max-steps", "many"});
  EXPECT_EQ(word.code, 3);
  const auto top_p =
      run_graph_program({"generate", "--model", "m", "--prompt", "a", "--top-p=1.1"});
  EXPECT_EQ(top_p.code, 3);
  const auto choice = run_graph_program({"show", scripted_graph(), "--format", "txt"});
  EXPECT_EQ(choice.code, 3);
  EXPECT_THAT(choice.err, HasSubstr("did you mean 'text'?"));
}

ProgramEnd shell(const std::string& command) {
  return Program({"/bin/sh", "-c",
                  "exec " + std::string(PRIMERL_BINARY_DIR) + "/bin/primerl-graph " + command})
      .wait();
}

TEST(Commands, SurviveAStderrThatRefusesEverything) {
  EXPECT_EQ(shell("check nowhere.toml 2>/dev/full").code, 2);
  EXPECT_EQ(shell("check nowhere.toml 2>&-").code, 2);
  EXPECT_EQ(shell("nonsense 2>/dev/full").code, 3);
}

TEST(Commands, SayWhenStdoutIsFull) {
  const auto end = shell("show " + scripted_graph() + " >/dev/full");
  EXPECT_EQ(end.code, 1);
  EXPECT_THAT(end.err, HasSubstr("standard output refused what was printed: No space left"));
}

TEST(Check, AValidGraphIsReportedOnStdout) {
  const auto end = run_graph_program({"check", scripted_graph()});
  EXPECT_EQ(end.code, 0);
  EXPECT_EQ(end.out, scripted_graph() + ": ok, 7 nodes, 22 edges, 1 tenant; rehearsed 3 steps\n");
  EXPECT_THAT(end.err, IsEmpty());
}

TEST(Check, TheRehearsalCanBeLeftOut) {
  // Every prompt is refused: no rule finds that, the rehearsal does.
  const std::vector<std::string> wrong = {"check", scripted_graph(), "--set",
                                          "resource.engine.refuse_every=1"};
  const auto played = run_graph_program(wrong);
  EXPECT_EQ(played.code, 2);
  EXPECT_THAT(played.err, HasSubstr("error[G081]"));
  auto flags = wrong;
  flags.push_back("--no-rehearsal");
  const auto left_out = run_graph_program(flags);
  EXPECT_EQ(left_out.code, 0);
  EXPECT_EQ(left_out.out, scripted_graph() + ": ok, 7 nodes, 22 edges, 1 tenant\n");
}

TEST(Check, ARunIsRehearsedBeforeItHasAFolder) {
  ScratchFolder scratch;
  const std::string folder = (scratch.path() / "run").string();
  const auto end = run_graph_program(
      {"run", scripted_graph(), "--out", folder, "--set", "resource.engine.refuse_every=1"});
  EXPECT_EQ(end.code, 2);
  EXPECT_THAT(end.err, HasSubstr("error[G081]"));
  EXPECT_FALSE(std::filesystem::exists(folder));
}

TEST(Check, FaultsGoToStderrWithCode2) {
  const auto end =
      run_graph_program({"check", scripted_graph(), "--set", "tenant.main.group_size=3"});
  EXPECT_EQ(end.code, 2);
  EXPECT_THAT(end.out, IsEmpty());
  EXPECT_THAT(end.err, AllOf(HasSubstr("error[G"), HasSubstr("1 error")));
}

TEST(Check, AMissingFileIsCode2) {
  const auto end = run_graph_program({"check", "/nowhere/x.toml"});
  EXPECT_EQ(end.code, 2);
  EXPECT_THAT(end.err, HasSubstr("/nowhere/x.toml"));
}

TEST(Check, JsonHoldsTheSameFindings) {
  const auto good = run_graph_program({"check", scripted_graph(), "--json"});
  EXPECT_EQ(good.code, 0);
  const Json document = parsed(good.out);
  EXPECT_EQ(*document.get_string("schema"), "primerl.diagnostics/1");
  EXPECT_EQ(*document.get_bool("ok"), true);
  EXPECT_EQ(*document.get_string("rehearsal"), "played");
  const auto bad =
      run_graph_program({"check", scripted_graph(), "--json", "--set", "node.router.policy=\"x\""});
  EXPECT_EQ(bad.code, 2);
  EXPECT_EQ(parsed(bad.out).find("diagnostics")->as_array().size(), 1U);
}

TEST(Check, MaxStepsAndOverlaysApply) {
  ScratchFolder scratch;
  write_text(scratch.path() / "over.toml", "[tenant.main]\nbatch_size = 24\n");
  const auto end = run_graph_program({"show", scripted_graph(), "--resolved", "--max-steps", "5",
                                      "--overlay", (scratch.path() / "over.toml").string()});
  EXPECT_EQ(end.code, 0) << end.err;
  EXPECT_THAT(end.out, AllOf(HasSubstr("max_steps = 5"), HasSubstr("batch_size = 24")));
}

TEST(Show, EveryFormatIsDrawn) {
  for (const auto& [format, mark] :
       {std::pair("text", "router"), std::pair("mermaid", "flowchart"), std::pair("dot", "digraph"),
        std::pair("svg", "<svg"), std::pair("json", "\"schema\"")}) {
    const auto end = run_graph_program({"show", scripted_graph(), "--format", format});
    EXPECT_EQ(end.code, 0) << format;
    EXPECT_THAT(end.out, HasSubstr(mark)) << format;
  }
  EXPECT_TRUE(parsed(run_graph_program({"show", scripted_graph(), "--json"}).out).is_object());
}

TEST(Show, ThePlanNamesBoundsAndOriginsNameFlags) {
  const auto plan = run_graph_program({"show", scripted_graph(), "--plan"});
  EXPECT_EQ(plan.code, 0);
  EXPECT_THAT(plan.out, AllOf(HasSubstr("bound"), HasSubstr("rollout.group -> trainer.group")));
  const auto origin = run_graph_program(
      {"show", scripted_graph(), "--resolved", "--origin", "--set", "graph.seed=18"});
  EXPECT_EQ(origin.code, 0);
  EXPECT_THAT(origin.out, AllOf(HasSubstr("--set"), HasSubstr("scripted.toml:")));
}

TEST(Explain, ACodeIsExplainedAndAWrongOneRefused) {
  const auto good = run_graph_program({"explain", "G012"});
  EXPECT_EQ(good.code, 0);
  EXPECT_THAT(good.out, StartsWith("G012: unknown port"));
  const auto bad = run_graph_program({"explain", "G9999"});
  EXPECT_EQ(bad.code, 3);
  EXPECT_THAT(bad.err, HasSubstr("no code 'G9999'"));
  EXPECT_EQ(*parsed(run_graph_program({"explain", "--json"}).out).get_string("schema"),
            "primerl.codes/1");
}

TEST(Actors, AreListedAndShownOneByOne) {
  EXPECT_THAT(run_graph_program({"actors"}).out, HasSubstr("router"));
  const auto one = run_graph_program({"actors", "router"});
  EXPECT_THAT(one.out, AllOf(HasSubstr("generate"), HasSubstr("GenerateRequest"),
                             HasSubstr("policy = \"sticky_least_loaded\"")));
  const auto none = run_graph_program({"actors", "ruoter"});
  EXPECT_EQ(none.code, 3);
  EXPECT_THAT(none.err, HasSubstr("did you mean 'router'?"));
  const Json all = parsed(run_graph_program({"actors", "--json"}).out);
  EXPECT_EQ(*all.get_string("schema"), "primerl.actors/1");
  EXPECT_GE(all.find("actors")->as_array().size(), 7U);
}

TEST(Messages, AreListedAndShownOneByOne) {
  EXPECT_THAT(run_graph_program({"messages"}).out, HasSubstr("GenerateRequest"));
  EXPECT_THAT(run_graph_program({"messages", "PolicyApplied"}).out,
              AllOf(HasSubstr("version:version"), HasSubstr("sent by")));
  const auto none = run_graph_program({"messages", "Tusk"});
  EXPECT_EQ(none.code, 3);
  EXPECT_THAT(none.err, HasSubstr("did you mean 'Task'?"));
  EXPECT_EQ(*parsed(run_graph_program({"messages", "--json"}).out).get_string("schema"),
            "primerl.messages/1");
}

TEST(Schema, IsJsonForEditors) {
  const Json schema = parsed(run_graph_program({"schema"}).out);
  EXPECT_THAT(*schema.get_string("$schema"), HasSubstr("draft-04"));
}

TEST(Doctor, SaysWhatIsMissingAndHowToGetIt) {
  const auto end = run_graph_program({"doctor"}, {"PRIMERL_WORKER=/nowhere/primerl-worker"});
  EXPECT_EQ(end.code, 1);
  EXPECT_THAT(end.out, AllOf(HasSubstr("missing   worker"), HasSubstr("/nowhere/primerl-worker"),
                             HasSubstr("to fix: make build"),
                             ContainsRegex("; CPU operations: (baseline|avx2|avx512|amx)\n")));
  const auto json =
      run_graph_program({"doctor", "--json"}, {"PRIMERL_WORKER=/nowhere/primerl-worker"});
  EXPECT_EQ(json.code, 1);
  EXPECT_EQ(*parsed(json.out).get_bool("ok"), false);
}

TEST(Completion, EveryShellKnowsEveryCommand) {
  for (const char* shell : {"bash", "zsh", "fish"}) {
    const auto end = run_graph_program({"completion", shell});
    EXPECT_EQ(end.code, 0);
    for (const auto& name : kCommands) EXPECT_THAT(end.out, HasSubstr(name)) << shell;
    EXPECT_THAT(end.out, HasSubstr("mermaid")) << shell;
    EXPECT_THAT(end.out, HasSubstr("tenant.sampling")) << shell;
  }
  EXPECT_EQ(run_graph_program({"completion", "tcsh"}).code, 3);
}

TEST(Completion, BashTakesTheScript) {
  ScratchFolder scratch;
  write_text(scratch.path() / "c.bash", run_graph_program({"completion", "bash"}).out);
  const std::string script = "source " + (scratch.path() / "c.bash").string() +
                             "; COMP_WORDS=(primerl-graph sh); COMP_CWORD=1; _primerl_graph;"
                             " test \"${COMPREPLY[*]}\" = show";
  EXPECT_EQ(std::system(("bash -c '" + script + "'").c_str()), 0);
}

TEST(Generate, NeedsExactlyOnePromptAndAModel) {
  EXPECT_EQ(run_graph_program({"generate", "--prompt", "a"}).code, 3);
  EXPECT_EQ(run_graph_program({"generate", "--model", "m"}).code, 3);
  EXPECT_EQ(
      run_graph_program({"generate", "--model", "m", "--prompt", "a", "--prompt-ids", "1"}).code,
      3);
  const auto ids = run_graph_program({"generate", "--model", "m", "--prompt-ids", "1,x"});
  EXPECT_EQ(ids.code, 3);
  EXPECT_THAT(ids.err, HasSubstr("'x' at character 3 is no token id"));
  EXPECT_EQ(run_graph_program({"score", "--model", "m"}).code, 3);
}

TEST(Run, BadConfigurationMakesNoFolder) {
  ScratchFolder scratch;
  const std::string out = (scratch.path() / "run").string();
  const auto end = run_graph_program(
      {"run", scripted_graph(), "--out", out, "--set", "tenant.main.group_size=0"});
  EXPECT_EQ(end.code, 2);
  EXPECT_FALSE(std::filesystem::exists(out));
}

TEST(Run, AnOutFolderWithFilesIsRefused) {
  ScratchFolder scratch;
  write_text(scratch.path() / "precious.txt", "x");
  const auto end = run_graph_program({"run", scripted_graph(), "--out", scratch.path().string()});
  EXPECT_EQ(end.code, 1);
  EXPECT_THAT(end.err,
              AllOf(HasSubstr("is not empty, and holds no run"), Not(HasSubstr("--resume"))));
}

TEST(Run, AnUnwritableOutFolderIsReportedOnce) {
  ScratchFolder scratch;
  write_text(scratch.path() / "file", "x");
  const auto end =
      run_graph_program({"run", scripted_graph(), "--out", (scratch.path() / "file/run").string()});
  EXPECT_EQ(end.code, 1);
  EXPECT_THAT(end.err, StartsWith("error: creating folder"));
}

TEST(Run, ResumingFromNothingIsRefused) {
  ScratchFolder scratch;
  const auto none = run_graph_program({"run", "--resume", (scratch.path() / "none").string()});
  EXPECT_EQ(none.code, 2);
  EXPECT_THAT(none.err, HasSubstr("no folder"));
  const auto empty = run_graph_program({"run", "--resume", scratch.path().string()});
  EXPECT_EQ(empty.code, 2);
  EXPECT_THAT(empty.err, HasSubstr("neither a run folder nor a checkpoint"));
  EXPECT_EQ(run_graph_program({"run"}).code, 3);
}

TEST(Init, CopiesATemplateAndRefusesAFolderWithFiles) {
  const auto list = run_graph_program({"init", "--list"});
  EXPECT_EQ(list.code, 0);
  ASSERT_THAT(list.out, HasSubstr("reverse_text"))
      << "examples/ is part of the repository, and 'init' did not find it from here";
  ScratchFolder scratch;
  const std::string folder = (scratch.path() / "demo").string();
  const auto made = run_graph_program({"init", folder, "--template", "reverse-text"});
  EXPECT_EQ(made.code, 0) << made.err;
  EXPECT_TRUE(std::filesystem::exists(folder + "/graph.toml"));
  EXPECT_EQ(run_graph_program({"init", folder}).code, 1);
  EXPECT_EQ(run_graph_program({"init", folder + "2", "--template", "nothing"}).code, 3);
}

TEST(Init, MakesAGraphThatChecksFromEveryTemplate) {
  ScratchFolder scratch;
  std::istringstream names(run_graph_program({"init", "--list"}).out);
  int num_templates = 0;
  for (std::string name; std::getline(names, name); ++num_templates) {
    // Each template alone: the files beside its example are copied too.
    const std::string folder = (scratch.path() / ("of_" + name) / name).string();
    const auto made = run_graph_program({"init", folder, "--template", name});
    ASSERT_EQ(made.code, 0) << name;
    const auto checked = run_graph_program({"check", folder + "/graph.toml"});
    if (std::filesystem::exists(folder + "/CMakeLists.txt")) {  // its plugin is not built yet
      EXPECT_THAT(made.out, HasSubstr("build its plugin, as " + folder + "/README.md says"));
      EXPECT_THAT(checked.err, AllOf(HasSubstr("error[G088]"), HasSubstr("1 error\n")));
      continue;
    }
    if (made.out.find("primerl-graph model fetch ") != std::string::npos) {  // downloads a model
      EXPECT_THAT(made.out, HasSubstr("model fetch smollm2-135m-instruct " + folder + "/"));
      EXPECT_THAT(checked.err, AllOf(HasSubstr("error[G044]"), HasSubstr("1 error")));
      continue;
    }
    EXPECT_EQ(checked.code, 0) << name << ": " << checked.err;
  }
  EXPECT_GE(num_templates, 3);
}

}  // namespace
}  // namespace primerl
