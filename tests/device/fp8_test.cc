// GEMMs in FP8 on a CUDA device: the GEMM itself compared with sums in double of exactly the values
// of its codes; engine and learner compared with bf16's, and with each other.
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/from_blob.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>

#include "graph/base/random.h"
#include "kernels/cuda/layers/fp8.h"
#include "kernels/cuda/learner/learner.h"
#include "kernels/devices/make.h"
#include "kernels/models/folder.h"
#include "kernels/ops/fp8.h"
#include "kernels/weights/device_weights.h"
#include "kernels/weights/safetensors.h"
#include "tests/cpu/tiny_model.h"
#include "tests/device/learner_checks.h"

namespace primerl {
namespace {

using testing::floats_of;
using ::testing::HasSubstr;
using testing::make_folder;
using testing::TinyModel;
using Floats = std::vector<float>;

const int kIsAskedToRepeat = ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", 1);

/// Values of bf16; each block of 128 x 128 has another magnitude, so that a wrong scale is
/// detected.
Floats varied(int64_t rows, int64_t width, uint64_t seed) {
  RandomStream random(seed);
  Floats values;
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t i = 0; i < width; ++i) {
      const auto magnitude = static_cast<int>((row / 128 * 3 + i / 128) % 5) - 2;
      const auto value = static_cast<float>(2 * random.uniform() - 1);
      values.push_back(std::ldexp(static_cast<float>(c10::BFloat16(value)), magnitude));
    }
  return values;
}

/// The values after coding, with a scale for each `tall` x 128.
Floats coded(const Floats& x, int64_t rows, int64_t width, int64_t tall) {
  Floats left(x.size());
  for (int64_t r = 0; r < rows; r += tall)
    for (int64_t c = 0; c < width; c += 128) {
      const auto each = [&](auto body) {
        for (int64_t i = r; i < r + tall; ++i)
          for (int64_t j = c; j < c + 128; ++j) body(static_cast<size_t>(i * width + j));
      };
      float largest = 0;
      each([&](size_t at) { largest = std::max(largest, std::abs(x[at])); });
      const float scale = fp8_scale(largest);
      each([&](size_t at) { left[at] = float_of_e4m3(e4m3_of(x[at] / scale)) * scale; });
    }
  return left;
}

at::Tensor on_cuda(const Floats& values, int64_t rows, int64_t width) {
  auto* data = const_cast<float*>(values.data());  // not written
  return at::from_blob(data, {rows, width}, at::kFloat).to(at::kBFloat16).to(at::kCUDA);
}

/// |got - want| relative to |want| for x * weight', both [rows, columns].
void expect_gemm(const at::Tensor& product, const Floats& x, const Floats& weight, int64_t rows,
                 int64_t terms) {
  const at::Tensor host = product.to(at::kFloat).cpu().contiguous();
  const int64_t columns = host.size(1);
  double far = 0, all = 0;
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t column = 0; column < columns; ++column) {
      double sum = 0;
      for (int64_t t = 0; t < terms; ++t)
        sum += double{x[static_cast<size_t>(row * terms + t)]} *
               weight[static_cast<size_t>(column * terms + t)];
      const double off = host.const_data_ptr<float>()[row * columns + column] - sum;
      far += off * off;
      all += sum * sum;
    }
  // bf16 rounds by up to 1/256, in the mean square by 0.0017; the device adds 128 terms with about
  // 14 bits.
  EXPECT_LT(std::sqrt(far / all), 0.004);
}

TEST(CudaFp8Gemm, IsThatOfTheNumbersItsCodesStandFor) {
  const CudaStream stream(0);
  const CudaStream::Use use(stream);
  for (const int64_t terms : {128, 512, 640, 896, 1024})
    for (const int64_t rows : {1, 5, 16, 300}) {
      SCOPED_TRACE(::testing::Message() << rows << " rows of " << terms << " terms");
      const int64_t columns = 384;
      const Floats x = varied(rows, terms, 1), weight = varied(columns, terms, 2);
      const at::Tensor matrix = on_cuda(weight, columns, terms);
      const Fp8Weight fp8 = make_fp8(matrix, true);
      ASSERT_TRUE(quantise(matrix, fp8, stream).ok());
      const at::Tensor y = at::empty({fp8_rows(rows), columns}, matrix.options());
      fp8_gemm(rows, on_cuda(x, rows, terms), fp8.forward, y, stream);
      expect_gemm(y, coded(x, rows, terms, 1), coded(weight, columns, terms, 128), rows, terms);

      // Backward: the terms are the columns.
      const Floats dy = varied(rows, columns, 3), left = coded(weight, columns, terms, 128);
      Floats transposed;
      for (int64_t t = 0; t < terms; ++t)
        for (int64_t column = 0; column < columns; ++column)
          transposed.push_back(left[static_cast<size_t>(column * terms + t)]);
      const at::Tensor dx = at::empty({fp8_rows(rows), terms}, matrix.options());
      fp8_gemm(rows, on_cuda(dy, rows, columns), fp8.backward, dx, stream);
      expect_gemm(dx, coded(dy, rows, columns, 1), transposed, rows, columns);
    }
}

/// Groups of no row, of a few, of whole tiles and of more; with an even number of column tiles,
/// whose blocks share rows, and with an odd one. Rows come from others, as those of experts.
TEST(CudaFp8GroupedGemm, IsThatOfTheNumbersItsCodesStandFor) {
  const CudaStream stream(0);
  const CudaStream::Use use(stream);
  const std::vector<int32_t> sizes = {0, 5, 128, 0, 300, 1};
  const auto groups = static_cast<int64_t>(sizes.size());
  std::vector<int32_t> ends, sources;
  for (const int32_t size : sizes) ends.push_back((ends.empty() ? 0 : ends.back()) + size);
  const int64_t rows = ends.back();
  for (int32_t i = 0; i < rows; ++i) sources.push_back(i * 7 % 100);
  const at::Tensor on_ends = stream.ints(ends), on_sources = stream.ints(sources);
  for (const auto& [columns, terms] : {std::pair(256, 128), std::pair(384, 640)}) {
    SCOPED_TRACE(::testing::Message() << columns << " columns of " << terms << " terms");
    const Floats x = varied(100, terms, 1), weight = varied(groups * columns, terms, 2);
    Fp8Weights all;
    const at::Tensor matrices =
        on_cuda(weight, groups * columns, terms).view({groups, columns, terms});
    const auto experts = all.add_experts(matrices, true);
    ASSERT_TRUE(all.quantise_all(stream).ok());
    const auto codes = quantised_rows(rows, on_cuda(x, 100, terms), stream,
                                      on_sources.const_data_ptr<int32_t>());
    const at::Tensor y = grouped_fp8(codes, *experts, on_ends, false, stream);
    EXPECT_TRUE(at::equal(y, grouped_fp8(codes, *experts, on_ends, false, stream)));
    const Floats dy = varied(rows, columns, 3);
    const at::Tensor dx = grouped_fp8(quantised_rows(rows, on_cuda(dy, rows, columns), stream),
                                      *experts, on_ends, true, stream);
    const Floats of_x = coded(x, 100, terms, 1), of_dy = coded(dy, rows, columns, 1);
    const Floats numbers = coded(weight, groups * columns, terms, 128);
    for (int64_t group = 0; group < groups; ++group) {
      const int64_t count = sizes[static_cast<size_t>(group)];
      if (count == 0) continue;
      SCOPED_TRACE(group);
      const int64_t first = ends[static_cast<size_t>(group)] - count;
      Floats left, transposed;
      for (int64_t row = first; row < first + count; ++row) {
        const auto* from = of_x.data() + sources[static_cast<size_t>(row)] * terms;
        left.insert(left.end(), from, from + terms);
      }
      const Floats matrix(numbers.begin() + group * columns * terms,
                          numbers.begin() + (group + 1) * columns * terms);
      expect_gemm(y.narrow(0, first, count), left, matrix, count, terms);
      for (int64_t t = 0; t < terms; ++t)
        for (int64_t column = 0; column < columns; ++column)
          transposed.push_back(matrix[static_cast<size_t>(column * terms + t)]);
      const Floats some(of_dy.begin() + first * columns, of_dy.begin() + (first + count) * columns);
      expect_gemm(dx.narrow(0, first, count), some, transposed, count, columns);
    }
  }
}

/// The bf16 numbers nearest to `values`, as floats.
Floats in_bf16(Floats values) {
  for (float& value : values) value = static_cast<float>(c10::BFloat16(value));
  return values;
}

Floats on_host(const at::Tensor& tensor) {
  const at::Tensor host = tensor.to(at::kFloat).cpu().contiguous();
  return Floats(host.const_data_ptr<float>(), host.const_data_ptr<float>() + host.numel());
}

TEST(CudaFp8Rounding, IsTheNumbersThatCodesStandForInBf16) {
  const CudaStream stream(0);
  const CudaStream::Use use(stream);
  for (const int64_t width : {128, 384, 1024}) {
    const Floats x = varied(77, width, 1);
    EXPECT_EQ(on_host(rounded_rows(70, on_cuda(x, 77, width), stream)),
              in_bf16(coded(Floats(x.begin(), x.begin() + 70 * width), 70, width, 1)));
    const Floats weight = varied(6 * 128, width, 2);  // three experts of two blocks
    const at::Tensor matrices = on_cuda(weight, 6 * 128, width).view({3, 256, width});
    Fp8Weights all;
    const at::Tensor rounded = all.add_rounded(matrices);
    EXPECT_EQ(rounded.sizes(), matrices.sizes());
    ASSERT_TRUE(all.quantise_all(stream).ok());
    EXPECT_EQ(on_host(rounded), in_bf16(coded(weight, 6 * 128, width, 128)));
    EXPECT_EQ(on_host(matrices), in_bf16(weight)) << "the weights stay";
  }
}

TinyModel wide_model(const std::string& model_type = "qwen3") {
  return {.model_type = model_type,
          .hidden_size = 256,
          .head_dim = 64,
          .max_positions = 512,
          .deviation = 0.1};
}

EngineOptions engine_options(const std::string& products) {
  EngineOptions options;
  options.device = "cuda:0";
  options.numerics = "fast";
  options.dtype = "bfloat16";
  options.products = products;
  options.max_sequence_tokens = 200;
  return options;
}

LearnerOptions learner_options(const std::string& products) {
  LearnerOptions options;
  options.device = "cuda:0";
  options.numerics = "fast";
  options.dtype = "bfloat16";
  options.products = products;
  options.optimizer.lr = 1e-2;
  return options;
}

std::vector<int32_t> tokens_of(int32_t number) {
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < 150; ++i) tokens.push_back((number * 13 + i * i) % 61);
  return tokens;
}

/// Log-probabilities of the tokens of a prompt, all but the first.
Floats engine_scores(Engine& engine, int32_t number) {
  SequenceRequest request;
  request.id = SequenceId(static_cast<uint64_t>(number) + 1);
  request.tenant = TenantSlot(0);
  request.prompt_tokens = tokens_of(number);
  request.sampling.max_tokens = 1;
  request.sampling.prompt_logprobs = true;
  request.salt = fmt::format("main:{}", number);
  EXPECT_TRUE(engine.submit(std::move(request)).ok());
  Floats scores;
  while (engine.has_work()) {
    EXPECT_TRUE(engine.step().ok());
    for (const auto& event : engine.take_prefilled()) EXPECT_TRUE(engine.take_over(event.id).ok());
    for (const auto& end : engine.take_finished()) {
      EXPECT_TRUE(is_complete(end.reason)) << end.detail;
      scores = end.prompt_logprobs;
    }
  }
  return scores;
}

Floats learner_scores(Learner& learner, int32_t number) {
  return learner.score(TenantSlot(0), tokens_of(number)).value();
}

std::unique_ptr<Engine> make_engine(const std::filesystem::path& folder,
                                    const std::string& products) {
  auto engine = make_torch_engine(engine_options(products), folder);
  CHECK(engine.ok(), engine.error().text());
  return std::move(engine).value();
}

std::unique_ptr<CudaLearner> make_learner(const std::filesystem::path& folder,
                                          const std::string& products) {
  const CudaStream stream(0);
  const CudaStream::Use use(stream);
  auto learner = std::make_unique<CudaLearner>(learner_options(products),
                                               read_model_folder(folder).value(), stream);
  CHECK(learner->fill(read_model_tensors(folder).value()).ok(), "cannot fill");
  return learner;
}

double squares(const Floats& a, const Floats& b) {
  EXPECT_EQ(a.size(), b.size());
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
  return sum;
}
/// Root mean square of a - b.
double distance(const Floats& a, const Floats& b) {
  return std::sqrt(squares(a, b) / static_cast<double>(a.size()));
}

/// The tensors of a model, with FP8 weights replaced by the values of their codes. All sizes are
/// multiples of 128, so that the blocks of q, k and v are blocks of their common matrix.
std::vector<WeightTensor> with_fp8_values(std::vector<WeightTensor> tensors) {
  for (WeightTensor& tensor : tensors) {
    if (!tensor.name.ends_with("_proj.weight")) continue;
    CHECK(tensor.shape[0] % 128 == 0 && tensor.shape[1] % 128 == 0, tensor.name);
    Floats numbers = floats_of(tensor);
    for (float& number : numbers) number = static_cast<float>(c10::BFloat16(number));
    const Floats left = coded(numbers, tensor.shape[0], tensor.shape[1], 128);
    std::vector<std::byte> bytes(left.size() * sizeof(float));
    std::memcpy(bytes.data(), left.data(), bytes.size());
    tensor.bytes = Blob(std::move(bytes));
  }
  return tensors;
}

// The error of FP8 follows from its format. e4m3 rounds to four bits: the error is up to 1/16
// relative, for any magnitude, and 0.027 in the mean square. An FP8 GEMM rounds both factors. A
// bf16 GEMM with weights equal to the codes has only the weights' error; its rows are rounded 16
// times finer. Two independent errors of equal size give sqrt(2) times the error of one. So the
// tests measure the error of the weights alone.

TEST(CudaFp8, LogitErrorsOfTheEngineFollowFromTheFormat) {
  const auto folder = make_folder(wide_model());
  auto bf16 = make_engine(folder, "dtype"), on_codes = make_engine(folder, "dtype");
  auto fp8 = make_engine(folder, "fp8");
  WeightSnapshot codes;
  codes.version = PolicyVersion(1);
  codes.tensors = with_fp8_values(read_model_tensors(folder).value());
  ASSERT_TRUE(on_codes->apply(codes).ok());
  const Floats want = engine_scores(*bf16, 1), got = engine_scores(*fp8, 1);
  const double by_weights = distance(engine_scores(*on_codes, 1), want);
  fmt::print("log-probabilities: {:.4f} apart, by the weights alone {:.4f}\n", distance(got, want),
             by_weights);
  EXPECT_GT(distance(got, want), by_weights) << "the rows are not rounded";
  // More than sqrt(2): 149 values with common errors scatter.
  EXPECT_LT(distance(got, want), 1.75 * by_weights);
}

/// Dense models and mixtures, the second with dense first layers and a shared expert.
class CudaFp8Families : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Families, CudaFp8Families,
                         ::testing::Values("qwen3", "qwen3_moe", "glm4_moe"),
                         [](const auto& one) { return one.param; });

TEST_P(CudaFp8Families, TheMismatchIsThatOfTheLearnersGemms) {
  const auto folder = make_folder(wide_model(GetParam()));
  auto engine = make_engine(folder, "fp8");
  auto alike = make_learner(folder, "fp8"), other = make_learner(folder, "dtype");
  const Floats scores = engine_scores(*engine, 2);
  const double near = distance(scores, learner_scores(*alike, 2));
  const double far = distance(scores, learner_scores(*other, 2));
  fmt::print("engine fp8: {:.5f} from a learner fp8, {:.5f} from one of bf16\n", near, far);
  EXPECT_LT(near, 0.3 * far);
}

TrainBatch some_batch() {
  TrainBatch batch;
  for (int32_t i = 0; i < 6; ++i) {
    TrainSample& sample = batch.samples.emplace_back();
    sample.tokens = tokens_of(i);
    for (size_t t = 0; t < sample.tokens.size(); ++t) {
      sample.loss_mask.push_back(t > 20 ? 1 : 0);
      sample.logprobs.push_back(t > 20 ? -4.0F : 0.0F);
      sample.advantages.push_back(t > 20 ? static_cast<float>(i % 3) - 0.8F : 0.0F);
    }
  }
  batch.loss = LossKind::kCrossEntropy;
  return batch;
}

void must_step(Learner& learner) {
  const auto report = learner.step(some_batch(), [] { return false; });
  ASSERT_TRUE(report.ok()) << report.error().text();
  ASSERT_FALSE(report->skipped) << report->skip_reason;
}

TEST(CudaFp8, GradientErrorsFollowFromTheFormat) {
  const auto folder = make_folder(wide_model());
  auto bf16 = make_learner(folder, "dtype"), on_codes = make_learner(folder, "dtype");
  auto fp8 = make_learner(folder, "fp8");
  ASSERT_TRUE(on_codes->fill(with_fp8_values(read_model_tensors(folder).value())).ok());
  for (Learner* learner : {bf16.get(), on_codes.get(), fp8.get()}) must_step(*learner);
  const auto want = bf16->gradients(), of_codes = on_codes->gradients(), got = fp8->gradients();
  ASSERT_EQ(got.size(), want.size());
  ASSERT_EQ(of_codes.size(), want.size());
  double by_weights = 0, by_rows = 0, by_both = 0;
  for (size_t t = 0; t < want.size(); ++t) {
    const Floats a = floats_of(got[t]), b = floats_of(want[t]), c = floats_of(of_codes[t]);
    const double size = distance(b, Floats(b.size(), 0));
    fmt::print("{}: {:.4f}, by the weights alone {:.4f}\n", want[t].name, distance(a, b) / size,
               distance(c, b) / size);
    // More than sqrt(2): the 64 values of a head norm scatter.
    EXPECT_LT(distance(a, b), 2 * distance(c, b)) << want[t].name;
    by_weights += squares(c, b);
    by_rows += squares(a, c);
    by_both += squares(a, b);
  }
  fmt::print("all: {:.3f} of what the weights leave, beside the codes {:.3f}\n",
             std::sqrt(by_both / by_weights), std::sqrt(by_rows / by_weights));
  EXPECT_GT(by_both, by_weights) << "the rows are not rounded";
  EXPECT_LT(by_both, 2 * by_weights);
  // Compared with the same codes, only the errors of the rows are left. They differ in each row, so
  // gradients, which are sums over rows, have less of them than of the weights'.
  EXPECT_LT(by_rows, by_weights);
}

TEST_P(CudaFp8Families, CodesFollowTheWeights) {
  const auto folder = make_folder(wide_model(GetParam()));
  auto learner = make_learner(folder, "fp8");
  const Floats before = learner_scores(*learner, 3);
  must_step(*learner);
  const Floats after = learner_scores(*learner, 3);
  EXPECT_GT(distance(before, after), 0);
  const auto snapshot = learner->snapshot(TenantSlot(0), PolicyVersion(1)).value();
  auto again = make_learner(folder, "fp8");
  ASSERT_TRUE(again->fill(tensors_on_host(*snapshot).value()).ok());
  EXPECT_EQ(learner_scores(*again, 3), after) << "codes of the weights before the update";

  auto engine = make_engine(folder, "fp8");
  EXPECT_LT(distance(engine_scores(*engine, 3), before), 0.3 * distance(before, after));
  ASSERT_TRUE(engine->apply(*snapshot).ok());
  EXPECT_LT(
      distance(engine_scores(*engine, 4), learner_scores(*learner, 4)),
      0.3 * distance(learner_scores(*make_learner(folder, "fp8"), 4), learner_scores(*learner, 4)));
}

TEST(CudaFp8, IsRefusedByNameWhereItCannotBe) {
  const auto narrow = make_folder({.head_dim = 64}), wide = make_folder(wide_model(), "wide");
  const auto refusal_of_engine = [&](const EngineOptions& options,
                                     const std::filesystem::path& folder) {
    auto engine = make_torch_engine(options, folder);
    return engine.ok() ? "" : engine.error().text();
  };
  const auto refusal_of_learner = [&](const LearnerOptions& options,
                                      const std::filesystem::path& folder) {
    auto learner = make_torch_learner(options, folder);
    return learner.ok() ? "" : learner.error().text();
  };
  EXPECT_THAT(refusal_of_engine(engine_options("fp8"), narrow), HasSubstr("multiples of 128"));
  EXPECT_THAT(refusal_of_learner(learner_options("fp8"), narrow), HasSubstr("multiples of 128"));
  EXPECT_THAT(refusal_of_engine(engine_options("fp8"), narrow), HasSubstr("'layers.0.attention."));
  const auto mixture =
      make_folder({.model_type = "qwen3_moe", .hidden_size = 192, .head_dim = 64}, "mixture");
  EXPECT_THAT(refusal_of_learner(learner_options("fp8"), mixture), HasSubstr("multiples of 128"));
  EngineOptions engine = engine_options("fp8");
  engine.dtype = "float32";
  EXPECT_THAT(refusal_of_engine(engine, wide), HasSubstr("dtype is \"float32\""));
  LearnerOptions learner = learner_options("fp8");
  learner.dtype = "float32";
  EXPECT_THAT(refusal_of_learner(learner, wide), HasSubstr("dtype is \"float32\""));
}

}  // namespace
}  // namespace primerl
