#include "runtime/wire/agent_frames.h"

#include <gmock/gmock.h>

#include "runtime/wire/control_messages.h"

namespace primerl {
namespace {

using testing::HasSubstr;

TEST(AgentGreeting, TellsEverythingAndRoundTrips) {
  AgentGreeting greeting = own_greeting(77, std::string(kGreetingVersionBytesMax, 'v'));
  greeting.challenge = 0xfedcba9876543210;
  const auto bytes = encode_greeting(greeting);
  EXPECT_TRUE(is_greeting(bytes));
  const auto read = decode_greeting(bytes);
  ASSERT_TRUE(read.ok()) << read.error().text();
  EXPECT_EQ(*read, greeting);
}

TEST(AgentGreeting, FromALaterVersionIsStillUnderstood) {
  auto bytes = encode_greeting(own_greeting(77, "9.9"));
  bytes.resize(bytes.size() + 1000);  // fields that a later version appended
  ASSERT_TRUE(decode_greeting(bytes).ok());
  EXPECT_EQ(decode_greeting(bytes)->program, "9.9");
}

TEST(AgentGreeting, WithALongerVersionThanAllowedOrThanItHasIsRefused) {
  auto bytes = encode_greeting(own_greeting(77, "9.9"));
  bytes.resize(bytes.size() + 100);
  bytes[40] = std::byte{kGreetingVersionBytesMax};
  EXPECT_TRUE(decode_greeting(bytes).ok());
  bytes[40] = std::byte{kGreetingVersionBytesMax + 1};
  EXPECT_FALSE(decode_greeting(bytes).ok());
  bytes[40] = std::byte{4};
  bytes.resize(44 + 3);
  EXPECT_FALSE(decode_greeting(bytes).ok());
  EXPECT_FALSE(decode_greeting({}).ok());
}

TEST(AgentGreeting, NamesBothSidesOfADifference) {
  const AgentGreeting ours = own_greeting(77, "1.0");
  const auto difference = [&](auto change) {
    AgentGreeting theirs = ours;
    change(theirs);
    const Status checked = check_greeting(theirs, ours, "the agent of host 'x'");
    return checked.ok() ? std::string("ok") : checked.error().text();
  };
  EXPECT_EQ(difference([](AgentGreeting&) {}), "ok");
  EXPECT_EQ(difference([](AgentGreeting& theirs) { theirs.challenge = 3; }), "ok");
  EXPECT_THAT(difference([](AgentGreeting& theirs) { theirs.program = "1.1"; }),
              HasSubstr("the program version of the agent of host 'x' is '1.1', of this program "
                        "'1.0'"));
  EXPECT_THAT(difference([](AgentGreeting& theirs) { theirs.agent_version = 9; }),
              HasSubstr("the agent version of the agent of host 'x' is '9'"));
  EXPECT_THAT(difference([](AgentGreeting& theirs) { theirs.control_version = 99; }),
              HasSubstr("the control version of the agent of host 'x' is '99'"));
  EXPECT_THAT(difference([](AgentGreeting& theirs) { theirs.types = 1; }),
              HasSubstr("the message table of the agent of host 'x' is '0000000000000001', of this "
                        "program '000000000000004d'"));
  EXPECT_THAT(difference([](AgentGreeting& theirs) { theirs.agent_types = 2; }),
              HasSubstr("the table of agent messages"));
}

TEST(AgentFrames, AreNumberedAndAMissingOneIsNoticed) {
  AgentFrames sender, receiver;
  const auto first = sender.encode(Payload::of(AgentBeat{1}));
  const auto second = sender.encode(Payload::of(AgentBeat{2}));
  const auto third = sender.encode(Payload::of(AgentBeat{3}));
  ASSERT_TRUE(first.ok() && second.ok() && third.ok());
  EXPECT_EQ(receiver.decode(*first)->as<AgentBeat>().num_workers, 1u);
  const auto lost = receiver.decode(*third);
  ASSERT_FALSE(lost.ok());
  EXPECT_EQ(lost.error().message(), "the connection broke: frame 3 follows 1");
  EXPECT_FALSE(receiver.decode(*first).ok());  // nor is a frame accepted twice
  EXPECT_TRUE(receiver.decode(*second).ok());
}

TEST(AgentFrames, TakesAPieceOfFullLengthAndNothingBeyondAMessage) {
  AgentFrames sender, receiver;
  TunnelBytes bytes{1, std::vector<uint8_t>(kTunnelPieceBytes, 5)};
  const auto piece = sender.encode(Payload::of(bytes));
  ASSERT_TRUE(piece.ok());
  EXPECT_LE(piece->size(), kAgentFrameBytesMax);
  EXPECT_TRUE(receiver.decode(*piece).ok());
  bytes.bytes.resize(kMessageBytesMax);
  EXPECT_FALSE(sender.encode(Payload::of(bytes)).ok());
  // Only an accepted frame uses a number.
  EXPECT_TRUE(receiver.decode(*sender.encode(Payload::of(AgentBeat{1}))).ok());
}

TEST(AgentFrames, RefusesAMessageOfAnotherChannel) {
  AgentFrames receiver;
  EXPECT_FALSE(receiver.decode({}).ok());
  EXPECT_FALSE(receiver.decode(std::vector<std::byte>(kFrameHeaderBytes)).ok());
}

TEST(AgentFault, TravelsWithItsNotes) {
  const Error fault = error(Code::kExists, "a").note("b").note("c");
  const Error back = to_error(to_fault(fault));
  EXPECT_EQ(back.code(), Code::kExists);
  EXPECT_EQ(back.text(), fault.text());
  AgentFault strange = to_fault(fault);
  strange.code = 200;
  EXPECT_EQ(to_error(strange).code(), Code::kInternal);
}

}  // namespace
}  // namespace primerl
