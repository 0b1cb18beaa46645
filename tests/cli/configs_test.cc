// The graphs of configs/ are valid and fit together, on a machine without a CUDA device and without
// the bytes of weights.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "kernels/models/tensors.h"
#include "tests/cli/program.h"
#include "tests/store/scratch_folder.h"

namespace primerl {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
namespace fs = std::filesystem;

/// A file with the header of a model's weights, in bfloat16, and a hole instead of their bytes.
void write_hollow_weights(const fs::path& folder) {
  const TensorTable table(read_model_config(folder).value());
  Json header = Json::object();
  uint64_t end = 0;
  for (const TensorSlice& slice : table.slices()) {
    const uint64_t begin = std::exchange(end, end + 2 * static_cast<uint64_t>(slice.count));
    header.set(slice.name, Json::object()
                               .set("dtype", "BF16")
                               .set("shape", Json::list(slice.shape))
                               .set("data_offsets", Json::list(std::vector<uint64_t>{begin, end})));
  }
  const std::string text = header.dump();
  const uint64_t length = text.size();  // little-endian, like this machine
  std::string bytes(sizeof length, '\0');
  std::memcpy(bytes.data(), &length, sizeof length);
  const fs::path file = folder / "model.safetensors";
  write_text(file, bytes + text);
  fs::resize_file(file, bytes.size() + length + end);
}

/// Qwen3-0.6B without the bytes of its weights, with the demo's tokenizer.
fs::path write_model(const fs::path& folder) {
  fs::create_directories(folder);
  const fs::path base = source_path("examples/reverse_text/base");
  for (const char* file : {"tokenizer.json", "tokenizer_config.json"})
    fs::copy_file(base / file, folder / file);
  write_text(folder / "config.json", R"({
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "attention_bias": false,
    "attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id": 151645, "head_dim": 128,
    "hidden_act": "silu", "hidden_size": 1024, "initializer_range": 0.02,
    "intermediate_size": 3072, "max_position_embeddings": 40960, "max_window_layers": 28,
    "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000, "sliding_window": null,
    "tie_word_embeddings": true, "torch_dtype": "bfloat16", "use_cache": true,
    "use_sliding_window": false, "vocab_size": 151936})");
  write_hollow_weights(folder);
  return folder;
}

/// The complete runs, sorted by name.
std::vector<fs::path> complete_runs() {
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(source_path("configs")))
    if (entry.path().extension() == ".toml" && entry.path().filename() != "loop.toml")
      found.push_back(entry.path());
  std::sort(found.begin(), found.end());
  return found;
}

class Configs : public testing::Test {
 protected:
  ProgramEnd ask(std::vector<std::string> words) const {
    words.insert(words.end(), {"--set", "model.policy.path=" + model_.string()});
    return run_graph_program(words);
  }

  const ScratchFolder scratch_;
  const fs::path model_ = write_model(scratch_.path() / "model");
};

TEST_F(Configs, EveryCompleteRunIsCheckedWithoutAFinding) {
  ASSERT_GE(complete_runs().size(), 2U);
  for (const fs::path& graph : complete_runs()) {
    const auto end = ask({"check", graph.string()});
    EXPECT_EQ(end.code, 0) << graph << "\n" << end.err;
    EXPECT_THAT(end.err, Not(HasSubstr("warning"))) << graph;
  }
}

TEST_F(Configs, OneCardHasEngineAndLearnerInOneProcess) {
  const auto end = ask({"show", "--plan", source_path("configs/qwen3_0.6b_one_gpu.toml")});
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_THAT(end.out, HasSubstr("process gpu on cuda:0"));
  EXPECT_THAT(end.out, HasSubstr("process driver on cpu"));
  EXPECT_THAT(end.out, Not(HasSubstr("cuda:1")));
}

TEST_F(Configs, TwoCardsHaveOneEach) {
  const auto end = ask({"show", "--plan", source_path("configs/qwen3_0.6b_two_gpus.toml")});
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_THAT(end.out, HasSubstr("process training on cuda:0"));
  EXPECT_THAT(end.out, HasSubstr("process inference on cuda:1"));
}

TEST_F(Configs, TwoCardsAreMoreByTwoSettings) {
  const auto end = ask({"show", "--plan", source_path("configs/qwen3_0.6b_two_gpus.toml"), "--set",
                        "place.inference.replicas=3", "--set",
                        "place.inference.devices=[\"cuda:1\", \"cuda:2\", \"cuda:3\"]"});
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_THAT(end.out, HasSubstr("process inference#2 on cuda:3"));
}

}  // namespace
}  // namespace primerl
