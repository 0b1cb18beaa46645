/// FieldWriter and FieldReader: connect a message's `fields()` to bytes; neither side knows the
/// other. The msgpack codec and the payload checksum (runtime/wire) implement them.
///
/// A message lists its members once:
///
///   template <class F> static void fields(F& f) { f("version", &PolicyLive::version)("salt",
///   &PolicyLive::salt); }
///
/// Member types: bool, integers, double, float, enums over integers, std::string, ids,
/// PolicyVersion, StepRef, Duration, Time, Blob, vectors of int32_t/float/uint8_t (stored as raw
/// bytes). Also, of any of these: vectors, deques, sets, maps (a list of {key, value}), pairs,
/// optionals (a list of none or one), nested structs that have fields() themselves, and objects
/// that give their state as text (HasTextState).
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "graph/base/blob.h"
#include "graph/base/clock.h"
#include "graph/base/ids.h"
#include "graph/base/result.h"

namespace primerl {

class FieldWriter {
 public:
  virtual ~FieldWriter() = default;
  virtual void begin_struct(size_t num_fields) = 0;
  virtual void name(std::string_view field) = 0;  // before each field of a struct
  virtual void end_struct() = 0;
  virtual void begin_list(size_t size) = 0;
  virtual void end_list() = 0;
  virtual void boolean(bool value) = 0;
  virtual void integer(int64_t value) = 0;
  virtual void unsigned_integer(uint64_t value) = 0;
  virtual void number(double value) = 0;  // bit-exact
  virtual void text(std::string_view value) = 0;
  virtual void bytes(std::span<const std::byte> value) = 0;  // inside the body
  virtual void blob(const Blob& value) = 0;                  // a raw frame beside the body
  /// A vector of numbers. A codec may store a long array beside the body, as it may a long text.
  virtual void array(std::span<const std::byte> value) { bytes(value); }
};

/// Reads what a FieldWriter wrote. The first fault is kept: later calls return zeros and ok() is
/// false.
class FieldReader {
 public:
  virtual ~FieldReader() = default;
  virtual bool ok() const = 0;
  virtual Error fault() const = 0;
  virtual void fail(Error fault) = 0;
  virtual void begin_struct(size_t num_fields) = 0;  // checks the count
  virtual void name(std::string_view field) = 0;     // checks the name
  virtual void end_struct() = 0;
  virtual size_t begin_list() = 0;  // never more than the remaining bytes can contain
  virtual void end_list() = 0;
  virtual bool boolean() = 0;
  virtual int64_t integer() = 0;
  virtual uint64_t unsigned_integer() = 0;
  virtual double number() = 0;
  virtual std::string text() = 0;
  virtual std::span<const std::byte> bytes() = 0;  // valid until the next call
  virtual Blob blob() = 0;
  /// The bytes that were passed to FieldWriter::array(); valid until the next call.
  virtual Blob array() { return {nullptr, bytes()}; }
};

namespace wire {

/// A stable description of a member's type, e.g. "list<i32>"; it is part of the schema hash.
template <class T>
std::string type_text();
template <class T>
void write(FieldWriter& out, const T& value);
template <class T>
void read(FieldReader& in, T& value);

}  // namespace wire
}  // namespace primerl

#include "graph/wire_inline.h"
