/// A Hugging Face model folder: the files that are read once and written again with a saved model.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "kernels/models/config.h"
#include "kernels/weights/snapshot.h"

namespace primerl {

/// A model as described by its folder, without the weights.
struct ModelFolder {
  ModelConfig config;
  /// Tokenizer and generation files, byte for byte: (file name, content).
  std::vector<std::pair<std::string, std::string>> files;
};

/// Reads config.json and the files beside it. They are kept in memory, because the folder of a
/// checkpoint may be deleted before the next one is written.
Result<ModelFolder> read_model_folder(const std::filesystem::path& folder);

/// Writes config.json (with dtype float32), the kept files and model.safetensors into `folder`,
/// which it creates, and syncs all of them.
Status write_model_folder(const std::filesystem::path& folder, const ModelFolder& model,
                          const std::vector<WeightTensor>& tensors);

}  // namespace primerl
