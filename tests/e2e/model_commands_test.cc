// `generate` and `score` as processes, against transformers on tiny random fp32 models.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <span>

#include "kernels/train/batch_file.h"
#include "kernels/weights/safetensors.h"
#include "tests/cpu/reference_models.h"
#include "tests/e2e/run_files.h"
#include "tests/store/scratch_folder.h"

namespace primerl {
namespace {

using ::testing::HasSubstr;
using testing::reference;
using testing::reference_models;

constexpr double kTolerance = 1e-4;  // for one log-probability

std::string comma_list(const Json& ids) {
  std::string text;
  for (const auto& id : ids.as_array())
    text += (text.empty() ? "" : ",") + std::to_string(id.as_int());
  return text;
}

std::vector<Json> json_lines(const std::string& text) {
  std::vector<Json> lines;
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find('\n', at);
    auto json = parse_json(text.substr(at, end - at), "output");
    EXPECT_TRUE(json.ok()) << text;
    if (json.ok()) lines.push_back(std::move(json).value());
    at = end == std::string::npos ? text.size() : end + 1;
  }
  return lines;
}

class ModelCommands : public ::testing::TestWithParam<std::string> {
 protected:
  static std::string model() { return (reference_models() / GetParam()).string(); }
};

TEST_P(ModelCommands, GreedyTokensAreThoseOfTransformers) {
  // The shortest and the longest prompt; the engine's parity test has those in between.
  const auto& cases = reference(GetParam()).find("greedy")->as_array();
  for (const Json& picked : {cases.front(), cases.back()}) {
    const auto end = run_graph_program({"generate", "--model", model(), "--prompt-ids",
                                        comma_list(*picked.find("prompt")), "--max-tokens", "64",
                                        "--temperature", "0", "--ignore-eos", "--json"});
    ASSERT_EQ(end.code, 0) << end.err;
    const auto lines = json_lines(end.out);
    ASSERT_EQ(lines.size(), 1U);
    EXPECT_EQ(comma_list(*lines[0].find("token_ids")), comma_list(*picked.find("tokens")));
    EXPECT_EQ(lines[0].find("logprobs")->as_array().size(), 64U);
    EXPECT_EQ(*lines[0].get_string("finish_reason"), "length");
    EXPECT_EQ(*lines[0].get_string("schema"), "primerl.generate/1");
  }
}

TEST_P(ModelCommands, ScoresAreThoseOfTransformers) {
  ScratchFolder scratch;
  const auto& sequences = reference(GetParam()).find("sequences")->as_array();
  std::string file;
  for (const auto& sequence : sequences) file += comma_list(*sequence.find("ids")) + "\n";
  write_text(scratch.path() / "ids.txt", file);
  const auto end = run_graph_program(
      {"score", "--model", model(), "--ids-file", (scratch.path() / "ids.txt").string(), "--json"});
  ASSERT_EQ(end.code, 0) << end.err;
  const auto lines = json_lines(end.out);
  ASSERT_EQ(lines.size(), sequences.size());
  for (size_t i = 0; i < lines.size(); ++i) {
    const auto& ours = lines[i].find("logprobs")->as_array();
    const auto& theirs = sequences[i].find("logprobs")->as_array();
    ASSERT_EQ(ours.size(), theirs.size());
    for (size_t j = 0; j < ours.size(); ++j)
      EXPECT_NEAR(ours[j].as_double(), theirs[j].as_double(), kTolerance) << i << " " << j;
  }
}

TEST_P(ModelCommands, SampledTokensScoreTheSame) {
  const auto generated =
      run_graph_program({"generate", "--model", model(), "--prompt-ids", "5,6,7", "--max-tokens",
                         "20", "--seed", "3", "--ignore-eos", "--json"});
  ASSERT_EQ(generated.code, 0) << generated.err;
  const Json completion = json_lines(generated.out).at(0);
  ScratchFolder scratch;
  write_text(scratch.path() / "ids.txt", "5,6,7," + comma_list(*completion.find("token_ids")));
  const auto scored = run_graph_program(
      {"score", "--model", model(), "--ids-file", (scratch.path() / "ids.txt").string(), "--json"});
  ASSERT_EQ(scored.code, 0) << scored.err;
  const auto& learner = json_lines(scored.out).at(0).find("logprobs")->as_array();
  const auto& engine = completion.find("logprobs")->as_array();
  ASSERT_EQ(learner.size(), engine.size() + 2);
  for (size_t i = 0; i < engine.size(); ++i)
    EXPECT_NEAR(learner[i + 2].as_double(), engine[i].as_double(), kTolerance) << i;
}

TEST_P(ModelCommands, ASeedRepeatsAndSamplesDiffer) {
  const std::vector<std::string> words{
      "generate", "--model", model(), "--prompt-ids", "5,6,7", "--max-tokens", "16", "--ignore-eos",
      "--json",   "--n",     "3",     "--seed",       "11"};
  const auto first = run_graph_program(words);
  ASSERT_EQ(first.code, 0) << first.err;
  EXPECT_EQ(first.out, run_graph_program(words).out);
  const auto lines = json_lines(first.out);
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_NE(comma_list(*lines[0].find("token_ids")), comma_list(*lines[1].find("token_ids")));
}

std::vector<double> numbers(const Json& list) {
  std::vector<double> all;
  for (const auto& value : list.as_array()) all.push_back(value.as_double());
  return all;
}

TEST_P(ModelCommands, SamplesOfOnePromptComputeItOnce) {
  const auto end = run_graph_program({"generate", "--model", model(), "--prompt-ids", "5,6,7,8,9",
                                      "--max-tokens", "4", "--n", "4", "--json"});
  ASSERT_EQ(end.code, 0) << end.err;
  std::vector<int64_t> cached;
  for (const auto& line : json_lines(end.out))
    cached.push_back(line.find("num_cached_tokens")->as_int());
  EXPECT_THAT(cached, ::testing::ElementsAre(0, 4, 4, 4)) << "all but the last token of the prompt";
}

TEST_P(ModelCommands, PromptLogprobsAreTheScoresOfTheLearner) {
  const auto end = run_graph_program({"generate", "--model", model(), "--prompt-ids",
                                      "5,6,7,90,11,3", "--max-tokens", "1", "--prompt-logprobs",
                                      "--top-logprobs", "3", "--json"});
  ASSERT_EQ(end.code, 0) << end.err;
  const Json completion = json_lines(end.out).at(0);
  ScratchFolder scratch;
  write_text(scratch.path() / "ids.txt", "5,6,7,90,11,3");
  const auto scored = run_graph_program(
      {"score", "--model", model(), "--ids-file", (scratch.path() / "ids.txt").string(), "--json"});
  ASSERT_EQ(scored.code, 0) << scored.err;
  EXPECT_EQ(numbers(*completion.find("prompt_logprobs")),
            numbers(*json_lines(scored.out).at(0).find("logprobs")));
  const auto& top = completion.find("top_logprobs")->as_array().at(0).as_array();
  ASSERT_EQ(top.size(), 3U);
  EXPECT_GE(top[0].find("logprob")->as_double(), top[1].find("logprob")->as_double());
  EXPECT_TRUE(top[2].find("token_id")->as_int() >= 0);
}

TEST_P(ModelCommands, SamplingOptionsReachTheEngine) {
  const auto generated = [](const std::vector<std::string>& words) {
    std::vector<std::string> all{"generate", "--model", model(),        "--prompt-ids", "5,6",
                                 "--seed",   "4",       "--max-tokens", "12",           "--json"};
    all.insert(all.end(), words.begin(), words.end());
    const auto end = run_graph_program(all);
    EXPECT_EQ(end.code, 0) << end.err;
    return json_lines(end.out).at(0);
  };
  const auto tokens = [&](const std::vector<std::string>& words) {
    return comma_list(*generated(words).find("token_ids"));
  };
  EXPECT_EQ(tokens({"--logit-bias", "9=100"}), "9,9,9,9,9,9,9,9,9,9,9,9");
  const auto logprobs = [&](const std::string& penalty) {
    return numbers(*generated({"--logit-bias", "9=10", "--ignore-eos", penalty}).find("logprobs"));
  };
  const auto none = logprobs("--presence-penalty=0");
  for (const char* penalty :
       {"--frequency-penalty=2", "--presence-penalty=-2", "--repetition-penalty=1.5"})
    EXPECT_NE(logprobs(penalty), none) << penalty;
  EXPECT_EQ(tokens({"--logit-bias", "9=100", "--stop-ids", "9"}), "9");
  EXPECT_EQ(tokens({"--logit-bias", "39=100", "--stop", "EE"}), "39,39") << "39 is 'E'";
  EXPECT_EQ(tokens({"--logit-bias", "39=100", "--stop", "EE", "--min-tokens", "4"}), "39,39,39,39");
  EXPECT_EQ(*generated({"--logit-bias", "39=100", "--stop", "x", "--stop", "EEE"})
                 .get_string("finish_reason"),
            "stop");
}

TEST_P(ModelCommands, BadSamplingOptionsAreNamed) {
  const auto refused = [](std::vector<std::string> words, int code) {
    words.insert(words.begin(), {"generate", "--model", model(), "--prompt-ids", "5,6"});
    const auto end = run_graph_program(words);
    EXPECT_EQ(end.code, code) << end.err;
    return end.err;
  };
  EXPECT_THAT(refused({"--logit-bias", "9"}, 3), HasSubstr("'9' is not ID=VALUE"));
  EXPECT_THAT(refused({"--logit-bias", "9=x"}, 3), HasSubstr("'x' of token 9 is not a number"));
  EXPECT_THAT(refused({"--logit-bias", "9=1", "--logit-bias", "9=2"}, 3), HasSubstr("twice"));
  EXPECT_THAT(refused({"--logit-bias", "9=101"}, 2), HasSubstr("[-100, 100]"));
  EXPECT_THAT(refused({"--logit-bias", "128=1"}, 2), HasSubstr("0 to 127"));
  EXPECT_THAT(refused({"--min-tokens", "65"}, 3), HasSubstr("above --max-tokens 64"));
  EXPECT_THAT(refused({"--top-logprobs", "2"}, 3), HasSubstr("with --json only"));
  EXPECT_THAT(refused({"--prompt-logprobs"}, 3), HasSubstr("with --json only"));
  EXPECT_THAT(refused({"--top-logprobs", "21", "--json"}, 3), HasSubstr("21"));
  EXPECT_THAT(refused({"--stop-ids", "1,x"}, 3), HasSubstr("'x' at character 3"));
  EXPECT_THAT(refused({"--repetition-penalty", "0"}, 3), HasSubstr("repetition-penalty"));
}

TEST_P(ModelCommands, BadInputIsNamedWithCode2) {
  const auto token = run_graph_program({"generate", "--model", model(), "--prompt-ids", "1,128"});
  EXPECT_EQ(token.code, 2);
  EXPECT_THAT(token.err, HasSubstr("128"));
  const auto longer = run_graph_program(
      {"generate", "--model", model(), "--prompt-ids", "1", "--max-tokens", "256"});
  EXPECT_EQ(longer.code, 2);
  const auto none = run_graph_program({"generate", "--model", "/nowhere", "--prompt", "a"});
  EXPECT_EQ(none.code, 2);
  EXPECT_THAT(none.err, HasSubstr("/nowhere"));
  ScratchFolder scratch;
  write_text(scratch.path() / "ids.txt", "1,2\n3,x\n");
  const auto file = run_graph_program(
      {"score", "--model", model(), "--ids-file", (scratch.path() / "ids.txt").string()});
  EXPECT_EQ(file.code, 2);
  EXPECT_THAT(file.err, HasSubstr("ids.txt:2: 'x' at character 3 is no token id"));
}

TEST_P(ModelCommands, ComputeOnTheCpuWhereThatIsAskedForAndNameADeviceThatCannotBeUsed) {
  const auto generated = [](const std::vector<std::string>& more) {
    std::vector<std::string> words{"generate", "--model",      model(), "--prompt-ids",
                                   "5,6",      "--max-tokens", "4",     "--json"};
    words.insert(words.end(), more.begin(), more.end());
    return run_graph_program(words);
  };
  EXPECT_EQ(generated({"--device", "cpu", "--dtype", "float32"}).out, generated({}).out);
  const auto narrow = generated({"--dtype", "bfloat16"});
  EXPECT_EQ(narrow.code, 2);
  EXPECT_THAT(narrow.err,
              HasSubstr("'dtype' is \"bfloat16\": an engine on the CPU computes in float32"));
  ScratchFolder scratch;
  const std::string ids = (scratch.path() / "ids.txt").string();
  write_text(ids, "5,6,7\n");
  for (const auto& end : {generated({"--device", "cuda:63"}),
                          run_graph_program({"score", "--model", model(), "--ids-file", ids,
                                             "--device", "cuda:63"})}) {
    EXPECT_EQ(end.code, 2);
    EXPECT_THAT(end.err, HasSubstr("--device cuda:63 is not available: "));
    EXPECT_THAT(end.err, HasSubstr("--device cpu works everywhere"));
  }
}

INSTANTIATE_TEST_SUITE_P(Families, ModelCommands, ::testing::Values("qwen3", "llama"),
                         [](const auto& one) { return one.param; });

/// A batch of one sample that any of the reference models can learn.
std::string batch_file() {
  TrainBatch batch;
  batch.loss = LossKind::kCrossEntropy;
  TrainSample& sample = batch.samples.emplace_back();
  sample.tokens = {5, 9, 33, 80, 2, 14, 77, 3};
  sample.loss_mask.assign(8, 1);
  const auto file = new_scratch_folder() / "batch.safetensors";
  CHECK(write_train_batch(file, batch).ok(), "cannot write");
  return file.string();
}

// Results are equal bit for bit for any number of threads and any recomputation. The vendor's
// matmuls differ, and the first different number is named.
TEST(TrainStep, NamesTheFirstNumberThatDiffers) {
  const std::string model = (reference_models() / "qwen3_moe").string(), batch = batch_file();
  const auto folder = new_scratch_folder();
  const auto dump = [&](const std::string& name, std::vector<std::string> more) {
    std::vector<std::string> words = {
        "train-step", "--model", model, "--batch", batch, "--dump", (folder / name).string()};
    words.insert(words.end(), more.begin(), more.end());
    const auto end = run_graph_program(words);
    EXPECT_EQ(end.code, 0) << end.err;
    return end.out;
  };
  const auto compare = [&](const std::string& a, const std::string& b,
                           std::vector<std::string> more = {}) {
    std::vector<std::string> words = {"compare-activations", (folder / a).string(),
                                      (folder / b).string()};
    words.insert(words.end(), more.begin(), more.end());
    return run_graph_program(words);
  };
  EXPECT_EQ(dump("one", {"--threads", "1"}), dump("two", {"--threads", "2"}));
  dump("again", {"--recompute", "full"});
  dump("faster", {"--lr", "0.01"});
  const auto equal = compare("one", "two");
  EXPECT_EQ(equal.code, 0) << equal.out;
  EXPECT_THAT(equal.out, HasSubstr(" tensors are equal"));
  EXPECT_EQ(compare("one", "again").code, 0);
  const auto different = compare("one", "faster");
  EXPECT_EQ(different.code, 1);
  EXPECT_THAT(different.out, HasSubstr("first different: weight."));
  EXPECT_EQ(compare("one", "faster", {"--tolerance", "2"}).code, 0);
  EXPECT_EQ(compare("one", "nowhere").code, 2);
}

/// The likeliest tokens of a teacher at each token of one sample.
std::string distilled_batch_file() {
  TrainBatch batch;
  batch.loss = LossKind::kTopK;
  TrainSample& sample = batch.samples.emplace_back();
  sample.tokens = {5, 9, 33, 80};
  sample.loss_mask = {0, 1, 1, 1};
  sample.top_tokens = {9, 33, 33, 80, 80, 2};
  sample.top_logprobs = {-0.4F, -1.5F, -0.7F, -1.0F, -0.2F, -3.0F};
  const auto file = new_scratch_folder() / "distilled.safetensors";
  CHECK(write_train_batch(file, batch).ok(), "cannot write");
  return file.string();
}

TEST(TrainStep, OfATeachersTokensHasTheDivergenceOfTheRun) {
  const std::string model = (reference_models() / "qwen3").string();
  const auto loss_with = [&](std::vector<std::string> more) {
    std::vector<std::string> words = {"train-step",           "--model", model, "--batch",
                                      distilled_batch_file(), "--json"};
    words.insert(words.end(), more.begin(), more.end());
    const auto end = run_graph_program(words);
    EXPECT_EQ(end.code, 0) << end.err;
    return parse_json(end.out, "train-step").value().find("loss")->as_double();
  };
  const double forward = loss_with({});
  EXPECT_EQ(loss_with({"--jsd-beta", "0"}), forward);
  EXPECT_NE(loss_with({"--jsd-beta", "1"}), forward);
  const auto plain = run_graph_program(
      {"train-step", "--model", model, "--batch", batch_file(), "--jsd-beta", "1"});
  EXPECT_EQ(plain.code, 2);
  EXPECT_THAT(plain.err, HasSubstr("--jsd-beta has no effect"));
}

TEST(TrainStep, NeverReplacesItsOwnBatchByItsDump) {
  const auto folder = new_scratch_folder();
  std::filesystem::copy_file(batch_file(), folder / "step.safetensors");
  const auto end = run_graph_program(
      {"train-step", "--model", (reference_models() / "qwen3").string(), "--batch",
       (folder / "step.safetensors").string(), "--dump", folder.string()});
  EXPECT_EQ(end.code, 2);
  EXPECT_THAT(end.err, HasSubstr("would replace the batch"));
  EXPECT_TRUE(read_train_batch(folder / "step.safetensors").ok());
}

TEST(CompareActivations, InfinityEqualsItselfAloneAndZeroNotItsNegative) {
  const auto folder = new_scratch_folder();
  const auto write = [&](const std::string& name, const std::vector<float>& values) {
    WeightTensor tensor{"0.x", DataType::kF32, {std::ssize(values)}, {}};
    const auto bytes = std::as_bytes(std::span(values));
    tensor.bytes = Blob(std::vector<std::byte>(bytes.begin(), bytes.end()));
    CHECK(write_safetensors(folder / name, {tensor}).ok(), "cannot write");
    return (folder / name).string();
  };
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float nan = std::nanf("");
  const auto infinite = write("infinite", {1, kInfinity}), finite = write("finite", {1, 2}),
             negative = write("negative", {1, -kInfinity}), zero = write("zero", {1, 0}),
             minus = write("minus", {1, -0.0F}), none = write("none", {nan, 2.5F});
  const auto code = [](const std::string& a, const std::string& b, const char* tolerance) {
    return run_graph_program({"compare-activations", a, b, "--tolerance", tolerance}).code;
  };
  for (const char* tolerance : {"0", "1e-5", "2"}) {
    EXPECT_EQ(code(infinite, infinite, tolerance), 0);
    EXPECT_EQ(code(infinite, finite, tolerance), 1);
    EXPECT_EQ(code(infinite, negative, tolerance), 1);
  }
  EXPECT_EQ(code(zero, minus, "0"), 1);
  EXPECT_EQ(code(zero, minus, "1e-9"), 0);
  const auto told = run_graph_program({"compare-activations", finite, none});
  EXPECT_THAT(told.out, HasSubstr("2 of 2 elements differ, by at most 0.5 (1 are a number in one"));
}

TEST(TrainStep, RefusesABatchThatIsNone) {
  const auto file = new_scratch_folder() / "batch.safetensors";
  write_text(file, "nothing");
  const auto end = run_graph_program(
      {"train-step", "--model", (reference_models() / "qwen3").string(), "--batch", file.string()});
  EXPECT_EQ(end.code, 2);
  EXPECT_THAT(end.err, HasSubstr("batch.safetensors"));
}

}  // namespace
}  // namespace primerl
