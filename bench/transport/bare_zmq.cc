#include <zmq.h>

#include <cstring>
#include <fstream>
#include <thread>

#include "bench/transport/bench_peer.h"

namespace primerl {
namespace {

/// First byte of a frame's first part: what the peer must do with it.
enum Kind : uint8_t { kData = 0, kEcho = 1, kEnd = 2 };

/// The address on which the peer listens.
std::string place(const std::string& folder, BareWay way) {
  return fmt::format("{}/bare{}", folder, static_cast<int>(way));
}

void use_keys(void* socket, const std::string& folder, bool is_server) {
  const auto keys = read_key_file(key_file(folder));
  CHECK(keys.ok(), "no keys");
  const int server = is_server ? 1 : 0;
  const auto set = [socket](int option, const std::string& key) {
    CHECK(zmq_setsockopt(socket, option, key.data(), key.size()) == 0, "no CURVE");
  };
  zmq_setsockopt(socket, ZMQ_CURVE_SERVER, &server, sizeof server);
  set(ZMQ_CURVE_SECRETKEY, keys->secret_key.reveal());
  if (is_server) return;
  set(ZMQ_CURVE_PUBLICKEY, keys->public_key);
  set(ZMQ_CURVE_SERVERKEY, keys->public_key);
}

uint8_t* at_of(zmq_msg_t& part) { return static_cast<uint8_t*>(zmq_msg_data(&part)); }

void check(bool is_ok, const char* what) { CHECK(is_ok, what); }

}  // namespace

void leave_word(const std::string& file, const std::string& word) {
  std::ofstream(file + ".new") << word;
  std::filesystem::rename(file + ".new", file);
}

std::string wait_for_word(const std::string& file) {
  while (!std::filesystem::exists(file)) std::this_thread::yield();
  std::ifstream in(file);
  return {std::istreambuf_iterator<char>(in), {}};
}

void run_bare_peer(const std::string& folder, BareWay way) {
  void* context = zmq_ctx_new();
  void* router = zmq_socket(context, ZMQ_ROUTER);
  const int high_water_mark = 8192;
  zmq_setsockopt(router, ZMQ_RCVHWM, &high_water_mark, sizeof high_water_mark);
  if (way == BareWay::kCurve) use_keys(router, folder, true);
  const std::string wanted =
      way == BareWay::kIpc ? "ipc://" + folder + "/bare" : "tcp://127.0.0.1:*";
  check(zmq_bind(router, wanted.c_str()) == 0, "bare bind");
  char bound[256] = {};
  size_t size = sizeof bound;
  zmq_getsockopt(router, ZMQ_LAST_ENDPOINT, bound, &size);
  leave_word(place(folder, way), bound);
  uint64_t num_received = 0;
  while (true) {
    zmq_msg_t id, part;
    zmq_msg_init(&id);
    zmq_msg_init(&part);
    check(zmq_msg_recv(&id, router, 0) >= 0 && zmq_msg_recv(&part, router, 0) >= 0, "bare receive");
    const uint8_t kind = at_of(part)[0];
    const bool wants_grant = zmq_msg_size(&part) > 1 && at_of(part)[1] != 0;
    if (kind == kEcho) {
      zmq_msg_send(&id, router, ZMQ_SNDMORE);
      zmq_msg_send(&part, router, 0);
      continue;
    }
    while (zmq_msg_more(&part)) zmq_msg_recv(&part, router, 0);
    if (kind == kData) ++num_received;
    if (kind == kData && wants_grant) {
      zmq_msg_send(&id, router, ZMQ_SNDMORE);
      zmq_send(router, &num_received, sizeof num_received, 0);
    }
    zmq_msg_close(&id);
    zmq_msg_close(&part);
    if (kind == kEnd) break;
  }
  zmq_close(router);
  zmq_ctx_term(context);
}

BareConnection::BareConnection(const std::string& folder, BareWay way)
    : context_(zmq_ctx_new()), socket_(zmq_socket(context_, ZMQ_DEALER)), memory_(1 << 20) {
  const int high_water_mark = 8192;
  zmq_setsockopt(socket_, ZMQ_SNDHWM, &high_water_mark, sizeof high_water_mark);
  if (way == BareWay::kCurve) use_keys(socket_, folder, false);
  const std::string address = wait_for_word(place(folder, way));
  check(zmq_connect(socket_, address.c_str()) == 0, "bare connect");
}

BareConnection::~BareConnection() {
  const uint8_t end = kEnd;
  zmq_send(socket_, &end, 1, 0);
  zmq_close(socket_);
  zmq_ctx_term(context_);
}

void BareConnection::take_grant(bool waits) {
  uint64_t total = 0;
  while (zmq_recv(socket_, &total, sizeof total, waits ? 0 : ZMQ_DONTWAIT) >= 0) {
    granted_ = total;
    waits = false;
  }
}

void BareConnection::send(uint64_t count, size_t first_bytes, size_t second_bytes,
                          const Window& window) {
  for (uint64_t i = 0; i < count; ++i) {
    while (sent_ - granted_ >= window.messages) take_grant(true);
    zmq_msg_t part;
    zmq_msg_init_size(&part, first_bytes);
    std::memcpy(at_of(part), memory_.data(), first_bytes);
    at_of(part)[0] = kData;
    at_of(part)[1] = (i + 1) % window.grant_every == 0 ? 1 : 0;
    zmq_msg_send(&part, socket_, second_bytes > 0 ? ZMQ_SNDMORE : 0);
    if (second_bytes > 0) {
      zmq_msg_init_data(
          &part, memory_.data(), second_bytes, [](void*, void*) {}, nullptr);
      zmq_msg_send(&part, socket_, 0);
    }
    ++sent_;
    if (i % 64 == 0) take_grant(false);
  }
  while (granted_ < sent_) take_grant(true);
}

void BareConnection::round_trip(size_t bytes) {
  memory_[0] = std::byte{kEcho};
  zmq_send(socket_, memory_.data(), bytes, 0);
  zmq_recv(socket_, memory_.data(), memory_.size(), 0);
  memory_[0] = std::byte{kData};
}

}  // namespace primerl
