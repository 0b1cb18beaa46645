#include "graph/http_calls.h"

#include <algorithm>
#include <utility>

#include "graph/base/json.h"

namespace primerl {
namespace {

constexpr std::string_view kAcceptCall = R"({"call":"accept"})";

/// The first line as an object, and the bytes after it.
struct Parts {
  Json line;
  std::string_view body;
};

Result<Parts> parts_of(std::string_view text, std::string_view what) {
  const size_t end = text.find('\n');
  ASSIGN_OR_RETURN(Json line, parse_json(text.substr(0, end), what));
  if (!line.is_object()) return error(Code::kInvalid, "{} is {}, not an object", what, line.kind());
  const bool has_body = end != std::string_view::npos;
  return Parts{std::move(line), has_body ? text.substr(end + 1) : std::string_view()};
}

std::string joined(const Json& line, std::string_view body) {
  std::string text = line.dump();
  text.reserve(text.size() + 1 + body.size());
  text += '\n';
  text += body;
  return text;
}

/// It becomes a header, so it must have no line end.
Status check_content_type(std::string_view type) {
  const bool is_printable = std::ranges::all_of(type, [](char c) { return c >= 0x20 && c < 0x7f; });
  if (is_printable && type.size() <= kContentTypeBytesMax) return ok();
  return error(Code::kInvalid, "a reply's content type has more than {} printable characters",
               kContentTypeBytesMax);
}

std::string_view type_of(int32_t status) {
  if (status == 401) return "authentication_error";
  if (status == 403) return "permission_error";
  if (status == 429) return "rate_limit_error";
  return status < 500 ? "invalid_request_error" : "server_error";
}

}  // namespace

std::string accept_call() { return std::string(kAcceptCall); }
std::string closed_call() { return R"({"call":"closed"})"; }

std::string address_call(std::string_view known) {
  return Json::object().set("call", "address").set("known", known).dump();
}

std::string reply_call(const ClientReply& reply) {
  Json line = Json::object();
  line.set("call", "reply").set("request", reply.request).set("status", reply.status);
  if (!reply.request_id.empty()) line.set("request_id", reply.request_id);
  if (!reply.content_type.empty()) line.set("content_type", reply.content_type);
  if (reply.retry_after != kRetryAfterSeconds) line.set("retry_after", reply.retry_after);
  if (reply.has_more) line.set("more", true);
  return joined(line, reply.body);
}

Result<HttpCall> read_http_call(std::string_view call) {
  if (call == kAcceptCall) return HttpCall();  // one for each request
  ASSIGN_OR_RETURN(const Parts parts, parts_of(call, "a call to a listener"));
  ASSIGN_OR_RETURN(const std::string kind, parts.line.get_string("call"));
  HttpCall read;
  if (kind == "accept") return read;
  if (kind == "closed") {
    read.kind = HttpCall::Kind::kClosed;
    return read;
  }
  if (kind == "address") {
    read.kind = HttpCall::Kind::kAddress;
    ASSIGN_OR_RETURN(read.known, parts.line.get_string("known"));
    return read;
  }
  if (kind != "reply")
    return error(Code::kInvalid, "a listener has no call '{}'", kind)
        .note("its calls are accept, reply, closed and address");
  read.kind = HttpCall::Kind::kReply;
  ASSIGN_OR_RETURN(const int64_t request, parts.line.get_int("request"));
  ASSIGN_OR_RETURN(const int64_t status, parts.line.get_int("status"));
  if (status < 200 || status > 599)
    return error(Code::kInvalid, "a reply has the status {}, not one from 200 to 599", status);
  read.reply.request = static_cast<uint64_t>(request);
  read.reply.status = static_cast<int32_t>(status);
  if (parts.line.find("request_id") != nullptr) {
    ASSIGN_OR_RETURN(read.reply.request_id, parts.line.get_string("request_id"));
  }
  if (parts.line.find("content_type") != nullptr) {
    ASSIGN_OR_RETURN(read.reply.content_type, parts.line.get_string("content_type"));
    RETURN_IF_ERROR(check_content_type(read.reply.content_type));
  }
  if (parts.line.find("retry_after") != nullptr) {
    ASSIGN_OR_RETURN(const int64_t seconds, parts.line.get_int("retry_after"));
    read.reply.retry_after = static_cast<int32_t>(std::clamp<int64_t>(seconds, 0, INT32_MAX));
  }
  if (parts.line.find("more") != nullptr) {
    ASSIGN_OR_RETURN(read.reply.has_more, parts.line.get_bool("more"));
  }
  read.reply.body = parts.body;
  return read;
}

std::string write_client_request(const ClientRequest& request) {
  Json line = Json::object();
  line.set("method", request.method).set("path", request.path);
  const auto set_if = [&line](std::string_view key, const std::string& value) {
    if (!value.empty()) line.set(key, value);
  };
  set_if("session", request.session);
  set_if("request_id", request.request_id);
  set_if("tenant", request.tenant);
  set_if("content_type", request.content_type);
  set_if("query", request.query);
  if (request.engine >= 0) line.set("engine", request.engine);
  line.set("received", request.received);
  return joined(line, request.body);
}

Result<ClientRequest> read_client_request(std::string_view answer) {
  ASSIGN_OR_RETURN(const Parts parts, parts_of(answer, "a request of a client"));
  ClientRequest request;
  ASSIGN_OR_RETURN(request.method, parts.line.get_string("method"));
  ASSIGN_OR_RETURN(request.path, parts.line.get_string("path"));
  for (const auto& [key, target] :
       {std::pair("session", &request.session), std::pair("request_id", &request.request_id),
        std::pair("tenant", &request.tenant), std::pair("content_type", &request.content_type),
        std::pair("query", &request.query)}) {
    if (parts.line.find(key) == nullptr) continue;
    ASSIGN_OR_RETURN(*target, parts.line.get_string(key));
  }
  if (parts.line.find("engine") != nullptr) {
    ASSIGN_OR_RETURN(const int64_t engine, parts.line.get_int("engine"));
    request.engine = static_cast<int32_t>(std::clamp<int64_t>(engine, -1, kEngineIndexMax));
  }
  ASSIGN_OR_RETURN(request.received, parts.line.get_int("received"));
  request.body = parts.body;
  return request;
}

std::string write_closed(const std::vector<uint64_t>& requests) {
  return Json::object().set("requests", Json::list(requests)).dump();
}

Result<std::vector<uint64_t>> read_closed(std::string_view answer) {
  ASSIGN_OR_RETURN(const Json line, parse_json(answer, "closed requests"));
  const Json* list = line.find("requests");
  if (list == nullptr || !list->is_array())
    return error(Code::kInvalid, "closed requests have no array 'requests'");
  std::vector<uint64_t> requests;
  for (const Json& each : list->as_array()) {
    if (!each.is_integer())
      return error(Code::kInvalid, "'requests' has {}, not an integer", each.kind());
    requests.push_back(static_cast<uint64_t>(each.as_int()));
  }
  return requests;
}

std::string write_address(std::string_view url) { return Json::object().set("url", url).dump(); }

Result<std::string> read_address(std::string_view answer) {
  ASSIGN_OR_RETURN(const Json line, parse_json(answer, "the address of a listener"));
  return line.get_string("url");
}

std::string write_sent(bool is_sent) { return Json::object().set("sent", is_sent).dump(); }

Result<bool> read_sent(std::string_view answer) {
  ASSIGN_OR_RETURN(const Json line, parse_json(answer, "the end of a reply"));
  return line.get_bool("sent");
}

std::string http_error_body(int32_t status, std::string_view message, std::string_view param) {
  Json inner = Json::object();
  inner.set("message", message)
      .set("type", type_of(status))
      .set("param", param.empty() ? Json() : Json(param))
      .set("code", status);
  return Json::object().set("error", std::move(inner)).dump();
}

}  // namespace primerl
