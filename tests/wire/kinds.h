/// Messages for the tests of the codec: one with every member type, one with Blobs.
#pragma once

#include "graph/message_type.h"

namespace primerl {

struct InnerKind {
  int8_t small = 0;
  std::vector<std::string> names{};
  template <class F>
  static void fields(F& f) {
    f("small", &InnerKind::small)("names", &InnerKind::names);
  }
};

enum class EnumKind : uint8_t { kOne, kTwo };

struct EveryKind {
  static constexpr std::string_view kName = "EveryKind";
  static constexpr uint32_t kVersion = 1;
  bool flag = false;
  int16_t signed16 = 0;
  int32_t signed32 = 0;
  int64_t signed64 = 0;
  uint8_t unsigned8 = 0;
  uint16_t unsigned16 = 0;
  uint32_t unsigned32 = 0;
  uint64_t unsigned64 = 0;
  float single = 0;
  double twofold = 0;
  EnumKind choice = EnumKind::kOne;
  std::string text{};
  InstanceId instance{};
  PolicyVersion version{};
  Duration duration{};
  StepRef step{};
  std::vector<int32_t> tokens{};
  std::vector<float> logprobs{};
  std::vector<uint8_t> mask{};
  std::vector<uint64_t> numbers{};
  std::vector<std::vector<int64_t>> table{};
  InnerKind inner{};
  std::vector<InnerKind> inners{};

  template <class F>
  static void fields(F& f) {
    using E = EveryKind;
    f("flag", &E::flag)("signed16", &E::signed16)("signed32", &E::signed32)(
        "signed64", &E::signed64)("unsigned8", &E::unsigned8)("unsigned16", &E::unsigned16)(
        "unsigned32", &E::unsigned32)("unsigned64", &E::unsigned64)("single", &E::single)(
        "twofold", &E::twofold)("choice", &E::choice)("text", &E::text)("instance", &E::instance)(
        "version", &E::version)("duration", &E::duration)("step", &E::step)("tokens", &E::tokens)(
        "logprobs", &E::logprobs)("mask", &E::mask)("numbers", &E::numbers)("table", &E::table)(
        "inner", &E::inner)("inners", &E::inners);
  }
};

struct BlobKind {
  static constexpr std::string_view kName = "BlobKind";
  static constexpr uint32_t kVersion = 1;
  Blob first;
  std::vector<Blob> rest{};
  uint32_t after = 0;
  template <class F>
  static void fields(F& f) {
    f("first", &BlobKind::first)("rest", &BlobKind::rest)("after", &BlobKind::after);
  }
};

struct TextKind {
  static constexpr std::string_view kName = "TextKind";
  static constexpr uint32_t kVersion = 1;
  std::string text{};
  template <class F>
  static void fields(F& f) {
    f("text", &TextKind::text);
  }
};

struct TextsKind {
  static constexpr std::string_view kName = "TextsKind";
  static constexpr uint32_t kVersion = 1;
  std::vector<std::string> texts{};
  template <class F>
  static void fields(F& f) {
    f("texts", &TextsKind::texts);
  }
};

}  // namespace primerl
