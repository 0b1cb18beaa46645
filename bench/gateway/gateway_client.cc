// Clients of a gateway: an open or a closed loop over keep-alive connections, and idle connections.
//
//   gateway_client PORT open RATE CONNECTIONS SECONDS     RATE requests/s, whatever the replies do
//   gateway_client PORT closed 0 CONNECTIONS SECONDS      each connection sends after its reply
//   gateway_client PORT idle PID CONNECTIONS SECONDS      open connections, and the memory of PID
//
// It prints one line of JSON. The latency of an open loop counts from the time at which the request
// was due, also while it waits for a free connection, so a slow gateway cannot hide its queue.
//
// Bound: one request is two system calls of the client and about five of the listener, 20 us
// together, and one record note, GenerateRequest, Completion and reply in the run, about 60 us. Two
// cores shared by client, I/O thread and actors give about 15,000 requests/s.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <string>
#include <vector>

#include "graph/base/descriptor.h"
#include "graph/base/real_clock.h"

namespace primerl {
namespace {

std::string request_text(uint64_t number) {
  const std::string body = fmt::format(
      R"({{"model":"main","token_ids":[5,6,7,8],"sampling_params":{{"max_tokens":4,"seed":{}}}}})",
      number);
  return fmt::format(
      "POST /inference/v1/generate HTTP/1.1\r\nHost: localhost\r\nX-Session-ID: {}\r\n"
      "Content-Length: {}\r\n\r\n{}",
      number, body.size(), body);
}

struct Client {
  Descriptor socket;
  bool is_busy = false;
  Time due;
  std::string heard;
};

int connected(uint16_t port) {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(socket, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    fmt::print(stderr, "cannot connect to port {}\n", port);
    std::exit(1);
  }
  const int yes = 1;
  (void)::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  return socket;
}

/// Whether `heard` has a whole reply; it is removed. `status` is its status.
bool remove_reply(std::string& heard, int& status) {
  const size_t head_end = heard.find("\r\n\r\n");
  if (head_end == std::string::npos) return false;
  const size_t length_at = heard.find("Content-Length: ");
  const size_t length = std::strtoull(heard.c_str() + length_at + 16, nullptr, 10);
  if (heard.size() < head_end + 4 + length) return false;
  status = std::atoi(heard.c_str() + 9);
  heard.erase(0, head_end + 4 + length);
  return true;
}

class Loop {
 public:
  Loop(uint16_t port, double rate, size_t num_connections, double seconds)
      : rate_(rate), seconds_(seconds), epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
    clients_.resize(num_connections);
    for (size_t i = 0; i < num_connections; ++i) {
      clients_[i].socket = Descriptor(connected(port));
      epoll_event event{};
      event.events = EPOLLIN;
      event.data.u64 = i;
      (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, clients_[i].socket.get(), &event);
      free_.push_back(i);
    }
  }

  void run() {
    begin_ = steady_now();
    const Time end = begin_ + Duration::from_seconds(seconds_);
    // Replies of the last requests still count.
    const Time last = end + Duration::seconds(10);
    while (steady_now() < end || (num_open_ > 0 && steady_now() < last)) {
      if (steady_now() < end) send_due();
      receive();
    }
    report();
  }

 private:
  void send_due() {
    const Time now = steady_now();
    if (rate_ <= 0) {
      while (!free_.empty()) send(now);
      return;
    }
    while (begin_ + Duration::from_seconds(static_cast<double>(num_due_) / rate_) <= now) {
      due_.push_back(begin_ + Duration::from_seconds(static_cast<double>(num_due_) / rate_));
      ++num_due_;
    }
    for (; !due_.empty() && !free_.empty(); due_.pop_front()) send(due_.front());
  }

  void send(Time due) {
    Client& client = clients_[free_.front()];
    free_.pop_front();
    client.due = due;
    client.is_busy = true;
    ++num_open_;
    const std::string text = request_text(++num_sent_);
    if (::send(client.socket.get(), text.data(), text.size(), MSG_NOSIGNAL) !=
        static_cast<ssize_t>(text.size()))
      ++num_failed_;
  }

  void receive() {
    epoll_event events[256];
    const int count = ::epoll_wait(epoll_.get(), events, 256, 1);
    for (int i = 0; i < count; ++i) {
      const size_t index = events[i].data.u64;
      Client& client = clients_[index];
      char block[16384];
      const ssize_t got = ::recv(client.socket.get(), block, sizeof block, MSG_DONTWAIT);
      if (got <= 0) continue;
      client.heard.append(block, static_cast<size_t>(got));
      int status = 0;
      if (!remove_reply(client.heard, status)) continue;
      if (status != 200) ++num_failed_;
      seconds_of_each_.push_back((steady_now() - client.due).to_seconds());
      client.is_busy = false;
      --num_open_;
      free_.push_back(index);
    }
  }

  void report() {
    std::ranges::sort(seconds_of_each_);
    const auto at = [this](double share) {
      if (seconds_of_each_.empty()) return 0.0;
      const auto index = static_cast<size_t>(share * static_cast<double>(seconds_of_each_.size()));
      return 1e3 * seconds_of_each_[std::min(index, seconds_of_each_.size() - 1)];
    };
    fmt::print(
        "{{\"sent\": {}, \"replies\": {}, \"failed\": {}, \"open\": {}, \"not_sent\": {}, "
        "\"requests_s\": {:.0f}, \"p50_ms\": {:.2f}, \"p99_ms\": {:.2f}, \"max_ms\": {:.2f}}}\n",
        num_sent_, seconds_of_each_.size(), num_failed_, num_open_, due_.size(),
        static_cast<double>(seconds_of_each_.size()) / seconds_, at(0.5), at(0.99), at(1));
  }

  const double rate_, seconds_;
  const Descriptor epoll_;
  std::vector<Client> clients_;
  std::deque<size_t> free_;
  std::deque<Time> due_;
  std::vector<double> seconds_of_each_;
  Time begin_;
  uint64_t num_due_ = 0, num_sent_ = 0, num_failed_ = 0;
  int64_t num_open_ = 0;
};

int64_t resident_kb(const std::string& pid) {
  std::ifstream status("/proc/" + pid + "/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmRSS:")) return std::atoll(line.c_str() + 6);
  return 0;
}

int idle(uint16_t port, const std::string& pid, size_t num_connections) {
  const int64_t before = resident_kb(pid);
  std::vector<Descriptor> sockets;
  for (size_t i = 0; i < num_connections; ++i) {
    sockets.emplace_back(connected(port));
    // One request over each, so that the listener has read from it.
    const std::string text = "GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n";
    char block[4096];
    if (::send(sockets.back().get(), text.data(), text.size(), MSG_NOSIGNAL) < 0 ||
        ::recv(sockets.back().get(), block, sizeof block, 0) <= 0)
      return 1;
  }
  fmt::print("{{\"connections\": {}, \"before_kb\": {}, \"with_them_kb\": {}}}\n", num_connections,
             before, resident_kb(pid));
  return 0;
}

int main_of(const std::vector<std::string>& words) {
  if (words.size() != 6) {
    fmt::print(stderr, "gateway_client PORT open|closed|idle RATE|PID CONNECTIONS SECONDS\n");
    return 3;
  }
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  const auto port = static_cast<uint16_t>(std::stoi(words[1]));
  const size_t num_connections = std::stoul(words[4]);
  if (words[2] == "idle") return idle(port, words[3], num_connections);
  Loop loop(port, words[2] == "open" ? std::stod(words[3]) : 0, num_connections,
            std::stod(words[5]));
  loop.run();
  return 0;
}

}  // namespace
}  // namespace primerl

int main(int argc, char** argv) { return primerl::main_of({argv, argv + argc}); }
