#include "runtime/monitor/run_server.h"

#include <unistd.h>

#include <charconv>
#include <chrono>

#include "graph/base/process.h"
#include "graph/base/real_clock.h"
#include "runtime/monitor/prometheus.h"

namespace primerl {
Result<WatchPort> parse_watch_port(const std::string& text) {
  if (text == "off") return WatchPort{true, 0};
  uint16_t port = 0;
  const char* end = text.data() + text.size();
  const auto [stopped, fault] = std::from_chars(text.data(), end, port);
  if (text.empty() || fault != std::errc() || stopped != end)
    return error(Code::kInvalid, "'{}' is no port", text)
        .note("ports are 1 to 65535; 0 takes any that is free, off serves nothing");
  return WatchPort{false, port};
}

Result<std::unique_ptr<RunServer>> RunServer::open(const WatchPort& port) {
  if (port.is_off) return std::unique_ptr<RunServer>();
  auto pages = std::make_unique<RunServer>();
  ASSIGN_OR_RETURN(pages->server_,
                   HttpServer::listen(port.port, [raw = pages.get()](std::string_view path) {
                     return raw->page(path);
                   }));
  return pages;
}

void RunServer::show(std::shared_ptr<const StatusStore> board) {
  const std::lock_guard lock(mutex_);
  board_ = std::move(board);
}

std::unique_ptr<HttpReply> RunServer::page(std::string_view path) const {
  std::shared_ptr<const StatusStore> board;
  {
    const std::lock_guard lock(mutex_);
    board = board_;
  }
  HttpReply reply;
  if (path == "/healthz") {
    reply.body = "ok\n";
  } else if (path == "/") {
    reply.body = "/metrics\n/status\n/healthz\n";
  } else if (path != "/metrics" && path != "/status") {
    return nullptr;
  } else if (board == nullptr) {
    reply.status = 503;
    reply.body = "the run has not begun\n";
  } else if (path == "/metrics") {
    reply.type = PrometheusText::kContentType;
    reply.body = metrics_text(board->plan(), board->facts(), board->picture(), steady_now());
  } else {
    reply.type = "application/json";
    reply.body =
        status_json(board->plan(), *board->wiring(), board->facts(), board->picture(), steady_now())
            .dump(2) +
        "\n";
  }
  return std::make_unique<HttpReply>(std::move(reply));
}

Json control_facts(const RunServer* server) {
  Json control = Json::object();
  control.set("pid", int64_t{::getpid()}).set("start_ticks", start_ticks(::getpid()));
  control.set("port", server == nullptr ? Json() : Json(int64_t{server->port()}));
  if (server != nullptr)
    control.set("metrics", fmt::format("http://127.0.0.1:{}/metrics", server->port()));
  return Json::object().set("control", std::move(control));
}

}  // namespace primerl
