/// HttpReader: one HTTP/1.1 request from bytes as they arrive, by the parser of Boost.Beast; and
/// the head of a reply.
///
/// It stops after the headers, so that its user can refuse the request before its body has memory.
/// Not thread-safe: lives on the thread of its connection.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "graph/http_calls.h"

namespace primerl {

/// The headers that a listener uses. Texts are printable ASCII.
struct HttpHead {
  std::string method;               // "POST"
  std::string path;                 // the target up to '?'
  std::string query;                // its target behind '?'
  std::optional<std::string> host;  // HTTP/1.0 may have none
  std::string session;              // X-Session-ID
  std::string request_id;           // X-Request-ID
  int32_t engine = -1;              // X-data-parallel-rank; -1: none
  std::string authorization;        // or "Bearer " and X-API-Key; stays in the listener
  std::string content_type;         // small letters, without parameters; empty: JSON, or none
  std::optional<uint64_t> content_length;
  bool is_chunked = false;
  bool reads_chunks = true;  // HTTP/1.0 has none
  bool keeps_alive = true;
  bool expects_continue = false;
};

struct HttpReaderLimits {
  uint32_t header_bytes_max = 16384;             // request line and headers; else 431
  uint64_t body_bytes_max = uint64_t{64} << 20;  // else 413
};

/// Why a request is refused.
struct HttpRefusal {
  int32_t status = 400;
  std::string message;
};

class HttpReader {
 public:
  enum class State : uint8_t { kHead, kHeadDone, kBody, kDone, kFailed };

  explicit HttpReader(const HttpReaderLimits& limits);
  HttpReader(const HttpReader&) = delete;
  HttpReader& operator=(const HttpReader&) = delete;
  ~HttpReader();

  /// Reads from `bytes` and returns how many it has used. It must get the others again, with more
  /// behind them. It returns at kHeadDone, kDone and kFailed; after kHeadDone, call read_body().
  size_t read(std::string_view bytes);
  State state() const { return state_; }
  /// From kHeadDone on.
  const HttpHead& head() const { return head_; }
  void read_body();
  /// Bytes of the body that have arrived.
  size_t num_body_bytes() const;
  /// At kDone.
  std::string move_body();
  /// At kFailed.
  const HttpRefusal& refusal() const { return refusal_; }

 private:
  class Parser;
  void finish_head();
  void fail(int32_t status, std::string message);

  const HttpReaderLimits limits_;
  std::unique_ptr<Parser> parser_;
  State state_ = State::kHead;
  size_t num_head_bytes_ = 0;
  HttpHead head_;
  HttpRefusal refusal_;
};

/// "Not Found" for 404.
std::string http_reason(int32_t status);

/// The status line and headers of a reply, with the empty line after them. `as_chunks`: a reply
/// with `has_more` comes in chunks; else the end of the connection is its end.
std::string http_reply_head(const ClientReply& reply, bool keeps_alive, bool as_chunks = true);
/// A chunk of a reply with `has_more`; an empty one ends the reply.
std::string http_chunk(std::string_view body);

}  // namespace primerl
