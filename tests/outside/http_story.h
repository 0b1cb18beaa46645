/// A listener on a free port, clients of raw bytes, and the calls that an actor would make.
#pragma once

#include <algorithm>

#include "graph/http_calls.h"
#include "runtime/outside/http_listener.h"
#include "tests/base/raw_client.h"
#include "tests/outside/outside_story.h"

namespace primerl {

inline constexpr std::string_view kLocal = "Host: localhost\r\n";

/// A POST with this body and these further header lines.
inline std::string post(std::string_view body, std::string_view headers = "",
                        std::string_view path = "/x") {
  return fmt::format("POST {} HTTP/1.1\r\n{}{}Content-Length: {}\r\n\r\n{}", path, kLocal, headers,
                     body.size(), body);
}

struct HttpStory : OutsideStory {
  HttpStory() { options.listen = "127.0.0.1:0"; }

  HttpListener& listener() {
    if (outside == nullptr) {
      const auto keep = [this](std::string_view line) {
        const std::lock_guard lock(mutex);
        log.emplace_back(line);
        changed.notify_all();
      };
      auto made = make_http_listener(options, keep, tenants);
      EXPECT_TRUE(made.ok()) << made.error().text();
      port = (*made)->port();
      use(std::move(*made));
    }
    return static_cast<HttpListener&>(*outside);
  }
  RawClient client() {
    listener();
    return RawClient(port);
  }
  /// Waits for a line of the log with this text.
  bool has_logged(std::string_view text) {
    std::unique_lock lock(mutex);
    return changed.wait_until(lock, deadline_after(kPatience), [&] {
      return std::ranges::any_of(
          log, [&](const std::string& line) { return line.find(text) != std::string::npos; });
    });
  }
  /// The reply to bytes that the listener itself refuses.
  std::string refused(std::string_view bytes) { return client().say(bytes).hear_all(); }

  void accept(uint64_t id) {
    listener();
    ask(id, accept_call());
  }
  /// Waits for the request that call `id` accepts.
  ClientRequest accepted(uint64_t id) {
    accept(id);
    return request_of(id);
  }
  ClientRequest request_of(uint64_t id) {
    auto request = read_client_request(answer_to(id).body);
    EXPECT_TRUE(request.ok()) << request.error().text();
    return request.ok() ? *request : ClientRequest();
  }
  void reply(uint64_t id, uint64_t request, std::string body = "{}", int32_t status = 200) {
    ClientReply reply;
    reply.request = request;
    reply.status = status;
    reply.body = std::move(body);
    ask(id, reply_call(reply));
  }
  /// Whether the client of the reply got it.
  bool sent(uint64_t id) { return read_sent(answer_to(id).body).value(); }

  HttpListenerOptions options;
  std::vector<std::string> tenants = {"main", "blue"};  // that keys may name
  uint16_t port = 0;
};

}  // namespace primerl
