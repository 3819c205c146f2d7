// HttpLibrary: the functions of libcurl, found at run time.
//
// Cairn has no libcurl at build time: the names and numbers below are libcurl's stable binary interface (soname 4).
// Immutable once loaded, and never unloaded.
#pragma once

#include <cairn/result.h>

#include <cstddef>

namespace cairn::storage::curl {

using Handle = void;  // of an easy transfer
struct List;          // of header lines

using Offset = long long;  // curl_off_t
using WriteFunction = std::size_t (*)(char* bytes, std::size_t size, std::size_t count, void* user);
using SeekFunction = int (*)(void* user, Offset offset, int origin);
using ProgressFunction = int (*)(void* user, Offset download_total, Offset download_now, Offset upload_total,
                                 Offset upload_now);

// CURLoption: 0 for long, 10,000 for pointers, 20,000 for functions, 30,000 for Offset.
enum Option : int {
  kNoProgress = 43,
  kNoBody = 44,
  kUpload = 46,
  kFreshConnect = 74,
  kHttpVersion = 84,
  kBufferSize = 98,
  kNoSignal = 99,
  kTcpNoDelay = 121,
  kConnectTimeoutMs = 156,
  kProtocols = 181,
  kTcpKeepAlive = 213,
  kPathAsIs = 234,
  kSuppressConnectHeaders = 265,
  kUploadBufferSize = 280,
  kHttp09Allowed = 285,
  kWriteData = 10'001,
  kUrl = 10'002,
  kReadData = 10'009,
  kErrorBuffer = 10'010,
  kHttpHeader = 10'023,
  kHeaderData = 10'029,
  kCustomRequest = 10'036,
  kProgressData = 10'057,
  kCaInfo = 10'065,
  kSeekData = 10'168,
  kNoProxy = 10'177,
  kWriteCallback = 20'011,
  kReadCallback = 20'012,
  kHeaderCallback = 20'079,
  kSeekCallback = 20'167,
  kProgressCallback = 20'219,
  kInFileSize = 30'115,
};

// CURLcode. Those that Cairn treats apart.
enum Status : int {
  kOk = 0,
  kUnsupportedProtocol = 1,
  kMalformedUrl = 3,
  kNotBuiltIn = 4,
  kOutOfMemory = 27,
  kUnknownOption = 48,
  kBadEngine = 53,
  kBadCertificate = 58,
  kBadCipher = 59,
  kPeerNotVerified = 60,
  kBadCaFile = 77,
};

inline constexpr int kRequestSize = 0x200000 + 12;  // CURLINFO, of type long
inline constexpr long kHttp11 = 2;
inline constexpr long kHttpAndHttps = 1 | 2;
inline constexpr std::size_t kErrorBufferBytes = 256;

struct Functions {
  Status (*curl_global_init)(long flags);
  Handle* (*curl_easy_init)();
  Status (*curl_easy_setopt)(Handle* handle, Option option, ...);
  Status (*curl_easy_perform)(Handle* handle);
  Status (*curl_easy_getinfo)(Handle* handle, int info, ...);
  void (*curl_easy_reset)(Handle* handle);
  void (*curl_easy_cleanup)(Handle* handle);
  const char* (*curl_easy_strerror)(Status status);
  List* (*curl_slist_append)(List* list, const char* line);
  void (*curl_slist_free_all)(List* list);
};

// kUnavailable if the machine has no libcurl; the error names the package. Thread-safe; loads once in a process.
Result<const Functions*> loaded_functions();

}  // namespace cairn::storage::curl
