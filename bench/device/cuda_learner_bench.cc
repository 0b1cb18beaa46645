// The learner on a CUDA device, through the Learner interface, with the Qwen3 0.6B shape in bf16,
// or some layers of Qwen3-30B-A3B.
//
//   cuda_learner_bench FOLDER [16k [fp8]]        FOLDER: gets the model; its weights are random
//   cuda_learner_bench FOLDER mixture LAYERS [fp8]   the same of LAYERS layers of Qwen3-30B-A3B
//   cuda_learner_bench FOLDER 8b LAYERS [fp8]        the same of LAYERS layers of Qwen3-8B
//
// 16k: only 16,384 tokens, as one row and as 16; fp8: GEMMs of layers use FP8. The vocabulary of
// the layers of larger models is small, so that the head takes no time.
//
// Bounds for one H200 (0.8 PFLOP/s of bf16, 4.27 TB/s of copies). GEMMs of 16k tokens, forward,
// recomputation and backward, are 71 TFLOP: 90 ms. Causal attention of one row of 16k, forward and
// backward, is 108 TFLOP: 180 ms at cuDNN's 0.6 PFLOP/s; for 65k 16 times that. The update moves 18
// GB: 4 ms. A step is all of Learner::step(): packing, losses on the host, clip and update. For
// comparison hf_learner.py trains the same shape with transformers. Medians, [least, most].
//
// Adapters: 16 of rank 16 on all linears, with one row of 1k for each in one pass, or one with a
// row of 16k. The base is frozen, which saves a quarter of the GEMMs, its update and its clip. An
// adapter adds 5 TFLOP per 16k tokens and, where GEMMs cannot add to existing output, copies at 2.6
// TB/s.
#include <c10/cuda/CUDACachingAllocator.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <vector>

#include "graph/base/random.h"
#include "kernels/cuda/learner/learner.h"
#include "kernels/devices/make.h"
#include "kernels/models/tensors.h"
#include "kernels/weights/safetensors.h"

namespace primerl::bench {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr double kDeviation = 0.02;
constexpr size_t kRandoms = size_t{1} << 22;
constexpr uint16_t kOneInBf16 = 0x3F80;
constexpr double kGibibyte = 1024.0 * 1024.0 * 1024.0;

void write_mixture(const fs::path& folder, const std::string& layers) {
  fs::create_directories(folder);
  std::ofstream(folder / "config.json")
      << R"({"architectures":["Qwen3MoeForCausalLM"],"model_type":"qwen3_moe",)"
         R"("vocab_size":8192,"hidden_size":2048,"intermediate_size":6144,)"
         R"("num_attention_heads":32,"num_key_value_heads":4,"head_dim":128,"num_experts":128,)"
         R"("num_experts_per_tok":8,"moe_intermediate_size":768,"norm_topk_prob":true,)"
         R"("decoder_sparse_step":1,"mlp_only_layers":[],"max_position_embeddings":40960,)"
         R"("tie_word_embeddings":false,"rms_norm_eps":1e-6,"rope_theta":1000000,)"
         R"("hidden_act":"silu","attention_bias":false,"initializer_range":0.02,)"
         R"("eos_token_id":8191,"dtype":"bfloat16","num_hidden_layers":)"
      << layers << "}";
}

void write_8b(const fs::path& folder, const std::string& layers) {
  fs::create_directories(folder);
  std::ofstream(folder / "config.json")
      << R"({"architectures":["Qwen3ForCausalLM"],"model_type":"qwen3","vocab_size":8192,)"
         R"("hidden_size":4096,"intermediate_size":12288,"num_attention_heads":32,)"
         R"("num_key_value_heads":8,"head_dim":128,"max_position_embeddings":131072,)"
         R"("tie_word_embeddings":true,"rms_norm_eps":1e-6,"rope_theta":1000000,)"
         R"("hidden_act":"silu","attention_bias":false,"initializer_range":0.02,)"
         R"("eos_token_id":8191,"dtype":"bfloat16","num_hidden_layers":)"
      << layers << "}";
}

void write_shape(const fs::path& folder) {
  fs::create_directories(folder);
  std::ofstream(folder / "config.json")
      << R"({"architectures":["Qwen3ForCausalLM"],"model_type":"qwen3","vocab_size":151936,)"
         R"("hidden_size":1024,"intermediate_size":3072,"num_hidden_layers":28,)"
         R"("num_attention_heads":16,"num_key_value_heads":8,"head_dim":128,)"
         R"("max_position_embeddings":131072,"tie_word_embeddings":true,"rms_norm_eps":1e-6,)"
         R"("rope_theta":1000000,"hidden_act":"silu","attention_bias":false,)"
         R"("initializer_range":0.02,"eos_token_id":151645,"dtype":"bfloat16"})";
}

/// Matrices with standard deviation 0.02, norms 1: 4M random numbers, which tensors reuse from
/// different offsets.
std::vector<WeightTensor> random_weights(const TensorTable& table) {
  std::vector<uint16_t> randoms(kRandoms);
  for (size_t i = 0; i < kRandoms; ++i) {
    const double wide = 3.46 * kDeviation * (sampling_uniform(1, i) - 0.5);
    randoms[i] = static_cast<uint16_t>(std::bit_cast<uint32_t>(static_cast<float>(wide)) >> 16U);
  }
  std::vector<WeightTensor> tensors;
  for (const auto& slice : table.slices()) {
    const auto count = static_cast<size_t>(slice.count);
    std::vector<std::byte> bytes(2 * count);
    auto* to = reinterpret_cast<uint16_t*>(bytes.data());
    if (slice.shape.size() == 1) std::fill_n(to, count, kOneInBf16);
    for (size_t i = 0; i < count && slice.shape.size() > 1;) {
      const size_t from = mix(tensors.size(), i) % kRandoms;
      const size_t some = std::min(count - i, kRandoms - from);
      std::copy_n(randoms.begin() + static_cast<std::ptrdiff_t>(from), some, to + i);
      i += some;
    }
    tensors.push_back({slice.name, DataType::kBF16, slice.shape, Blob(std::move(bytes))});
  }
  return tensors;
}

TrainBatch random_rows(int32_t count, int32_t length, uint64_t vocabulary = 151000) {
  TrainBatch batch;
  for (int32_t i = 0; i < count; ++i) {
    TrainSample& sample = batch.samples.emplace_back();
    // The last token is predicted but is not an input.
    for (int32_t t = 0; t <= length; ++t) {
      const auto place = static_cast<uint64_t>(i) * 1000003 + static_cast<uint64_t>(t);
      sample.tokens.push_back(static_cast<int32_t>(mix(3, place) % vocabulary));
      sample.loss_mask.push_back(t > 0 ? 1 : 0);
      sample.logprobs.push_back(t > 0 ? -12.0F : 0.0F);
      sample.advantages.push_back(t > 0 ? (i % 2 == 0 ? 0.5F : -0.5F) : 0.0F);
    }
  }
  return batch;
}

double seconds_of(const std::function<void()>& body) {
  const auto begin = Clock::now();
  body();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

std::string spread(std::vector<double> seconds) {
  std::ranges::sort(seconds);
  return fmt::format("{:.1f} ms [{:.1f}, {:.1f}]", 1e3 * seconds[seconds.size() / 2],
                     1e3 * seconds.front(), 1e3 * seconds.back());
}

std::string products_of_layers = "dtype";

LearnerOptions options_of(const std::string& recompute) {
  LearnerOptions options;
  options.device = "cuda:0";
  options.numerics = "fast";
  options.products = products_of_layers;
  options.micro_batch_tokens = 16384;  // a longer sample gets its own micro-batch
  options.recompute = recompute;
  return options;
}

std::unique_ptr<Learner> make(const fs::path& folder, const std::string& recompute) {
  auto learner = make_torch_learner(options_of(recompute), folder);
  CHECK(learner.ok(), learner.error().text());
  return std::move(learner).value();
}

std::unique_ptr<Learner> make_adapters(const fs::path& folder, uint32_t count, int32_t rank) {
  std::vector<AdapterTraining> adapters;
  for (uint32_t i = 0; i < count; ++i)
    adapters.push_back({TenantSlot(i), {.rank = rank, .init_seed = i}, {}, {}});
  auto learner = make_torch_adapter_learner(options_of("keep_attention"), adapters, folder);
  CHECK(learner.ok(), learner.error().text());
  return std::move(learner).value();
}

/// The rows of `batch` divided among tenants.
std::vector<TrainBatch> shared_out(TrainBatch batch, uint32_t tenants) {
  std::vector<TrainBatch> batches(tenants);
  for (size_t i = 0; i < batch.samples.size(); ++i)
    batches[i % tenants].samples.push_back(std::move(batch.samples[i]));
  for (uint32_t i = 0; i < tenants; ++i) batches[i].tenant = TenantSlot(i);
  return batches;
}

void measure(Learner& learner, const std::string& name, int32_t count, int32_t length, int steps,
             uint32_t tenants = 1, uint64_t vocabulary = 151000) {
  const std::vector<TrainBatch> batches =
      shared_out(random_rows(count, length, vocabulary), tenants);
  std::vector<const TrainBatch*> pointers;
  for (const auto& batch : batches) pointers.push_back(&batch);
  std::vector<double> seconds;
  double warm_up = 0;
  for (int i = 0; i <= steps; ++i) {
    if (i == 1) c10::cuda::CUDACachingAllocator::resetPeakStats(0);
    const double one = seconds_of([&] {
      for (const auto& report : learner.step_together(pointers, [] { return false; })) {
        CHECK(report.ok(), report.error().text());
        CHECK(!report->skipped, report->skip_reason);
      }
    });
    (i == 0 ? warm_up : seconds.emplace_back()) = one;
  }
  const auto memory = c10::cuda::CUDACachingAllocator::getDeviceStats(0);
  std::vector<double> sorted = seconds;
  std::ranges::sort(sorted);
  fmt::print(
      "{:>2} x {:<6} {:<15} {:>8.0f} tok/s  {}  peak {:.2f} GiB (held {:.2f}), first {:.1f} s\n",
      count, length, name, double{1} * count * length / sorted[sorted.size() / 2], spread(seconds),
      static_cast<double>(memory.allocated_bytes[0].peak) / kGibibyte,
      static_cast<double>(memory.reserved_bytes[0].peak) / kGibibyte, warm_up);
  std::fflush(stdout);
}

/// GEMMs of experts: 1.24 TFLOP per layer of 16k tokens, four times with recomputation, 8 ms at
/// 0.65 PFLOP/s; gradients of experts are added to the fp32 ones in 1.5 ms. A layer of 8B: 6.3
/// TFLOP, likewise four times, 32 ms at 0.79 PFLOP/s. With FP8 three of four are GEMMs of codes.
/// The last row has eight micro-batches: what a step does once, its update and the codes of its
/// weights, is then an eighth.
int run_layers(const fs::path& folder, std::string_view shape, const std::string& layers) {
  if (shape == "8b")
    write_8b(folder, layers);
  else
    write_mixture(folder, layers);
  LearnerOptions options = options_of("keep_attention");
  options.dtype = "bfloat16";
  const TensorTable table(read_model_config(folder).value());
  const CudaStream stream(0);
  auto learner = [&] {
    const CudaStream::Use use(stream);
    return std::make_unique<CudaLearner>(options, read_model_folder(folder).value(), stream);
  }();
  {
    const CudaStream::Use use(stream);
    // On disk they would need tens of GB.
    CHECK(learner->fill(random_weights(table)).ok(), "no weights");
  }
  const std::string name = fmt::format("{} {}", shape, products_of_layers);
  measure(*learner, name, 16, 1024, 7, 1, 8000);
  measure(*learner, name, 4, 4096, 7, 1, 8000);
  measure(*learner, name, 128, 1024, 5, 1, 8000);
  return 0;
}

int run(const fs::path& folder, const std::string& part) {
  write_shape(folder);
  const TensorTable table(read_model_config(folder).value());
  if (!fs::exists(folder / "model.safetensors"))
    CHECK(write_safetensors(folder / "model.safetensors", random_weights(table)).ok(), "no disk");
  if (part == "16k") {
    auto learner = make(folder, "keep_attention");
    measure(*learner, "keep_attention", 16, 1024, 7);
    measure(*learner, "keep_attention", 1, 16384, 7);
    return 0;
  }
  {
    auto learner = make(folder, "keep_attention");
    measure(*learner, "keep_attention", 16, 1024, 7);
    measure(*learner, "keep_attention", 1, 16384, 7);
    measure(*learner, "keep_attention", 1, 65536, 3);
    std::vector<double> seconds;
    for (int i = 0; i < 9; ++i)
      seconds.push_back(seconds_of(
          [&] { CHECK(learner->snapshot(TenantSlot(0), PolicyVersion(i)).ok(), "no snapshot"); }));
    fmt::print("a snapshot on the device: {}\n", spread(seconds));
  }
  c10::cuda::CUDACachingAllocator::emptyCache();
  {
    auto learner = make_adapters(folder, 16, 16);
    measure(*learner, "16 adapters", 16, 1024, 7, 16);
    measure(*learner, "4 of them", 16, 1024, 7, 4);
    measure(*learner, "1 of them", 16, 1024, 7);
    measure(*learner, "1 of them", 1, 16384, 7);
  }
  c10::cuda::CUDACachingAllocator::emptyCache();
  auto learner = make(folder, "none");
  measure(*learner, "none", 16, 1024, 7);
  measure(*learner, "none", 1, 16384, 7);
  return 0;
}

}  // namespace
}  // namespace primerl::bench

int main(int argc, char** argv) {
  const std::vector<std::string> all(argv + std::min(argc, 1), argv + argc);
  const bool is_fp8 = !all.empty() && all.back() == "fp8";
  const size_t count = all.size() - (is_fp8 ? 1 : 0);
  if (is_fp8) primerl::bench::products_of_layers = "fp8";
  if (count == 3 && (all[1] == "mixture" || all[1] == "8b"))
    return primerl::bench::run_layers(all[0], all[1], all[2]);
  const std::string part = count >= 2 ? all[1] : "";
  if (count < 1 || count > 2 || (!part.empty() && part != "16k") || (is_fp8 && count == 1)) {
    fmt::print(stderr, "usage: cuda_learner_bench FOLDER [16k [fp8] | mixture|8b LAYERS [fp8]]\n");
    return 2;
  }
  return primerl::bench::run(all[0], part);
}
