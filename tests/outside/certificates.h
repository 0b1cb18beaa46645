/// Certificates that a test makes by the program `openssl`. Each signs itself and is for 127.0.0.1.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

namespace primerl {

struct CertificateFiles {
  std::string cert, key;
};

inline void run_openssl(const std::string& arguments, const std::filesystem::path& folder) {
  const std::string command =
      fmt::format("cd '{}' && openssl {} >openssl.log 2>&1", folder.string(), arguments);
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
}

/// Valid for one day, or expired since yesterday. Files of the same name are replaced.
inline CertificateFiles make_certificate(const std::filesystem::path& folder,
                                         const std::string& name, bool has_expired = false) {
  const CertificateFiles files{(folder / (name + ".pem")).string(),
                               (folder / (name + ".key")).string()};
  run_openssl(
      fmt::format("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout {} -out {} "
                  "-days 1 -subj /CN={} -addext subjectAltName=IP:127.0.0.1",
                  files.key, files.cert, name),
      folder);
  if (has_expired)
    run_openssl(
        fmt::format("x509 -in {} -signkey {} -days -1 -out {}", files.cert, files.key, files.cert),
        folder);
  return files;
}

}  // namespace primerl
