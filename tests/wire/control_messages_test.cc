// Every message between the control plane and its workers keeps its values on the way.
#include "runtime/wire/control_messages.h"

#include <gmock/gmock.h>

#include "runtime/wire/wire_message.h"
#include "tests/wire/random_message.h"

namespace primerl {
namespace {

WireTypes control_types() { return WireTypes(control_message_catalog()); }

ChangeTenant a_join(size_t table_bytes) {
  return {{TenantChange::Kind::kJoin, TenantSlot(3), 7, "alice", std::string(table_bytes, 'x')}};
}

TEST(ControlMessages, EachRoundTrips) {
  const WireTypes types = control_types();
  for (const auto* type : control_message_catalog()) {
    const auto sent = random_message(*type, 11);
    const auto wire = encode_wire(sent, {.sequence = 5}, types).value();
    const auto got = decode_wire(wire.header, wire.body, wire.blobs, types);
    ASSERT_EQ(got.refusal, FrameRefusal::kNone) << type->name;
    EXPECT_EQ(transcript(got.payload), transcript(sent)) << type->name;
  }
}

TEST(ControlMessages, AnOrderKeepsWhichUseOfTheSlotItMeans) {
  const WireTypes types = control_types();
  const ChangeTenant sent = a_join(20);
  const auto wire = encode_wire(Payload::of(sent), {}, types).value();
  const auto got = decode_wire(wire.header, wire.body, wire.blobs, types);
  const auto* order = as_if<ChangeTenant>(got.payload);
  ASSERT_NE(order, nullptr);
  EXPECT_EQ(order->change, sent.change);
}

TEST(ControlMessages, ATableAtItsLimitNeedsNoBlob) {
  const WireTypes types = control_types();
  const auto frames = [&](size_t bytes) {
    return encode_wire(Payload::of(a_join(bytes)), {}, types).value().header.num_frames;
  };
  EXPECT_EQ(frames(kTenantTableBytesMax), frames(20));
}

}  // namespace
}  // namespace primerl
