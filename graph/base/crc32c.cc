#include "graph/base/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace primerl {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78U;

constexpr std::array<uint32_t, 256> make_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1) != 0 ? (crc >> 1) ^ kPolynomial : crc >> 1;
    table[byte] = crc;
  }
  return table;
}

constexpr auto kTable = make_table();

#if defined(__x86_64__)

// A linear map of CRC registers: row i is the result for bit i.
using Matrix = std::array<uint32_t, 32>;

constexpr uint32_t times(const Matrix& matrix, uint32_t value) {
  uint32_t sum = 0;
  for (int bit = 0; value != 0; value >>= 1, ++bit)
    if ((value & 1) != 0) sum ^= matrix[static_cast<size_t>(bit)];
  return sum;
}

// The register after 2^doublings zero bits, by table look-up per byte.
struct Skip {
  std::array<std::array<uint32_t, 256>, 4> table{};
  uint32_t operator()(uint32_t crc) const {
    return table[0][crc & 0xff] ^ table[1][(crc >> 8) & 0xff] ^ table[2][(crc >> 16) & 0xff] ^
           table[3][crc >> 24];
  }
};

constexpr Skip make_skip(int doublings) {
  Matrix matrix{};
  matrix[0] = kPolynomial;
  for (size_t bit = 1; bit < 32; ++bit) matrix[bit] = uint32_t{1} << (bit - 1);
  for (int i = 0; i < doublings; ++i) {
    Matrix squared{};
    for (size_t bit = 0; bit < 32; ++bit) squared[bit] = times(matrix, matrix[bit]);
    matrix = squared;
  }
  Skip skip;
  for (size_t place = 0; place < 4; ++place)
    for (uint32_t byte = 0; byte < 256; ++byte)
      skip.table[place][byte] = times(matrix, byte << (8 * place));
  return skip;
}

constexpr size_t kLongBytes = 4096, kShortBytes = 256;
constexpr Skip kSkipLong = make_skip(12 + 3);
constexpr Skip kSkipShort = make_skip(8 + 3);

uint64_t word_at(const std::byte* at) {
  uint64_t word = 0;
  std::memcpy(&word, at, sizeof(word));
  return word;
}

// Three interleaved streams of `stride` bytes each, then combined: the instruction accepts one
// operand per cycle.
__attribute__((target("sse4.2"))) inline uint64_t three_streams(const std::byte*& at, size_t& left,
                                                                size_t stride, const Skip& skip,
                                                                uint64_t crc) {
  while (left >= 3 * stride) {
    uint64_t second = 0, third = 0;
    for (size_t i = 0; i < stride; i += 8) {
      crc = _mm_crc32_u64(crc, word_at(at + i));
      second = _mm_crc32_u64(second, word_at(at + stride + i));
      third = _mm_crc32_u64(third, word_at(at + 2 * stride + i));
    }
    crc = skip(static_cast<uint32_t>(crc)) ^ second;
    crc = skip(static_cast<uint32_t>(crc)) ^ third;
    at += 3 * stride;
    left -= 3 * stride;
  }
  return crc;
}

__attribute__((target("sse4.2"))) uint32_t crc32c_by_instruction(std::span<const std::byte> bytes,
                                                                 uint32_t before) {
  uint64_t crc = ~before;
  const std::byte* at = bytes.data();
  size_t left = bytes.size();
  if (left >= 3 * kShortBytes) {
    crc = three_streams(at, left, kLongBytes, kSkipLong, crc);
    crc = three_streams(at, left, kShortBytes, kSkipShort, crc);
  }
  for (; left >= 8; at += 8, left -= 8) crc = _mm_crc32_u64(crc, word_at(at));
  auto narrow = static_cast<uint32_t>(crc);
  for (; left > 0; ++at, --left) narrow = _mm_crc32_u8(narrow, static_cast<uint8_t>(*at));
  return ~narrow;
}

#endif

using Function = uint32_t (*)(std::span<const std::byte>, uint32_t);

Function choose() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("sse4.2")) return crc32c_by_instruction;
#endif
  return crc32c_by_table;
}

}  // namespace

uint32_t crc32c_by_table(std::span<const std::byte> bytes, uint32_t before) {
  uint32_t crc = ~before;
  for (const std::byte b : bytes) crc = (crc >> 8) ^ kTable[(crc ^ static_cast<uint8_t>(b)) & 0xff];
  return ~crc;
}

uint32_t crc32c(std::span<const std::byte> bytes, uint32_t before) {
  static const Function function = choose();
  return function(bytes, before);
}

uint32_t crc32c(std::string_view bytes, uint32_t before) {
  return crc32c(std::as_bytes(std::span(bytes)), before);
}

uint32_t masked_crc32c(std::string_view bytes) {
  const uint32_t crc = crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8U;
}

}  // namespace primerl
