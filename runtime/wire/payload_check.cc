#include "runtime/wire/payload_check.h"

#include <bit>
#include <cstring>

static_assert(std::endian::native == std::endian::little, "words are read as they lie in memory");

namespace primerl {
namespace {

__extension__ using Wide = unsigned __int128;

constexpr uint64_t kOdd0 = 0x9e3779b97f4a7c15;  // 2^64 / golden ratio
constexpr uint64_t kOdd1 = 0xd6e8feb86659fd93;
constexpr uint64_t kOdd2 = 0xa0761d6478bd642f;
constexpr uint64_t kOdd3 = 0xe7037ed1a0b428db;

// The kind is hashed too. So `true`, `1u` and `1` have different checks, and so have a list and its
// flattened items.
enum Kind : uint64_t {
  kStruct = 1,
  kList,
  kBoolean,
  kInteger,
  kUnsigned,
  kNumber,
  kText,
  kBytes,
  kBlob
};

/// Uses both halves of the product, so that every input bit affects every output bit.
uint64_t fold(uint64_t a, uint64_t b) {
  const Wide product = static_cast<Wide>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

uint64_t load(const std::byte* at) {
  uint64_t word;
  std::memcpy(&word, at, sizeof word);
  return word;
}

}  // namespace

uint64_t hash_bytes(std::span<const std::byte> bytes, uint64_t seed) {
  const std::byte* at = bytes.data();
  size_t left = bytes.size();
  uint64_t lanes[4] = {seed ^ kOdd0, seed ^ kOdd1, seed ^ kOdd2, seed ^ kOdd3};
  for (; left >= 64; at += 64, left -= 64) {
    lanes[0] = fold(load(at) ^ lanes[0], load(at + 8) ^ kOdd0);
    lanes[1] = fold(load(at + 16) ^ lanes[1], load(at + 24) ^ kOdd1);
    lanes[2] = fold(load(at + 32) ^ lanes[2], load(at + 40) ^ kOdd2);
    lanes[3] = fold(load(at + 48) ^ lanes[3], load(at + 56) ^ kOdd3);
  }
  uint64_t state =
      lanes[0] ^ std::rotl(lanes[1], 17) ^ std::rotl(lanes[2], 31) ^ std::rotl(lanes[3], 47);
  for (; left >= 8; at += 8, left -= 8) state = fold(load(at) ^ state, kOdd1);
  uint64_t tail = 0;
  if (left > 0) std::memcpy(&tail, at, left);
  state = fold(state ^ tail, kOdd2);
  return fold(state ^ bytes.size(), kOdd3);
}

void PayloadCheck::word(uint64_t kind, uint64_t value) {
  state_ = fold(state_ ^ value, kOdd0 + 2 * kind) + kOdd1;
}

uint64_t PayloadCheck::value() const { return fold(state_ ^ kOdd2, kOdd3); }

void PayloadCheck::begin_struct(size_t num_fields) { word(kStruct, num_fields); }
void PayloadCheck::begin_list(size_t size) { word(kList, size); }
void PayloadCheck::boolean(bool value) {
  num_bytes_ += 8;
  word(kBoolean, value ? 1 : 0);
}
void PayloadCheck::integer(int64_t value) {
  num_bytes_ += 8;
  word(kInteger, static_cast<uint64_t>(value));
}
void PayloadCheck::unsigned_integer(uint64_t value) {
  num_bytes_ += 8;
  word(kUnsigned, value);
}
void PayloadCheck::number(double value) {
  num_bytes_ += 8;
  word(kNumber, std::bit_cast<uint64_t>(value));
}
void PayloadCheck::text(std::string_view value) {
  num_bytes_ += value.size();
  word(kText, hash_bytes(std::as_bytes(std::span(value)), kText));
}
void PayloadCheck::bytes(std::span<const std::byte> value) {
  num_bytes_ += value.size();
  word(kBytes, hash_bytes(value, kBytes));
}
void PayloadCheck::blob(const Blob& value) {
  num_bytes_ += value.size();
  word(kBlob, hash_bytes(value.bytes(), kBlob));
}

uint64_t payload_check(const Payload& payload) {
  PayloadCheck check(payload.type->schema_hash);
  payload.type->write(check, payload.message.get());
  return check.value();
}

}  // namespace primerl
