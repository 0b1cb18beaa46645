/// Reads and writes safetensors files and the sharded folders of Hugging Face models.
///
/// Reading maps a file and copies nothing: the Blobs of the tensors view the mapping and keep it
/// alive. A file is not trusted: every size and offset of its header is checked before a byte of
/// data is looked at, and each error names the file and the tensor. The file must not shrink while
/// mapped. Writing is deterministic: equal tensors give equal bytes, whatever their order.
///
/// Layout: u64 little-endian header length, JSON header padded with spaces so that the data starts
/// at a multiple of 8, data. Tensors are ordered by element width descending, then name.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "kernels/weights/snapshot.h"

namespace primerl {

inline constexpr size_t kSafetensorsHeaderBytesMax = 100'000'000;  // as the reference reader
inline constexpr size_t kTensorDimensionsMax = 16;

/// The tensors of a file's bytes, sorted by name. `owner` keeps `bytes` alive; `what` names them in
/// errors.
Result<std::vector<WeightTensor>> parse_safetensors(std::shared_ptr<const void> owner,
                                                    std::span<const std::byte> bytes,
                                                    std::string_view what);

/// Maps one file.
Result<std::vector<WeightTensor>> read_safetensors(const std::filesystem::path& file);

/// All tensors of `folder`: model.safetensors, or the shards that model.safetensors.index.json
/// names.
Result<std::vector<WeightTensor>> read_model_tensors(const std::filesystem::path& folder);

/// Writes `tensors` (unique names, bytes as their shapes say) and syncs the file. A file of that
/// name is replaced when all is written; until then `file`.tmp is beside it.
Status write_safetensors(const std::filesystem::path& file,
                         const std::vector<WeightTensor>& tensors);

}  // namespace primerl
