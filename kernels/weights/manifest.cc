#include "kernels/weights/manifest.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>

#include "graph/base/crc32c.h"
#include "graph/base/random.h"
#include "kernels/weights/byte_codec.h"
#include "kernels/weights/device_weights.h"
#include "kernels/weights/safetensors.h"

namespace primerl {
namespace {

constexpr uint32_t kManifestVersion = 1;
constexpr uint32_t kRecordVersion = 2;
constexpr size_t kFaultsNamedMax = 8;
constexpr size_t kNameBytesMax = 4096;

Error bad_manifest(std::string_view why) {
  return error(Code::kCorrupt, "a malformed weight manifest: {}", why);
}

Result<TensorFacts> read_facts(ByteReader& reader) {
  TensorFacts facts;
  facts.name = reader.text(kNameBytesMax);
  const auto type = reader.number<uint8_t>();
  const auto num_dimensions = reader.number<uint32_t>();
  if (!reader.is_good() || facts.name.empty()) return bad_manifest("it ends early");
  if (type > static_cast<uint8_t>(DataType::kF8E5M2))
    return bad_manifest(fmt::format("tensor '{}' has data type {}", facts.name, type));
  if (num_dimensions > kTensorDimensionsMax)
    return bad_manifest(fmt::format("tensor '{}' has {} dimensions", facts.name, num_dimensions));
  facts.type = static_cast<DataType>(type);
  for (uint32_t i = 0; i < num_dimensions; ++i) facts.shape.push_back(reader.number<int64_t>());
  RETURN_IF_ERROR(num_bytes(facts));
  return facts;
}

using IsSame = bool (*)(const TensorFacts& wanted, const TensorFacts& offered);

/// The differences between two manifests, as text, in order of names.
std::vector<std::string> differences(const WeightManifest& wanted, const WeightManifest& offered,
                                     IsSame is_same) {
  std::vector<std::string> faults;
  auto want = wanted.tensors.begin();
  auto offer = offered.tensors.begin();
  while (want != wanted.tensors.end() || offer != offered.tensors.end()) {
    if (offer == offered.tensors.end() ||
        (want != wanted.tensors.end() && want->name < offer->name)) {
      faults.push_back(
          fmt::format("tensor '{}' is missing, wanted as {}", want->name, describe(*want)));
      ++want;
    } else if (want == wanted.tensors.end() || offer->name < want->name) {
      faults.push_back(
          fmt::format("tensor '{}' is unknown, offered as {}", offer->name, describe(*offer)));
      ++offer;
    } else {
      if (!is_same(*want, *offer))
        faults.push_back(fmt::format("tensor '{}' is offered as {}, wanted as {}", want->name,
                                     describe(*offer), describe(*want)));
      ++want;
      ++offer;
    }
  }
  return faults;
}

}  // namespace

std::string describe(const TensorFacts& facts) {
  return fmt::format("{} [{}]", to_string(facts.type), fmt::join(facts.shape, ", "));
}

Result<uint64_t> num_bytes(const TensorFacts& facts) {
  uint64_t size = size_in_bytes(facts.type);
  for (const int64_t extent : facts.shape)
    if (extent < 0 || __builtin_mul_overflow(size, static_cast<uint64_t>(extent), &size))
      return error(Code::kInvalid, "tensor '{}' has no size: {}", facts.name, describe(facts));
  return size;
}

uint64_t WeightManifest::hash() const {
  const auto bytes = encode(*this);
  return stable_hash({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

Result<WeightManifest> manifest_of(const WeightSnapshot& snapshot) {
  if (snapshot.tensors.size() > kManifestTensorsMax)
    return error(Code::kExhausted, "{} tensors are more than {}", snapshot.tensors.size(),
                 kManifestTensorsMax);
  if (snapshot.device != nullptr) RETURN_IF_ERROR(check_device_weights(snapshot));
  WeightManifest manifest;
  manifest.tensors.reserve(snapshot.tensors.size());
  for (const auto& tensor : snapshot.tensors) {
    TensorFacts facts{tensor.name, tensor.type, tensor.shape};
    if (facts.name.empty() || facts.name.size() > kNameBytesMax ||
        facts.shape.size() > kTensorDimensionsMax)
      return error(Code::kInvalid,
                   "tensor '{}' cannot be published: its name has {} bytes of 1 to "
                   "{}, its shape {} dimensions of at most {}",
                   facts.name.substr(0, 64), facts.name.size(), kNameBytesMax, facts.shape.size(),
                   kTensorDimensionsMax);
    if (!manifest.tensors.empty() && manifest.tensors.back().name >= facts.name)
      return error(Code::kInvalid, "tensor '{}' follows '{}'", facts.name,
                   manifest.tensors.back().name)
          .note("the tensors of a snapshot are sorted by name, without duplicates");
    ASSIGN_OR_RETURN(const uint64_t expected, num_bytes(facts));
    if (snapshot.device == nullptr && expected != tensor.bytes.size())
      return error(Code::kInvalid, "tensor '{}' has {} bytes, {} needs {}", facts.name,
                   tensor.bytes.size(), describe(facts), expected);
    manifest.tensors.push_back(std::move(facts));
  }
  return manifest;
}

namespace {

Status check_alike(const WeightManifest& wanted, const WeightManifest& offered, IsSame is_same) {
  if (wanted == offered) return ok();
  const auto faults = differences(wanted, offered, is_same);
  if (faults.empty()) return ok();
  auto refusal = error(Code::kInvalid, "{}", faults.front());
  for (size_t i = 1; i < std::min(faults.size(), kFaultsNamedMax); ++i)
    (void)std::move(refusal).note(faults[i]);  // modifies it in place
  if (faults.size() > kFaultsNamedMax)
    (void)std::move(refusal).note(
        fmt::format("and {} more tensors that differ", faults.size() - kFaultsNamedMax));
  return refusal;
}

bool is_narrow_float(DataType type) { return type == DataType::kBF16 || type == DataType::kF16; }

}  // namespace

Status check_offered(const WeightManifest& wanted, const WeightManifest& offered) {
  return check_alike(wanted, offered, [](const TensorFacts& want, const TensorFacts& offer) {
    return want == offer;
  });
}

Status check_taken(const WeightManifest& wanted, const WeightManifest& offered) {
  return check_alike(wanted, offered, [](const TensorFacts& want, const TensorFacts& offer) {
    return want == offer || (want.type == DataType::kF32 && is_narrow_float(offer.type) &&
                             want.name == offer.name && want.shape == offer.shape);
  });
}

Error wrong_check(const KeyedVersion& version, const TensorFacts& tensor, uint32_t found,
                  uint32_t wanted) {
  return error(Code::kCorrupt,
               "{}: the bytes of tensor '{}' are not those that were published: their CRC-32C is "
               "{:08x}, not {:08x}",
               version, tensor.name, found, wanted);
}

Status check_bytes(const WeightSnapshot& snapshot, const VersionRecord& record) {
  if (record.checks.size() != snapshot.tensors.size())
    return error(Code::kCorrupt, "{} has {} tensors and {} checksums", snapshot.name(),
                 snapshot.tensors.size(), record.checks.size());
  for (size_t i = 0; i < snapshot.tensors.size(); ++i) {
    const auto& tensor = snapshot.tensors[i];
    const uint32_t found = crc32c(tensor.bytes.bytes());
    if (found != record.checks[i])
      return wrong_check(snapshot.name(), {tensor.name, tensor.type, tensor.shape}, found,
                         record.checks[i]);
  }
  return ok();
}

std::vector<std::byte> encode(const WeightManifest& manifest) {
  ByteWriter writer;
  writer.number(kManifestVersion);
  writer.number(static_cast<uint32_t>(manifest.tensors.size()));
  for (const auto& facts : manifest.tensors) {
    writer.text(facts.name);
    writer.number(static_cast<uint8_t>(facts.type));
    writer.number(static_cast<uint32_t>(facts.shape.size()));
    for (const int64_t extent : facts.shape) writer.number(extent);
  }
  return writer.take();
}

Result<WeightManifest> decode_manifest(std::span<const std::byte> bytes) {
  if (bytes.size() > kManifestBytesMax)
    return error(Code::kExhausted, "a weight manifest of {} bytes is beyond the limit of {}",
                 bytes.size(), kManifestBytesMax);
  ByteReader reader(bytes);
  const auto version = reader.number<uint32_t>();
  const auto count = reader.number<uint32_t>();
  if (!reader.is_good()) return bad_manifest("its checksum is wrong");
  if (version != kManifestVersion)
    return bad_manifest(fmt::format("format {}, this program reads {}", version, kManifestVersion));
  if (count > kManifestTensorsMax) return bad_manifest(fmt::format("{} tensors", count));
  WeightManifest manifest;
  for (uint32_t i = 0; i < count; ++i) {
    ASSIGN_OR_RETURN(auto facts, read_facts(reader));
    if (i > 0 && manifest.tensors.back().name >= facts.name)
      return bad_manifest(fmt::format("tensor '{}' is out of order", facts.name));
    manifest.tensors.push_back(std::move(facts));
  }
  if (!reader.is_done()) return bad_manifest(fmt::format("{} bytes too many", reader.num_left()));
  return manifest;
}

std::vector<std::byte> encode(const VersionRecord& record) {
  ByteWriter writer;
  writer.number(kRecordVersion);
  writer.key(record.version.key);
  writer.number(record.version.version.value);
  writer.number(record.manifest_hash);
  writer.number(static_cast<uint32_t>(record.checks.size()));
  for (const uint32_t check : record.checks) writer.number(check);
  return writer.take();
}

Result<VersionRecord> decode_version_record(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  const auto version = reader.number<uint32_t>();
  VersionRecord record;
  record.version.key = reader.key();
  record.version.version = PolicyVersion(reader.number<int64_t>());
  record.manifest_hash = reader.number<uint64_t>();
  const auto count = reader.number<uint32_t>();
  if (!reader.is_good() || version != kRecordVersion || record.version.version.is_none() ||
      reader.num_left() != size_t{count} * sizeof(uint32_t))
    return error(Code::kCorrupt, "a version record of {} bytes is malformed", bytes.size());
  record.checks.reserve(count);
  for (uint32_t i = 0; i < count; ++i) record.checks.push_back(reader.number<uint32_t>());
  return record;
}

}  // namespace primerl
