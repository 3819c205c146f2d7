#include "storage/bucket/profile_file.h"

#include <cerrno>
#include <fstream>
#include <sstream>

namespace cairn::storage {
namespace {

constexpr std::size_t kProfileFileBytesMax = 1 << 20;
constexpr std::size_t kNameBytesMax = 64;

std::string_view stripped(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t\r");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r") + 1 - begin);
}

std::string_view without_remark(std::string_view value) {
  for (const std::string_view mark : {" #", " ;", "\t#", "\t;"}) value = value.substr(0, value.find(mark));
  return stripped(value);
}

Error bad_line(const std::string& file, std::size_t number) {
  return Error(ErrorCode::kInvalidArgument, "line " + std::to_string(number) + " of a file of AWS is not understood")
      .file(file)
      .expected("[section], name = value, or a remark");
}

Result<ProfileSections> read_sections(const std::string& file) {
  std::ifstream stream(file, std::ios::binary);
  if (!stream) return ProfileSections();
  std::string text(kProfileFileBytesMax, '\0');
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(stream.gcount()));
  return parse_profile_file(text, file);
}

const ProfileSection* section_in(const ProfileSections& sections, const std::string& name) {
  const auto found = sections.find(name);
  return found == sections.end() ? nullptr : &found->second;
}

std::optional<std::string> setting_in(const ProfileSection* section, std::string_view name) {
  if (section == nullptr) return std::nullopt;
  const auto found = section->find(name);
  return found == section->end() || found->second.empty() ? std::nullopt : std::optional(found->second);
}

}  // namespace

Result<ProfileSections> parse_profile_file(std::string_view text, const std::string& file) {
  ProfileSections sections;
  ProfileSection* section = nullptr;
  std::string parent;  // the setting above that has no value: its nested settings follow
  std::size_t number = 0;
  while (!text.empty()) {
    ++number;
    const std::size_t length = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, length);
    text.remove_prefix(std::min(length + 1, text.size()));
    const std::string_view content = stripped(line);
    if (content.empty() || content.front() == '#' || content.front() == ';') continue;
    if (content.front() == '[') {
      const std::size_t end = content.find(']');
      if (end == std::string_view::npos) return bad_line(file, number);
      section = &sections[std::string(stripped(content.substr(1, end - 1)))];
      parent.clear();
      continue;
    }
    const std::size_t equals = content.find('=');
    if (section == nullptr || equals == std::string_view::npos) return bad_line(file, number);
    std::string name(stripped(content.substr(0, equals)));
    if (name.empty() || name.size() > kNameBytesMax) return bad_line(file, number);  // nested names repeat the parent's
    const std::string value(without_remark(content.substr(equals + 1)));
    const bool is_nested = (line.front() == ' ' || line.front() == '\t') && !parent.empty();
    if (!is_nested) parent = value.empty() ? name : "";
    if (is_nested) name.insert(0, parent + ".");
    (*section)[name] = value;
  }
  return sections;
}

const ProfileSection* Profile::credentials_section() const { return section_in(credentials_, name_); }

const ProfileSection* Profile::config_section() const {
  const ProfileSection* const section = section_in(config_, "profile " + name_);
  return section != nullptr || name_ != "default" ? section : section_in(config_, name_);
}

std::optional<std::string> Profile::setting(std::string_view name) const {
  const std::optional<std::string> value = setting_in(credentials_section(), name);
  return value ? value : setting_in(config_section(), name);
}

std::optional<std::string> Profile::service_endpoint(std::string_view service) const {
  const std::optional<std::string> services = setting("services");
  if (!services) return std::nullopt;
  return setting_in(section_in(config_, "services " + *services), std::string(service) + ".endpoint_url");
}

Result<Profile> read_profile(const std::function<std::optional<std::string>(const char* name)>& environment) {
  const std::string home = environment("HOME").value_or("");
  const auto file_of = [&](const char* variable, const char* name) {
    std::string file = environment(variable).value_or(home.empty() ? "" : "~/.aws/" + std::string(name));
    if (file.substr(0, 2) == "~/") file = home + file.substr(1);
    return file;
  };
  CAIRN_TRY_ASSIGN(ProfileSections credentials, read_sections(file_of("AWS_SHARED_CREDENTIALS_FILE", "credentials")));
  CAIRN_TRY_ASSIGN(ProfileSections config, read_sections(file_of("AWS_CONFIG_FILE", "config")));
  const std::optional<std::string> named = environment("AWS_PROFILE");
  Profile profile(named.value_or("default"), std::move(credentials), std::move(config));
  if (named && !profile.exists()) {
    return Error(ErrorCode::kInvalidArgument, "no profile '" + *named + "', which AWS_PROFILE names")
        .expected("a section of the file " + file_of("AWS_CONFIG_FILE", "config") + " or " +
                  file_of("AWS_SHARED_CREDENTIALS_FILE", "credentials"));
  }
  return profile;
}

}  // namespace cairn::storage
