/// MsgpackWriter and MsgpackReader: a message's fields() as msgpack. Blobs are separate raw frames.
/// So are long arrays and long texts, if the caller shares the message.
///
/// A struct is an array of its fields in order. Names are not sent, because the type table's hash
/// in the handshake proves that both ends have the same fields. The reader treats every input as
/// untrusted. Every size is checked against the bytes left before memory is allocated, nesting is
/// at most kNestingMax, and unread bytes at the end are a fault. Values, one thread each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "graph/message_type.h"

namespace primerl {

inline constexpr size_t kNestingMax = 32;

class MsgpackWriter final : public FieldWriter {
 public:
  MsgpackWriter();
  ~MsgpackWriter() override;

  /// The bytes written since the construction; the writer is empty afterwards.
  std::vector<std::byte> take_body();
  std::vector<Blob> take_blobs() { return std::move(blobs_); }
  /// The bytes without moving them out, for a writer that is reused: clear() keeps its memory.
  std::span<const std::byte> body() const;
  std::span<const Blob> blobs() const { return blobs_; }
  void clear();
  /// Shares `message`, whose fields are written from now on until clear(). It must not change while
  /// Blobs of it exist. Its arrays longer than kArrayBytesInBodyMax and its texts longer than
  /// kTextBytesInBodyMax become Blobs that share it without a copy. Without share() all of them are
  /// in the body.
  void share(std::shared_ptr<const void> message) { shared_ = std::move(message); }

  void begin_struct(size_t num_fields) override;
  void name(std::string_view) override {}
  void end_struct() override {}
  void begin_list(size_t size) override;
  void end_list() override {}
  void boolean(bool value) override;
  void integer(int64_t value) override;
  void unsigned_integer(uint64_t value) override;
  void number(double value) override;
  void text(std::string_view value) override;
  void bytes(std::span<const std::byte> value) override;
  void blob(const Blob& value) override;  // its size in the body, its bytes separately
  void array(std::span<const std::byte> value) override;

 private:
  struct Packer;
  std::unique_ptr<Packer> packer_;
  std::vector<Blob> blobs_;
  std::shared_ptr<const void> shared_;
};

class MsgpackReader final : public FieldReader {
 public:
  /// Reads from bytes that must stay valid while the reader exists. Blobs are returned in order,
  /// shared, not copied.
  explicit MsgpackReader(std::span<const std::byte> body, std::span<const Blob> blobs = {})
      : left_(body), blobs_(blobs), size_(body.size()) {}

  /// The first fault, or an error when unread bytes are left.
  Status finish();

  bool ok() const override { return fault_.ok(); }
  Error fault() const override { return fault_.error(); }
  void fail(Error fault) override;
  void begin_struct(size_t num_fields) override;
  void name(std::string_view) override {}
  void end_struct() override { --depth_; }
  size_t begin_list() override;
  void end_list() override { --depth_; }
  bool boolean() override;
  int64_t integer() override;
  uint64_t unsigned_integer() override;
  double number() override;
  std::string text() override;
  std::span<const std::byte> bytes() override;
  Blob blob() override;
  Blob array() override;

 private:
  size_t enter_list();
  bool is_beside_body() const;  // the next value is a separate frame; the body has only its size
  uint8_t byte();
  uint64_t big_endian(size_t num_bytes);
  std::span<const std::byte> run(uint64_t size);
  size_t offset() const { return size_ - left_.size(); }

  std::span<const std::byte> left_;
  std::span<const Blob> blobs_;
  size_t size_;
  size_t depth_ = 0;
  Status fault_;
};

/// Body and Blobs of a message.
struct EncodedMessage {
  std::vector<std::byte> body;
  std::vector<Blob> blobs;
};

/// kExhausted when the body exceeds kMessageBytesMax. Long arrays and texts are shared Blobs.
Result<EncodedMessage> encode_message(const Payload& payload);
/// Puts everything except Blobs into the body, for callers that carry bodies only.
Result<EncodedMessage> encode_in_body(const Payload& payload);
/// Encodes into a writer that was cleared.
Status encode_message(const Payload& payload, MsgpackWriter& writer);

/// kCorrupt, with the offset, when the bytes are not a message of this type.
Result<Payload> decode_message(const MessageType& type, std::span<const std::byte> body,
                               std::span<const Blob> blobs = {});

}  // namespace primerl
