/// Reads and writes safetensors files and the sharded folders of Hugging Face models.
///
/// Reading maps a file and copies nothing: the Blobs of the tensors are views of the mapping and
/// keep it alive. Files are untrusted: every size and offset of the header is checked before any
/// data is read, and each error names the file and the tensor. The file must not shrink while
/// mapped. Writing is deterministic: equal tensors give equal bytes, in any order.
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

#include "graph/base/files.h"
#include "kernels/weights/snapshot.h"

namespace primerl {

// the limit of the reference reader
inline constexpr size_t kSafetensorsHeaderBytesMax = 100'000'000;
inline constexpr size_t kTensorDimensionsMax = 16;

/// The tensors in a file's bytes, sorted by name. `owner` keeps `bytes` alive; errors call the file
/// `what`.
Result<std::vector<WeightTensor>> parse_safetensors(std::shared_ptr<const void> owner,
                                                    std::span<const std::byte> bytes,
                                                    std::string_view what);

/// Maps one file.
Result<std::vector<WeightTensor>> read_safetensors(const std::filesystem::path& file);

/// All tensors of `folder`: of model.safetensors, or of the shards in model.safetensors.index.json.
Result<std::vector<WeightTensor>> read_model_tensors(const std::filesystem::path& folder);

/// Writes `tensors` (unique names, sizes that match the shapes) and syncs the file. An existing
/// file of that name is replaced when all is written; until then `file`.tmp exists beside it.
Status write_safetensors(const std::filesystem::path& file,
                         const std::vector<WeightTensor>& tensors,
                         PageCache cache = PageCache::kUse);

}  // namespace primerl
