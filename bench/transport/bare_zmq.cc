#include <zmq.h>

#include <cstring>

#include "bench/transport/bench_peer.h"

namespace primerl {
namespace {

/// First byte of a frame's first part: what the peer does with it.
enum Kind : uint8_t { kData = 0, kEcho = 1, kEnd = 2 };

std::string address(const std::string& folder) { return "ipc://" + folder + "/bare"; }

uint8_t* at_of(zmq_msg_t& part) { return static_cast<uint8_t*>(zmq_msg_data(&part)); }

void check(bool is_ok, const char* what) { CHECK(is_ok, what); }

}  // namespace

void run_bare_peer(const std::string& folder) {
  void* context = zmq_ctx_new();
  void* router = zmq_socket(context, ZMQ_ROUTER);
  const int high_water_mark = 8192;
  zmq_setsockopt(router, ZMQ_RCVHWM, &high_water_mark, sizeof high_water_mark);
  check(zmq_bind(router, address(folder).c_str()) == 0, "bare bind");
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

BareLink::BareLink(const std::string& folder)
    : context_(zmq_ctx_new()), socket_(zmq_socket(context_, ZMQ_DEALER)), memory_(1 << 20) {
  const int high_water_mark = 8192;
  zmq_setsockopt(socket_, ZMQ_SNDHWM, &high_water_mark, sizeof high_water_mark);
  check(zmq_connect(socket_, address(folder).c_str()) == 0, "bare connect");
}

BareLink::~BareLink() {
  const uint8_t end = kEnd;
  zmq_send(socket_, &end, 1, 0);
  zmq_close(socket_);
  zmq_ctx_term(context_);
}

void BareLink::take_grant(bool waits) {
  uint64_t total = 0;
  while (zmq_recv(socket_, &total, sizeof total, waits ? 0 : ZMQ_DONTWAIT) >= 0) {
    granted_ = total;
    waits = false;
  }
}

void BareLink::send(uint64_t count, size_t first_bytes, size_t second_bytes, const Window& window) {
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

void BareLink::round_trip(size_t bytes) {
  memory_[0] = std::byte{kEcho};
  zmq_send(socket_, memory_.data(), bytes, 0);
  zmq_recv(socket_, memory_.data(), memory_.size(), 0);
  memory_[0] = std::byte{kData};
}

}  // namespace primerl
