// `primerl-graph check` with model folders that no run could use: the error comes before anything
// starts, with the position in the graph that names the folder.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "tests/cli/program.h"

namespace primerl {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

/// The demo with a model folder of its own, valid at first.
class AModelFolder : public testing::Test {
 protected:
  AModelFolder() {
    fs::copy(source_path("examples/reverse_text"), folder_.path(), fs::copy_options::recursive);
    bytes_ = *read_text_file(weights());
  }
  fs::path model(const std::string& file) const { return folder_.path() / "model" / file; }
  fs::path weights() const { return model("model.safetensors"); }
  fs::path index() const { return model("model.safetensors.index.json"); }
  ProgramEnd check(std::vector<std::string> more = {}) const {
    more.insert(more.begin(), {"check", graph()});
    return run_graph_program(more);
  }
  std::string graph() const { return (folder_.path() / "graph.toml").string(); }
  /// Expects the line and column of [model.policy] path.
  void expect_refused(const std::string& why,
                      const std::string& what = "model 'policy' cannot be used: ") const {
    const auto end = check();
    EXPECT_EQ(end.code, 2) << end.out;
    EXPECT_THAT(end.err, StartsWith(graph() + ":18:8: error[G044]: " + what));
    EXPECT_THAT(end.err, HasSubstr(why));
    EXPECT_THAT(end.err, HasSubstr("   18 | path = \"model\""));
    EXPECT_THAT(end.err, HasSubstr("\n1 error\n")) << "told once, though two resources name it";
  }

  ScratchFolder folder_;
  std::string bytes_;
};

TEST_F(AModelFolder, ThatIsCompletePasses) {
  const auto end = check();
  EXPECT_EQ(end.code, 0) << end.err;
}

TEST_F(AModelFolder, WithoutWeightsIsRefused) {
  fs::remove(weights());
  expect_refused("no weights in '" + (folder_.path() / "model").string() + "'");
  // No weights are computed with it.
  const auto scripted = check(
      {"--set", "resource.engine.backend=scripted", "--set", "resource.learner.backend=scripted"});
  EXPECT_EQ(scripted.code, 0) << scripted.err;
}

TEST_F(AModelFolder, WithoutWeightsPassesForOtherMachines) {
  fs::remove(weights());
  std::ofstream(graph(), std::ios::app) << R"(
[place]
far = { host = "gpu1", nodes = ["prefill", "decode", "trainer", "broadcaster"] }
near = { nodes = ["rollout", "env", "router"] }
)";
  const auto end = check();
  EXPECT_EQ(end.code, 0) << end.err;
}

TEST_F(AModelFolder, WithHalfAHeaderIsRefused) {
  write_text(weights(), bytes_.substr(0, 100));
  expect_refused("model.safetensors: the header of 6000 bytes ends beyond the file of 100");
}

TEST_F(AModelFolder, WithoutItsLastBytesIsRefused) {
  write_text(weights(), bytes_.substr(0, bytes_.size() - 1));
  expect_refused("model.safetensors: ");
}

TEST_F(AModelFolder, WithAnInvalidIndexIsRefused) {
  fs::remove(weights());
  write_text(index(), "{\"weight_map\": ");
  expect_refused("model.safetensors.index.json:1:");
}

TEST_F(AModelFolder, WithoutAShardIsRefused) {
  fs::remove(weights());
  write_text(index(), R"({"weight_map": {"model.norm.weight": "model-1.safetensors"}})");
  expect_refused("model-1.safetensors is missing, but ");
}

TEST_F(AModelFolder, OfAnotherFamilyIsForTransformersUnlessImplIsNative) {
  constexpr const char* kNote = "note: `score` and `generate` may compute it with transformers";
  std::string config = *read_text_file(model("config.json"));
  const size_t type = config.find("\"qwen3\"");
  ASSERT_NE(type, std::string::npos);
  write_text(model("config.json"), config.replace(type, 7, "\"gpt2\""));
  expect_refused("model_type 'gpt2' is not supported");
  EXPECT_THAT(check().err, HasSubstr(kNote));
  const auto native = check({"--set", "model.policy.impl=native"});
  EXPECT_THAT(native.err, AllOf(HasSubstr("'gpt2' is not supported"), Not(HasSubstr(kNote))));
  const auto foreign = check({"--set", "model.policy.impl=transformers"});
  EXPECT_EQ(foreign.code, 2);
  EXPECT_THAT(foreign.err, HasSubstr("' cannot compute it with transformers"));
  fs::remove(weights());
  write_text(model("config.json"), config.replace(config.find("\"gpt2\""), 6, "\"qwen3\""));
  EXPECT_THAT(check().err, AllOf(HasSubstr("no weights"), Not(HasSubstr(kNote))));
}

/// A pipe has no writer here: opening it would wait for ever.
TEST_F(AModelFolder, WithAPipeForAFileIsRefused) {
  fs::remove(weights());
  ASSERT_EQ(::mkfifo(weights().c_str(), 0600), 0);
  expect_refused("model.safetensors' is a pipe, not a regular file");
  fs::remove(model("config.json"));
  ASSERT_EQ(::mkfifo(model("config.json").c_str(), 0600), 0);
  expect_refused("config.json' is a pipe, not a regular file");
}

// Tokenizers.

constexpr const char* kTokenizer = "the tokenizer of model 'policy' cannot be used: ";
constexpr const char* kMisfit = "the tokenizer of model 'policy' does not fit model 'policy': ";

TEST_F(AModelFolder, WithoutATokenizerIsRefused) {
  fs::remove(model("tokenizer.json"));
  expect_refused("tokenizer.json", kTokenizer);
  EXPECT_THAT(check().err, HasSubstr("note: node 'rollout' reads it"));
  // `run` reports the same, and makes no folder.
  const fs::path out = folder_.path() / "run";
  const auto end = run_graph_program({"run", graph(), "--out", out.string()});
  EXPECT_EQ(end.code, 2);
  EXPECT_THAT(end.err, HasSubstr(":18:8: error[G044]: " + std::string(kTokenizer)));
  EXPECT_FALSE(fs::exists(out));
}

TEST_F(AModelFolder, WithATokenizerThatIsNotJsonIsRefusedWithItsLine) {
  write_text(model("tokenizer.json"), "{\n \"model\": {\n");
  expect_refused("tokenizer.json:3:", kTokenizer);
}

TEST_F(AModelFolder, WithATokenizerOfAnotherKindIsRefused) {
  write_text(model("tokenizer.json"), R"({"model": {"type": "Unigram", "vocab": []}})");
  expect_refused(
      "tokenizer.json: 'model.type' is 'Unigram'; this program reads 'BPE' and "
      "'WordLevel'",
      kTokenizer);
}

TEST_F(AModelFolder, WithATokenizerLargerThanItsEmbeddingIsRefused) {
  std::string text = *read_text_file(model("tokenizer.json"));
  const size_t at = text.find("\"added_tokens\": [");
  ASSERT_NE(at, std::string::npos);
  text.insert(at + 17, R"({"id": 9000, "content": "<more>", "special": true}, )");
  write_text(model("tokenizer.json"), text);
  expect_refused("has token ids up to 9000, the embedding has ", kMisfit);
  const auto scripted = check(
      {"--set", "resource.engine.backend=scripted", "--set", "resource.learner.backend=scripted"});
  EXPECT_EQ(scripted.code, 0) << scripted.err << "nothing is computed with the embedding";
}

TEST_F(AModelFolder, WithAnEndIdBeyondItsEmbeddingIsRefused) {
  write_text(model("generation_config.json"), R"({"eos_token_id": [1, 5000]})");
  expect_refused("'eos_token_id' of it or of generation_config.json has 5000, 'vocab_size' is ");
}

TEST_F(AModelFolder, IsNotReadByCommandsThatRunNothing) {
  fs::remove(model("tokenizer.json"));
  EXPECT_EQ(run_graph_program({"show", graph()}).code, 0);
}

/// Expects this refusal of the value, and no other error.
void expect_refusal(const ProgramEnd& end, const std::string& where, const std::string& why) {
  EXPECT_EQ(end.code, 2) << end.out;
  EXPECT_THAT(end.err, HasSubstr(where));
  EXPECT_THAT(end.err, HasSubstr(why));
  EXPECT_THAT(end.err, HasSubstr("\n1 error\n"));
}

// Resources that cannot be created.

TEST_F(AModelFolder, TooSmallForAnEnginesSequencesIsRefused) {
  expect_refusal(check({"--set", "resource.engine.max_sequence_tokens=100000"}),
                 "--set:1:37: error[G085]: resource 'engine' refuses its options: "
                 "'max_sequence_tokens' 100000 is beyond the ",
                 " positions of the model");
}

TEST_F(AModelFolder, OnTheCpuHasProductsInBf16AndFp8ButNoBfloat16) {
  for (const std::string resource : {"engine", "learner"}) {
    expect_refusal(check({"--set", "resource." + resource + ".dtype=bfloat16"}),
                   "error[G085]: resource '" + resource + "' refuses its options: 'dtype' is ",
                   "on the CPU computes in float32");
    for (const std::string products : {"bf16", "fp8"})
      EXPECT_EQ(check({"--set", "resource." + resource + ".products=" + products}).code, 0);
  }
}

constexpr const char* kEngineOnCuda = R"(
[place]
inference = { nodes = ["prefill", "decode"], device = "cuda:0" }
rest = { nodes = ["trainer", "broadcaster", "rollout", "env", "router"] }
)";

TEST_F(AModelFolder, OnACudaDeviceHasNoBf16ProductsOfTheCpu) {
  std::ofstream(graph(), std::ios::app) << kEngineOnCuda;
  const auto end =
      check({"--set", "resource.engine.products=bf16", "--set", "resource.engine.numerics=fast"});
  EXPECT_EQ(end.code, 2);
  EXPECT_THAT(end.err, HasSubstr("error[G085]: resource 'engine' refuses its options: 'products' "
                                 "is \"bf16\", which an engine on cuda:0 does not have"));
}

TEST_F(AModelFolder, OnACudaDeviceHasNoInvariantNumericsAndMayHaveAnAdapterOnTheHead) {
  std::ofstream(graph(), std::ios::app) << R"(
[tenant.main.adapter]
rank = 4
targets = ["q_proj", "lm_head"]
)";
  const auto on_cpu = check();
  EXPECT_EQ(on_cpu.code, 0) << on_cpu.err;
  std::ofstream(graph(), std::ios::app) << kEngineOnCuda;
  auto end = check({"--set", "tenant.main.adapter.targets=[\"q_proj\"]"});
  EXPECT_EQ(end.code, 2);  // its weights do not fit the places either, but that is another error
  EXPECT_THAT(end.err, HasSubstr("error[G085]: resource 'engine' refuses its options: 'numerics' "
                                 "is \"invariant\", which an engine on cuda:0 does not support"));
  end = check({"--set", "resource.engine.numerics=fast"});
  EXPECT_THAT(end.err, Not(HasSubstr("lm_head")));
}

/// 5 TiB of keys and values.
TEST_F(AModelFolder, WithMoreKvBlocksThanTheMachineHasMemoryIsRefused) {
  const auto end = check({"--set", "resource.engine.kv_blocks=134217727"});
  EXPECT_EQ(end.code, 2) << end.out;
  EXPECT_THAT(end.err, AllOf(HasSubstr("error[G049]"), HasSubstr("134217727 KV blocks")));
}

TEST_F(AModelFolder, WithMoreKvBlocksThanTokensAreCountedIsRefused) {
  const auto end = check({"--set", "resource.engine.kv_blocks=134217728"});
  EXPECT_EQ(end.code, 2);
  EXPECT_THAT(end.err, HasSubstr("error[G085]: resource 'engine' refuses its options: 'kv_blocks' "
                                 "134217728 of 'block_size' 16 are more than 2147483647 tokens"));
}

TEST_F(AModelFolder, WithAnAdapterOnLinearsThatDoNotExistIsRefused) {
  std::ofstream(graph(), std::ios::app) << R"(
[tenant.main.adapter]
rank = 4
targets = ["q_proj", "z_proj"]
)";
  expect_refusal(check(), "error[G083]: 'adapter.targets' of tenant 'main' cannot be used: ",
                 "unknown target 'z_proj' of an adapter");
}

TEST_F(AModelFolder, JudgesNumbersOfALossTogetherWithThoseOfTheLearner) {
  const auto with = [&](const std::string& value) {
    return check({"--set", "resource.learner.loss.reference_weight=" + value});
  };
  EXPECT_EQ(with("0.0").code, 0) << with("0.0").err;
  const auto end = with("0.1");
  EXPECT_EQ(end.code, 2);
  EXPECT_THAT(end.err, HasSubstr("error[G083]: 'loss' of tenant 'main' cannot be used: 'dppo' "
                                 "needs a reference model"));
  const auto tenant = [&](const std::string& low) {
    return check({"--set", "resource.learner.loss.kind=icepop", "--set",
                  "resource.learner.loss.weight_high=4.0", "--set",
                  "tenant.main.loss.weight_low=" + low});
  };
  EXPECT_EQ(tenant("4.0").code, 0) << tenant("4.0").err;
  EXPECT_THAT(tenant("4.5").err, HasSubstr("weight_low 4.5 is above weight_high 4"));
}

TEST_F(AModelFolder, OnAMissingCpuIsRefused) {
  std::ofstream(graph(), std::ios::app) << R"(
[place]
all = { cpus = "1023", nodes = ["prefill", "decode", "trainer", "broadcaster", "rollout", "env",
  "router"] }
)";
  expect_refusal(check(), "error[G057]: 'cpus' of place 'all' names CPU 1023, which processes",
                 "note: they may use: 0");
}

// Tenants that join.

TEST(CheckOfATenant, SaysWhetherItFitsAGraph) {
  const std::string graph = source_path("examples/hosted/graph.toml");
  for (const char* name : {"alice", "bob"}) {
    const auto end = run_graph_program(
        {"check", graph, "--tenant", source_path(fmt::format("examples/hosted/{}.toml", name))});
    EXPECT_EQ(end.code, 0) << end.err;
    EXPECT_THAT(end.out, HasSubstr(fmt::format("tenant '{}' fits graph 'hosted'; 1 of 8", name)));
  }
  const auto empty = run_graph_program({"check", graph});
  EXPECT_EQ(empty.code, 0) << empty.err;
  EXPECT_THAT(empty.out, HasSubstr("0 tenants of 8 slots; not rehearsed: no slot has a tenant"));
}

TEST(CheckOfATenant, SaysWhetherClientsMayJoin) {
  const std::string carol = source_path("examples/hosted/carol.toml");
  const auto fits =
      run_graph_program({"check", source_path("examples/hosted/clients.toml"), "--tenant", carol});
  EXPECT_EQ(fits.code, 0) << fits.err;
  EXPECT_THAT(fits.out, HasSubstr("tenant 'carol' fits graph 'hosted'; 1 of 8"));
  const auto refused =
      run_graph_program({"check", source_path("examples/hosted/graph.toml"), "--tenant", carol});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("the graph allows no clients"));
}

TEST(CheckOfATenant, ReportsItsFaultsAsThoseOfAGraph) {
  const std::string graph = source_path("examples/hosted/graph.toml");
  ScratchFolder folder;
  const std::string file = (folder.path() / "eve.toml").string();
  write_text(file,
             "[tenant.eve]\nenvironment = { name = \"copy\" }\n[tenant.eve.adapter]\nrank = 32\n");
  const auto end = run_graph_program({"check", graph, "--tenant", file});
  EXPECT_EQ(end.code, 2) << end.out;
  EXPECT_THAT(end.err, StartsWith(file + ":4:8: error[G096]: the adapter of tenant 'eve' has rank "
                                         "32, more than the graph allows, 16"));
  const auto json = run_graph_program({"check", graph, "--tenant", file, "--json"});
  EXPECT_EQ(json.code, 2);
  const Json document = parse_json(json.out, "findings").value();
  EXPECT_FALSE(*document.get_bool("ok"));
  EXPECT_EQ(*document.find("diagnostics")->as_array()[0].get_string("code"), "G096");
  const auto none = run_graph_program({"check", graph, "--tenant", file + ".missing"});
  EXPECT_EQ(none.code, 2);
  EXPECT_THAT(none.err, HasSubstr("error[G003]"));
}

TEST(CheckLimits, RefusesLinearsThatDoNotExist) {
  const auto end = run_graph_program({"check", source_path("examples/hosted/graph.toml"), "--set",
                                      "graph.tenant_limits.targets=[\"q_proj\", \"z_proj\"]"});
  EXPECT_EQ(end.code, 2);
  EXPECT_THAT(end.err,
              AllOf(HasSubstr("error[G085]: 'targets' of [graph.tenant_limits] cannot be used: "),
                    HasSubstr("unknown target 'z_proj' of an adapter")));
}

// Files of examples.

class AFileOfExamples : public AModelFolder {
 protected:
  AFileOfExamples() { graph_ = (folder_.path() / "sft.toml").string(); }
  ProgramEnd check_with(const std::string& lines) const {
    write_text(folder_.path() / "examples.jsonl", lines);
    return run_graph_program({"check", graph_, "--set", "node.data.file=" + file()});
  }
  std::string file() const { return (folder_.path() / "examples.jsonl").string(); }
  std::string graph_;
};

TEST_F(AFileOfExamples, ThatIsCompletePasses) {
  const auto end = check_with(R"({"prompt": "r:abcdefgh>", "completion": "hgfedcba"})");
  EXPECT_EQ(end.code, 0) << end.err;
}

TEST_F(AFileOfExamples, WithABrokenLineIsRefusedWithThatLine) {
  const std::string whole = "{\"prompt\": \"r:ab>\", \"completion\": \"ba\"}\n";
  const std::string refused = "--set:1:16: error[G046]: 'file' of node 'data' cannot be used: ";
  expect_refusal(check_with(whole + "{\"prompt\": \"r:ab>\"}\n"), refused, file() + ":2");
  expect_refusal(check_with(whole + whole + "{\"prompt\": \n"), refused, file() + ":3");
  expect_refusal(check_with("\n\n"), refused, "'" + file() + "' has no examples");
}

TEST(ADataSet, WithABadRowIsReportedInTheOverlayThatNamesIt) {
  const ScratchFolder folder;
  write_text(folder.path() / "train.jsonl", "{\"prompt\": \"1+1=\"}\n");
  write_text(folder.path() / "task.toml",
             "[tenant.main]\nenvironment = { name = \"dataset\", file = \"train.jsonl\" }\n");
  const auto end = run_graph_program({"check", source_path("examples/reverse_text/graph.toml"),
                                      "--overlay", (folder.path() / "task.toml").string()});
  EXPECT_EQ(end.code, 2);
  EXPECT_THAT(end.err, AllOf(HasSubstr("task.toml:2:"), HasSubstr("error[G085]"),
                             HasSubstr("train.jsonl:1:1: the row has no 'answer'")));
}

}  // namespace
}  // namespace primerl
