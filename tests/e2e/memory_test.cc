// The planned memory of a worker compared with its measured peak, for models of three shapes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/models/folder.h"
#include "kernels/models/tensors.h"
#include "tests/e2e/run_files.h"
#include "tests/store/scratch_folder.h"

namespace primerl {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

namespace fs = std::filesystem;

constexpr double kTolerance = 0.15;

struct Shape {
  std::string name;
  std::string config;             // of the model family, in addition to the common members
  int vocab_size = 97;            // of the demo's tokenizer, or more
  std::vector<std::string> sets;  // of the graph
};

/// Adds a word for each token that the demo's tokenizer lacks, because a model may sample any
/// token.
void write_tokenizer(const fs::path& folder, int vocab_size) {
  const fs::path demo = source_path("examples/reverse_text/model");
  auto tokenizer = parse_json(read_text_file(demo / "tokenizer.json").value(), "tokenizer").value();
  Json model = *tokenizer.find("model");
  Json vocab = *model.find("vocab");
  for (int id = static_cast<int>(vocab.as_object().size()); id < vocab_size; ++id)
    vocab.as_object().emplace_back("word" + std::to_string(id), static_cast<int64_t>(id));
  tokenizer.set("model", model.set("vocab", vocab));
  write_text(folder / "tokenizer.json", tokenizer.dump());
  fs::copy_file(demo / "tokenizer_config.json", folder / "tokenizer_config.json");
}

/// A folder of random weights.
fs::path make_model(const Shape& shape) {
  const fs::path folder = new_scratch_folder();
  write_text(folder / "config.json",
             R"({"vocab_size": )" + std::to_string(shape.vocab_size) +
                 R"(, "head_dim": 32, "max_position_embeddings": 256, "rms_norm_eps": 1e-6,
                     "tie_word_embeddings": true, "hidden_act": "silu", "rope_theta": 10000.0,
                     "eos_token_id": 1, "pad_token_id": 0, )" +
                 shape.config + "}");
  const ModelFolder model = read_model_folder(folder).value();
  const TensorTable table(model.config);
  std::vector<float> weights(static_cast<size_t>(table.count()));
  randomize_parameters(table, 5, 0.02, weights.data());
  EXPECT_TRUE(write_model_folder(folder, model, view_parameters(table, weights.data())).ok());
  write_tokenizer(folder, shape.vocab_size);
  return folder;
}

std::vector<std::string> with_model(std::vector<std::string> words, const fs::path& model,
                                    const std::vector<std::string>& sets) {
  words.insert(words.begin() + 1, source_path("examples/reverse_text/graph.toml"));
  words.insert(words.end(), {"--set", "model.policy.path=" + model.string()});
  for (const std::string& set : sets) words.insert(words.end(), {"--set", set});
  return words;
}

class PlanOfMemory : public ::testing::TestWithParam<Shape> {};

TEST_P(PlanOfMemory, IsWithin15PercentOfWhatTheWorkerHadAtMost) {
  const ScratchFolder scratch;
  const fs::path run = scratch.path() / "run";
  const auto end = run_graph_program(
      with_model({"run", "--out", run.string(), "--max-steps", "4", "--no-rehearsal"},
                 make_model(GetParam()), GetParam().sets));
  ASSERT_EQ(end.code, 0) << end.err;
  const Json facts = json_file(run / "run.json");
  const Json& memory = facts.find("memory")->as_array().at(0);
  const auto planned = static_cast<double>(*memory.get_int("planned_bytes"));
  const auto peak = static_cast<double>(*memory.get_int("peak_bytes"));
  EXPECT_NEAR(planned / peak, 1, kTolerance) << memory.dump();
  EXPECT_GT(peak, 6e8) << "so much that libtorch's own part does not hide the rest";
}

/// Groups of 8, and enough tokens to fill the micro-batches.
std::vector<std::string> sets_of(std::vector<std::string> more) {
  std::vector<std::string> sets = {"tenant.main.batch_size=16",
                                   "tenant.main.filters.zero_advantage=false",
                                   "tenant.main.checkpoint_every=2",
                                   "resource.engine.kv_blocks=128",
                                   "resource.engine.max_batched_tokens=512",
                                   "node.rollout.max_inflight=32",
                                   "tenant.main.sampling.ignore_eos=true"};
  sets.insert(sets.end(), more.begin(), more.end());
  return sets;
}

Shape deep() {
  return {"Deep",
          R"("model_type": "qwen3", "hidden_size": 192, "intermediate_size": 768,
             "num_hidden_layers": 24, "num_attention_heads": 6, "num_key_value_heads": 2)",
          97, sets_of({})};
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, PlanOfMemory,
    ::testing::Values(
        deep(),
        Shape{"WideVocabulary",
              R"("model_type": "llama", "hidden_size": 384, "intermediate_size": 768,
                 "num_hidden_layers": 2, "num_attention_heads": 12, "num_key_value_heads": 4)",
              24000, sets_of({"resource.learner.recompute=\"full\""})},
        Shape{"Mixture",
              R"("model_type": "qwen3_moe", "hidden_size": 256, "intermediate_size": 512,
                 "moe_intermediate_size": 256, "num_experts": 16, "num_experts_per_tok": 2,
                 "decoder_sparse_step": 1, "norm_topk_prob": true, "mlp_only_layers": [],
                 "num_hidden_layers": 5, "num_attention_heads": 8, "num_key_value_heads": 2)",
              97, sets_of({"resource.learner.micro_batch_tokens=128"})}),
    [](const auto& one) { return one.param.name; });

/// A control group for this test, with a memory limit. Its folder is empty if none can be made.
class ControlGroup {
 public:
  ControlGroup() {
    for (const char* top : {"/sys/fs/cgroup/memory", "/sys/fs/cgroup"}) {
      const fs::path folder = fs::path(top) / fmt::format("primerl-test-{}", ::getpid());
      std::error_code fault;
      if (!fs::exists(fs::path(top) / "cgroup.procs", fault) ||
          !fs::create_directory(folder, fault))
        continue;
      for (const char* name : {"memory.limit_in_bytes", "memory.max"})
        if (fs::exists(folder / name, fault)) limit_ = folder / name;
      folder_ = folder;
      if (!limit_.empty()) return;
      fs::remove(folder, fault);
      folder_.clear();
    }
  }
  ~ControlGroup() { ::rmdir(folder_.c_str()); }
  ControlGroup(const ControlGroup&) = delete;
  ControlGroup& operator=(const ControlGroup&) = delete;

  bool is_there() const { return !folder_.empty(); }
  void limit(int64_t bytes) const { write_text(limit_, std::to_string(bytes)); }
  fs::path members() const { return folder_ / "cgroup.procs"; }

 private:
  fs::path folder_, limit_;
};

// The limit is set after the plan was checked against it, as if other processes used the memory
// meanwhile.
TEST(Memory, AProcessThatLackedItIsNotRestarted) {
  const ControlGroup group;
  if (!group.is_there())
    GTEST_SKIP() << "no control group can be made (not root, or /sys/fs/cgroup is read-only)";
  const ScratchFolder scratch;
  const fs::path run = scratch.path() / "run";
  auto words =
      with_model({"run", "--out", run.string(), "--no-rehearsal"}, make_model(deep()), sets_of({}));
  words.insert(words.begin(),
               {"/bin/sh", "-c", "echo $$ > " + group.members().string() + "; exec \"$0\" \"$@\"",
                std::string(PRIMERL_BINARY_DIR) + "/bin/primerl-graph"});
  Program program(words);
  ASSERT_TRUE(wait_until([&] { return fs::exists(run / "graph.resolved.toml"); }));
  group.limit(450'000'000);
  const auto end = program.wait();
  EXPECT_EQ(end.code, 1);
  EXPECT_THAT(end.err, AllOf(HasSubstr("process 'main' was killed by signal 9 (Killed) for lack of "
                                       "memory: its resident memory was "),
                             HasSubstr("the limit is 429.2 MiB"), HasSubstr("micro_batch_tokens"),
                             Not(HasSubstr("the run resumes"))));
  EXPECT_EQ(*json_file(run / "run.json").get_int("incarnation"), 1) << "started once";
}

TEST(Memory, ThatAGraphNeedsIsCheckedBeforeAnythingStarts) {
  const Shape huge{"Huge",
                   R"("model_type": "llama", "hidden_size": 64, "intermediate_size": 64,
                      "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1)",
                   97,
                   {}};
  const fs::path model = make_model(huge);
  const std::vector<std::string> sets = {"resource.engine.kv_blocks=100000000"};
  const ScratchFolder scratch;
  const fs::path run = scratch.path() / "run";
  for (const auto& words : {std::vector<std::string>{"check"},
                            std::vector<std::string>{"run", "--out", run.string()}}) {
    const auto end = run_graph_program(with_model(words, model, sets));
    EXPECT_EQ(end.code, 2) << words[0];
    EXPECT_THAT(end.err, AllOf(HasSubstr("error[G049]: the run needs 381.7 GiB of memory, and this "
                                         "machine has "),
                               HasSubstr("100000000 KV blocks: 381"), HasSubstr("kv_blocks")))
        << words[0];
  }
  EXPECT_FALSE(fs::exists(run)) << "nothing was made";
  const auto shown = run_graph_program(with_model({"show", "--plan"}, model, sets));
  EXPECT_EQ(shown.code, 0);
  EXPECT_THAT(shown.out, HasSubstr("memory of all processes here: 381.7 GiB of "));
  EXPECT_THAT(shown.err, HasSubstr("warning[G049]: the run needs 381.7 GiB of memory"));
}

}  // namespace
}  // namespace primerl
