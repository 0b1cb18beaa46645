#include "kernels/weights/safetensors.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>

#include "graph/base/json.h"

namespace primerl {
namespace {

constexpr size_t kLengthBytes = 8;
constexpr size_t kDataAlignment = 8;
constexpr std::string_view kTiedHeadName = "lm_head.weight";

/// One header entry with its data range, relative to the start of the data.
struct Entry {
  WeightTensor tensor;
  uint64_t begin = 0;
  uint64_t end = 0;
};

uint64_t little_endian(std::span<const std::byte> bytes) {
  uint64_t value = 0;
  for (size_t i = kLengthBytes; i-- > 0;) value = value << 8 | static_cast<uint8_t>(bytes[i]);
  return value;
}

/// A non-negative whole number; empty if it is not one.
std::optional<uint64_t> natural(const Json& json) {
  if (!json.is_integer() || json.as_int() < 0) return std::nullopt;
  return static_cast<uint64_t>(json.as_int());
}

Result<uint64_t> tensor_bytes(const WeightTensor& tensor) {
  uint64_t size = size_in_bytes(tensor.type);
  for (const int64_t extent : tensor.shape)
    if (__builtin_mul_overflow(size, static_cast<uint64_t>(extent), &size))
      return error(Code::kCorrupt, "its shape has more elements than 64 bits can count");
  return size;
}

Status read_shape(const Json& json, WeightTensor& tensor) {
  const Json* shape = json.find("shape");
  if (shape == nullptr || !shape->is_array())
    return error(Code::kCorrupt, "'shape' is missing or not an array");
  if (shape->as_array().size() > kTensorDimensionsMax)
    return error(Code::kCorrupt, "{} dimensions are more than {}", shape->as_array().size(),
                 kTensorDimensionsMax);
  for (const auto& extent : shape->as_array()) {
    const auto value = natural(extent);
    if (!value) return error(Code::kCorrupt, "'shape' holds {}", extent.dump());
    tensor.shape.push_back(static_cast<int64_t>(*value));
  }
  return ok();
}

Result<Entry> read_entry(const std::string& name, const Json& json, uint64_t data_bytes) {
  Entry entry;
  entry.tensor.name = name;
  if (!json.is_object())
    return error(Code::kCorrupt, "its entry is {}, not an object", json.kind());
  ASSIGN_OR_RETURN(const auto type, json.get_string("dtype"));
  ASSIGN_OR_RETURN(entry.tensor.type, parse_data_type(type));
  RETURN_IF_ERROR(read_shape(json, entry.tensor));
  const Json* offsets = json.find("data_offsets");
  if (offsets == nullptr || !offsets->is_array() || offsets->as_array().size() != 2)
    return error(Code::kCorrupt, "'data_offsets' is not an array of two numbers");
  const auto begin = natural(offsets->as_array()[0]), end = natural(offsets->as_array()[1]);
  if (!begin || !end) return error(Code::kCorrupt, "'data_offsets' is {}", offsets->dump());
  if (*end < *begin) return error(Code::kCorrupt, "its data ends at {} before {}", *end, *begin);
  if (*end > data_bytes)
    return error(Code::kCorrupt, "its data ends at {}, the file's data at {}", *end, data_bytes);
  entry.begin = *begin;
  entry.end = *end;
  ASSIGN_OR_RETURN(const auto expected, tensor_bytes(entry.tensor));
  if (expected != entry.end - entry.begin)
    return error(Code::kCorrupt, "its shape needs {} bytes, its data has {}", expected,
                 entry.end - entry.begin);
  return entry;
}

Status check_metadata(const Json& json, std::string_view what) {
  if (!json.is_object())
    return error(Code::kCorrupt, "{}: '__metadata__' is {}, not an object", what, json.kind());
  for (const auto& [key, value] : json.as_object())
    if (!value.is_string())
      return error(Code::kCorrupt, "{}: '__metadata__' '{}' is {}, not a string", what, key,
                   value.kind());
  return ok();
}

/// Checks that tensors are adjacent, without gap or overlap, from the first byte of data to the
/// last.
Status check_tiling(std::vector<Entry>& entries, uint64_t data_bytes, std::string_view what) {
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::tie(a.begin, a.end, a.tensor.name) < std::tie(b.begin, b.end, b.tensor.name);
  });
  uint64_t reached = 0;
  for (const auto& entry : entries) {
    if (entry.begin != reached)
      return error(Code::kCorrupt,
                   "{}: tensor '{}': its data begins at {}, the one before ends at {}", what,
                   entry.tensor.name, entry.begin, reached);
    reached = entry.end;
  }
  if (reached != data_bytes)
    return error(Code::kCorrupt, "{}: {} bytes of data belong to no tensor", what,
                 data_bytes - reached);
  return ok();
}

Result<std::vector<Entry>> parse_header(std::string_view header, uint64_t data_bytes,
                                        std::string_view what) {
  if (header.empty() || header.front() != '{')
    return error(Code::kCorrupt, "{}: the header does not begin with '{{'", what);
  ASSIGN_OR_RETURN(const auto json,
                   parse_json(header, fmt::format("{} (header)", what),
                              {.bytes_max = kSafetensorsHeaderBytesMax, .depth_max = 4}));
  std::vector<Entry> entries;
  for (const auto& [name, value] : json.as_object()) {
    if (name == "__metadata__") {
      RETURN_IF_ERROR(check_metadata(value, what));
      continue;
    }
    auto entry = read_entry(name, value, data_bytes);
    if (!entry.ok())
      return std::move(entry).error().while_doing(fmt::format("{}: tensor '{}'", what, name));
    entries.push_back(std::move(entry).value());
  }
  return entries;
}

void sort_by_name(std::vector<WeightTensor>& tensors) {
  std::sort(tensors.begin(), tensors.end(),
            [](const WeightTensor& a, const WeightTensor& b) { return a.name < b.name; });
}

/// The shards in an index, each with the tensors that it must contain.
Result<std::map<std::string, std::set<std::string>>> read_shard_index(
    const std::filesystem::path& file) {
  ASSIGN_OR_RETURN(const auto text, read_text_file(file, kSafetensorsHeaderBytesMax));
  ASSIGN_OR_RETURN(const auto json, parse_json(text, file.string()));
  const Json* map = json.find("weight_map");
  if (map == nullptr || !map->is_object())
    return error(Code::kCorrupt, "{}: 'weight_map' is missing or not an object", file.string());
  std::map<std::string, std::set<std::string>> shards;
  for (const auto& [tensor, shard] : map->as_object()) {
    if (!shard.is_string())
      return error(Code::kCorrupt, "{}: the shard of tensor '{}' is {}, not a file name",
                   file.string(), tensor, shard.kind());
    const std::filesystem::path name(shard.as_string());
    if (name.empty() || name != name.filename() || name == "." || name == "..")
      return error(Code::kCorrupt, "{}: tensor '{}': '{}' is not a plain file name", file.string(),
                   tensor, shard.as_string());
    shards[shard.as_string()].insert(tensor);
  }
  return shards;
}

/// A shard may have tensors that the index does not list. If a tensor is in two shards, the one
/// that the index lists counts. A tied model's index may list a head that no shard has.
Result<std::vector<WeightTensor>> read_shards(const std::filesystem::path& folder,
                                              const std::filesystem::path& index) {
  ASSIGN_OR_RETURN(const auto shards, read_shard_index(index));
  std::set<std::string_view> listed;
  for (const auto& [shard, names] : shards) listed.insert(names.begin(), names.end());
  std::map<std::string, WeightTensor> all;
  for (const auto& [shard, names] : shards) {
    auto read = read_safetensors(folder / shard);
    if (!read.ok() && read.error().code() == Code::kNotFound)
      return error(Code::kCorrupt, "{} is missing, but {} lists it", (folder / shard).string(),
                   index.string());
    ASSIGN_OR_RETURN(auto tensors, std::move(read));
    for (auto& tensor : tensors) {
      if (!names.contains(tensor.name) && listed.contains(tensor.name)) continue;
      const std::string name = tensor.name;
      if (!all.emplace(name, std::move(tensor)).second)
        return error(Code::kCorrupt,
                     "{}: tensor '{}' is in another shard too, and {} lists neither",
                     (folder / shard).string(), name, index.string());
    }
    for (const auto& name : names)
      if (!all.contains(name) && name != kTiedHeadName)
        return error(Code::kCorrupt, "{}: tensor '{}' is missing, but {} lists it there",
                     (folder / shard).string(), name, index.string());
  }
  std::vector<WeightTensor> sorted;
  sorted.reserve(all.size());
  for (auto& [name, tensor] : all) sorted.push_back(std::move(tensor));
  return sorted;
}

/// Pointers to `tensors` in their order in a file.
Result<std::vector<const WeightTensor*>> file_order(const std::filesystem::path& file,
                                                    const std::vector<WeightTensor>& tensors) {
  std::vector<const WeightTensor*> order;
  std::set<std::string_view> names;
  for (const auto& tensor : tensors) {
    ASSIGN_OR_RETURN(const auto expected, tensor_bytes(tensor));
    if (expected != tensor.bytes.size())
      return error(Code::kInvalid, "{}: tensor '{}' has {} bytes, its shape needs {}",
                   file.string(), tensor.name, tensor.bytes.size(), expected);
    if (tensor.name == "__metadata__" || !names.insert(tensor.name).second)
      return error(Code::kInvalid, "{}: tensor name '{}' is taken", file.string(), tensor.name);
    order.push_back(&tensor);
  }
  std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    const auto width_a = size_in_bytes(a->type), width_b = size_in_bytes(b->type);
    return width_a != width_b ? width_a > width_b : a->name < b->name;
  });
  return order;
}

std::string make_header(const std::vector<const WeightTensor*>& order) {
  Json header = Json::object();
  header.set("__metadata__", Json::object().set("format", "pt"));
  uint64_t offset = 0;
  for (const auto* tensor : order) {
    const uint64_t end = offset + tensor->bytes.size();
    Json entry = Json::object();
    entry.set("dtype", to_string(tensor->type)).set("shape", Json::list(tensor->shape));
    entry.set("data_offsets", Json::list(std::vector<uint64_t>{offset, end}));
    header.as_object().emplace_back(tensor->name, std::move(entry));
    offset = end;
  }
  std::string text = header.dump();
  while ((kLengthBytes + text.size()) % kDataAlignment != 0) text.push_back(' ');
  return text;
}

}  // namespace

Result<std::vector<WeightTensor>> parse_safetensors(std::shared_ptr<const void> owner,
                                                    std::span<const std::byte> bytes,
                                                    std::string_view what) {
  if (bytes.size() < kLengthBytes)
    return error(Code::kCorrupt, "{}: {} bytes are too few for a safetensors file", what,
                 bytes.size());
  const uint64_t header_bytes = little_endian(bytes);
  if (header_bytes > kSafetensorsHeaderBytesMax)
    return error(Code::kCorrupt, "{}: a header of {} bytes is beyond the limit of {}", what,
                 header_bytes, kSafetensorsHeaderBytesMax);
  if (header_bytes > bytes.size() - kLengthBytes)
    return error(Code::kCorrupt, "{}: the header of {} bytes ends beyond the file of {}", what,
                 header_bytes, bytes.size());
  const auto data = bytes.subspan(kLengthBytes + header_bytes);
  const std::string_view header(reinterpret_cast<const char*>(bytes.data()) + kLengthBytes,
                                header_bytes);
  ASSIGN_OR_RETURN(auto entries, parse_header(header, data.size(), what));
  RETURN_IF_ERROR(check_tiling(entries, data.size(), what));
  std::vector<WeightTensor> tensors;
  tensors.reserve(entries.size());
  for (auto& entry : entries) {
    entry.tensor.bytes = Blob(owner, data.subspan(entry.begin, entry.end - entry.begin));
    tensors.push_back(std::move(entry.tensor));
  }
  sort_by_name(tensors);
  return tensors;
}

Result<std::vector<WeightTensor>> read_safetensors(const std::filesystem::path& file) {
  ASSIGN_OR_RETURN(const auto mapped, map_file(file));
  return parse_safetensors(mapped.owner, mapped.bytes, file.string());
}

Result<std::vector<WeightTensor>> read_model_tensors(const std::filesystem::path& folder) {
  std::error_code fault;
  const auto single = folder / "model.safetensors", index = folder / "model.safetensors.index.json";
  if (std::filesystem::exists(single, fault)) return read_safetensors(single);
  if (std::filesystem::exists(index, fault)) return read_shards(folder, index);
  return error(Code::kNotFound, "no weights in '{}'", folder.string())
      .note("a model folder has model.safetensors, or model.safetensors.index.json and its shards");
}

Status write_safetensors(const std::filesystem::path& file,
                         const std::vector<WeightTensor>& tensors, PageCache cache) {
  ASSIGN_OR_RETURN(const auto order, file_order(file, tensors));
  const std::string header = make_header(order);
  std::array<std::byte, kLengthBytes> length;
  for (size_t i = 0; i < kLengthBytes; ++i)
    length[i] = static_cast<std::byte>(static_cast<uint64_t>(header.size()) >> (8 * i));
  std::vector<std::span<const std::byte>> parts = {length, std::as_bytes(std::span(header))};
  for (const auto* tensor : order) parts.push_back(tensor->bytes.bytes());
  // The file appears under its name only when complete; the old file stays until then.
  const std::filesystem::path beside = file.string() + ".tmp";
  Status written = write_file_synced(beside, parts, cache);
  if (written.ok()) written = system_files().rename(beside, file);
  if (!written.ok()) system_files().remove_all(beside).ok();
  return written;
}

}  // namespace primerl
