#include "kernels/train/optimizer_state.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <span>
#include <string>
#include <system_error>

#include "graph/base/files.h"
#include "kernels/weights/safetensors.h"

namespace primerl {
namespace {

/// 1: written by adamw alone, without its name, and with arrays of untrained tensors.
constexpr int64_t kFormatOfAdamw = 1;
constexpr int64_t kFormat = 2;
constexpr size_t kStateBytesMax = size_t{1} << 20;

struct Header {
  int64_t format = 0;
  std::string kind;
  int64_t num_steps = 0;
};

Result<Header> read_header(const std::filesystem::path& file) {
  ASSIGN_OR_RETURN(const auto text, read_text_file(file, kStateBytesMax));
  ASSIGN_OR_RETURN(const auto json, parse_json(text, file.string()));
  const auto format = json.get_int("format"), num_steps = json.get_int("num_steps");
  const bool is_known = format.ok() && (*format == kFormat || *format == kFormatOfAdamw);
  if (!is_known || !num_steps.ok() || *num_steps < 0)
    return error(Code::kCorrupt, "{}: it needs 'format' {} or {} and 'num_steps' of at least 0",
                 file.string(), kFormatOfAdamw, kFormat);
  if (*format == kFormatOfAdamw) return Header{*format, "adamw", *num_steps};
  auto kind = json.get_string("kind");
  if (!kind.ok())
    return error(Code::kCorrupt, "{}: it needs 'kind', the optimizer's name", file.string());
  return Header{*format, std::move(kind).value(), *num_steps};
}

bool is_state_of(const WeightTensor& read, const StateTensor& wanted) {
  return read.shape == wanted.file_shape &&
         (read.type == DataType::kF32 || read.type == DataType::kBF16);
}

Error misfit(const std::filesystem::path& file, const StateTensor& wanted,
             const WeightTensor* read) {
  if (read == nullptr)
    return error(Code::kCorrupt, "{}: '{}' is missing", file.string(), wanted.name);
  return error(Code::kCorrupt, "{}: '{}' is {} [{}], it must be F32 or BF16 [{}]", file.string(),
               wanted.name, to_string(read->type), fmt::join(read->shape, ", "),
               fmt::join(wanted.file_shape, ", "));
}

}  // namespace

Json optimizer_state(std::string_view kind, int64_t num_steps) {
  return Json::object()
      .set("format", kFormat)
      .set("kind", std::string(kind))
      .set("num_steps", num_steps);
}

Status write_optimizer_files(const std::filesystem::path& folder,
                             const std::vector<WeightTensor>& tensors, const Json& state) {
  std::error_code fault;
  std::filesystem::create_directories(folder, fault);
  if (fault) return error(Code::kIo, "cannot make '{}': {}", folder.string(), fault.message());
  RETURN_IF_ERROR(write_safetensors(folder / "optimizer.safetensors", tensors, PageCache::kBypass));
  const std::string text = state.dump(2) + "\n";
  const std::array<std::span<const std::byte>, 1> parts = {std::as_bytes(std::span(text))};
  RETURN_IF_ERROR(write_file_synced(folder / "state.json", parts));
  return system_files().sync(folder);
}

Result<OptimizerState> read_optimizer_state(const std::filesystem::path& folder,
                                            std::string_view kind, const OptimizerPlan& plan) {
  const auto file = folder / "optimizer.safetensors";
  ASSIGN_OR_RETURN(const Header header, read_header(folder / "state.json"));
  if (header.kind != kind)
    return error(Code::kInvalid, "{}: optimizer '{}' wrote it, this one is '{}'",
                 (folder / "state.json").string(), header.kind, kind)
        .note(fmt::format("resume with optimizer.kind = \"{}\", or start a new run from weights/",
                          header.kind));
  ASSIGN_OR_RETURN(auto all, read_safetensors(file));
  std::map<std::string_view, WeightTensor*> by_name;
  for (WeightTensor& tensor : all) by_name.emplace(tensor.name, &tensor);
  OptimizerState state{header.num_steps, {}};
  state.tensors.reserve(plan.tensors.size());
  for (const StateTensor& wanted : plan.tensors) {
    const auto found = by_name.find(wanted.name);
    WeightTensor* const read = found == by_name.end() ? nullptr : found->second;
    if (read == nullptr || !is_state_of(*read, wanted)) return misfit(file, wanted, read);
    by_name.erase(found);
    state.tensors.push_back(std::move(*read));
  }
  if (header.format == kFormat && !by_name.empty())
    return error(Code::kCorrupt, "{}: tensor '{}' is not of the state of '{}'", file.string(),
                 by_name.begin()->first, kind);
  return state;
}

}  // namespace primerl
