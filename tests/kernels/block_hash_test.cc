#include "kernels/engine/block_hash.h"

#include <gtest/gtest.h>

#include <set>

#include "graph/base/files.h"
#include "graph/base/json.h"

namespace primerl {
namespace {

std::string hex_of(const BlockChain& chain) {
  std::string text;
  for (size_t i = 0; i < 16; ++i)
    text += fmt::format("{:02x}", static_cast<unsigned>(chain.hash[i]));
  return text;
}

// The vectors are computed by hashlib (make_block_hashes.py). If two machines, releases or
// languages computed different names, they would never find each other's blocks, without any error.
TEST(BlockHash, NamesAreThoseOfTheGoldenVectors) {
  const std::filesystem::path source = PRIMERL_SOURCE_DIR;
  const auto text = read_text_file(source / "tests/kernels/fixtures/block_hashes.json", 1 << 20);
  ASSERT_TRUE(text.ok());
  const auto cases = parse_json(text.value(), "block_hashes.json");
  ASSERT_TRUE(cases.ok());
  std::set<std::string> first_names;
  for (const auto& one : cases.value().as_array()) {
    std::vector<int32_t> tokens;
    for (const auto& token : one.find("tokens")->as_array())
      tokens.push_back(static_cast<int32_t>(token.as_int()));
    const auto size = static_cast<int32_t>(one.find("block_size")->as_int());
    BlockHasher hasher(one.find("fingerprint")->as_string(), one.find("layout")->as_string(),
                       size);
    const std::string salt = one.find("salt")->as_string();
    const BlockScope scope{{TenantSlot(static_cast<uint32_t>(one.find("tenant")->as_int())),
                            AdapterId(static_cast<uint32_t>(one.find("adapter")->as_int()))},
                           salt,
                           PolicyVersion(one.find("version")->as_int())};
    BlockChain chain = hasher.begin();
    size_t begin = 0;
    for (const auto& name : one.find("names")->as_array()) {
      chain =
          hasher.next(chain, std::span(tokens).subspan(begin, static_cast<size_t>(size)), scope);
      EXPECT_EQ(hex_of(chain), name.as_string()) << one.dump();
      if (begin == 0) first_names.insert(hex_of(chain));
      begin += static_cast<size_t>(size);
    }
    EXPECT_EQ(begin, tokens.size());
  }
  EXPECT_EQ(first_names.size(), cases.value().as_array().size()) << "every field changes the name";
}

TEST(BlockHash, ASaltIsShortAndPrintable) {
  EXPECT_TRUE(check_salt("").ok());
  EXPECT_TRUE(check_salt("main:3!~").ok());
  EXPECT_TRUE(check_salt(std::string(kSaltBytesMax, 'a')).ok());
  for (const std::string& bad :
       {std::string(kSaltBytesMax + 1, 'a'), std::string("a b"), std::string("a\n"),
        std::string(1, '\0'), std::string("\x7f"), std::string("\xc3\xa9")})
    EXPECT_FALSE(check_salt(bad).ok()) << bad;
}

}  // namespace
}  // namespace primerl
