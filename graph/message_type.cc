#include "graph/message_type.h"

namespace primerl::detail {
namespace {

/// Ignores everything but Blobs.
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
  void text(std::string_view) override {}
  void bytes(std::span<const std::byte>) override {}
  void blob(const Blob& value) override { total_ += value.size(); }

 private:
  size_t total_ = 0;
};

/// Numbers at their full width, lengths as four bytes, one byte of type before each.
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
  void text(std::string_view value) override { total_ += kLength + value.size(); }
  void bytes(std::span<const std::byte> value) override { total_ += kLength + value.size(); }
  void blob(const Blob&) override { total_ += kNumber; }

 private:
  static constexpr size_t kLength = 5, kNumber = 9;
  size_t total_ = 0;
};

}  // namespace

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
