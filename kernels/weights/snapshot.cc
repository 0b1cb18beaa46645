#include "kernels/weights/snapshot.h"

#include <array>

namespace primerl {
namespace {

struct TypeFacts {
  DataType type;
  std::string_view name;
  size_t bytes;
};

constexpr std::array<TypeFacts, 15> kTypes = {{{DataType::kBool, "BOOL", 1},
                                               {DataType::kU8, "U8", 1},
                                               {DataType::kI8, "I8", 1},
                                               {DataType::kI16, "I16", 2},
                                               {DataType::kU16, "U16", 2},
                                               {DataType::kI32, "I32", 4},
                                               {DataType::kU32, "U32", 4},
                                               {DataType::kI64, "I64", 8},
                                               {DataType::kU64, "U64", 8},
                                               {DataType::kF16, "F16", 2},
                                               {DataType::kBF16, "BF16", 2},
                                               {DataType::kF32, "F32", 4},
                                               {DataType::kF64, "F64", 8},
                                               {DataType::kF8E4M3, "F8_E4M3", 1},
                                               {DataType::kF8E5M2, "F8_E5M2", 1}}};

}  // namespace

std::string_view to_string(DataType type) { return kTypes[static_cast<size_t>(type)].name; }

size_t size_in_bytes(DataType type) { return kTypes[static_cast<size_t>(type)].bytes; }

Result<DataType> parse_data_type(std::string_view text) {
  for (const auto& facts : kTypes)
    if (facts.name == text) return facts.type;
  return error(Code::kInvalid, "unknown data type '{}'", text);
}

std::shared_ptr<const WeightSnapshot> with_key(const WeightSnapshot& snapshot, WeightsKey key) {
  auto same = std::make_shared<WeightSnapshot>(snapshot);
  same->key = key;
  return same;
}

WeightSnapshot zeros_like(const WeightSnapshot& snapshot) {
  WeightSnapshot zeros{snapshot.key, snapshot.version, snapshot.tensors, nullptr};
  for (WeightTensor& tensor : zeros.tensors) {
    int64_t count = 1;
    for (const int64_t size : tensor.shape) count *= size;
    tensor.bytes =
        Blob(std::vector<std::byte>(static_cast<size_t>(count) * size_in_bytes(tensor.type)));
  }
  return zeros;
}

}  // namespace primerl
