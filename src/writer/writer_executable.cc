#include "writer/writer_executable.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <vector>

// In a program that was linked through the package config of an installation (cmake/cairn-config.cmake.in): the path of
// the installed writer.
extern "C" [[gnu::weak]] const char* cairn_installed_writer();

namespace cairn::writer {
namespace {

namespace fs = std::filesystem;

void add_places_beside(const fs::path& file, std::vector<fs::path>& places) {
  if (file.empty()) return;
  const fs::path folder = file.parent_path();
  places.push_back(folder / "bin" / "cairn-writer");
  places.push_back(folder / "cairn-writer");
  places.push_back(folder / ".." / CAIRN_WRITER_FOLDER /
                   "cairn-writer");  // this file is in <prefix>/bin or <prefix>/lib
}

// The library or program with this function.
fs::path own_file() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&find_writer_executable), &info) == 0 || info.dli_fname == nullptr)
    return {};
  std::error_code error;
  const fs::path file = fs::canonical(info.dli_fname, error);
  return error ? fs::path() : file;
}

fs::path running_program() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  return error ? fs::path() : program;
}

}  // namespace

Result<std::string> find_writer_executable(const std::string& given) {
  std::vector<fs::path> places;
  const char* const asked = std::getenv("CAIRN_WRITER");  // NOLINT(concurrency-mt-unsafe)
  if (!given.empty()) {
    places.emplace_back(given);
  } else if (asked != nullptr && *asked != '\0') {
    places.emplace_back(asked);
  } else {
    add_places_beside(own_file(), places);
    add_places_beside(running_program(), places);
    if (cairn_installed_writer != nullptr) places.emplace_back(cairn_installed_writer());
  }
  std::string looked_at;
  for (const fs::path& place : places) {
    if (access(place.c_str(), X_OK) == 0) return fs::absolute(place).string();
    if (looked_at.find(place.string()) == std::string::npos)
      looked_at += (looked_at.empty() ? "" : ", ") + place.string();
  }
  return Error(ErrorCode::kUnavailable, "the writer program cairn-writer was not found in " + looked_at +
                                            "; reinstall Cairn, or set CAIRN_WRITER to the path of the program");
}

}  // namespace cairn::writer
