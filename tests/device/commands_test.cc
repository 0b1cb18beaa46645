// `generate`, `score` and `train-step` on a CUDA device, compared with the CPU, as processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/train/batch_file.h"
#include "tests/cli/program.h"
#include "tests/store/scratch_folder.h"

namespace primerl {
namespace {

using ::testing::HasSubstr;

// Differences of fp32 log-probabilities when GEMMs add in another order.
constexpr double kTolerance = 1e-3;

std::string model() { return source_path("examples/reverse_text/model"); }

/// The output of `command` on `device` in float32.
Json printed(const std::string& device, std::vector<std::string> command) {
  command.insert(command.end(),
                 {"--model", model(), "--device", device, "--dtype", "float32", "--json"});
  const auto end = run_graph_program(command);
  EXPECT_EQ(end.code, 0) << end.err;
  auto json = parse_json(end.out, "output");
  EXPECT_TRUE(json.ok()) << end.out;
  return json.ok() ? std::move(json).value() : Json();
}

void expect_near(const Json& ours, const Json& theirs, std::string_view list) {
  const auto &a = ours.find(list)->as_array(), &b = theirs.find(list)->as_array();
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i)
    EXPECT_NEAR(a[i].as_double(), b[i].as_double(), kTolerance) << i;
}

TEST(CommandsOnADevice, GenerateTheTokensOfTheCpu) {
  const std::vector<std::string> words = {"generate", "--prompt",      "r:abcdef>", "--max-tokens",
                                          "6",        "--temperature", "0"};
  const Json device = printed("cuda:0", words), host = printed("cpu", words);
  EXPECT_EQ(device.find("token_ids")->dump(), host.find("token_ids")->dump());
  expect_near(device, host, "logprobs");
}

TEST(CommandsOnADevice, ScoreAsTheCpuDoes) {
  const ScratchFolder scratch;
  const std::string file = (scratch.path() / "ids.txt").string();
  write_text(file, "5,9,33,80,2,14,77,3\n");
  const std::vector<std::string> words = {"score", "--ids-file", file};
  expect_near(printed("cuda:0", words), printed("cpu", words), "logprobs");
}

TEST(CommandsOnADevice, TakeTheTrainingStepOfTheCpu) {
  TrainBatch batch;
  batch.loss = LossKind::kCrossEntropy;
  TrainSample& sample = batch.samples.emplace_back();
  sample.tokens = {5, 9, 33, 80, 2, 14, 77, 3};
  sample.loss_mask.assign(8, 1);
  const ScratchFolder scratch;
  const auto file = scratch.path() / "batch.safetensors";
  ASSERT_TRUE(write_train_batch(file, batch).ok());
  const std::vector<std::string> words = {"train-step", "--batch", file.string()};
  const Json device = printed("cuda:0", words), host = printed("cpu", words);
  for (const char* fact : {"loss", "entropy_mean"})
    EXPECT_NEAR(device.find(fact)->as_double(), host.find(fact)->as_double(), kTolerance) << fact;
  const double norm = host.find("grad_norm")->as_double();
  EXPECT_NEAR(device.find("grad_norm")->as_double() / norm, 1, 1e-2);
}

TEST(CommandsOnADevice, ThatIsNotThereSayWhatThereIs) {
  const auto end = run_graph_program(
      {"generate", "--model", model(), "--prompt", "r:a>", "--device", "cuda:63"});
  EXPECT_EQ(end.code, 2);
  EXPECT_THAT(end.err, HasSubstr("--device cuda:63 is not available: this machine has "));
}

// libtorch of a CUDA build would otherwise end the worker.
TEST(CommandsOnADevice, RefuseAllocatorSettingsBeforeLibtorchReadsThem) {
  const std::vector<std::string> words = {"generate", "--model",  model(), "--prompt",
                                          "r:a>",     "--device", "cuda:0"};
  for (const char* name : {"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"}) {
    const auto refused = run_graph_program(words, {std::string(name) + "=nonsense"});
    EXPECT_EQ(refused.code, 2) << name;
    EXPECT_THAT(refused.err, HasSubstr(std::string(name) + ": 'nonsense' is not KEY:VALUE"));
  }
  const auto taken = run_graph_program(words, {"PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:64"});
  EXPECT_EQ(taken.code, 0) << taken.err;
}

}  // namespace
}  // namespace primerl
