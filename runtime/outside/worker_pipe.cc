#include "runtime/outside/worker_pipe.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <span>

namespace primerl {
namespace {

constexpr std::string_view kProtocol = "primerl-graph 1";
constexpr size_t kReadBytes = size_t{64} << 10;

/// Reads once. Positive: bytes; 0: closed; negative: nothing is there now.
ssize_t read_some(int fd, std::span<char> buffer) {
  ssize_t size = 0;
  do size = ::read(fd, buffer.data(), buffer.size());
  while (size < 0 && errno == EINTR);
  if (size < 0 && errno != EAGAIN && errno != EWOULDBLOCK) return 0;
  return size;
}

Result<bool> flag_at(const Json& line, std::string_view key, bool otherwise) {
  if (line.find(key) == nullptr) return otherwise;
  return line.get_bool(key);
}

}  // namespace

Result<OutsideHello> read_hello(const Json& line) {
  ASSIGN_OR_RETURN(const std::string protocol, line.get_string("protocol"));
  if (protocol != kProtocol)
    return error(Code::kInvalid, "'protocol' is '{}', not '{}'", protocol, kProtocol);
  OutsideHello hello;
  if (line.find("concurrency") != nullptr) {
    ASSIGN_OR_RETURN(hello.concurrency, line.get_int("concurrency"));
  }
  if (hello.concurrency < 1 || hello.concurrency > kOutsideConcurrencyMax)
    return error(Code::kInvalid, "'concurrency' {} is not from 1 to {}", hello.concurrency,
                 kOutsideConcurrencyMax);
  ASSIGN_OR_RETURN(hello.in_order, flag_at(line, "in_order", hello.concurrency == 1));
  ASSIGN_OR_RETURN(hello.can_replay, flag_at(line, "replay", true));
  return hello;
}

void WorkerPipe::send(OutsideCall call, Time now) {
  std::string line = fmt::format("{{\"id\":{},\"attempt\":{}", call.id, call.attempt);
  const std::string_view rest = std::string_view(call.body).substr(1);
  line += rest == "}" ? "" : ",";
  line += rest;
  send_line(line);
  const uint64_t id = call.id;
  order_.push_back(id);
  sent_.insert_or_assign(id, Sent{std::move(call), now});
}

void WorkerPipe::send_line(const std::string& line) {
  to_write_ += line;
  to_write_ += '\n';
}

std::optional<OutsideCall> WorkerPipe::remove(uint64_t id, Time now) {
  const auto found = sent_.find(id);
  if (found == sent_.end()) return std::nullopt;
  last_answer_ = now;
  OutsideCall call = std::move(found->second.call);
  sent_.erase(found);
  while (!order_.empty() && !sent_.contains(order_.front())) order_.pop_front();
  return call;
}

std::vector<OutsideCall> WorkerPipe::remove_all() {
  std::vector<OutsideCall> calls;
  for (const uint64_t id : order_)  // has also calls that were answered
    if (const auto found = sent_.find(id); found != sent_.end()) {
      calls.push_back(std::move(found->second.call));
      sent_.erase(found);
    }
  for (auto& [id, sent] : sent_) calls.push_back(std::move(sent.call));
  sent_.clear();
  order_.clear();
  return calls;
}

void WorkerPipe::add_polls(std::vector<pollfd>& polls) const {
  polls.push_back({process_->output(), POLLIN, 0});
  polls.push_back({process_->errors(), POLLIN, 0});
  if (!to_write_.empty()) polls.push_back({process_->input(), POLLOUT, 0});
}

void WorkerPipe::write_more() {
  size_t written = 0;
  while (written < to_write_.size()) {
    const ssize_t size =
        ::write(process_->input(), to_write_.data() + written, to_write_.size() - written);
    if (size < 0 && errno == EINTR) continue;
    if (size < 0 && errno != EAGAIN) {  // it reads no more; its end comes as the end of its output
      to_write_.clear();
      return;
    }
    if (size < 0) break;
    written += static_cast<size_t>(size);
  }
  to_write_.erase(0, written);
}

Result<std::vector<std::string>> WorkerPipe::read_lines(size_t bytes_max) {
  std::vector<std::string> lines;
  std::array<char, kReadBytes> buffer;
  while (true) {
    const ssize_t size = read_some(process_->output(), buffer);
    if (size == 0) is_gone_ = true;
    if (size <= 0) break;
    std::string_view bytes(buffer.data(), static_cast<size_t>(size));
    while (!bytes.empty()) {
      const size_t end = bytes.find('\n');
      partial_ += bytes.substr(0, end);
      if (partial_.size() > bytes_max)
        return error(Code::kExhausted, "an answer is longer than {} bytes", bytes_max);
      if (end == std::string_view::npos) break;
      if (!partial_.empty()) lines.push_back(std::move(partial_));
      partial_.clear();
      bytes.remove_prefix(end + 1);
    }
    if (std::cmp_less(size, kReadBytes)) break;
  }
  return lines;
}

std::vector<std::string> WorkerPipe::read_log() {
  std::vector<std::string> lines;
  std::array<char, kReadBytes> buffer;
  if (process_->errors() < 0) return lines;
  const ssize_t size = read_some(process_->errors(), buffer);
  if (size == 0) process_->close_errors();
  for (ssize_t i = 0; i < size; ++i) {
    const char byte = buffer[static_cast<size_t>(i)];
    if (byte != '\n') {
      if (partial_log_.size() < kLogLineBytesMax) partial_log_.push_back(byte);
      continue;
    }
    last_log_ = partial_log_;
    if (++num_log_lines_ <= kLogLinesMax) lines.push_back(std::move(partial_log_));
    if (num_log_lines_ == kLogLinesMax)
      lines.push_back(fmt::format("({} lines; further ones are not shown)", kLogLinesMax));
    partial_log_.clear();
  }
  return lines;
}

std::optional<uint64_t> WorkerPipe::late_call(Time now, Duration call_timeout) const {
  if (!is_ready()) return std::nullopt;
  for (const uint64_t id : order_) {
    const auto found = sent_.find(id);
    if (found == sent_.end()) continue;
    const Time since =
        hello_->in_order ? std::max(found->second.since, last_answer_) : found->second.since;
    if (now - since >= call_timeout) return id;
    // Calls were sent in this order, so the later ones have more time left.
    return std::nullopt;
  }
  return std::nullopt;
}

std::optional<Time> WorkerPipe::next_deadline(Duration call_timeout, Duration start_timeout) const {
  if (!is_ready()) return started_ + start_timeout;
  for (const uint64_t id : order_)
    if (const auto found = sent_.find(id); found != sent_.end())
      return (hello_->in_order ? std::max(found->second.since, last_answer_)
                               : found->second.since) +
             call_timeout;
  return std::nullopt;
}

}  // namespace primerl
