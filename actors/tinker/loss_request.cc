#include "actors/tinker/loss_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <optional>
#include <utility>

#include "actors/tinker/names.h"
#include "actors/tinker/protobuf.h"
#include "actors/tinker/tensor.h"

namespace primerl::tinker {
namespace {

using Tensors = std::map<std::string, WireTensor, std::less<>>;

struct MapEntry {
  std::string key;
  ProtoField value;
};

/// An entry of a map is a message {key = 1, value = 2}.
Result<MapEntry> read_entry(const ProtoField& entry, std::string_view name) {
  ASSIGN_OR_RETURN(const auto message, bytes_of(entry, name));
  MapEntry read;
  for (ProtoReader reader(message); !reader.is_done();) {
    ASSIGN_OR_RETURN(const ProtoField field, reader.next());
    if (field.number == 1) {
      ASSIGN_OR_RETURN(const auto key, bytes_of(field, name));
      read.key = key;
    } else if (field.number == 2) {
      read.value = field;
    }
  }
  RETURN_IF_ERROR(check_name(name, read.key));
  return read;
}

Status read_text_chunk(std::string_view message, std::vector<int32_t>& tokens) {
  for (ProtoReader reader(message); !reader.is_done();) {
    ASSIGN_OR_RETURN(const ProtoField field, reader.next());
    if (field.number != 1) continue;
    ASSIGN_OR_RETURN(const auto bytes, bytes_of(field, "tokens"));
    if (bytes.size() % sizeof(int32_t) != 0)
      return error(Code::kInvalid, "'tokens' has {} bytes, not numbers of 4", bytes.size());
    const size_t num_before = tokens.size();
    tokens.resize(num_before + bytes.size() / sizeof(int32_t));
    if (!bytes.empty()) std::memcpy(tokens.data() + num_before, bytes.data(), bytes.size());
  }
  return ok();
}

Status read_chunk(std::string_view message, std::vector<int32_t>& tokens) {
  for (ProtoReader reader(message); !reader.is_done();) {
    ASSIGN_OR_RETURN(const ProtoField field, reader.next());
    if (field.number == 2 || field.number == 3)
      return error(Code::kInvalid, "the input has {}, this server reads token ids only",
                   field.number == 2 ? "an image" : "audio");
    if (field.number != 1) continue;
    ASSIGN_OR_RETURN(const auto text, bytes_of(field, "encoded_text"));
    RETURN_IF_ERROR(read_text_chunk(text, tokens));
  }
  return ok();
}

Status read_input(const ProtoField& entry, Tensors& inputs) {
  ASSIGN_OR_RETURN(const MapEntry read, read_entry(entry, "loss_fn_inputs"));
  const auto named = [&](Error fault) {
    return std::move(fault).while_doing(fmt::format("'{}'", read.key));
  };
  const auto bytes = bytes_of(read.value, "value");
  if (!bytes.ok()) return named(bytes.error());
  auto tensor = read_tensor(*bytes);
  if (!tensor.ok()) return named(tensor.error());
  inputs.insert_or_assign(read.key, std::move(*tensor));
  return ok();
}

/// The cells that a sparse tensor lists. Empty, which means all, if a tensor is dense.
std::vector<int64_t> listed_cells(const Tensors& inputs) {
  std::vector<int64_t> cells;
  for (const auto& [name, tensor] : inputs) {
    if (!tensor.is_sparse) return {};
    std::vector<int64_t> both;
    std::ranges::set_union(cells, tensor.listed, std::back_inserter(both));
    cells = std::move(both);
  }
  return cells;
}

/// Positions of a matrix of targets: cell / num_columns.
std::vector<int32_t> positions_of(const TargetShape& shape) {
  std::vector<int32_t> positions;
  if (shape.num_columns == 0) return positions;
  const auto add = [&](int64_t cell) {
    positions.push_back(static_cast<int32_t>(cell / shape.num_columns));
  };
  if (shape.cells.empty())
    for (int64_t cell = 0; cell < shape.num_cells(); ++cell) add(cell);
  for (const int64_t cell : shape.cells) add(cell);
  return positions;
}

Status check_shapes(const Tensors& inputs, const WireTensor& targets, size_t num_tokens) {
  for (const auto& [name, tensor] : inputs) {
    if (name != "target_tokens" && name != "weights" && name != "logprobs" && name != "advantages")
      return error(Code::kInvalid, "unknown loss input '{}'", name)
          .note("loss inputs: target_tokens, weights, logprobs, advantages");
    if (tensor.num_rows != targets.num_rows || tensor.num_columns != targets.num_columns)
      return error(Code::kInvalid, "'{}' has the shape [{}, {}], 'target_tokens' [{}, {}]", name,
                   tensor.num_rows, tensor.num_columns, targets.num_rows, targets.num_columns);
  }
  if (targets.num_rows != static_cast<int64_t>(num_tokens))
    return error(Code::kInvalid, "{} tokens, but 'target_tokens' has {} rows", num_tokens,
                 targets.num_rows);
  return ok();
}

Status fill_datum(const Tensors& inputs, LossDatum& datum, TargetShape& shape) {
  const auto targets = inputs.find("target_tokens");
  if (targets == inputs.end()) return error(Code::kInvalid, "it has no 'target_tokens'");
  RETURN_IF_ERROR(check_shapes(inputs, targets->second, datum.tokens.size()));
  shape.num_rows = targets->second.num_rows;
  shape.num_columns = targets->second.num_columns;
  shape.cells = listed_cells(inputs);
  const bool is_sparse =
      std::ranges::all_of(inputs, [](const auto& input) { return input.second.is_sparse; });
  if (is_sparse && shape.cells.empty())
    return error(Code::kInvalid, "its sparse tensors list no target");
  auto ids = ids_of(targets->second, shape.cells);
  if (!ids.ok()) return std::move(ids).error().while_doing("'target_tokens'");
  datum.targets = std::move(*ids);
  datum.positions = positions_of(shape);
  for (const auto& [name, values] :
       {std::pair{"weights", &datum.weights}, std::pair{"logprobs", &datum.logprobs},
        std::pair{"advantages", &datum.advantages}})
    if (const auto found = inputs.find(name); found != inputs.end())
      *values = floats_of(found->second, shape.cells);
  return ok();
}

Status read_datum(std::string_view message, LossRequest& request) {
  Tensors inputs;
  LossDatum datum;
  for (ProtoReader reader(message); !reader.is_done();) {
    ASSIGN_OR_RETURN(const ProtoField field, reader.next());
    if (field.number == 1) {
      ASSIGN_OR_RETURN(const auto chunk, bytes_of(field, "model_input"));
      RETURN_IF_ERROR(read_chunk(chunk, datum.tokens));
    } else if (field.number == 2) {
      RETURN_IF_ERROR(read_input(field, inputs));
    }
  }
  TargetShape shape;
  RETURN_IF_ERROR(fill_datum(inputs, datum, shape));
  request.batch.data.push_back(std::move(datum));
  request.shapes.push_back(std::move(shape));
  return ok();
}

struct LossConfig {
  std::string name;
  std::map<std::string, double> numbers;
};

/// A value of loss_fn_config_v2 is a message {number = 1 | text = 2}.
Result<double> read_config_value(const MapEntry& entry) {
  ASSIGN_OR_RETURN(const auto message, bytes_of(entry.value, entry.key));
  std::optional<double> value;
  for (ProtoReader reader(message); !reader.is_done();) {
    ASSIGN_OR_RETURN(const ProtoField field, reader.next());
    if (field.number == 2)
      return error(Code::kInvalid, "'{}' of the loss is a text, not a number", entry.key);
    if (field.number != 1) continue;
    ASSIGN_OR_RETURN(value, double_of(field, entry.key));
  }
  return value.value_or(0.0);  // a number of 0 is left out
}

Status read_config(const ProtoField& field, LossConfig& loss) {
  if (field.number == 4) {
    ASSIGN_OR_RETURN(const auto name, bytes_of(field, "loss_fn"));
    loss.name = name;
    return check_name("loss_fn", loss.name);
  }
  ASSIGN_OR_RETURN(const MapEntry entry, read_entry(field, "loss_fn_config"));
  double value = 0;
  if (field.number == 7) {
    ASSIGN_OR_RETURN(value, read_config_value(entry));
  } else if (entry.value.number != 0) {
    ASSIGN_OR_RETURN(value, double_of(entry.value, entry.key));
  }
  loss.numbers.insert_or_assign(entry.key, value);  // the second map repeats the first
  return ok();
}

Status read_head(const ProtoField& field, LossRequest& request) {
  if (field.number == 1) {
    ASSIGN_OR_RETURN(const auto model, bytes_of(field, "model_id"));
    request.model = model;
  } else if (field.number == 2) {
    ASSIGN_OR_RETURN(request.seq, int_of(field, "seq_id"));
  } else if (field.number == 6) {
    ASSIGN_OR_RETURN(const int64_t is_forward, int_of(field, "forward_only"));
    request.batch.forward_only = is_forward != 0;
  }
  return ok();
}

}  // namespace

Result<LossRequest> read_loss_request(std::string_view body) {
  LossRequest request;
  LossConfig loss;
  for (ProtoReader reader(body); !reader.is_done();) {
    ASSIGN_OR_RETURN(const ProtoField field, reader.next());
    if (field.number == 3) {
      const size_t index = request.batch.data.size();
      if (index == kDataMax)
        return error(Code::kInvalid, "the request has more than {} data", kDataMax);
      ASSIGN_OR_RETURN(const auto datum, bytes_of(field, "data"));
      if (const Status status = read_datum(datum, request); !status.ok())
        return Error(status.error()).while_doing(fmt::format("datum {}", index));
    } else if (field.number == 4 || field.number == 5 || field.number == 7) {
      RETURN_IF_ERROR(read_config(field, loss));
    } else {
      RETURN_IF_ERROR(read_head(field, request));
    }
  }
  RETURN_IF_ERROR(check_name("model_id", request.model));
  RETURN_IF_ERROR(check_model_seq(request.seq));
  ASSIGN_OR_RETURN(request.batch.loss, tinker_loss(loss.name, loss.numbers));
  return request;
}

}  // namespace primerl::tinker
