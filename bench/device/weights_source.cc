#include "bench/device/weights_source.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <vector>

#include "bench/device/timing.h"
#include "graph/base/random.h"
#include "kernels/cuda/memory/device_memory.h"
#include "kernels/devices/make.h"
#include "kernels/models/tensors.h"
#include "kernels/weights/device_weights.h"
#include "kernels/weights/safetensors.h"

namespace primerl::bench {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kPartMax = uint64_t{2} << 30;  // of a buffer's weights, copied repeatedly

class LearnerSource final : public Source {
 public:
  LearnerSource(const fs::path& folder, int device_index) {
    LearnerOptions options;
    options.device = fmt::format("cuda:{}", device_index);
    options.numerics = "fast";
    auto made = make_torch_learner(options, folder);
    CHECK(made.ok(), made.error().text());
    learner_ = std::move(made).value();
  }
  Snapshot next(int64_t version) override {
    auto taken = learner_->snapshot(TenantSlot(0), PolicyVersion(version));
    CHECK(taken.ok(), taken.error().text());
    CHECK((*taken)->device != nullptr, "it went through the host: " + learner_->describe());
    return *taken;
  }

 private:
  std::unique_ptr<Learner> learner_;
};

class BufferSource final : public Source {
 public:
  BufferSource(const TensorTable& table, int device_index, size_t buffers_max)
      : memory_(make_cuda_memory(device_index)),
        num_bytes_(static_cast<uint64_t>(table.count()) * 2),
        pool_(memory_, num_bytes_, buffers_max) {
    must(cudaSetDevice(device_index), "device");
    weights_ = memory_->allocate(std::min(num_bytes_, kPartMax)).value();
    must(cudaMemset(weights_->data(), 0, weights_->num_bytes()), "weights");
    must(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream");
    for (const auto& slice : table.slices()) {
      tensors_.push_back({slice.name, DataType::kBF16, slice.shape, {}});
      offsets_.push_back(static_cast<uint64_t>(slice.offset) * 2);
    }
    must(cudaDeviceSynchronize(), "weights");
    while (pool_.make()) {  // as a learner does for its first snapshot
    }
  }
  Snapshot next(int64_t version) override {
    auto buffer = pool_.take();
    CHECK(buffer != nullptr, "no free buffer");
    auto* to = static_cast<std::byte*>(buffer->data());
    for (uint64_t at = 0; at < num_bytes_; at += kPartMax)
      must(cudaMemcpyAsync(to + at, weights_->data(), std::min(kPartMax, num_bytes_ - at),
                           cudaMemcpyDefault, stream_),
           "copy");
    must(cudaStreamSynchronize(stream_), "copy");
    auto made = std::make_shared<WeightSnapshot>();
    made->version = PolicyVersion(version);
    made->tensors = tensors_;
    made->device = std::make_shared<const DeviceWeights>(std::move(buffer), offsets_, pool_.free());
    return made;
  }

 private:
  const std::shared_ptr<DeviceMemory> memory_;
  const uint64_t num_bytes_;
  DeviceBufferPool pool_;
  std::shared_ptr<DeviceBuffer> weights_;  // a part, copied repeatedly: the whole would not fit
  cudaStream_t stream_ = nullptr;
  std::vector<WeightTensor> tensors_;
  std::vector<uint64_t> offsets_;
};

/// All are views of the same small values: the results do not matter here.
std::vector<WeightTensor> any_tensors(const TensorTable& table) {
  int64_t most = 0;
  for (const auto& slice : table.slices()) most = std::max(most, slice.count);
  std::vector<std::byte> bytes(static_cast<size_t>(most) * 2);
  for (size_t i = 0; i < bytes.size(); i += 2) {
    bytes[i] = static_cast<std::byte>(mix(1, i));
    bytes[i + 1] = i % 4 == 0 ? std::byte{0x3c} : std::byte{0xbc};
  }
  const auto all = std::make_shared<const Blob>(std::move(bytes));
  std::vector<WeightTensor> tensors;
  for (const auto& slice : table.slices())
    tensors.push_back({slice.name, DataType::kBF16, slice.shape,
                       Blob(all, all->bytes().first(static_cast<size_t>(slice.count) * 2))});
  return tensors;
}

}  // namespace

std::unique_ptr<Source> make_source(const std::string& shape, const fs::path& folder,
                                    int device_index, size_t buffers_max) {
  if (shape == "0.6b") return std::make_unique<LearnerSource>(folder, device_index);
  const TensorTable table(read_model_config(folder).value());
  return std::make_unique<BufferSource>(table, device_index, buffers_max);
}

void write_shape(const std::string& shape, const fs::path& folder) {
  const bool is_small = shape == "0.6b";
  std::ofstream(folder / "config.json") << fmt::format(
      R"({{"architectures":["Qwen3ForCausalLM"],"model_type":"qwen3","vocab_size":151936,)"
      R"("hidden_size":{},"intermediate_size":{},"num_hidden_layers":{},)"
      R"("num_attention_heads":{},"num_key_value_heads":8,"head_dim":128,)"
      R"("max_position_embeddings":40960,"tie_word_embeddings":{},"rms_norm_eps":1e-6,)"
      R"("rope_theta":1000000,"hidden_act":"silu","attention_bias":false,)"
      R"("initializer_range":0.02,"eos_token_id":151645,"dtype":"bfloat16"}})",
      is_small ? 1024 : 4096, is_small ? 3072 : 12288, is_small ? 28 : 36, is_small ? 16 : 32,
      is_small ? "true" : "false");
  const TensorTable table(read_model_config(folder).value());
  const fs::path file = folder / "model.safetensors";
  if (!fs::exists(file)) CHECK(write_safetensors(file, any_tensors(table)).ok(), "no disk");
}

}  // namespace primerl::bench
