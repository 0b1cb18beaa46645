#include "kernels/models/folder.h"

#include <array>
#include <span>
#include <string_view>
#include <system_error>

#include "graph/base/files.h"
#include "kernels/weights/safetensors.h"

namespace primerl {
namespace {

constexpr std::array<std::string_view, 9> kKeptFiles = {
    "generation_config.json",  "tokenizer.json",      "tokenizer_config.json",
    "special_tokens_map.json", "vocab.json",          "merges.txt",
    "added_tokens.json",       "chat_template.jinja", "tokenizer.model"};
constexpr size_t kFileBytesMax = size_t{256} << 20;

Status write_text(const std::filesystem::path& file, std::string_view text) {
  const std::array<std::span<const std::byte>, 1> parts = {std::as_bytes(std::span(text))};
  return write_file_synced(file, parts);
}

std::string config_text(const ModelConfig& config) {
  Json source = config.source;
  const bool has_old_key = source.find("torch_dtype") != nullptr;
  if (has_old_key) source.set("torch_dtype", "float32");
  if (!has_old_key || source.find("dtype") != nullptr) source.set("dtype", "float32");
  return source.dump(2) + "\n";
}

}  // namespace

Result<ModelFolder> read_model_folder(const std::filesystem::path& folder) {
  ModelFolder model;
  ASSIGN_OR_RETURN(model.config, read_model_config(folder));
  for (const auto name : kKeptFiles) {
    std::error_code fault;
    if (!std::filesystem::exists(folder / name, fault)) continue;
    ASSIGN_OR_RETURN(auto text, read_text_file(folder / name, kFileBytesMax));
    model.files.emplace_back(std::string(name), std::move(text));
  }
  return model;
}

Status write_model_folder(const std::filesystem::path& folder, const ModelFolder& model,
                          const std::vector<WeightTensor>& tensors) {
  std::error_code fault;
  std::filesystem::create_directories(folder, fault);
  if (fault) return error(Code::kIo, "cannot make '{}': {}", folder.string(), fault.message());
  RETURN_IF_ERROR(write_text(folder / "config.json", config_text(model.config)));
  for (const auto& [name, text] : model.files) RETURN_IF_ERROR(write_text(folder / name, text));
  RETURN_IF_ERROR(write_safetensors(folder / "model.safetensors", tensors, PageCache::kBypass));
  return system_files().sync(folder);
}

}  // namespace primerl
