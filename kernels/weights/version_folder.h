/// One version of the weights as a standard model folder: a safetensors file, the other files of
/// the model's folder (config, tokenizer), and `version.json`, written last. For an adapter it is a
/// PEFT folder (peft_folder.h), which names the model's folder.
///
/// Layout and members: docs/formats/weights.md. A folder without version.json, or with wrong
/// checksums, is refused whole. No state, any thread.
#pragma once

#include <filesystem>
#include <memory>

#include "graph/base/json.h"
#include "kernels/weights/handshake.h"
#include "kernels/weights/manifest.h"

namespace primerl {

inline constexpr const char* kVersionFile = "version.json";
inline constexpr const char* kTensorFile = "model.safetensors";

/// Reads an object with `tenant`, `adapter` and `version`.
Result<KeyedVersion> keyed_version_of(const Json& json);

/// Fills `folder`, which exists and is empty, and syncs it. All files but the weights are copied
/// from `model_folder`; "" = none.
Status write_version_folder(const std::filesystem::path& folder, const WeightSnapshot& snapshot,
                            const WeightManifest& manifest,
                            const std::filesystem::path& model_folder);

/// Reads and verifies a version. The tensors are views of the mapped file, which stays readable if
/// the folder is removed. kNotFound if the folder is missing or incomplete.
Result<std::shared_ptr<const WeightSnapshot>> read_version_folder(
    const std::filesystem::path& folder, Handshake& handshake);

}  // namespace primerl
