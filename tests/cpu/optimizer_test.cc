// Every optimizer compared with its reference, and what must hold for all of them.
#include "kernels/common/optimizer.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linalg_svdvals.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <map>
#include <new>

#include "graph/base/files.h"
#include "graph/base/json.h"
#include "graph/base/random.h"
#include "kernels/weights/safetensors.h"
#include "tests/cpu/optimizer_stage.h"
#include "tests/cpu/tiny_model.h"

namespace primerl {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using testing::optimizer_of;
using testing::OptimizerStage;
using testing::scratch_folder;
using testing::small_tensors;

/// The cases of make_optimizers.py.
std::map<std::string, OptimizerOptions> reference_cases() {
  std::map<std::string, OptimizerOptions> cases;
  cases["adamw"] = optimizer_of("adamw");
  cases["adamw_no_decay"] = optimizer_of("adamw", 0.01, 0.5);
  cases["adamw_no_decay"].no_decay = {"norms", "biases", "embeddings"};
  cases["sgd"] = optimizer_of("sgd");
  cases["sgd_heavy"] = optimizer_of("sgd", 0.01, 0);
  cases["sgd_heavy"].momentum = 0.5;
  cases["sgd_heavy"].nesterov = false;
  cases["sgd_plain"] = optimizer_of("sgd", 0.1, 0.01);
  cases["sgd_plain"].momentum = 0;
  cases["sign_sgd"] = optimizer_of("sign_sgd", 0.001);
  cases["muon"] = optimizer_of("muon");
  cases["muon_heavy"] = optimizer_of("muon", 0.01, 0);
  cases["muon_heavy"].nesterov = false;
  cases["adafactor"] = optimizer_of("adafactor", 0.05);
  OptimizerOptions& own = cases["adafactor_own"] = optimizer_of("adafactor", 0.5, 0);
  own.decay_rate = 0.5;
  own.epsilon = 1e-4;
  own.scale_min = 1e-2;
  own.update_clip = 1.5;
  return cases;
}

/// One of each kind, and the moments that can be chosen.
std::vector<OptimizerOptions> all_kinds() {
  std::vector<OptimizerOptions> all;
  for (const std::string& kind : optimizer_names()) all.push_back(optimizer_of(kind));
  for (const char* kind : {"adamw", "muon", "sgd"}) {
    all.push_back(optimizer_of(kind));
    all.back().moments_dtype = "bfloat16";
  }
  return all;
}

std::string name_of(const OptimizerOptions& options) {
  return options.kind + " " + options.moments_dtype;
}

/// Matrices that several units of work have.
std::vector<Parameter> large_tensors() {
  return {{"embedding", ParameterKind::kEmbedding, {700, 96}},
          {"qkv", ParameterKind::kAttention, {160, 96}},
          {"experts", ParameterKind::kExperts, {3, 64, 96}},
          {"norm", ParameterKind::kNorm, {96}}};
}

TEST(Optimizers, EqualTheirReferencesOver100Steps) {
  const std::filesystem::path source = PRIMERL_SOURCE_DIR;
  const auto text = read_text_file(source / "tests/cpu/fixtures/optimizers.json", 1 << 20).value();
  const Json golden = parse_json(text, "optimizers.json").value();
  const auto cases = reference_cases();
  ASSERT_EQ(golden.find("cases")->as_object().size(), cases.size());
  for (const auto& [name, options] : cases) {
    SCOPED_TRACE(name);
    OptimizerStage stage(options);
    stage.steps(static_cast<int>(golden.find("steps")->as_int()));
    const Json* const wanted = golden.find("cases")->find(name);
    ASSERT_NE(wanted, nullptr);
    for (const Parameter& parameter : small_tensors()) {
      const auto got = stage.weights(parameter.name);
      const auto& all = wanted->find(parameter.name)->as_array();
      ASSERT_EQ(got.size(), all.size());
      double worst = 0;
      for (size_t i = 0; i < got.size(); ++i)
        worst = std::max(worst, std::abs(got[i] - all[i].as_double()));
      EXPECT_LE(worst, 3e-6) << parameter.name;  // the rounding of fp32
    }
  }
}

TEST(Optimizers, ContinueWithEqualBitsAfterSaveAndLoad) {
  for (const OptimizerOptions& options : all_kinds()) {
    SCOPED_TRACE(name_of(options));
    const auto folder = scratch_folder("state");
    OptimizerStage through(options), saved(options), loaded(options);
    through.steps(9);
    ASSERT_TRUE(saved.steps(4).save(folder).ok());
    loaded.copy_weights(saved);
    const Status read = loaded.load(folder);
    ASSERT_TRUE(read.ok()) << read.error().text();
    EXPECT_EQ(loaded.optimizer.num_steps(), 4);
    EXPECT_EQ(loaded.steps(5).weights(), through.weights());
  }
}

TEST(Optimizers, HaveEqualBitsForAnyNumberOfThreads) {
  const int before = at::get_num_threads();
  for (const OptimizerOptions& options : all_kinds()) {
    SCOPED_TRACE(name_of(options));
    at::set_num_threads(1);
    OptimizerStage alone(options, large_tensors());
    alone.steps(3);
    at::set_num_threads(3);
    OptimizerStage shared(options, large_tensors());
    EXPECT_EQ(shared.steps(3).weights(), alone.weights());
  }
  at::set_num_threads(before);
}

TEST(Optimizers, ChangeNothingForAGradientThatIsNotFinite) {
  for (const OptimizerOptions& options : all_kinds()) {
    SCOPED_TRACE(name_of(options));
    OptimizerStage stage(options);
    stage.steps(2);
    const auto before = stage.weights();
    stage.fill_gradients([](int tensor, int64_t i) {
      return tensor == 2 && i == 5 ? std::numeric_limits<double>::quiet_NaN() : 0.5;
    });
    const TrainReport report = stage.update();
    EXPECT_TRUE(report.skipped);
    EXPECT_THAT(report.skip_reason, HasSubstr("first in 'tall' (nan at element 5)"));
    EXPECT_EQ(stage.weights(), before);
    EXPECT_EQ(stage.optimizer.num_steps(), 2);
  }
}

/// The numbers of a client's step, of another one and of none.
TEST(Optimizers, TakeTheNumbersOfOneStep) {
  OptimizerOptions own = optimizer_of("adamw", 0.01, 0.1), others = own;
  own.beta1 = 0.5;
  own.beta2 = 0.6;
  own.epsilon = 1e-3;
  own.weight_decay = 0.4;
  own.max_norm = 0.05;
  OptimizerStage given(own), written(others);
  const OptimizerRules rules = rules_of(others);
  const AdamNumbers numbers = {.lr = others.lr,
                               .beta1 = rules.beta1,
                               .beta2 = rules.beta2,
                               .epsilon = rules.epsilon,
                               .weight_decay = others.weight_decay,
                               .max_norm = others.max_norm};
  for (int i = 0; i < 20; ++i) {
    given.step(&numbers);
    written.step();
  }
  EXPECT_EQ(given.weights(), written.weights());
  given.step();
  written.step();
  EXPECT_NE(given.weights(), written.weights()) << "the next step has its own numbers again";
}

/// A device whose AdamW may end with an exception.
class ThrowingDevice final : public OptimizerDevice {
 public:
  ThrowingDevice(const TensorTable& table, const at::Tensor& gradients, const bool& throws)
      : device_(table, gradients), throws_(throws) {}

  int64_t elements_max() const override { return device_.elements_max(); }
  int64_t matrix_elements_max() const override { return device_.matrix_elements_max(); }
  at::Tensor zeros(int64_t count, at::ScalarType type, bool on_host) const override {
    return device_.zeros(count, type, on_host);
  }
  Status run(int64_t count, int64_t work,
             const std::function<Status(int64_t)>& body) const override {
    return device_.run(count, work, body);
  }
  Status reserve(int64_t floats) const override { return device_.reserve(floats); }
  double gradient_norm() override { return device_.gradient_norm(); }
  std::string broken_gradient() const override { return device_.broken_gradient(); }
  Status adamw(const AdamwArgs& args, int64_t offset) const override {
    if (throws_) throw std::bad_alloc();
    return device_.adamw(args, offset);
  }
  at::Tensor in_bf16(const at::Tensor& x) const override { return device_.in_bf16(x); }
  at::Tensor multiply_add(const at::Tensor& c, double beta, const at::Tensor& a,
                          const at::Tensor& b, bool is_symmetric, double alpha) const override {
    return device_.multiply_add(c, beta, a, b, is_symmetric, alpha);
  }

 private:
  CpuOptimizerDevice device_;
  const bool& throws_;
};

TEST(Optimizers, CountNoStepThatEndsWithAnException) {
  const TensorTable table(small_tensors());
  const at::Tensor weights = zero_floats(table.count()), gradients = zero_floats(table.count());
  bool throws = true;
  Optimizer optimizer(optimizer_of("adamw"), table, table, {weights, gradients, {}},
                      std::make_unique<ThrowingDevice>(table, gradients, throws));
  TrainReport report;
  EXPECT_THROW(static_cast<void>(optimizer.update(report)), std::bad_alloc);
  EXPECT_EQ(optimizer.num_steps(), 0);
  throws = false;
  ASSERT_TRUE(optimizer.update(report).ok());
  EXPECT_EQ(optimizer.num_steps(), 1);
}

TEST(Optimizers, StayFiniteWithGradientsOf0AndWithHugeOnes) {
  for (const OptimizerOptions& options : all_kinds())
    for (const double size : {0.0, 1e-30, 1e15}) {
      SCOPED_TRACE(fmt::format("{}, {}", name_of(options), size));
      OptimizerStage stage(options);
      for (int step = 0; step < 20; ++step) {
        stage.fill_gradients([&](int, int64_t i) { return i % 2 == 0 ? size : -size; });
        ASSERT_FALSE(stage.update().skipped);
      }
      for (const float weight : stage.weights()) ASSERT_TRUE(std::isfinite(weight));
    }
}

TEST(Optimizers, ClipTheGradientToItsNorm) {
  OptimizerOptions options = optimizer_of("sgd", 1, 0);
  options.momentum = 0;
  options.max_norm = 0.5;
  OptimizerStage stage(options);
  const auto before = stage.weights();
  const TrainReport report = stage.step();
  ASSERT_GT(report.grad_norm, 0.6);
  double square = 0;
  for (size_t i = 0; i < before.size(); ++i)
    square += std::pow(static_cast<double>(stage.weights()[i]) - before[i], 2);
  EXPECT_NEAR(std::sqrt(square), 0.5, 1e-5);
}

TEST(OptimizerState, OfAnotherKindIsRefusedByName) {
  const auto folder = scratch_folder("state");
  ASSERT_TRUE(OptimizerStage(optimizer_of("muon")).steps(1).save(folder).ok());
  const Status loaded = OptimizerStage(optimizer_of("adamw")).load(folder);
  ASSERT_FALSE(loaded.ok());
  EXPECT_EQ(loaded.error().code(), Code::kInvalid);
  EXPECT_THAT(loaded.error().text(), HasSubstr("optimizer 'muon' wrote it, this one is 'adamw'"));
  EXPECT_THAT(loaded.error().text(), HasSubstr("optimizer.kind = \"muon\""));
}

TEST(OptimizerState, ThatDoesNotFitChangesNothing) {
  const auto folder = scratch_folder("state");
  auto tensors = small_tensors();
  tensors[1].shape = {4, 7};
  ASSERT_TRUE(OptimizerStage(optimizer_of("sgd"), tensors).steps(1).save(folder).ok());
  OptimizerStage stage(optimizer_of("sgd"));
  stage.steps(2);
  OptimizerStage same(optimizer_of("sgd"));
  const Status loaded = stage.load(folder);
  ASSERT_FALSE(loaded.ok());
  EXPECT_EQ(loaded.error().code(), Code::kCorrupt);
  EXPECT_THAT(loaded.error().text(),
              HasSubstr("'momentum.wide' is F32 [4, 7], it must be F32 or BF16 [4, 6]"));
  EXPECT_EQ(stage.steps(1).weights(), same.steps(3).weights());
  tensors.pop_back();
  ASSERT_TRUE(OptimizerStage(optimizer_of("sgd"), tensors).steps(1).save(folder).ok());
  tensors = small_tensors();
  tensors.push_back({"head", ParameterKind::kHead, {5, 4}});
  EXPECT_THAT(OptimizerStage(optimizer_of("sgd"), tensors).load(folder).error().text(),
              HasSubstr("'momentum.head' is missing"));
}

TEST(OptimizerState, OfFormat1IsThatOfAdamw) {
  const auto folder = scratch_folder("state");
  OptimizerStage saved(optimizer_of("adamw"));
  ASSERT_TRUE(saved.steps(3).save(folder).ok());
  std::ofstream(folder / "state.json") << R"({"format": 1, "num_steps": 3})";
  // Format 1 also had the moments of tensors that do not train.
  auto tensors = read_safetensors(folder / "optimizer.safetensors").value();
  tensors.push_back({"first_moment.frozen", DataType::kF32, {1}, Blob(std::vector<std::byte>(4))});
  ASSERT_TRUE(write_safetensors(folder / "copy.safetensors", tensors).ok());
  std::filesystem::rename(folder / "copy.safetensors", folder / "optimizer.safetensors");
  OptimizerStage loaded(optimizer_of("adamw"));
  loaded.copy_weights(saved);
  const Status read = loaded.load(folder);
  ASSERT_TRUE(read.ok()) << read.error().text();
  EXPECT_EQ(loaded.steps(2).weights(), saved.steps(2).weights());
  EXPECT_FALSE(OptimizerStage(optimizer_of("sgd")).load(folder).ok());
}

TEST(OptimizerState, WithoutAUsableHeaderIsRefused) {
  const auto folder = scratch_folder("state");
  ASSERT_TRUE(OptimizerStage(optimizer_of("sign_sgd")).steps(1).save(folder).ok());
  for (const char* text :
       {R"({"format": 3, "kind": "sign_sgd", "num_steps": 1})", R"({"format": 2, "num_steps": 1})",
        R"({"format": 2, "kind": "sign_sgd", "num_steps": -1})", "{"}) {
    std::ofstream(folder / "state.json") << text;
    EXPECT_FALSE(OptimizerStage(optimizer_of("sign_sgd")).load(folder).ok()) << text;
  }
}

TEST(Moments, InBf16FollowThoseInFp32) {
  for (const char* kind : {"adamw", "muon", "sgd"}) {
    OptimizerStage exact(optimizer_of(kind));
    OptimizerOptions options = optimizer_of(kind);
    options.moments_dtype = "bfloat16";
    OptimizerStage rounded(options);
    exact.steps(100), rounded.steps(100);
    double square = 0;
    const auto a = exact.weights(), b = rounded.weights();
    for (size_t i = 0; i < a.size(); ++i) square += std::pow(a[i] - b[i], 2);
    EXPECT_LE(std::sqrt(square / static_cast<double>(a.size())), 0.01) << kind;
    EXPECT_NE(a, b) << kind;
  }
}

TEST(Moments, InBf16KeepChangesBelowHalfOfTheirPrecisionOnAverage) {
  // A second moment that decays by 0.001 a step: rounded to the nearest, bf16 would never change.
  const at::Tensor start = at::full({20000}, 1.0, at::kFloat);
  at::Tensor moments = round_at_random(start, 1);
  for (uint64_t step = 0; step < 1000; ++step)
    moments = round_at_random(moments.to(at::kFloat).mul_(0.999), step << 40 ^ 0x9e3779b97f4a7c15);
  EXPECT_NEAR(moments.to(at::kFloat).mean().item<float>(), std::pow(0.999, 1000), 0.01);
}

TEST(RoundAtRandom, GivesOneOfTheTwoNeighboursAndKeepsTheMean) {
  const float value = -1.0F - 0.25F / 128;  // a quarter of the way from -1 to the next
  double sum = 0;
  constexpr int kSeeds = 64;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const at::Tensor made =
        round_at_random(at::full({1024}, value, at::kFloat), seed * 0x9e3779b97f4a7c15);
    ASSERT_EQ(made.scalar_type(), at::kBFloat16);
    const at::Tensor exact = made.to(at::kFloat);
    for (int i = 0; i < 1024; ++i) {
      const float one = exact.const_data_ptr<float>()[i];
      ASSERT_TRUE(one == -1.0F || one == -1.0F - 1.0F / 128) << one;
    }
    sum += exact.mean().item<float>();
  }
  EXPECT_NEAR(sum / kSeeds, value, 1e-4);
  const at::Tensor same = at::full({3}, 0.15625F, at::kFloat);
  EXPECT_TRUE(round_at_random(same, 77).to(at::kFloat).equal(same));
}

TEST(Orthogonalize, MovesSingularValuesNear1) {
  const TensorTable table(small_tensors());
  const CpuOptimizerDevice device(table, {});
  at::Tensor x = at::empty({2, 40, 24}, at::kFloat);
  RandomStream random(7);
  for (int64_t i = 0; i < x.numel(); ++i)
    x.mutable_data_ptr<float>()[i] = static_cast<float>(random.uniform() - 0.5);
  for (const at::Tensor& form : {x, x.transpose(1, 2).contiguous()}) {
    const at::Tensor made = orthogonalize(device, form);
    ASSERT_EQ(made.sizes(), form.sizes());
    const at::Tensor singular = at::linalg_svdvals(made);
    EXPECT_GE(singular.min().item<float>(), 0.5F);
    EXPECT_LE(singular.max().item<float>(), 1.3F);
  }
  EXPECT_EQ(orthogonalize(device, x.mul(0)).abs().max().item<float>(), 0);
}

}  // namespace
}  // namespace primerl
