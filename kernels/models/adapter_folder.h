/// The adapter of a model in a PEFT folder (weights/peft_folder.h).
///
/// Reading is strict: a peft option that changes what an adapter computes and is not supported here
/// is an error that names it. All missing, unknown and misshapen tensors are errors too. Plain
/// functions, any thread.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "kernels/models/adapter.h"
#include "kernels/models/config.h"
#include "kernels/models/folder.h"
#include "kernels/weights/peft_folder.h"

namespace primerl {

/// Its `tensors` are as AdapterTable(model, config).tensors() wants them.
using AdapterFolder = PeftFolder;

/// `model` is the model that the adapter will change. It is an error if the adapter's base is a
/// folder on this machine whose config.json describes another model.
Result<AdapterFolder> read_adapter_folder(const std::filesystem::path& folder,
                                          const ModelConfig& model);

/// A model with an adapter added to its weights.
struct MergedModel {
  ModelFolder model;
  std::vector<float> weights;  // laid out as TensorTable(model.config)
  /// The model was tied, and the adapter adds to the head: the embedding stays as it was, and the
  /// head is a matrix of its own.
  bool has_new_head = false;
};
/// `tensors` are those of `model`, sorted by name, and fit it; `adapter` is of that model.
Result<MergedModel> merge_adapter_folder(const ModelFolder& model,
                                         const std::vector<WeightTensor>& tensors,
                                         const AdapterFolder& adapter);

/// The tensors of the PEFT folder from which training of an adapter of `wanted` on `model` starts.
/// Another rank, scaling or other targets are errors. NaN and infinity are errors too: with them no
/// training step would ever succeed.
Result<std::vector<WeightTensor>> read_adapter_start(const std::filesystem::path& folder,
                                                     const ModelConfig& model,
                                                     const AdapterConfig& wanted);

}  // namespace primerl
