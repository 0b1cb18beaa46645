/// The version of both programs, of every trace and of the messages between processes.
#pragma once

namespace primerl {

inline constexpr const char* kProgramVersion = "0.1.0";

}  // namespace primerl
