// A listener with TLS: real clients, and clients that do not finish, or do not begin, a handshake.
#include "runtime/outside/tls.h"

#include <gmock/gmock.h>

#include <array>
#include <cstdio>

#include "tests/outside/certificates.h"
#include "tests/outside/http_story.h"

namespace primerl {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

/// The first record of a client: its header says 512 bytes of a handshake.
constexpr std::string_view kHalfHandshake("\x16\x03\x01\x02\x00\x01\x00", 7);

struct TlsStory : HttpStory {
  TlsStory() { use_certificate(make_certificate(folder, "first")); }
  void use_certificate(const CertificateFiles& files) {
    options.tls_cert = files.cert;
    options.tls_key = files.key;
  }
  /// Begins a client in Python that trusts `certificate`; each connection sends two requests.
  void begin_client(const std::string& certificate, int connections = 1, int num_bytes = 1) {
    listener();
    const std::string command =
        fmt::format("{} {}/tests/outside/tls_client.py {} {} {} {} 2>&1", PRIMERL_PYTHON,
                    PRIMERL_SOURCE_DIR, certificate, port, connections, num_bytes);
    client_output = ::popen(command.c_str(), "r");
    ASSERT_NE(client_output, nullptr);
  }
  std::string end_client() {
    std::string text;
    std::array<char, 4096> block;
    while (std::fgets(block.data(), block.size(), client_output) != nullptr) text += block.data();
    (void)::pclose(client_output);
    return text;
  }
  /// Replies to `count` requests with bodies of `num_bytes`.
  void serve(int count, size_t num_bytes = 2) {
    for (int i = 0; i < count; ++i) {
      const uint64_t request = next_call++;
      (void)accepted(request);
      reply(next_call++, request, std::string(num_bytes, 'b'));
    }
  }
  std::string open_fault(const std::string& cert, const std::string& key) const {
    const auto opened = TlsFiles::open(cert, key);
    return opened.ok() ? std::string() : opened.error().text();
  }

  FILE* client_output = nullptr;
  uint64_t next_call = 1;
};

TEST_F(TlsStory, AClientSendsRequestsOverTls) {
  begin_client(options.tls_cert);
  serve(2);
  EXPECT_EQ(end_client(), "200 2 TLSv1.3\n200 2 TLSv1.3\n");
  EXPECT_THAT(listener().url(), StartsWith("https://127.0.0.1:"));
}

TEST_F(TlsStory, BodiesOfManyRecordsArriveWholeBothWays) {
  begin_client(options.tls_cert, 1, 3 << 20);
  const ClientRequest request = accepted(1);
  EXPECT_EQ(request.body, std::string(3 << 20, 'a'));
  reply(2, 1, std::string(5 << 20, 'b'));
  EXPECT_EQ(accepted(3).body.size(), size_t{3} << 20);
  reply(4, 3);
  EXPECT_THAT(end_client(), StartsWith("200 5242880 "));
}

TEST_F(TlsStory, AClientThatTrustsAnotherCertificateGetsNothing) {
  begin_client(make_certificate(folder, "other").cert);
  EXPECT_THAT(end_client(), HasSubstr("CERTIFICATE_VERIFY_FAILED"));
  begin_client(options.tls_cert);
  serve(2);
  EXPECT_THAT(end_client(), StartsWith("200 2 ")) << "others are served";
}

TEST_F(TlsStory, AnOldVersionOfTlsIsRefused) {
  listener();
  const std::string connect = fmt::format(
      "openssl s_client -connect 127.0.0.1:{} -cipher DEFAULT@SECLEVEL=0 -tls1_1 </dev/null 2>&1",
      port);
  client_output = ::popen(connect.c_str(), "r");
  ASSERT_NE(client_output, nullptr);
  EXPECT_THAT(end_client(), HasSubstr("alert protocol version"));
}

TEST_F(TlsStory, AClientWithoutTlsReadsWhatToDo) {
  for (const std::string& bytes : {post("1"), std::string("DELETE / HTTP/1.1\r\n\r\n"),
                                   std::string("\x00\x01\xff garbage", 11)})
    EXPECT_THAT(refused(bytes), AllOf(StartsWith("HTTP/1.1 400"), HasSubstr("use https://")));
}

TEST_F(TlsStory, GarbageInAHandshakeEndsTheConnection) {
  // The record's length says more than a record may have.
  EXPECT_THAT(refused(std::string_view("\x16\x03\x01\xff\xff garbage", 13)),
              Not(HasSubstr("HTTP/1.1")));
  EXPECT_THAT(refused(std::string(64, '\x16')), Not(HasSubstr("HTTP/1.1")));
  begin_client(options.tls_cert);
  serve(2);
  EXPECT_THAT(end_client(), StartsWith("200 2 ")) << "others are served";
}

TEST_F(TlsStory, ASlowHandshakeLosesItsConnection) {
  options.handshake_timeout = Duration::milliseconds(50);
  auto silent = client(), slow = client();
  slow.say(kHalfHandshake);
  EXPECT_EQ(silent.hear_all(), "");
  EXPECT_EQ(slow.hear_all(), "");
}

TEST_F(TlsStory, AClientThatLeavesDuringTheHandshakeLeavesNothing) {
  {
    auto gone = client();
    gone.say(kHalfHandshake);
  }
  begin_client(options.tls_cert, 3);
  serve(6);
  EXPECT_THAT(end_client(), StartsWith("200 2 "));
}

TEST_F(TlsStory, AHandshakeThatWaitsGivesItsPlaceToANewClient) {
  options.connections_max = 1;
  auto first = client();
  first.say(kHalfHandshake);
  begin_client(options.tls_cert);
  serve(2);
  EXPECT_THAT(end_client(), StartsWith("200 2 "));
  EXPECT_EQ(first.hear_all(), "");
}

TEST_F(TlsStory, ARenewedCertificateIsReadWithoutARestart) {
  listener();
  const CertificateFiles renewed = make_certificate(folder, "renewed");
  std::filesystem::copy_file(renewed.cert, options.tls_cert,
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_TRUE(has_logged("the certificate that was read before stays: the key in "))
      << "its key is still the earlier one";
  std::filesystem::copy_file(renewed.key, options.tls_key,
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_TRUE(has_logged("first.pem again, valid until "));
  begin_client(renewed.cert);
  serve(2);
  EXPECT_THAT(end_client(), StartsWith("200 2 "));
}

TEST_F(TlsStory, FilesThatCannotBeUsedAreNamed) {
  const std::string &cert = options.tls_cert, &key = options.tls_key;
  EXPECT_EQ(open_fault("", ""), "");
  EXPECT_EQ(open_fault(cert, key), "");
  EXPECT_THAT(open_fault(cert, ""), HasSubstr("'tls_cert' is set without 'tls_key'"));
  EXPECT_THAT(open_fault("", key), HasSubstr("'tls_key' is set without 'tls_cert'"));
  EXPECT_THAT(open_fault("/no/such.pem", key),
              HasSubstr("'tls_cert': cannot read /no/such.pem: No such file or directory"));
  EXPECT_THAT(open_fault(cert, "/no/such.key"), HasSubstr("'tls_key': cannot read /no/such.key"));
  EXPECT_THAT(open_fault(folder.string(), key), HasSubstr("is not a file of at most"));
  EXPECT_THAT(open_fault(write("empty", ""), key), HasSubstr("has no certificate in PEM form"));
  EXPECT_THAT(open_fault(key, key), HasSubstr("has no certificate in PEM form"));
  EXPECT_THAT(open_fault(cert, cert), HasSubstr("has no private key in PEM form"));
  EXPECT_THAT(
      open_fault(cert, make_certificate(folder, "other").key),
      AllOf(HasSubstr("other.key is not that of the certificate in "), HasSubstr("first.pem")));
  const CertificateFiles expired = make_certificate(folder, "expired", true);
  EXPECT_THAT(open_fault(expired.cert, expired.key),
              AllOf(HasSubstr("the certificate in "), HasSubstr("expired.pem expired at 20")));
  run_openssl(fmt::format("pkey -in {} -aes128 -passout pass:word -out locked.key", key), folder);
  EXPECT_THAT(open_fault(cert, (folder / "locked.key").string()),
              HasSubstr("a key with a passphrase cannot be used"));
}

TEST_F(TlsStory, ACertificateThatExpiresMeanwhileIsReportedOnce) {
  auto opened = TlsFiles::open(options.tls_cert, options.tls_key);
  ASSERT_TRUE(opened.ok()) << opened.error().text();
  const double now = wall_seconds(), later = now + 2 * 86400;
  Time time;
  EXPECT_EQ(opened->look(time, now), std::nullopt);
  time = time + kFileFactsEvery;
  EXPECT_THAT(opened->look(time, later).value_or(""), HasSubstr("first.pem expired at 20"));
  time = time + kFileFactsEvery;
  EXPECT_EQ(opened->look(time, later), std::nullopt);
}

}  // namespace
}  // namespace primerl
