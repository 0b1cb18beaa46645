/// MessagePack to JSON values and back, for the frames of verifiers environment servers.
///
/// Input is untrusted: depth, number of values and every size are bounded, and no memory is
/// reserved for a size that the bytes do not have. JSON lacks bytes, and keys that are numbers:
///   bin and ext          a string of the same bytes (it need not be UTF-8)
///   a key that is an int  its decimal digits
///   an array of numpy or torch, {"__nd__" or "__torch_tensor__": true, dtype, shape, data}
///                        the same object; its bytes were compared with shape and dtype
/// Pure functions, any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "graph/base/json.h"

namespace primerl {

struct MsgpackLimits {
  int depth_max = 64;
  size_t values_max = size_t{64} << 20;  // scalars, lists and maps together; keys are not counted
};

/// kCorrupt: not one msgpack value, a key twice, a key that is neither text nor an int, or an array
/// whose bytes contradict it. kExhausted: beyond the limits.
Result<Json> read_msgpack(std::string_view bytes, const MsgpackLimits& limits = {});
/// The same for a part of an answer: its values are subtracted from `limits.values_max`.
Result<Json> read_msgpack_part(std::string_view bytes, MsgpackLimits& limits);

/// Doubles stay doubles, also whole ones. A string that is not UTF-8 is written as bin.
std::string write_msgpack(const Json& value);

/// An array that was checked by read_msgpack().
struct WireArray {
  std::string dtype;  // "uint8", "int32", "bool", ... of numpy
  std::vector<int64_t> shape;
  std::string data;  // little-endian, row-major
  int64_t item_bytes() const;
};
/// True for an object with "__nd__" or "__torch_tensor__".
bool is_wire_array(const Json& value);
/// kCorrupt: not such an object, an unknown dtype, or bytes that contradict shape and dtype.
Result<WireArray> read_wire_array(const Json& value);
Json write_wire_array(const WireArray& array);

}  // namespace primerl
