#include "bench/device/random_model.h"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <fstream>
#include <vector>

#include "graph/base/assert.h"
#include "graph/base/random.h"
#include "kernels/models/folder.h"
#include "kernels/models/tensors.h"
#include "kernels/weights/safetensors.h"

namespace primerl::bench {
namespace {

namespace fs = std::filesystem;

constexpr int32_t kVocabSize = 151936;
constexpr int32_t kEos = 151645;
constexpr double kDeviation = 0.02;
constexpr size_t kRandoms = size_t{1} << 22;  // generated once; tensors reuse them from different
                                              // offsets

struct QwenShape {
  int hidden, width, layers, heads, kv_heads;
  bool is_tied;
  int num_experts = 0;  // a token uses 8 of them; 0: no mixture
};

QwenShape shape_of(const std::string& name) {
  if (name == "8b") return {4096, 12288, 36, 32, 8, false};
  if (name == "moe") return {2048, 768, 4, 32, 4, false, 128};
  return {1024, 3072, 28, 16, 8, true};
}

void write_qwen_config(const QwenShape& shape, const fs::path& folder) {
  const std::string mixture =
      shape.num_experts == 0
          ? R"("architectures":["Qwen3ForCausalLM"],"model_type":"qwen3",)"
          : fmt::format(R"("architectures":["Qwen3MoeForCausalLM"],"model_type":"qwen3_moe",)"
                        R"("num_experts":{},"num_experts_per_tok":8,"norm_topk_prob":true,)"
                        R"("moe_intermediate_size":{},"decoder_sparse_step":1,)",
                        shape.num_experts, shape.width);
  std::ofstream(folder / "config.json") << fmt::format(
      R"({{{}"vocab_size":151936,)"
      R"("hidden_size":{},"intermediate_size":{},"num_hidden_layers":{},)"
      R"("num_attention_heads":{},"num_key_value_heads":{},"head_dim":128,)"
      R"("max_position_embeddings":40960,"tie_word_embeddings":{},"rms_norm_eps":1e-6,)"
      R"("rope_theta":1000000,"hidden_act":"silu","attention_bias":false,)"
      R"("initializer_range":0.02,"eos_token_id":151645,"dtype":"bfloat16"}})",
      mixture, shape.hidden, shape.width, shape.layers, shape.heads, shape.kv_heads,
      shape.is_tied ? "true" : "false");
}

uint16_t bf16_of(double value) {
  const auto single = static_cast<float>(value);
  return static_cast<uint16_t>((std::bit_cast<uint32_t>(single) + 0x8000U) >> 16U);
}

void append_utf8(uint32_t code, std::string& text) {
  const auto byte = [&](uint32_t lead, uint32_t shift, uint32_t mask) {
    text.push_back(static_cast<char>(lead | ((code >> shift) & mask)));
  };
  if (code < 0x800) {
    byte(0xC0, 6, 0x1F);
  } else if (code < 0x10000) {
    byte(0xE0, 12, 0x0F);
    byte(0x80, 6, 0x3F);
  } else {
    byte(0xF0, 18, 0x07);
    byte(0x80, 12, 0x3F);
    byte(0x80, 6, 0x3F);
  }
  byte(0x80, 0, 0x3F);
}

/// Token i is the character U+0100 + i, skipping the surrogates; two are special.
void write_tokenizer(const fs::path& folder) {
  std::string vocab;
  uint32_t code = 0x100;
  for (int32_t id = 0; id < kVocabSize; ++id, ++code) {
    if (code == 0xD800) code = 0xE000;
    vocab += id == 0 ? "\"" : ",\"";
    if (id == 0)
      vocab += "<pad>";
    else if (id == kEos)
      vocab += "<eos>";
    else
      append_utf8(code, vocab);
    vocab += fmt::format("\":{}", id);
  }
  const auto special = [](int32_t id, const char* text) {
    return fmt::format(R"({{"id":{},"content":"{}","single_word":false,"lstrip":false,)"
                       R"("rstrip":false,"normalized":false,"special":true}})",
                       id, text);
  };
  std::ofstream(folder / "tokenizer.json") << fmt::format(
      R"({{"version":"1.0","truncation":null,"padding":null,"added_tokens":[{},{}],)"
      R"("normalizer":null,"pre_tokenizer":{{"type":"Split","pattern":{{"Regex":"."}},)"
      R"("behavior":"Isolated","invert":false}},"post_processor":null,)"
      R"("decoder":{{"type":"Fuse"}},"model":{{"type":"WordLevel","vocab":{{{}}},)"
      R"("unk_token":"<pad>"}}}})",
      special(0, "<pad>"), special(kEos, "<eos>"), vocab);
  std::ofstream(folder / "tokenizer_config.json")
      << R"({"eos_token":"<eos>","pad_token":"<pad>","tokenizer_class":"TokenizersBackend"})";
}

}  // namespace

std::vector<WeightTensor> random_tensors(const TensorTable& table) {
  std::vector<uint16_t> randoms(kRandoms);
  for (size_t i = 0; i < kRandoms; i += 2) {
    const double a = sampling_uniform(1, i), b = sampling_uniform(2, i);
    const double length = kDeviation * std::sqrt(-2 * std::log(1 - a));
    randoms[i] = bf16_of(length * std::cos(2 * M_PI * b));
    randoms[i + 1] = bf16_of(length * std::sin(2 * M_PI * b));
  }
  std::vector<WeightTensor> tensors;
  uint64_t number = 0;
  for (const auto& slice : table.slices()) {
    std::vector<std::byte> bytes(static_cast<size_t>(slice.count) * 2);
    auto* to = reinterpret_cast<uint16_t*>(bytes.data());
    size_t at = mix(7, ++number) % kRandoms;
    for (int64_t i = 0; i < slice.count; ++i) {
      to[i] = slice.shape.size() == 1 ? bf16_of(1) : randoms[at];
      if (++at == kRandoms) at = mix(number, static_cast<uint64_t>(i)) % kRandoms;
    }
    tensors.push_back({slice.name, DataType::kBF16, slice.shape, Blob(std::move(bytes))});
  }
  return tensors;
}

ModelConfig write_random_model(const std::string& name, const fs::path& folder) {
  fs::create_directories(folder);
  write_qwen_config(shape_of(name), folder);
  write_tokenizer(folder);
  const ModelConfig config = read_model_config(folder).value();
  if (fs::exists(folder / "model.safetensors")) return config;
  const TensorTable table(config);
  CHECK(write_safetensors(folder / "model.safetensors", random_tensors(table)).ok(), "no disk");
  return config;
}

}  // namespace primerl::bench
