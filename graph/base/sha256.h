/// SHA-256 (FIPS 180-4) of libcrypto, which uses the machine's instructions for it.
///
/// sha256() hashes one buffer. A Sha256Stream hashes many small ones and allocates only for the
/// first; it belongs to one thread at a time.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>

namespace primerl {

using Sha256 = std::array<std::byte, 32>;

Sha256 sha256(std::span<const std::byte> bytes);

class Sha256Stream {
 public:
  Sha256Stream();
  ~Sha256Stream();
  Sha256Stream(Sha256Stream&&) noexcept;
  Sha256Stream& operator=(Sha256Stream&&) noexcept;

  Sha256 hash(std::span<const std::byte> bytes);

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

}  // namespace primerl
