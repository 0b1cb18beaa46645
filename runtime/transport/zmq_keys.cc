#include <string.h>
#include <sys/random.h>
#include <zmq.h>

#include <array>

#include "runtime/transport/keys.h"

namespace primerl {

std::string draw_word() {
  std::array<uint64_t, 2> drawn{};
  CHECK(::getrandom(drawn.data(), sizeof drawn, 0) == sizeof drawn,
        "the system gives no random bytes");
  return fmt::format("{:016x}{:016x}", drawn[0], drawn[1]);
}

KeyPair make_key_pair() {
  std::array<char, kKeyTextBytes + 1> public_key{};
  std::array<char, kKeyTextBytes + 1> secret_key{};
  // A public key is used as a command argument, so it must not begin like a flag.
  do {
    CHECK(zmq_curve_keypair(public_key.data(), secret_key.data()) == 0,
          "ZeroMQ was built without CURVE");
  } while (public_key[0] == '-');
  KeyPair keys{public_key.data(), SecretKey(secret_key.data())};
  explicit_bzero(secret_key.data(), secret_key.size());
  return keys;
}

bool is_public_key(std::string_view text) {
  if (text.size() != kKeyTextBytes) return false;
  std::array<uint8_t, 32> key{};
  const std::string terminated(text);
  return zmq_z85_decode(key.data(), terminated.c_str()) != nullptr;
}

}  // namespace primerl
