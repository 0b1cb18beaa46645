/// One version of the weights as a folder that anything can load: a safetensors file, what the
/// model's own folder has beside its weights (config, tokenizer), and `version.json`, written last.
/// Of an adapter a PEFT folder (kernels/models/adapter_folder.h), which names the model's folder.
///
/// Layout and members: docs/formats/weights.md. A folder without version.json, or whose tensors do
/// not hash to what it says, is refused whole. No state, any thread.
#pragma once

#include <filesystem>
#include <memory>

#include "graph/base/json.h"
#include "kernels/weights/handshake.h"
#include "kernels/weights/manifest.h"

namespace primerl {

inline constexpr const char* kVersionFile = "version.json";
inline constexpr const char* kTensorFile = "model.safetensors";
inline constexpr const char* kAdapterTensorFile = "adapter_model.safetensors";

/// Of an object with `tenant`, `adapter` and `version`.
Result<KeyedVersion> keyed_version_of(const Json& json);

/// Fills `folder`, which exists and is empty, and syncs it. `model_folder`: what is not weights is
/// copied from there; "" = nothing.
Status write_version_folder(const std::filesystem::path& folder, const WeightSnapshot& snapshot,
                            const WeightManifest& manifest,
                            const std::filesystem::path& model_folder);

/// Reads and verifies one. The tensors view the mapped file, which stays readable when the folder
/// is removed. kNotFound when the folder is not there or not whole.
Result<std::shared_ptr<const WeightSnapshot>> read_version_folder(
    const std::filesystem::path& folder, Handshake& handshake);

}  // namespace primerl
