#include "kernels/weights/version_folder.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "graph/base/crc32c.h"
#include "graph/base/files.h"
#include "kernels/weights/peft_folder.h"
#include "kernels/weights/safetensors.h"

namespace primerl {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSchema = "primerl.weights/2";
constexpr size_t kVersionFileBytesMax = 256'000'000;
constexpr uintmax_t kCompanionBytesMax = uintmax_t{256} << 20;

/// Whether it is a file that belongs to the model but is not weights.
bool is_companion(const fs::directory_entry& entry) {
  static constexpr std::array<std::string_view, 5> kEndings = {".json", ".txt", ".model", ".jinja",
                                                               ".py"};
  std::error_code fault;
  const std::string name = entry.path().filename().string();
  if (!entry.is_regular_file(fault) || name == kVersionFile || name.ends_with(".index.json"))
    return false;
  if (entry.file_size(fault) > kCompanionBytesMax) return false;
  return std::any_of(kEndings.begin(), kEndings.end(),
                     [&](std::string_view ending) { return name.ends_with(ending); });
}

Status copy_companions(const fs::path& from, const fs::path& to) {
  std::error_code fault;
  fs::directory_iterator entries(from, fault);
  if (fault)
    return error(Code::kIo, "cannot list model folder '{}': {}", from.string(), fault.message());
  for (const auto& entry : entries) {
    if (!is_companion(entry)) continue;
    fs::copy_file(entry.path(), to / entry.path().filename(), fault);
    if (fault)
      return error(Code::kIo, "cannot copy '{}' to '{}': {}", entry.path().string(), to.string(),
                   fault.message());
  }
  return ok();
}

Json to_json(const WeightSnapshot& snapshot, const WeightManifest& manifest) {
  Json checks = Json::object();
  for (const auto& tensor : snapshot.tensors)
    checks.as_object().emplace_back(tensor.name,
                                    Json(fmt::format("{:08x}", crc32c(tensor.bytes.bytes()))));
  return Json::object()
      .set("schema", std::string(kSchema))
      .set("tenant", snapshot.key.tenant.value)
      .set("adapter", snapshot.key.adapter.value)
      .set("version", snapshot.version.value)
      .set("manifest", fmt::format("{:016x}", manifest.hash()))
      .set("file", is_adapter(snapshot.tensors) ? kAdapterWeightsFile : kTensorFile)
      .set("crc32c", std::move(checks));
}

Result<uint64_t> read_hex(const Json* json, size_t num_digits, std::string_view what) {
  const auto is_digit = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  if (json == nullptr || !json->is_string() || json->as_string().size() != num_digits ||
      !std::all_of(json->as_string().begin(), json->as_string().end(), is_digit))
    return error(Code::kCorrupt, "{} is not {} hexadecimal digits", what, num_digits);
  return std::stoull(json->as_string(), nullptr, 16);
}

/// `manifest` describes the tensors in the same folder.
Result<VersionRecord> read_record(const Json& json, const WeightManifest& manifest) {
  VersionRecord record;
  ASSIGN_OR_RETURN(const auto schema, json.get_string("schema"));
  if (schema != kSchema)
    return error(Code::kCorrupt, "its schema is '{}', this program reads '{}'", schema, kSchema);
  ASSIGN_OR_RETURN(record.version, keyed_version_of(json));
  ASSIGN_OR_RETURN(record.manifest_hash, read_hex(json.find("manifest"), 16, "'manifest'"));
  const Json* checks = json.find("crc32c");
  if (checks == nullptr || !checks->is_object())
    return error(Code::kCorrupt, "'crc32c' is missing or not an object");
  for (const auto& facts : manifest.tensors) {
    ASSIGN_OR_RETURN(const uint64_t check,
                     read_hex(checks->find(facts.name), 8,
                              fmt::format("the checksum of tensor '{}'", facts.name)));
    record.checks.push_back(static_cast<uint32_t>(check));
  }
  if (record.version.version.is_none() || record.manifest_hash != manifest.hash() ||
      checks->as_object().size() != manifest.tensors.size())
    return error(Code::kCorrupt, "it does not describe the tensors beside it");
  return record;
}

}  // namespace

Result<KeyedVersion> keyed_version_of(const Json& json) {
  constexpr int64_t kNumberMax = std::numeric_limits<uint32_t>::max() - int64_t{1};
  ASSIGN_OR_RETURN(const int64_t tenant, json.get_int("tenant"));
  ASSIGN_OR_RETURN(const int64_t adapter, json.get_int("adapter"));
  ASSIGN_OR_RETURN(const int64_t version, json.get_int("version"));
  for (const int64_t number : {tenant, adapter})
    if (number < 0 || number > kNumberMax)
      return error(Code::kCorrupt, "tenant {} and adapter {} cannot be", tenant, adapter);
  return KeyedVersion{
      {TenantSlot(static_cast<uint32_t>(tenant)), AdapterId(static_cast<uint32_t>(adapter))},
      PolicyVersion(version)};
}

Status write_version_folder(const fs::path& folder, const WeightSnapshot& snapshot,
                            const WeightManifest& manifest, const fs::path& model_folder) {
  if (is_adapter(snapshot.tensors)) {
    ASSIGN_OR_RETURN(const AdapterConfig config, config_of_snapshot(snapshot.tensors));
    RETURN_IF_ERROR(write_adapter_folder(folder, config, model_folder.string(), snapshot.tensors));
  } else {
    RETURN_IF_ERROR(write_safetensors(folder / kTensorFile, snapshot.tensors));
    if (!model_folder.empty()) RETURN_IF_ERROR(copy_companions(model_folder, folder));
  }
  const std::string text = to_json(snapshot, manifest).dump() + "\n";
  const std::span<const std::byte> part = std::as_bytes(std::span(text));
  RETURN_IF_ERROR(write_file_synced(folder / kVersionFile, {&part, 1}));
  return system_files().sync(folder);
}

Result<std::shared_ptr<const WeightSnapshot>> read_version_folder(const fs::path& folder,
                                                                  Handshake& handshake) {
  const fs::path marker = folder / kVersionFile;
  ASSIGN_OR_RETURN(const auto text, read_text_file(marker, kVersionFileBytesMax));
  ASSIGN_OR_RETURN(const auto json, parse_json(text, marker.string()));
  auto snapshot = std::make_shared<WeightSnapshot>();
  auto file = json.get_string("file");
  if (!file.ok()) return Error(file.error()).while_doing(marker.string());
  if (*file == kAdapterWeightsFile) {
    ASSIGN_OR_RETURN(snapshot->tensors, read_adapter_tensors(folder));
  } else {
    ASSIGN_OR_RETURN(snapshot->tensors, read_safetensors(folder / kTensorFile));
  }
  ASSIGN_OR_RETURN(const WeightManifest manifest, manifest_of(*snapshot));
  auto record = read_record(json, manifest);
  if (!record.ok()) return std::move(record).error().while_doing(marker.string());
  RETURN_IF_ERROR(handshake.accept(manifest, record->manifest_hash));
  snapshot->key = record->version.key;
  snapshot->version = record->version.version;
  if (const Status same = check_bytes(*snapshot, *record); !same.ok())
    return Error(same.error()).while_doing(folder.string());
  return std::shared_ptr<const WeightSnapshot>(std::move(snapshot));
}

}  // namespace primerl
