#include "runtime/outside/tls.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <utility>

#include "graph/base/assert.h"
#include "graph/base/real_clock.h"

namespace primerl {
namespace {

constexpr size_t kRecordBytes = SSL3_RT_MAX_PLAIN_LENGTH;

/// The newest error of OpenSSL in this thread, as a text; forgets all.
std::string openssl_reason() {
  const char* const reason = ERR_reason_error_string(ERR_peek_last_error());
  ERR_clear_error();
  return reason == nullptr ? "no reason given" : reason;
}

/// Without it OpenSSL would ask at the terminal for the passphrase of a key.
int no_passphrase(char*, int, int, void*) { return 0; }

// A socket for OpenSSL. Its own one writes without MSG_NOSIGNAL, so a client that has gone would
// end a program that does not block SIGPIPE.

int socket_of(BIO* bio) { return static_cast<int>(reinterpret_cast<intptr_t>(BIO_get_data(bio))); }

bool is_retried() { return errno == EAGAIN || errno == EINTR; }

int write_socket(BIO* bio, const char* bytes, int count) {
  BIO_clear_retry_flags(bio);
  const ssize_t sent = ::send(socket_of(bio), bytes, static_cast<size_t>(count), MSG_NOSIGNAL);
  if (sent < 0 && is_retried()) BIO_set_retry_write(bio);
  return static_cast<int>(sent);
}

int read_socket(BIO* bio, char* into, int count) {
  BIO_clear_retry_flags(bio);
  const ssize_t got = ::recv(socket_of(bio), into, static_cast<size_t>(count), 0);
  if (got < 0 && is_retried()) BIO_set_retry_read(bio);
  return static_cast<int>(got);
}

// There is no buffer to flush; other requests of OpenSSL do not concern a socket.
long control_socket(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH ? 1 : 0; }

BIO_METHOD* make_socket_method() {
  BIO_METHOD* const made = BIO_meth_new(BIO_TYPE_SOURCE_SINK | BIO_get_new_index(), "socket");
  CHECK(made != nullptr, "no memory for OpenSSL");
  BIO_meth_set_write(made, &write_socket);
  BIO_meth_set_read(made, &read_socket);
  BIO_meth_set_ctrl(made, &control_socket);
  return made;
}

BIO* socket_bio(int socket) {
  static const BIO_METHOD* const method = make_socket_method();
  BIO* const bio = BIO_new(method);
  CHECK(bio != nullptr, "no memory for OpenSSL");
  BIO_set_data(bio, reinterpret_cast<void*>(static_cast<intptr_t>(socket)));
  BIO_set_init(bio, 1);
  return bio;
}

TlsContext make_context() {
  TlsContext context(SSL_CTX_new(TLS_server_method()), &SSL_CTX_free);
  CHECK(context != nullptr, "no memory for OpenSSL");
  SSL_CTX* const raw = context.get();
  CHECK(SSL_CTX_set_min_proto_version(raw, TLS1_2_VERSION) == 1, "OpenSSL has no TLS 1.2");
  SSL_CTX_set_options(raw, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_NO_TICKET |
                               SSL_OP_CIPHER_SERVER_PREFERENCE);
  SSL_CTX_set_num_tickets(raw, 0);
  SSL_CTX_set_session_cache_mode(raw, SSL_SESS_CACHE_OFF);
  // A record that is no data, for example of a new key, ends a read: a client that sends only
  // those does not keep the thread.
  SSL_CTX_clear_mode(raw, SSL_MODE_AUTO_RETRY);
  SSL_CTX_set_mode(raw, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                            SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_default_passwd_cb(raw, &no_passphrase);
  return context;
}

Status check_file(std::string_view option, const std::string& file) {
  struct stat found {};
  if (::stat(file.c_str(), &found) != 0)
    return error(Code::kNotFound, "'{}': cannot read {}: {}", option, file, std::strerror(errno));
  if (!S_ISREG(found.st_mode) || found.st_size > TlsFiles::kFileBytesMax)
    return error(Code::kInvalid, "'{}': {} is not a file of at most {} bytes", option, file,
                 TlsFiles::kFileBytesMax);
  return ok();
}

Status use_key(SSL_CTX* context, const std::string& cert, const std::string& file) {
  const std::unique_ptr<BIO, decltype(&BIO_free)> bytes(BIO_new_file(file.c_str(), "r"), &BIO_free);
  if (bytes == nullptr)
    return error(Code::kNotFound, "'tls_key': cannot read {}: {}", file, openssl_reason());
  const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key(
      PEM_read_bio_PrivateKey(bytes.get(), nullptr, &no_passphrase, nullptr), &EVP_PKEY_free);
  if (key == nullptr)
    return error(Code::kInvalid, "'tls_key': {} has no private key in PEM form: {}", file,
                 openssl_reason())
        .note("a key with a passphrase cannot be used: openssl pkey -in OLD -out NEW removes it");
  if (X509_check_private_key(SSL_CTX_get0_certificate(context), key.get()) != 1) {
    ERR_clear_error();
    return error(Code::kInvalid, "the key in {} is not that of the certificate in {}", file, cert)
        .note("the first certificate of a chain must be the server's own");
  }
  if (SSL_CTX_use_PrivateKey(context, key.get()) != 1)
    return error(Code::kInvalid, "'tls_key': {} cannot be used: {}", file, openssl_reason());
  return ok();
}

/// Seconds since 1970.
double seconds_of(const ASN1_TIME* time) {
  std::tm parts{};
  if (ASN1_TIME_to_tm(time, &parts) != 1) return 0;
  return static_cast<double>(::timegm(&parts));
}

struct ReadContext {
  TlsContext context;
  double expires = 0;
};

Result<ReadContext> read_context(const std::string& cert, const std::string& key) {
  RETURN_IF_ERROR(check_file("tls_cert", cert));
  RETURN_IF_ERROR(check_file("tls_key", key));
  ReadContext read{make_context()};
  if (SSL_CTX_use_certificate_chain_file(read.context.get(), cert.c_str()) != 1)
    return error(Code::kInvalid, "'tls_cert': {} has no certificate in PEM form: {}", cert,
                 openssl_reason());
  RETURN_IF_ERROR(use_key(read.context.get(), cert, key));
  const X509* const own = SSL_CTX_get0_certificate(read.context.get());
  const double begins = seconds_of(X509_get0_notBefore(own)), now = wall_seconds();
  read.expires = seconds_of(X509_get0_notAfter(own));
  if (now >= read.expires)
    return error(Code::kInvalid, "the certificate in {} expired at {}", cert,
                 iso_time(read.expires))
        .note("clients would refuse it; renew it");
  if (now < begins)
    return error(Code::kInvalid, "the certificate in {} is valid only from {} on", cert,
                 iso_time(begins))
        .note("compare the clock of this machine");
  return read;
}

}  // namespace

Result<TlsFiles> TlsFiles::open(std::string cert, std::string key) {
  TlsFiles made;
  if (cert.empty() && key.empty()) return made;
  if (cert.empty() || key.empty())
    return error(Code::kInvalid, "'{}' is set without '{}'", cert.empty() ? "tls_key" : "tls_cert",
                 cert.empty() ? "tls_cert" : "tls_key")
        .note("TLS needs both files");
  made.cert_ = std::move(cert);
  made.key_ = std::move(key);
  // Before they are read: a write meanwhile is seen by the next look.
  made.cert_read_ = file_facts(made.cert_);
  made.key_read_ = file_facts(made.key_);
  ASSIGN_OR_RETURN(ReadContext read, read_context(made.cert_, made.key_));
  made.context_ = std::move(read.context);
  made.expires_ = read.expires;
  return made;
}

std::optional<Time> TlsFiles::next_look() const {
  if (cert_.empty()) return std::nullopt;
  return next_look_;
}

std::optional<std::string> TlsFiles::look(Time now, double wall) {
  if (cert_.empty() || now < next_look_) return std::nullopt;
  next_look_ = now + kFileFactsEvery;
  const FileFacts cert = file_facts(cert_), key = file_facts(key_);
  if (cert == cert_read_ && key == key_read_) {
    if (wall < expires_ || std::exchange(has_expired_, true)) return std::nullopt;
    return fmt::format("the certificate in {} expired at {}: renew it", cert_, iso_time(expires_));
  }
  cert_read_ = cert;
  key_read_ = key;
  auto read = read_context(cert_, key_);
  if (!read.ok())
    return fmt::format("the certificate that was read before stays: {}", read.error().text());
  context_ = std::move(read->context);
  expires_ = read->expires;
  has_expired_ = false;
  return fmt::format("read the certificate in {} again, valid until {}", cert_, iso_time(expires_));
}

void TlsStream::Freed::operator()(ssl_st* ssl) const { SSL_free(ssl); }

TlsStream::TlsStream(const TlsContext& context, int socket) : ssl_(SSL_new(context.get())) {
  CHECK(ssl_ != nullptr, "no memory for OpenSSL");
  BIO* const bio = socket_bio(socket);
  SSL_set_bio(ssl_.get(), bio, bio);
  SSL_set_accept_state(ssl_.get());
}

Transfer TlsStream::transfer(int result) const {
  if (result > 0) return {Transfer::End::kSome, static_cast<size_t>(result)};
  switch (SSL_get_error(ssl_.get(), result)) {
    case SSL_ERROR_WANT_READ:
      return {Transfer::End::kWantsRead};
    case SSL_ERROR_WANT_WRITE:
      return {Transfer::End::kWantsWrite};
    default:
      return {Transfer::End::kClosed};
  }
}

// SSL_get_error() reads the errors of the thread, so each call begins without any.

Transfer TlsStream::handshake() {
  ERR_clear_error();
  return transfer(SSL_do_handshake(ssl_.get()));
}

Transfer TlsStream::read(std::span<char> into) {
  CHECK(into.size() >= kRecordBytes, "a read with less space than a record has");
  size_t num_bytes = 0;
  Transfer last;
  // A read returns one record at most.
  while (into.size() - num_bytes >= kRecordBytes) {
    ERR_clear_error();
    last = transfer(
        SSL_read(ssl_.get(), into.data() + num_bytes, static_cast<int>(into.size() - num_bytes)));
    if (last.end != Transfer::End::kSome) break;
    num_bytes += last.num_bytes;
  }
  // A fault after these bytes is there again at the next read.
  if (num_bytes > 0) return {Transfer::End::kSome, num_bytes};
  return last;
}

Transfer TlsStream::write(std::string_view bytes) {
  ERR_clear_error();
  // OpenSSL counts in int, and writes one record of them.
  return transfer(SSL_write(ssl_.get(), bytes.data(),
                            static_cast<int>(std::min<size_t>(bytes.size(), size_t{1} << 30))));
}

void TlsStream::end_writing() {
  ERR_clear_error();
  if (SSL_is_init_finished(ssl_.get()) == 1) (void)SSL_shutdown(ssl_.get());
  ERR_clear_error();
}

}  // namespace primerl
