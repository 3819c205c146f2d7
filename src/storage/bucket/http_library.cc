#include "storage/bucket/http_library.h"

#include <dlfcn.h>

#include <string>

namespace cairn::storage::curl {
namespace {

constexpr const char* kLibrary = "libcurl.so.4";
constexpr long kGlobalDefault = 3;

template <typename Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

// The name of the first missing function, or null.
const char* missing_function(void* library, Functions& found) {
  if (!find(library, "curl_global_init", found.curl_global_init)) return "curl_global_init";
  if (!find(library, "curl_easy_init", found.curl_easy_init)) return "curl_easy_init";
  if (!find(library, "curl_easy_setopt", found.curl_easy_setopt)) return "curl_easy_setopt";
  if (!find(library, "curl_easy_perform", found.curl_easy_perform)) return "curl_easy_perform";
  if (!find(library, "curl_easy_getinfo", found.curl_easy_getinfo)) return "curl_easy_getinfo";
  if (!find(library, "curl_easy_reset", found.curl_easy_reset)) return "curl_easy_reset";
  if (!find(library, "curl_easy_cleanup", found.curl_easy_cleanup)) return "curl_easy_cleanup";
  if (!find(library, "curl_easy_strerror", found.curl_easy_strerror)) return "curl_easy_strerror";
  if (!find(library, "curl_slist_append", found.curl_slist_append)) return "curl_slist_append";
  if (!find(library, "curl_slist_free_all", found.curl_slist_free_all)) return "curl_slist_free_all";
  return nullptr;
}

Result<const Functions*> load_functions() {
  void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const reason = dlerror();
    return Error(ErrorCode::kUnavailable, "buckets need libcurl, which this machine lacks")
        .expected("the package libcurl4 of Debian and Ubuntu, libcurl of Fedora")
        .actual(reason != nullptr ? reason : "");
  }
  auto* const functions = new Functions{};  // never destroyed: threads may use libcurl until the program ends
  if (const char* const missing = missing_function(library, *functions)) {
    return Error(ErrorCode::kUnavailable, std::string("libcurl.so.4 lacks the function ") + missing)
        .expected("libcurl 7.62 or later");
  }
  if (functions->curl_global_init(kGlobalDefault) != kOk) {
    return Error(ErrorCode::kUnavailable, "libcurl could not be initialised");
  }
  return functions;
}

}  // namespace

Result<const Functions*> loaded_functions() {
  static const auto& loaded = *new Result<const Functions*>(load_functions());  // never destroyed
  return loaded;
}

}  // namespace cairn::storage::curl
