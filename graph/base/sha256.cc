#include "graph/base/sha256.h"

#include <openssl/evp.h>

#include "graph/base/assert.h"

namespace primerl {
namespace {

unsigned char* bytes_of(Sha256& hash) { return reinterpret_cast<unsigned char*>(hash.data()); }

}  // namespace

Sha256 sha256(std::span<const std::byte> bytes) {
  Sha256 hash{};
  const int done =
      EVP_Digest(bytes.data(), bytes.size(), bytes_of(hash), nullptr, EVP_sha256(), nullptr);
  CHECK(done == 1, "libcrypto has no SHA-256");
  return hash;
}

struct Sha256Stream::Context {
  Context() {
    CHECK(EVP_DigestInit_ex(digest, EVP_sha256(), nullptr) == 1, "libcrypto has no SHA-256");
  }
  ~Context() { EVP_MD_CTX_free(digest); }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  EVP_MD_CTX* digest = EVP_MD_CTX_new();
};

Sha256Stream::Sha256Stream() : context_(std::make_unique<Context>()) {}
Sha256Stream::~Sha256Stream() = default;
Sha256Stream::Sha256Stream(Sha256Stream&&) noexcept = default;
Sha256Stream& Sha256Stream::operator=(Sha256Stream&&) noexcept = default;

Sha256 Sha256Stream::hash(std::span<const std::byte> bytes) {
  Sha256 hash{};
  // With a null type the context keeps its current type.
  const bool done = EVP_DigestInit_ex(context_->digest, nullptr, nullptr) == 1 &&
                    EVP_DigestUpdate(context_->digest, bytes.data(), bytes.size()) == 1 &&
                    EVP_DigestFinal_ex(context_->digest, bytes_of(hash), nullptr) == 1;
  CHECK(done, "libcrypto cannot hash");
  return hash;
}

}  // namespace primerl
