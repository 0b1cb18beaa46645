#include "actors/tinker/tensor.h"

#include <bit>
#include <cstring>
#include <limits>
#include <optional>

#include "actors/tinker/protobuf.h"

namespace primerl::tinker {
namespace {

int64_t bytes_of_type(WireTensor::Type type) {
  switch (type) {
    case WireTensor::Type::kInt64:
      return 8;
    case WireTensor::Type::kBfloat16:
      return 2;
    default:
      return 4;
  }
}

template <class T>
T value_at(std::string_view bytes, int64_t index) {
  T value;
  std::memcpy(&value, bytes.data() + static_cast<size_t>(index) * sizeof(T), sizeof(T));
  return value;
}

struct RawSparse {
  std::string_view values, rows, columns;
};

struct RawTensor {
  std::string_view dense;
  std::optional<RawSparse> sparse;
  int64_t type = 0;
  std::vector<int64_t> shape;
};

Result<RawSparse> read_sparse(std::string_view message) {
  RawSparse sparse;
  for (ProtoReader reader(message); !reader.is_done();) {
    ASSIGN_OR_RETURN(const ProtoField field, reader.next());
    if (field.number == 1) {
      ASSIGN_OR_RETURN(sparse.values, bytes_of(field, "values"));
    } else if (field.number == 2) {
      ASSIGN_OR_RETURN(sparse.rows, bytes_of(field, "crow_indices"));
    } else if (field.number == 3) {
      ASSIGN_OR_RETURN(sparse.columns, bytes_of(field, "col_indices"));
    }
  }
  return sparse;
}

/// Packed numbers, or one of several fields of the same number.
Status read_shape(const ProtoField& field, std::vector<int64_t>& shape) {
  if (field.kind != ProtoField::Kind::kBytes) {
    ASSIGN_OR_RETURN(const int64_t size, int_of(field, "shape"));
    shape.push_back(size);
    return ok();
  }
  // A packed list is read as numbers without their keys: each is one varint.
  uint64_t value = 0;
  int shift = 0;
  for (const char each : field.bytes) {
    const auto byte = static_cast<uint8_t>(each);
    if (shift > 63 || (shift == 63 && (byte & 0x7fU) > 1))
      return error(Code::kInvalid, "a size of 'shape' has more than 64 bits");
    value |= uint64_t{byte & 0x7fU} << shift;
    shift += 7;
    if ((byte & 0x80U) != 0) continue;
    shape.push_back(static_cast<int64_t>(value));
    value = 0;
    shift = 0;
    if (shape.size() > 2) break;
  }
  if (shift != 0) return error(Code::kInvalid, "'shape' is cut off");
  return ok();
}

Result<RawTensor> read_raw(std::string_view message) {
  RawTensor raw;
  for (ProtoReader reader(message); !reader.is_done();) {
    ASSIGN_OR_RETURN(const ProtoField field, reader.next());
    if (field.number == 1) {
      ASSIGN_OR_RETURN(raw.dense, bytes_of(field, "dense"));
    } else if (field.number == 2) {
      ASSIGN_OR_RETURN(const auto bytes, bytes_of(field, "sparse_csr"));
      ASSIGN_OR_RETURN(raw.sparse, read_sparse(bytes));
    } else if (field.number == 3) {
      ASSIGN_OR_RETURN(raw.type, int_of(field, "dtype"));
    } else if (field.number == 4) {
      RETURN_IF_ERROR(read_shape(field, raw.shape));
    }
  }
  return raw;
}

Status fill_shape(const RawTensor& raw, WireTensor& tensor) {
  if (raw.shape.size() > 2 || (raw.sparse && raw.shape.size() != 2))
    return error(Code::kInvalid, "its shape has {} dimensions", raw.shape.size())
        .note("dense tensors have 1 or 2, sparse ones 2");
  for (const int64_t size : raw.shape)
    if (size < 0 || size > kTensorCellsMax)
      return error(Code::kInvalid, "a size of its shape is {}, not in [0, {}]", size,
                   kTensorCellsMax);
  if (raw.shape.size() == 2) {
    tensor.num_rows = raw.shape[0];
    tensor.num_columns = raw.shape[1];
    if (tensor.num_columns == 0) return error(Code::kInvalid, "its rows have no columns");
  } else {
    // The wire lets a vector leave out its shape.
    tensor.num_rows =
        raw.shape.empty() ? std::ssize(raw.dense) / bytes_of_type(tensor.type) : raw.shape[0];
  }
  if (tensor.num_cells() > kTensorCellsMax)
    return error(Code::kInvalid, "it has {} cells, at most {} are allowed", tensor.num_cells(),
                 kTensorCellsMax);
  return ok();
}

Status check_size(std::string_view name, std::string_view bytes, int64_t count, int64_t each) {
  if (std::ssize(bytes) == count * each) return ok();
  return error(Code::kInvalid, "'{}' has {} bytes, not {} numbers of {} bytes", name, bytes.size(),
               count, each);
}

/// The cells of the values, from the bounds of the rows and the column of each value.
Status list_cells(const RawSparse& sparse, WireTensor& tensor) {
  RETURN_IF_ERROR(check_size("crow_indices", sparse.rows, tensor.num_rows + 1, 8));
  const int64_t num_values = std::ssize(sparse.columns) / 8;
  RETURN_IF_ERROR(check_size("col_indices", sparse.columns, num_values, 8));
  if (num_values > tensor.num_cells())
    return error(Code::kInvalid, "it lists {} of {} cells", num_values, tensor.num_cells());
  if (value_at<int64_t>(sparse.rows, 0) != 0 ||
      value_at<int64_t>(sparse.rows, tensor.num_rows) != num_values)
    return error(Code::kInvalid, "'crow_indices' does not go from 0 to {}", num_values);
  tensor.listed.reserve(static_cast<size_t>(num_values));
  for (int64_t row = 0; row < tensor.num_rows; ++row) {
    const auto begin = value_at<int64_t>(sparse.rows, row);
    const auto end = value_at<int64_t>(sparse.rows, row + 1);
    if (end < begin || end > num_values)
      return error(Code::kInvalid, "'crow_indices' falls, or is above {}, after row {}", num_values,
                   row);
    for (int64_t i = begin; i < end; ++i) {
      const auto column = value_at<int64_t>(sparse.columns, i);
      const bool rises = i == begin || column > value_at<int64_t>(sparse.columns, i - 1);
      if (column < 0 || column >= tensor.num_columns || !rises)
        return error(Code::kInvalid, "col_indices[{}] is {}: columns rise within [0, {})", i,
                     column, tensor.num_columns);
      tensor.listed.push_back(row * tensor.num_columns + column);
    }
  }
  return ok();
}

float float_at(const WireTensor& tensor, int64_t index) {
  switch (tensor.type) {
    case WireTensor::Type::kInt64:
      return static_cast<float>(value_at<int64_t>(tensor.values, index));
    case WireTensor::Type::kInt32:
      return static_cast<float>(value_at<int32_t>(tensor.values, index));
    case WireTensor::Type::kBfloat16:
      return std::bit_cast<float>(uint32_t{value_at<uint16_t>(tensor.values, index)} << 16);
    default:
      return value_at<float>(tensor.values, index);
  }
}

size_t num_chosen(const WireTensor& tensor, const std::vector<int64_t>& cells) {
  return cells.empty() ? static_cast<size_t>(tensor.num_cells()) : cells.size();
}

/// The index among `cells` of value `i`. `at` is that of the value before it.
size_t index_of(const WireTensor& tensor, const std::vector<int64_t>& cells, int64_t i,
                size_t& at) {
  const int64_t cell = tensor.is_sparse ? tensor.listed[static_cast<size_t>(i)] : i;
  if (cells.empty()) return static_cast<size_t>(cell);
  while (at < cells.size() && cells[at] < cell) ++at;
  CHECK(at < cells.size() && cells[at] == cell, "a listed cell was not chosen");
  return at;
}

}  // namespace

int64_t WireTensor::num_values() const { return is_sparse ? std::ssize(listed) : num_cells(); }

Result<WireTensor> read_tensor(std::string_view message) {
  ASSIGN_OR_RETURN(const RawTensor raw, read_raw(message));
  if (raw.type < 1 || raw.type > 4)
    return error(Code::kInvalid, "its dtype is {}", raw.type)
        .note("dtypes: 1 float32, 2 int64, 3 int32, 4 bfloat16");
  WireTensor tensor;
  tensor.type = static_cast<WireTensor::Type>(raw.type);
  RETURN_IF_ERROR(fill_shape(raw, tensor));
  tensor.is_sparse = raw.sparse.has_value();
  if (tensor.is_sparse) RETURN_IF_ERROR(list_cells(*raw.sparse, tensor));
  tensor.values = tensor.is_sparse ? raw.sparse->values : raw.dense;
  RETURN_IF_ERROR(check_size(tensor.is_sparse ? "values" : "dense", tensor.values,
                             tensor.num_values(), bytes_of_type(tensor.type)));
  return tensor;
}

std::vector<float> floats_of(const WireTensor& tensor, const std::vector<int64_t>& cells) {
  std::vector<float> values(num_chosen(tensor, cells));
  size_t at = 0;
  for (int64_t i = 0; i < tensor.num_values(); ++i)
    values[index_of(tensor, cells, i, at)] = float_at(tensor, i);
  return values;
}

Result<std::vector<int32_t>> ids_of(const WireTensor& tensor, const std::vector<int64_t>& cells) {
  if (!tensor.is_integer()) return error(Code::kInvalid, "token ids are int64 or int32");
  std::vector<int32_t> ids(num_chosen(tensor, cells));
  size_t at = 0;
  for (int64_t i = 0; i < tensor.num_values(); ++i) {
    const int64_t id = tensor.type == WireTensor::Type::kInt64
                           ? value_at<int64_t>(tensor.values, i)
                           : value_at<int32_t>(tensor.values, i);
    if (id < 0 || id > std::numeric_limits<int32_t>::max())
      return error(Code::kInvalid, "value {} is {}, not a token id", i, id);
    ids[index_of(tensor, cells, i, at)] = static_cast<int32_t>(id);
  }
  return ids;
}

}  // namespace primerl::tinker
