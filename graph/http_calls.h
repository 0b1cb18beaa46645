/// The calls of an actor to an HTTP listener, and their answers (docs/design/gateway.md).
///
/// A listener is an Outside: the actor asks it, and the record keeps its answers.
///
///   accept  its answer is the next request of a client; the request has the id of this call
///   reply   sends the reply to a request; its answer says whether the client got it. With "more"
///           it is a part of the reply, which the client gets at once, and its answer says whether
///           the client is there; the part without "more" is the last one
///   closed  its answer lists requests whose clients have gone
///   address its answer is the listener's URL, once that differs from the URL in the call
///
/// A call and an answer are one line of JSON; the body of the request or reply follows the line.
/// A header that is not a member here, such as Authorization, never leaves the listener.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "graph/base/result.h"

namespace primerl {

inline constexpr size_t kClosedRequestsMax = 1024;  // of one answer to `closed`
inline constexpr size_t kClientNameBytesMax = 256;  // of a session and of a request id
inline constexpr size_t kContentTypeBytesMax = 128;
inline constexpr std::string_view kJsonContentType = "application/json";
inline constexpr int32_t kEngineIndexMax = 65535;  // of X-data-parallel-rank
inline constexpr int32_t kRetryAfterSeconds = 1;   // in replies with status 429 and 503

/// A request of a client.
struct ClientRequest {
  std::string method;      // "POST"
  std::string path;        // its target up to '?'
  std::string session;     // header X-Session-ID; empty: none
  std::string request_id;  // header X-Request-ID; empty: none
  std::string tenant;      // tenancy_name() of the tenant that its key is for; empty: any
  int32_t engine = -1;     // header X-data-parallel-rank; -1: none
  int64_t received = 0;    // when its last byte came: seconds since 1970
  std::string body;
  std::string content_type = {};  // small letters, without parameters; empty: JSON, or not said
  std::string query = {};         // behind '?' of its target; only of a listener that passes it on
};

/// The reply to a request.
struct ClientReply {
  uint64_t request = 0;  // the id of the `accept` call
  int32_t status = 200;
  std::string request_id;  // sent back as X-Request-ID; empty: none
  std::string body;
  std::string content_type = {};             // of the body; empty: JSON
  int32_t retry_after = kRetryAfterSeconds;  // sent with status 429 and 503
  bool has_more = false;                     // `body` is a part, and another reply follows
};

/// A call as the listener reads it.
struct HttpCall {
  enum class Kind : uint8_t { kAccept, kReply, kClosed, kAddress };
  Kind kind = Kind::kAccept;
  ClientReply reply;  // for kReply
  std::string known;  // for kAddress: the URL that the caller has; empty: none
};

std::string accept_call();
std::string closed_call();
std::string address_call(std::string_view known);
std::string reply_call(const ClientReply& reply);
Result<HttpCall> read_http_call(std::string_view call);

std::string write_client_request(const ClientRequest& request);
Result<ClientRequest> read_client_request(std::string_view answer);

std::string write_closed(const std::vector<uint64_t>& requests);
Result<std::vector<uint64_t>> read_closed(std::string_view answer);

std::string write_address(std::string_view url);
Result<std::string> read_address(std::string_view answer);

std::string write_sent(bool is_sent);
Result<bool> read_sent(std::string_view answer);

/// The JSON body of an error, in the form of OpenAI's API. `param` names the key at fault; empty:
/// none.
std::string http_error_body(int32_t status, std::string_view message, std::string_view param = {});

}  // namespace primerl
