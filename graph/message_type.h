/// MessageType: a message struct as a value of the runtime: name, schema, codec functions.
///
/// One per struct, made on first use and never destroyed. Equal types are compared by address
/// inside a process, and by (name, schema hash) between processes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "graph/base/random.h"
#include "graph/message.h"

namespace primerl {

struct MessageType {
  std::string_view name;
  uint32_t version = 0;
  std::string schema;         // "version:version;engine:id32;"
  uint64_t schema_hash = 0;   // of name, version and schema
  size_t size_in_memory = 0;  // of the struct itself
  void (*write)(FieldWriter& out, const void* message) = nullptr;
  /// The message, or null if the reader failed.
  std::shared_ptr<const void> (*read)(FieldReader& in) = nullptr;
  /// Bytes of its Blobs, long arrays and long texts; they are charged to the edge's byte credit.
  size_t (*blob_bytes)(const void* message) = nullptr;
};

template <Message T>
const MessageType& message_type();

/// A message in transit: its type and a shared immutable value. Copying copies a pointer.
struct Payload {
  const MessageType* type = nullptr;
  std::shared_ptr<const void> message;

  template <Message T>
  static Payload of(T message);
  /// The message as T; CHECKs the type.
  template <Message T>
  const T& as() const;
};

/// The most bytes that the message's body has in any codec. Blobs, long arrays and long texts
/// travel beside the body.
template <Message T>
size_t body_bytes_max(const T& message);

namespace detail {

size_t bound_body_bytes(void (*write)(FieldWriter&, const void*), const void* message);
size_t count_blob_bytes(void (*write)(FieldWriter&, const void*), const void* message);
/// Whether a message of this schema has any Blob, array or text.
bool may_lie_beside_body(std::string_view schema);

template <Message T>
MessageType make_message_type() {
  MessageType type;
  type.name = T::kName;
  type.version = T::kVersion;
  wire::Describe<T> describe;
  T::fields(describe);
  type.schema = std::move(describe.text);
  type.schema_hash = stable_hash(type.schema, stable_hash(type.name, type.version));
  type.size_in_memory = sizeof(T);
  type.write = [](FieldWriter& out, const void* message) {
    wire::write(out, *static_cast<const T*>(message));
  };
  type.read = [](FieldReader& in) -> std::shared_ptr<const void> {
    auto message = std::make_shared<T>();
    wire::read(in, *message);
    return in.ok() ? message : nullptr;
  };
  // A type that has nothing beside the body needs no count.
  if (!may_lie_beside_body(type.schema))
    type.blob_bytes = [](const void*) -> size_t { return 0; };
  else
    type.blob_bytes = [](const void* message) {
      return count_blob_bytes(message_type<T>().write, message);
    };
  return type;
}

}  // namespace detail

template <Message T>
const MessageType& message_type() {
  static const MessageType type = detail::make_message_type<T>();
  return type;
}

template <Message T>
size_t body_bytes_max(const T& message) {
  return detail::bound_body_bytes(message_type<T>().write, &message);
}

template <Message T>
Payload Payload::of(T message) {
  return {&message_type<T>(), std::make_shared<const T>(std::move(message))};
}

template <Message T>
const T& Payload::as() const {
  CHECK(type == &message_type<T>(), "a payload was read as another type");
  return *static_cast<const T*>(message.get());
}

}  // namespace primerl
