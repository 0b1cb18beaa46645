#include "graph/base/random.h"

namespace primerl {
namespace {

constexpr uint32_t kMultiplierA = 0xD2511F53, kMultiplierB = 0xCD9E8D57;
constexpr uint32_t kWeylA = 0x9E3779B9, kWeylB = 0xBB67AE85;
constexpr double kTwoToMinus53 = 1.0 / 9007199254740992.0;

uint64_t finalize(uint64_t x) {
  x ^= x >> 30;
  x *= 0xBF58476D1CE4E5B9ULL;
  x ^= x >> 27;
  x *= 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

uint64_t draw(uint64_t key, uint64_t index) {
  const auto block =
      philox({static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), 0, 0},
             {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)});
  return static_cast<uint64_t>(block[0]) | static_cast<uint64_t>(block[1]) << 32;
}

}  // namespace

std::array<uint32_t, 4> philox(std::array<uint32_t, 4> c, std::array<uint32_t, 2> k) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = static_cast<uint64_t>(kMultiplierA) * c[0];
    const uint64_t b = static_cast<uint64_t>(kMultiplierB) * c[2];
    c = {static_cast<uint32_t>(b >> 32) ^ c[1] ^ k[0], static_cast<uint32_t>(b),
         static_cast<uint32_t>(a >> 32) ^ c[3] ^ k[1], static_cast<uint32_t>(a)};
    k[0] += kWeylA;
    k[1] += kWeylB;
  }
  return c;
}

uint64_t stable_hash(std::string_view text, uint64_t seed) {
  uint64_t hash = 0xCBF29CE484222325ULL ^ finalize(seed);
  for (const char byte : text) {
    hash ^= static_cast<unsigned char>(byte);
    hash *= 0x100000001B3ULL;
  }
  return finalize(hash);
}

uint64_t mix(uint64_t a, uint64_t b) { return finalize(a ^ finalize(b + 0x9E3779B97F4A7C15ULL)); }

uint64_t RandomStream::next() { return draw(key_, index_++); }

double RandomStream::uniform() { return static_cast<double>(next() >> 11) * kTwoToMinus53; }

uint64_t RandomStream::below(uint64_t bound) {
  // Rejects the first (2^64 mod bound) values, so that every result is equally likely.
  const uint64_t reject_below = (0 - bound) % bound;
  uint64_t value = next();
  while (value < reject_below) value = next();
  return value % bound;
}

double sampling_uniform(uint64_t seed, uint64_t position) {
  return static_cast<double>(draw(seed, position) >> 11) * kTwoToMinus53;
}

}  // namespace primerl
