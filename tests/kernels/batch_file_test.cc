#include "kernels/train/batch_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/engine/kept_sets.h"
#include "kernels/weights/safetensors.h"
#include "tests/store/scratch_folder.h"

namespace primerl {
namespace {

using ::testing::HasSubstr;

TrainBatch batch() {
  TrainBatch made;
  for (int32_t i = 0; i < 3; ++i) {
    TrainSample& sample = made.samples.emplace_back();
    for (int32_t t = 0; t < 3 + i; ++t) {
      sample.tokens.push_back(10 * i + t);
      sample.loss_mask.push_back(t > 1 ? 1 : 0);
      sample.logprobs.push_back(t > 1 ? -0.5F * static_cast<float>(t) : 0.0F);
      sample.advantages.push_back(t > 1 ? 1.25F : 0.0F);
    }
    sample.weights.assign(sample.tokens.size(), 1 + static_cast<float>(i));
    sample.temperature = 0.5F + static_cast<float>(i);
    std::vector<std::byte> kept;
    append_all_kept(static_cast<size_t>(1 + i), kept);
    sample.kept = Blob(std::move(kept));
  }
  return made;
}

void expect_equal(const TrainBatch& a, const TrainBatch& b) {
  EXPECT_EQ(a.loss, b.loss);
  ASSERT_EQ(a.samples.size(), b.samples.size());
  for (size_t i = 0; i < a.samples.size(); ++i) {
    EXPECT_EQ(a.samples[i].tokens, b.samples[i].tokens);
    EXPECT_EQ(a.samples[i].loss_mask, b.samples[i].loss_mask);
    EXPECT_EQ(a.samples[i].logprobs, b.samples[i].logprobs);
    EXPECT_EQ(a.samples[i].advantages, b.samples[i].advantages);
    EXPECT_EQ(a.samples[i].weights, b.samples[i].weights);
    EXPECT_EQ(a.samples[i].top_tokens, b.samples[i].top_tokens);
    EXPECT_EQ(a.samples[i].top_logprobs, b.samples[i].top_logprobs);
    EXPECT_EQ(a.samples[i].temperature, b.samples[i].temperature);
    EXPECT_TRUE(a.samples[i].kept == b.samples[i].kept);
  }
}

TEST(BatchFile, ReadsBackWhatWasWritten) {
  const auto file = new_scratch_folder() / "batch.safetensors";
  const TrainBatch whole = batch();
  ASSERT_TRUE(write_train_batch(file, whole).ok());
  expect_equal(read_train_batch(file).value(), whole);
  TrainBatch plain = batch();
  plain.loss = LossKind::kCrossEntropy;
  for (auto& sample : plain.samples) {
    sample.logprobs.clear();
    sample.advantages.clear();
    sample.kept = Blob();
  }
  ASSERT_TRUE(write_train_batch(file, plain).ok());
  expect_equal(read_train_batch(file).value(), plain);
}

TEST(BatchFile, HasTheTopTokensOfATeacher) {
  const auto file = new_scratch_folder() / "batch.safetensors";
  TrainBatch taught = batch();
  taught.loss = LossKind::kTopK;
  int32_t token = 0;
  for (auto& sample : taught.samples) {
    sample.kept = Blob();
    for (size_t i = 2; i < sample.tokens.size(); ++i)
      for (int32_t row = 0; row < 2; ++row) {
        sample.top_tokens.push_back(token++);
        sample.top_logprobs.push_back(-1 - static_cast<float>(token));
      }
  }
  ASSERT_TRUE(write_train_batch(file, taught).ok());
  expect_equal(read_train_batch(file).value(), taught);
}

/// Writes a batch whose tensors `change` may corrupt, and returns the error of reading it.
template <class Change>
std::string fault(Change change) {
  const auto file = new_scratch_folder() / "batch.safetensors";
  CHECK(write_train_batch(file, batch()).ok(), "cannot write");
  auto tensors = read_safetensors(file).value();
  change(tensors);
  const auto other = file.parent_path() / "other.safetensors";
  CHECK(write_safetensors(other, tensors).ok(), "cannot write");
  const auto read = read_train_batch(other);
  return read.ok() ? "" : read.error().text();
}

WeightTensor& named(std::vector<WeightTensor>& tensors, const std::string& name) {
  for (auto& tensor : tensors)
    if (tensor.name == name) return tensor;
  CHECK(false, name);
  return tensors.front();
}

TEST(BatchFile, SaysWhatIsWrongWithAFile) {
  using Tensors = std::vector<WeightTensor>;
  EXPECT_EQ(fault([](Tensors&) {}), "");
  for (const std::string name : {"tokens", "loss", "loss_mask", "logprobs", "kept_bytes"})
    EXPECT_THAT(fault([&](Tensors& all) {
                  std::erase_if(all, [&](const auto& one) { return one.name == name; });
                }),
                HasSubstr("tensor '" + name + "' is missing"));
  EXPECT_THAT(fault([](Tensors& all) { named(all, "kept").name = "kepd"; }),
              HasSubstr("'kepd' is not part of a batch"));
  EXPECT_THAT(fault([](Tensors& all) { named(all, "tokens").type = DataType::kF32; }),
              HasSubstr("tensor 'tokens' is F32 [12]"));
  EXPECT_THAT(fault([](Tensors& all) {
                named(all, "advantages").shape = {11};
                named(all, "advantages").bytes = Blob(std::vector<std::byte>(44));
              }),
              HasSubstr("it has to be F32 [12]"));
  const auto lengths = [](std::vector<int64_t> values) {
    return fault([&](Tensors& all) {
      const auto bytes = std::as_bytes(std::span(values));
      named(all, "sample_tokens").bytes = Blob(std::vector(bytes.begin(), bytes.end()));
    });
  };
  EXPECT_EQ(lengths({3, 4, 5}), "");
  for (const auto& wrong : std::vector<std::vector<int64_t>>{
           {3, 4, 4}, {3, 4, 6}, {-1, 8, 5}, {INT64_MAX, INT64_MAX, 14}})
    EXPECT_THAT(lengths(wrong), HasSubstr("do not add up to 12"));
  EXPECT_THAT(fault([](Tensors& all) {
                named(all, "loss").bytes = Blob(std::vector<std::byte>(1, std::byte{7}));
              }),
              HasSubstr("'loss' is 7"));
}

}  // namespace
}  // namespace primerl
