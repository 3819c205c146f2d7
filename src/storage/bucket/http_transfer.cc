#include "storage/bucket/http_transfer.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <utility>

#include "core/attempt.h"
#include "core/checksum.h"
#include "core/whole_number.h"

namespace cairn::storage {
namespace {

constexpr std::size_t kHeadBytesMax = 64 << 10;
constexpr std::size_t kHeaderCountMax = 200;
constexpr std::size_t kErrorTextBytes = 64 << 10;
constexpr std::size_t kIdleMax = 64;
constexpr long kTransferBufferBytes = 512 << 10;

// Blocks SIGPIPE in the calling thread, and takes a SIGPIPE that came meanwhile: TLS libraries write to sockets without
// MSG_NOSIGNAL.
class NoSigpipe {
 public:
  NoSigpipe() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~NoSigpipe() {
    const timespec no_time{};
    if (!was_pending_) sigtimedwait(&pipe_, nullptr, &no_time);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  NoSigpipe(const NoSigpipe&) = delete;
  NoSigpipe& operator=(const NoSigpipe&) = delete;

 private:
  sigset_t pipe_;
  sigset_t before_;
  bool was_pending_;
};

class HeaderLines {
 public:
  explicit HeaderLines(const curl::Functions& functions) : functions_(functions) {}
  ~HeaderLines() { functions_.curl_slist_free_all(list_); }
  HeaderLines(const HeaderLines&) = delete;
  HeaderLines& operator=(const HeaderLines&) = delete;

  bool add(const std::string& line) {
    curl::List* const longer = functions_.curl_slist_append(list_, line.c_str());
    if (longer != nullptr) list_ = longer;
    return longer != nullptr;
  }
  curl::List* list() const { return list_; }

 private:
  const curl::Functions& functions_;
  curl::List* list_ = nullptr;
};

std::string_view without_space(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const std::size_t begin = std::min(text.find_first_not_of(kSpace), text.size());
  const std::size_t end = text.find_last_not_of(kSpace);
  return end == std::string_view::npos ? std::string_view() : text.substr(begin, end + 1 - begin);
}

std::string lower_case(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return lower;
}

// The pieces of a body as one sequence of bytes.
class PieceReader {
 public:
  explicit PieceReader(std::span<const std::span<const std::byte>> pieces) : pieces_(pieces) {}

  std::uint64_t size() const {
    std::uint64_t size = 0;
    for (const auto& piece : pieces_) size += piece.size();
    return size;
  }
  std::size_t read(std::span<std::byte> target) {
    std::size_t done = 0;
    while (done < target.size() && index_ < pieces_.size()) {
      const std::span<const std::byte> rest = pieces_[index_].subspan(offset_);
      const std::size_t part = std::min(rest.size(), target.size() - done);
      if (part != 0) std::memcpy(target.data() + done, rest.data(), part);
      done += part;
      offset_ += part;
      if (offset_ == pieces_[index_].size()) {
        ++index_;
        offset_ = 0;
      }
    }
    return done;
  }
  bool seek(std::uint64_t offset) {
    for (index_ = 0; index_ < pieces_.size() && offset >= pieces_[index_].size(); ++index_) {
      offset -= pieces_[index_].size();
    }
    offset_ = static_cast<std::size_t>(offset);
    return index_ < pieces_.size() || offset == 0;
  }

 private:
  std::span<const std::span<const std::byte>> pieces_;
  std::size_t index_ = 0;
  std::size_t offset_ = 0;  // in the piece, bytes
};

// The age of a transfer without progress. Time for which the process was stopped counts for at most two seconds.
class StallWatch {
 public:
  explicit StallWatch(std::chrono::milliseconds limit) : limit_(limit) {}

  bool is_stalled(curl::Offset moved) {
    const Clock::time_point now = Clock::now();
    const Clock::duration passed = std::min<Clock::duration>(now - last_look_, std::chrono::seconds(2));
    last_look_ = now;
    age_ = moved == moved_ ? age_ + passed : Clock::duration::zero();
    moved_ = moved;
    return age_ >= limit_;
  }

 private:
  using Clock = std::chrono::steady_clock;
  std::chrono::milliseconds limit_;
  Clock::time_point last_look_ = Clock::now();
  Clock::duration age_{};
  curl::Offset moved_ = 0;  // bytes in both directions
};

// One request and its answer. The callbacks are called by the library on the thread of perform().
class Transfer {
 public:
  Transfer(const HttpRequest& request, const HttpLimits& limits, const os::StopFlag* stop)
      : request_(request),
        body_(request.body != nullptr ? *request.body : std::span<const std::span<const std::byte>>()),
        watch_(limits.stall),
        limits_(limits),
        stop_(stop) {}

  std::size_t take_header(std::string_view line);
  std::size_t take_body(std::span<const std::byte> bytes);
  std::size_t read_body(std::span<std::byte> target) { return body_.read(target); }
  bool seek_body(curl::Offset offset) { return offset >= 0 && body_.seek(static_cast<std::uint64_t>(offset)); }
  bool goes_on(curl::Offset moved);
  // Runs `work`; an exception refuses the answer.
  template <typename Work>
  std::size_t guarded(Work&& work) {
    std::size_t result = 0;
    auto done = attempt([&]() -> Result<void> {
      result = work();
      return {};
    });
    if (!done) return refuse(std::move(done).error());
    return result;
  }

  std::uint64_t body_bytes() const { return body_.size(); }
  char* error_text() { return error_text_.data(); }
  HttpEnd end_of(curl::Status status, const curl::Functions& functions);

 private:
  // For a callback: the return value that ends the transfer.
  std::size_t refuse(Error error) {
    if (!refusal_) refusal_ = std::move(error);
    return 0;
  }
  bool begin_body();
  std::size_t take_text(std::span<const std::byte> bytes);
  Error transport_error(curl::Status status, const curl::Functions& functions) const;

  const HttpRequest& request_;
  PieceReader body_;
  StallWatch watch_;
  const HttpLimits& limits_;
  const os::StopFlag* stop_;
  HttpEnd end_;
  std::size_t head_bytes_ = 0;
  std::optional<HttpTarget> target_;
  std::uint64_t text_received_ = 0;
  std::optional<Error> refusal_;
  bool is_stopped_ = false;
  bool is_stalled_ = false;
  bool is_cut_ = false;  // the rest of an error's text is not read
  std::array<char, curl::kErrorBufferBytes> error_text_{};
};

std::size_t Transfer::take_header(std::string_view line) {
  head_bytes_ += line.size();
  if (head_bytes_ > kHeadBytesMax || end_.head.headers.size() >= kHeaderCountMax) {
    return refuse(
        Error(ErrorCode::kUnsafe, "an answer with too many headers").expected("64 KiB in 200 headers at most"));
  }
  const std::size_t taken = line.size();
  if (line.substr(0, 5) == "HTTP/") {  // the first line, also after an answer 1xx
    const std::size_t space = std::min(line.find(' '), line.size());
    end_.head = {};
    end_.head.status = whole_number<int>(without_space(line.substr(space)).substr(0, 3)).value_or(0);
    return taken;
  }
  const std::string_view text = without_space(line);
  if (text.empty()) return end_.head.status < 200 || begin_body() ? taken : 0;
  const std::size_t colon = text.find(':');
  if (colon == std::string_view::npos) return taken;
  end_.head.headers.push_back({lower_case(text.substr(0, colon)), std::string(without_space(text.substr(colon + 1)))});
  return taken;
}

bool Transfer::begin_body() {
  if (!request_.target_of || !end_.head.is_success() || target_) return true;
  Result<HttpTarget> target = request_.target_of(end_.head);
  if (!target) {
    refuse(std::move(target).error());
    return false;
  }
  const std::optional<std::uint64_t> length = end_.head.content_length();
  if (length && *length != target->bytes.size()) {
    refuse(Error(ErrorCode::kUnsafe, "an answer of another length than asked for")
               .expected(std::to_string(target->bytes.size()) + " bytes")
               .actual(std::to_string(*length)));
    return false;
  }
  target_ = *target;
  return true;
}

std::size_t Transfer::take_body(std::span<const std::byte> bytes) {
  if (!target_) return take_text(bytes);
  if (bytes.size() > target_->bytes.size() - end_.received) {
    return refuse(Error(ErrorCode::kUnsafe, "an answer that is longer than asked for")
                      .expected(std::to_string(target_->bytes.size()) + " bytes"));
  }
  const std::span<std::byte> to = target_->bytes.subspan(static_cast<std::size_t>(end_.received), bytes.size());
  if (target_->with_crc) {
    end_.crc32 = copy_with_crc32(to, bytes, end_.crc32);
  } else if (!bytes.empty()) {
    std::memcpy(to.data(), bytes.data(), bytes.size());
  }
  end_.received += bytes.size();
  return bytes.size();
}

std::size_t Transfer::take_text(std::span<const std::byte> bytes) {
  text_received_ += bytes.size();
  const bool is_success = end_.head.is_success();
  if (is_success && text_received_ > request_.text_bytes_max) {
    return refuse(Error(ErrorCode::kUnsafe, "an answer that is longer than any of its kind")
                      .expected("at most " + std::to_string(request_.text_bytes_max) + " bytes"));
  }
  const std::size_t room = is_success ? bytes.size() : kErrorTextBytes - std::min(kErrorTextBytes, end_.text.size());
  end_.text.append(reinterpret_cast<const char*>(bytes.data()), std::min(room, bytes.size()));
  is_cut_ = room < bytes.size();
  return is_cut_ ? 0 : bytes.size();
}

bool Transfer::goes_on(curl::Offset moved) {
  is_stopped_ = stop_ != nullptr && stop_->is_set();
  is_stalled_ = watch_.is_stalled(moved);
  return !is_stopped_ && !is_stalled_;
}

Error Transfer::transport_error(curl::Status status, const curl::Functions& functions) const {
  if (is_stalled_) {
    return Error(ErrorCode::kUnavailable,
                 "no byte came or went for " + std::to_string(limits_.stall.count() / 1000) + " seconds");
  }
  const std::string_view text(error_text_.data());
  std::string reason(text.empty() ? functions.curl_easy_strerror(status) : text);
  return Error(ErrorCode::kUnavailable, std::move(reason));
}

HttpEnd Transfer::end_of(curl::Status status, const curl::Functions& functions) {
  using Kind = HttpEnd::Kind;
  if (is_stopped_) {
    end_.kind = Kind::kCancelled;
    end_.error = Error(ErrorCode::kCancelled, "the request was cancelled");
  } else if (refusal_) {
    end_.kind = Kind::kRefused;
    end_.error = std::move(refusal_);
  } else if (status == curl::kOk && target_ && end_.received != target_->bytes.size()) {
    end_.kind = Kind::kRefused;
    end_.error = Error(ErrorCode::kUnsafe, "an answer that is shorter than asked for")
                     .expected(std::to_string(target_->bytes.size()) + " bytes")
                     .actual(std::to_string(end_.received));
  } else if (status == curl::kOk || is_cut_) {
    end_.kind = Kind::kAnswered;
  } else {
    constexpr std::array kFinal{
        curl::kUnsupportedProtocol, curl::kMalformedUrl, curl::kNotBuiltIn,     curl::kOutOfMemory,
        curl::kUnknownOption,       curl::kBadEngine,    curl::kBadCertificate, curl::kPeerNotVerified,
        curl::kBadCipher,           curl::kBadCaFile};
    const bool is_final = std::find(kFinal.begin(), kFinal.end(), status) != kFinal.end();
    end_.kind = is_final ? Kind::kFailed : Kind::kLost;
    end_.error = transport_error(status, functions);
  }
  return std::move(end_);
}

std::size_t on_header(char* bytes, std::size_t size, std::size_t count, void* user) {
  auto& transfer = *static_cast<Transfer*>(user);
  return transfer.guarded([&] { return transfer.take_header({bytes, size * count}); });
}

std::size_t on_body(char* bytes, std::size_t size, std::size_t count, void* user) {
  auto& transfer = *static_cast<Transfer*>(user);
  return transfer.guarded([&] { return transfer.take_body(std::as_bytes(std::span(bytes, size * count))); });
}

std::size_t on_read(char* bytes, std::size_t size, std::size_t count, void* user) {
  return static_cast<Transfer*>(user)->read_body(std::as_writable_bytes(std::span(bytes, size * count)));
}

int on_seek(void* user, curl::Offset offset, int origin) {
  constexpr int kCannot = 1;  // CURL_SEEKFUNC_FAIL
  return origin == SEEK_SET && static_cast<Transfer*>(user)->seek_body(offset) ? 0 : kCannot;
}

int on_progress(void* user, curl::Offset /*download_total*/, curl::Offset download_now, curl::Offset /*upload_total*/,
                curl::Offset upload_now) {
  return static_cast<Transfer*>(user)->goes_on(download_now + upload_now) ? 0 : 1;
}

// Sets the options of a handle one after the other; keeps the first failure.
class OptionSetter {
 public:
  OptionSetter(const curl::Functions& functions, curl::Handle* handle) : functions_(functions), handle_(handle) {}

  template <typename Value>
  void set(curl::Option option, Value value) {
    if (status_ == curl::kOk) status_ = functions_.curl_easy_setopt(handle_, option, value);
  }
  // An option that older libraries lack, and that changes only speed or strictness.
  template <typename Value>
  void set_if_known(curl::Option option, Value value) {
    functions_.curl_easy_setopt(handle_, option, value);
  }
  curl::Status status() const { return status_; }

 private:
  const curl::Functions& functions_;
  curl::Handle* handle_;
  curl::Status status_ = curl::kOk;
};

void set_method(OptionSetter& options, const HttpRequest& request, const Transfer& transfer) {
  if (request.body != nullptr) {
    options.set(curl::kUpload, 1L);
    options.set(curl::kInFileSize, static_cast<curl::Offset>(transfer.body_bytes()));
    options.set_if_known(curl::kUploadBufferSize, kTransferBufferBytes);
  }
  if (request.method == "HEAD") {
    options.set(curl::kNoBody, 1L);
  } else {
    options.set(curl::kCustomRequest, request.method.c_str());
  }
}

curl::Status set_options(const curl::Functions& functions, curl::Handle* handle, const HttpRequest& request,
                         const HttpLimits& limits, Transfer& transfer) {
  OptionSetter options(functions, handle);
  void* const user = &transfer;
  options.set(curl::kUrl, request.url.c_str());
  options.set(curl::kProtocols, curl::kHttpAndHttps);
  options.set(curl::kHttpVersion, curl::kHttp11);  // a connection for each transfer
  options.set(curl::kNoSignal, 1L);
  options.set(curl::kPathAsIs, 1L);
  options.set(curl::kErrorBuffer, transfer.error_text());
  options.set(curl::kConnectTimeoutMs, static_cast<long>(limits.stall.count()));
  options.set(curl::kFreshConnect, request.on_new_connection ? 1L : 0L);
  options.set(curl::kNoProgress, 0L);
  options.set(curl::kProgressCallback, curl::ProgressFunction{on_progress});
  options.set(curl::kProgressData, user);
  options.set(curl::kHeaderCallback, curl::WriteFunction{on_header});
  options.set(curl::kHeaderData, user);
  options.set(curl::kWriteCallback, curl::WriteFunction{on_body});
  options.set(curl::kWriteData, user);
  options.set(curl::kReadCallback, curl::WriteFunction{on_read});
  options.set(curl::kReadData, user);
  options.set(curl::kSeekCallback, curl::SeekFunction{on_seek});
  options.set(curl::kSeekData, user);
  if (request.without_proxy) options.set(curl::kNoProxy, "*");
  options.set_if_known(curl::kSuppressConnectHeaders, 1L);
  options.set_if_known(curl::kHttp09Allowed, 0L);
  options.set_if_known(curl::kBufferSize, kTransferBufferBytes);
  options.set_if_known(curl::kTcpNoDelay, 1L);
  options.set_if_known(curl::kTcpKeepAlive, 1L);
  set_method(options, request, transfer);
  return options.status();
}

bool add_headers(HeaderLines& lines, const HttpRequest& request) {
  // An empty value keeps the library from sending a header of its own.
  bool added = lines.add("Expect:") && lines.add("Accept:");
  for (const HttpHeader& header : request.headers) added = added && lines.add(header.name + ": " + header.value);
  return added;
}

}  // namespace

std::string_view HttpHead::header(std::string_view name) const {
  const auto found =
      std::find_if(headers.begin(), headers.end(), [&](const HttpHeader& header) { return header.name == name; });
  return found == headers.end() ? std::string_view() : found->value;
}

std::optional<std::uint64_t> HttpHead::content_length() const {
  return whole_number<std::uint64_t>(header("content-length"));
}

Result<std::unique_ptr<HttpConnections>> HttpConnections::open(const HttpLimits& limits, std::string ca_file) {
  CAIRN_TRY_ASSIGN(const curl::Functions* const functions, curl::loaded_functions());
  return std::unique_ptr<HttpConnections>(new HttpConnections(*functions, limits, std::move(ca_file)));
}

HttpConnections::HttpConnections(const curl::Functions& functions, const HttpLimits& limits, std::string ca_file)
    : functions_(functions), limits_(limits), ca_file_(std::move(ca_file)), process_id_(getpid()) {}

HttpConnections::~HttpConnections() {
  if (getpid() != process_id_) return;  // the connections belong to the parent, whose TLS a farewell would end
  for (curl::Handle* const handle : idle_) functions_.curl_easy_cleanup(handle);
}

curl::Handle* HttpConnections::take() {
  const std::lock_guard lock(mutex_);
  if (idle_.empty()) return functions_.curl_easy_init();
  curl::Handle* const handle = idle_.back();  // the last used: its connection is the most likely to be open
  idle_.pop_back();
  return handle;
}

void HttpConnections::give_back(curl::Handle* handle) {
  functions_.curl_easy_reset(handle);  // keeps the connections
  {
    const std::lock_guard lock(mutex_);
    if (idle_.size() < kIdleMax) {
      idle_.push_back(handle);
      return;
    }
  }
  functions_.curl_easy_cleanup(handle);
}

HttpEnd HttpConnections::perform(const HttpRequest& request, const os::StopFlag* stop) {
  const auto failed = [](std::string why) {
    HttpEnd end;
    end.kind = HttpEnd::Kind::kFailed;
    end.error = Error(ErrorCode::kUnavailable, std::move(why));
    return end;
  };
  curl::Handle* const handle = take();
  if (handle == nullptr) return failed("libcurl has no memory for a transfer");
  Transfer transfer(request, limits_, stop);
  HeaderLines lines(functions_);
  const bool has_lines = add_headers(lines, request);
  curl::Status status = set_options(functions_, handle, request, limits_, transfer);
  if (status == curl::kOk) status = functions_.curl_easy_setopt(handle, curl::kHttpHeader, lines.list());
  if (status == curl::kOk && !ca_file_.empty()) {
    status = functions_.curl_easy_setopt(handle, curl::kCaInfo, ca_file_.c_str());
  }
  if (!has_lines || status != curl::kOk) {
    functions_.curl_easy_cleanup(handle);
    return failed(std::string("libcurl refuses an option: ") + functions_.curl_easy_strerror(status));
  }
  {
    const NoSigpipe no_sigpipe;
    status = functions_.curl_easy_perform(handle);
  }
  long request_bytes = 0;
  functions_.curl_easy_getinfo(handle, curl::kRequestSize, &request_bytes);
  HttpEnd end = transfer.end_of(status, functions_);
  end.was_sent = request_bytes > 0;
  give_back(handle);
  return end;
}

}  // namespace cairn::storage
