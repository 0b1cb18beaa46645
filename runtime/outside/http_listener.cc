#include "runtime/outside/http_listener.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <deque>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "graph/base/real_clock.h"
#include "runtime/outside/answer_queue.h"
#include "runtime/outside/http_connections.h"
#include "runtime/outside/keys_file.h"
#include "runtime/outside/listen_address.h"
#include "runtime/outside/order_queue.h"
#include "runtime/outside/tls.h"

namespace primerl {
namespace {

constexpr int kWaitMs = 60'000;
constexpr int kSendGraceMs = 10;
// Replies of the last moment are still sent.
constexpr Duration kSendGrace = Duration::seconds(1);

std::string url_of(const HttpListenerOptions& options, uint16_t port) {
  if (!options.url.empty()) return options.url;
  const auto address = parse_listen_address(options.listen);
  CHECK(address.ok(), "'listen' was not checked");
  std::string host = address->host;
  if (host == "0.0.0.0") host = "127.0.0.1";
  if (host == "::") host = "::1";
  const bool is_ipv6 = host.find(':') != std::string::npos;
  return fmt::format("{}://{}:{}", options.tls_cert.empty() ? "http" : "https",
                     is_ipv6 ? "[" + host + "]" : host, port);
}

class ListeningOutside final : public HttpListener {
 public:
  ListeningOutside(const HttpListenerOptions& options, KeysFile keys, TlsFiles tls,
                   std::function<void(std::string_view)> log)
      : log_(std::move(log)),
        keys_(std::move(keys)),
        tls_(std::move(tls)),
        connections_(options, keys_.keys()) {}
  ListeningOutside(const HttpListenerOptions& options, TlsFiles tls, const HttpDoor& door)
      : log_(door.log),
        tls_(std::move(tls)),
        connections_(options, HttpKeys::asking(door.holder_of), door) {}
  ~ListeningOutside() override {
    is_ending_ = true;
    orders_.notify();
    if (thread_.joinable()) thread_.join();
  }

  Status open(const HttpListenerOptions& options) {
    connections_.set_tls(tls_.context());
    RETURN_IF_ERROR(connections_.listen(orders_.descriptor()));
    port_ = connections_.port();
    url_ = url_of(options, port_);
    thread_ = std::thread([this] { run(); });
    return ok();
  }
  uint16_t port() const override { return port_; }
  const std::string& url() const override { return url_; }

  Status ask(OutsideCall call) override {
    if (answers_.is_stopped()) return ok();
    ASSIGN_OR_RETURN(HttpCall read, read_http_call(call.body));
    RETURN_IF_ERROR(answers_.open(call.id));
    orders_.add({call.id, std::move(read)});
    return ok();
  }
  void forget(uint32_t, uint64_t) override {}  // a listener has no sessions

  std::vector<OutsideAnswer> receive_answers() override { return answers_.receive(); }
  void stop() override {
    answers_.stop();
    orders_.notify();
  }
  void set_wake(std::function<void()> wake) override { answers_.set_wake(std::move(wake)); }
  bool has_work() const override { return answers_.has_work(); }
  std::string describe() const override {
    return fmt::format("{} calls to the listener on port {} without an answer", answers_.num_open(),
                       port_);
  }

 private:
  struct Order {
    uint64_t id = 0;
    HttpCall call;
  };

  // On the I/O thread.

  void run() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, nullptr);
    while (!is_ending_) {
      apply_orders();
      look_at_files();
      connections_.wait(wait_ms());
      give_answers();
    }
    apply_orders();
    connections_.stop();
    const Time until = steady_now() + kSendGrace;
    while (connections_.num_unsent() > 0 && steady_now() < until) connections_.wait(kSendGraceMs);
  }

  void look_at_files() {
    if (const auto line = keys_.look(steady_now())) {
      connections_.set_keys(keys_.keys());
      if (log_) log_(*line);
    }
    if (const auto line = tls_.look(steady_now(), wall_seconds())) {
      connections_.set_tls(tls_.context());
      if (log_) log_(*line);
    }
  }

  int wait_ms() const {
    int most = kWaitMs;
    for (const auto& next : {keys_.next_look(), tls_.next_look()}) {
      if (!next) continue;
      const int64_t left = (*next - steady_now()).to_nanoseconds() / 1'000'000 + 1;
      most = static_cast<int>(std::clamp<int64_t>(left, 0, most));
    }
    return most;
  }

  void apply_orders() {
    for (Order& order : orders_.receive()) {
      const uint64_t request = order.call.reply.request;
      if (order.call.kind == HttpCall::Kind::kAccept)
        accepts_.push_back(order.id);
      else if (order.call.kind == HttpCall::Kind::kClosed)
        closed_calls_.push_back(order.id);
      else if (order.call.kind == HttpCall::Kind::kAddress)
        give_address(order);
      else if (order.call.reply.has_more)
        new_answers_.push_back(
            {order.id, OutsideEnd::kDone, write_sent(connections_.reply(order.call.reply))});
      else if (connections_.reply(order.call.reply))
        replies_.emplace(request, order.id);
      else
        new_answers_.push_back({order.id, OutsideEnd::kDone, write_sent(false)});
    }
    if (answers_.is_stopped()) connections_.stop();
    give_answers();
  }

  /// The address of a listener does not change: a caller that knows it gets no answer.
  void give_address(const Order& order) {
    if (order.call.known != url_)
      new_answers_.push_back({order.id, OutsideEnd::kDone, write_address(url_)});
  }

  /// Answers the calls that have an answer now.
  void give_answers() {
    while (!accepts_.empty()) {
      auto request = connections_.accept(accepts_.front());
      if (!request) break;
      new_answers_.push_back({accepts_.front(), OutsideEnd::kDone, write_client_request(*request)});
      accepts_.pop_front();
    }
    for (const auto& [request, is_sent] : connections_.remove_replied()) {
      const auto call = replies_.find(request);
      if (call == replies_.end()) continue;
      new_answers_.push_back({call->second, OutsideEnd::kDone, write_sent(is_sent)});
      replies_.erase(call);
    }
    if (!closed_calls_.empty()) {
      const auto closed = connections_.remove_closed(kClosedRequestsMax);
      if (!closed.empty()) {
        new_answers_.push_back({closed_calls_.front(), OutsideEnd::kDone, write_closed(closed)});
        closed_calls_.pop_front();
      }
    }
    answers_.add_all(std::exchange(new_answers_, {}));
  }

  std::atomic<bool> is_ending_{false};
  OrderQueue<Order> orders_;
  AnswerQueue answers_;
  // Constant after open().
  uint16_t port_ = 0;
  std::string url_;
  const std::function<void(std::string_view)> log_;  // may be null
  // Used by the I/O thread.
  KeysFile keys_;
  TlsFiles tls_;
  HttpConnections connections_;
  std::deque<uint64_t> accepts_, closed_calls_;
  std::unordered_map<uint64_t, uint64_t> replies_;  // call by request, until the reply is sent
  std::vector<OutsideAnswer> new_answers_;
  std::thread thread_;
};

}  // namespace

Status validate(const HttpListenerOptions& options) {
  ASSIGN_OR_RETURN(const ListenAddress address, parse_listen_address(options.listen));
  if (!address.is_loopback && options.keys_file.empty() && !options.tenant_tokens)
    return error(Code::kInvalid,
                 "'listen' is '{}', which other machines reach, without 'keys_file'",
                 options.listen)
        .note("name a file with one key per line, or listen on 127.0.0.1");
  if (!options.url.empty() && !options.url.starts_with("http://") &&
      !options.url.starts_with("https://"))
    return error(Code::kInvalid, "'url' is '{}', which does not begin with http:// or https://",
                 options.url)
        .note("name the address by which other machines reach it, without a path");
  if (options.tls_cert.empty() != options.tls_key.empty())
    return error(Code::kInvalid, "'tls_cert' and 'tls_key' belong together: one of them is empty")
        .note("name the files of the certificate and of its key, or neither");
  if (options.bytes_max < options.body_bytes_max)
    return error(Code::kInvalid, "'bytes_max' {} is less than 'body_bytes_max' {}",
                 options.bytes_max, options.body_bytes_max)
        .note("one body could never be accepted");
  return ok();
}

Result<std::shared_ptr<HttpListener>> make_http_listener(
    const HttpListenerOptions& options, const std::function<void(std::string_view)>& log,
    std::span<const std::string> tenants) {
  RETURN_IF_ERROR(validate(options));
  ASSIGN_OR_RETURN(
      KeysFile keys,
      KeysFile::open(options.keys_file, {tenants.begin(), tenants.end()}, options.key_prefix));
  ASSIGN_OR_RETURN(TlsFiles tls, TlsFiles::open(options.tls_cert, options.tls_key));
  auto listener = std::make_shared<ListeningOutside>(options, std::move(keys), std::move(tls), log);
  RETURN_IF_ERROR(listener->open(options));
  if (log) log(fmt::format("listens on {}", listener->url()));
  return std::shared_ptr<HttpListener>(std::move(listener));
}

Result<std::shared_ptr<HttpListener>> make_http_listener(const HttpListenerOptions& options,
                                                         const HttpDoor& door) {
  CHECK(door.holder_of != nullptr, "a door knows no keys");
  RETURN_IF_ERROR(parse_listen_address(options.listen));
  ASSIGN_OR_RETURN(TlsFiles tls, TlsFiles::open(options.tls_cert, options.tls_key));
  auto listener = std::make_shared<ListeningOutside>(options, std::move(tls), door);
  RETURN_IF_ERROR(listener->open(options));
  return std::shared_ptr<HttpListener>(std::move(listener));
}

}  // namespace primerl
