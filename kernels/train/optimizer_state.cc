#include "kernels/train/optimizer_state.h"

#include <array>
#include <span>
#include <string>
#include <system_error>

#include "graph/base/files.h"
#include "kernels/weights/safetensors.h"

namespace primerl {
namespace {

constexpr std::string_view kFirst = "first_moment.", kSecond = "second_moment.";
constexpr int64_t kFormat = 1;
constexpr size_t kStateBytesMax = size_t{1} << 20;

void add_named(std::string_view prefix, std::vector<WeightTensor> tensors,
               std::vector<WeightTensor>& all) {
  for (auto& tensor : tensors) {
    tensor.name.insert(0, prefix);
    all.push_back(std::move(tensor));
  }
}

}  // namespace

Status write_optimizer_state(const std::filesystem::path& folder, const TensorTable& table,
                             const OptimizerState& state) {
  std::error_code fault;
  std::filesystem::create_directories(folder, fault);
  if (fault) return error(Code::kIo, "cannot make '{}': {}", folder.string(), fault.message());
  std::vector<WeightTensor> tensors;
  add_named(kFirst, view_parameters(table, state.first_moments), tensors);
  add_named(kSecond, view_parameters(table, state.second_moments), tensors);
  RETURN_IF_ERROR(write_safetensors(folder / "optimizer.safetensors", tensors));
  const std::string text =
      Json::object().set("format", kFormat).set("num_steps", state.num_steps).dump(2) + "\n";
  const std::array<std::span<const std::byte>, 1> parts = {std::as_bytes(std::span(text))};
  RETURN_IF_ERROR(write_file_synced(folder / "state.json", parts));
  return system_files().sync(folder);
}

Result<int64_t> read_optimizer_state(const std::filesystem::path& folder, const TensorTable& table,
                                     float* first_moments, float* second_moments) {
  const auto file = folder / "state.json", moments = folder / "optimizer.safetensors";
  ASSIGN_OR_RETURN(const auto text, read_text_file(file, kStateBytesMax));
  ASSIGN_OR_RETURN(const auto json, parse_json(text, file.string()));
  const auto format = json.get_int("format"), num_steps = json.get_int("num_steps");
  if (!format.ok() || *format != kFormat || !num_steps.ok() || *num_steps < 0)
    return error(Code::kCorrupt, "{}: it needs 'format' {} and 'num_steps' of at least 0",
                 file.string(), kFormat);
  ASSIGN_OR_RETURN(auto tensors, read_safetensors(moments));
  std::vector<WeightTensor> first, second;
  for (auto& tensor : tensors) {
    const bool is_first = tensor.name.starts_with(kFirst);
    if (!is_first && !tensor.name.starts_with(kSecond))
      return error(Code::kCorrupt, "{}: tensor '{}' is not a moment", moments.string(),
                   tensor.name);
    tensor.name.erase(0, is_first ? kFirst.size() : kSecond.size());
    (is_first ? first : second).push_back(std::move(tensor));
  }
  // Both are checked before any value is written.
  const auto checked = match_tensors(table, second);
  Status filled =
      checked.ok() ? fill_parameters(table, first, first_moments) : Status(checked.error());
  if (filled.ok()) filled = fill_parameters(table, second, second_moments);
  if (!filled.ok()) return Error(filled.error()).while_doing(moments.string());
  return *num_steps;
}

}  // namespace primerl
