#include "runtime/trace/command_note.h"

#include <gtest/gtest.h>

#include "runtime/trace/frames.h"
#include "runtime/wire/msgpack_codec.h"

namespace primerl {
namespace {

struct Ask {
  static constexpr std::string_view kName = "Ask";
  static constexpr uint32_t kVersion = 1;
  std::string who;
  template <class F>
  static void fields(F& f) {
    f("who", &Ask::who);
  }
};

TEST(CommandNote, HoldsTheTypeAndTheMessage) {
  const auto bytes = write_command_note(Payload::of(Ask{"anna"}));
  ASSERT_TRUE(bytes.ok());
  const auto note = read_command_note(*bytes);
  ASSERT_TRUE(note.ok());
  EXPECT_EQ(note->type, "Ask");
  EXPECT_EQ(note->schema, message_type<Ask>().schema);
  const auto message = decode_message(message_type<Ask>(), note->body);
  ASSERT_TRUE(message.ok());
  EXPECT_EQ(message->as<Ask>().who, "anna");
}

TEST(CommandNote, BytesThatAreNoneAreRefused) {
  const auto bytes = write_command_note(Payload::of(Ask{"anna"}));
  ASSERT_TRUE(bytes.ok());
  const size_t texts = 8 + 3 + message_type<Ask>().schema.size();
  for (size_t size = 0; size < texts; ++size)
    EXPECT_FALSE(read_command_note(std::span(*bytes).first(size)).ok()) << size;
  EXPECT_TRUE(read_command_note(std::span(*bytes).first(texts)).ok()) << "of an empty body";
  std::vector<std::byte> forged(*bytes);
  std::fill(forged.begin(), forged.begin() + 8, std::byte{0xff});
  EXPECT_FALSE(read_command_note(forged).ok()) << "its sizes do not fit in 32 bits together";
  EXPECT_FALSE(read_command_note(std::vector<std::byte>(64)).ok());
}

TEST(CommandNote, IsNoLargerThanANote) {
  std::string who(kInlineBytesMax, 'a');
  EXPECT_FALSE(write_command_note(Payload::of(Ask{who})).ok());
  size_t largest = kInlineBytesMax;
  while (!write_command_note(Payload::of(Ask{std::string(largest, 'a')})).ok()) --largest;
  EXPECT_EQ(write_command_note(Payload::of(Ask{std::string(largest, 'a')}))->size(),
            kInlineBytesMax);
}

}  // namespace
}  // namespace primerl
