/// A model folder as large as a real one, for checks that read no weights.
#pragma once

#include <cstring>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "graph/base/json.h"
#include "kernels/models/tensors.h"
#include "tests/cli/program.h"
#include "tests/store/scratch_folder.h"

namespace primerl {

/// A file with the header of a model's weights, in bfloat16, and a hole instead of their bytes.
inline void write_hollow_weights(const std::filesystem::path& folder) {
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
  const std::filesystem::path file = folder / "model.safetensors";
  write_text(file, bytes + text);
  std::filesystem::resize_file(file, bytes.size() + length + end);
}

/// Qwen3-0.6B without the bytes of its weights, with the demo's tokenizer.
inline std::filesystem::path write_hollow_model(const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  const std::filesystem::path base = source_path("examples/reverse_text/base");
  for (const char* file : {"tokenizer.json", "tokenizer_config.json"})
    std::filesystem::copy_file(base / file, folder / file);
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

}  // namespace primerl
