#include "graph/message_type.h"

#include <algorithm>
#include <iterator>

namespace primerl::detail {
namespace {

/// Counts only the bytes that are stored beside the body.
class BlobCounter final : public FieldWriter {
 public:
  size_t total() const { return total_; }
  void begin_struct(size_t) override {}
  void name(std::string_view) override {}
  void end_struct() override {}
  void begin_list(size_t) override {}
  void end_list() override {}
  void boolean(bool) override {}
  void integer(int64_t) override {}
  void unsigned_integer(uint64_t) override {}
  void number(double) override {}
  void text(std::string_view value) override {
    if (value.size() > kTextBytesInBodyMax) total_ += value.size();
  }
  void bytes(std::span<const std::byte>) override {}
  void blob(const Blob& value) override { total_ += value.size(); }
  void array(std::span<const std::byte> value) override {
    if (value.size() > kArrayBytesInBodyMax) total_ += value.size();
  }

 private:
  size_t total_ = 0;
};

/// Counts numbers at their full width, lengths as four bytes, and one byte of type before each.
class BodyBound final : public FieldWriter {
 public:
  size_t total() const { return total_; }
  void begin_struct(size_t) override { total_ += kLength; }
  void name(std::string_view) override {}
  void end_struct() override {}
  void begin_list(size_t) override { total_ += kLength; }
  void end_list() override {}
  void boolean(bool) override { total_ += 1; }
  void integer(int64_t) override { total_ += kNumber; }
  void unsigned_integer(uint64_t) override { total_ += kNumber; }
  void number(double) override { total_ += kNumber; }
  void text(std::string_view value) override {
    total_ += value.size() > kTextBytesInBodyMax ? kNumber : kLength + value.size();
  }
  void bytes(std::span<const std::byte> value) override { total_ += kLength + value.size(); }
  void blob(const Blob&) override { total_ += kNumber; }
  void array(std::span<const std::byte> value) override {
    total_ += value.size() > kArrayBytesInBodyMax ? kNumber : kLength + value.size();
  }

 private:
  static constexpr size_t kLength = 5, kNumber = 9;
  size_t total_ = 0;
};

}  // namespace

bool may_lie_beside_body(std::string_view schema) {
  constexpr std::string_view kKinds[] = {":blob",     "<blob",     ":text",   "<text",
                                         "list<i32>", "list<f32>", "list<u8>"};
  return std::any_of(std::begin(kKinds), std::end(kKinds), [&](std::string_view kind) {
    return schema.find(kind) != std::string_view::npos;
  });
}

size_t bound_body_bytes(void (*write)(FieldWriter&, const void*), const void* message) {
  BodyBound bound;
  write(bound, message);
  return bound.total();
}

size_t count_blob_bytes(void (*write)(FieldWriter&, const void*), const void* message) {
  BlobCounter counter;
  write(counter, message);
  return counter.total();
}

}  // namespace primerl::detail
