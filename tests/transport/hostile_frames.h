/// Frames that an attacker may send to the port of a connection, for tests.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "graph/base/bytes.h"
#include "graph/base/random.h"
#include "runtime/transport/keys.h"
#include "runtime/transport/zmq_socket.h"
#include "runtime/wire/msgpack_codec.h"
#include "runtime/wire/peer_frame.h"

namespace primerl {

/// The facts that an attacker may know: everything except the pass and the keys can be guessed or
/// read.
struct KnownLink {
  PeerGreeting greeting;  // correct except for its pass
  ProcessId process;      // the process that it claims to be
  uint32_t incarnation = 1;
  uint32_t peer_incarnation = 1;
};

/// Header and payload as one part, with a valid check.
inline std::vector<std::byte> hostile_frame(PeerFrameHeader header,
                                            std::span<const std::byte> payload) {
  header.payload_bytes = payload.size();
  header.check = frame_check(header, frame_payload_hash(payload, {}));
  std::vector<std::byte> bytes(kPeerFrameHeaderBytes);
  encode_peer_frame_header(header, std::span(bytes).first<kPeerFrameHeaderBytes>());
  bytes.insert(bytes.end(), payload.begin(), payload.end());
  return bytes;
}

inline std::vector<std::vector<std::byte>> hostile_frames(const KnownLink& known) {
  std::vector<std::vector<std::byte>> all;
  RandomStream random(7);
  for (const size_t size : {0, 1, 2, 47, 48, 49, 4096}) {
    auto& garbage = all.emplace_back(size);
    for (std::byte& each : garbage) each = static_cast<std::byte>(random.next());
  }
  PeerFrameHeader header;
  header.incarnation = known.incarnation;
  header.peer_incarnation = known.peer_incarnation;
  header.process = known.process;
  const auto greet = [&](uint32_t incarnation, const auto& change) {
    PeerGreeting greeting = known.greeting;
    change(greeting);
    const auto body = encode_in_body(Payload::of(std::move(greeting)));
    header.kind = PeerFrameKind::kHello;
    header.sequence = 0;
    header.incarnation = incarnation;
    all.push_back(hostile_frame(header, body->body));
    header.incarnation = known.incarnation;
  };
  const auto nothing = [](PeerGreeting&) {};
  greet(known.incarnation, nothing);  // correct except for the pass
  greet(known.incarnation, [](auto& it) { it.pass = std::string(32, '0'); });
  greet(known.incarnation, [](auto& it) { it.run = "another"; });
  greet(known.incarnation, [](auto& it) { it.run = std::string(3900, 'r'); });
  greet(known.incarnation, [](auto& it) { it.name = std::string(3900, 'n'); });
  greet(known.incarnation, [](auto& it) { it.received = UINT64_MAX; });
  for (const uint32_t incarnation : {0u, known.incarnation + 1, UINT32_MAX})
    greet(incarnation, nothing);
  // Every kind, with a valid number, without a greeting before; then all again, as a replay attack.
  for (int round = 0; round < 2; ++round)
    for (uint8_t kind = 1; kind <= 13; ++kind) {
      header.kind = static_cast<PeerFrameKind>(kind);
      header.sequence = is_numbered(header.kind) ? 1 : 0;
      header.acknowledged = UINT64_MAX;
      all.push_back(hostile_frame(header, std::vector<std::byte>(kind >= 8 ? 48 : 0)));
    }
  // Damaged frames, more than enough to end a connection; then a frame of another version.
  header.kind = PeerFrameKind::kProbe;
  header.sequence = header.acknowledged = 0;
  auto damaged = hostile_frame(header, {}), other_version = damaged;
  damaged[40] ^= std::byte{1};
  other_version[2] = std::byte{99};
  all.insert(all.end(), 64, damaged);
  all.insert(all.end(), 8, other_version);
  return all;
}

/// The routing id of a process's connection, as far as others can know it.
inline std::string hostile_route(ProcessId process, uint32_t incarnation, uint32_t attempt) {
  std::string id(13, 'P');
  auto* at = reinterpret_cast<std::byte*>(id.data());
  put_number<uint32_t>(at + 1, process.value);
  put_number<uint32_t>(at + 5, incarnation);
  put_number<uint32_t>(at + 9, attempt);
  return id + draw_word();
}

/// Sends frames on its own connections; frames that cannot be sent now are dropped.
class Attacker {
 public:
  /// With `keys` and the listener's key it uses CURVE.
  void connect(const std::string& address, const std::string& route,
               const std::optional<KeyPair>& keys = std::nullopt,
               const std::string& listener_key = {}) {
    ZmqSocketSettings settings;
    settings.routing_id = route;
    if (keys) {
      settings.public_key = keys->public_key;
      settings.secret_key = keys->secret_key.reveal();
      settings.server_key = listener_key;
    }
    auto socket = open_socket(context_, ZmqKind::kDealer, settings);
    if (!socket.ok() || !connect_socket(*socket, address).ok()) return;
    sockets_.push_back(std::move(socket).value());
  }
  /// Returns how many were sent, alone or with a second and a third part.
  size_t send(const std::vector<std::vector<std::byte>>& frames) {
    size_t num_sent = 0;
    for (size_t i = 0; i < frames.size(); ++i)
      for (zmq::socket_t& socket : sockets_) {
        std::array<zmq::message_t, 3> parts;
        const size_t count = i % 16 == 5 ? 3 : i % 16 == 9 ? 2 : 1;
        for (size_t part = 0; part < count; ++part) parts[part] = message_of(frames[i]);
        num_sent += send_parts(socket, std::span(parts).first(count)) ? 1 : 0;
      }
    return num_sent;
  }

 private:
  zmq::context_t context_;
  std::vector<zmq::socket_t> sockets_;
};

/// Sends bytes that are not ZeroMQ, or only begin like it, to "tcp://127.0.0.1:port". Some
/// connections are left open. Closed with the object.
class RawConnections {
 public:
  RawConnections() = default;
  RawConnections(const RawConnections&) = delete;
  RawConnections& operator=(const RawConnections&) = delete;
  ~RawConnections() {
    for (const int fd : fds_) ::close(fd);
  }
  void connect(uint16_t port, std::string_view bytes) {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return;
    fds_.push_back(fd);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons(port);
    if (::connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0) return;
    [[maybe_unused]] const auto sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  /// Noise, a silent connection, and ZMTP greetings of several mechanisms.
  void attack(uint16_t port) {
    connect(port, "");
    connect(port, std::string(4096, 'x'));
    connect(port, std::string("\xff\0\0\0\0\0\0\0\x01\x7f", 10));
    for (const std::string_view mechanism : {"NULL", "PLAIN", "CURVE", "NOTHING"}) {
      std::string greeting("\xff\0\0\0\0\0\0\0\x01\x7f\x03\x01", 12);
      greeting += mechanism;
      greeting.resize(64, '\0');
      connect(port, greeting + std::string("\x04\xff", 2) + std::string(300, '\x7f'));
    }
  }

 private:
  std::vector<int> fds_;
};

inline uint16_t port_of(const std::string& address) {
  return static_cast<uint16_t>(std::stoul(address.substr(address.rfind(':') + 1)));
}

}  // namespace primerl
