// Profile: the settings of a user for AWS, from the files ~/.aws/credentials and ~/.aws/config.
//
// Read once; immutable.
#pragma once

#include <cairn/result.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace cairn::storage {

// The settings of a section by name. A nested setting has the name of its parent before it: "s3.addressing_style".
using ProfileSection = std::map<std::string, std::string, std::less<>>;
// By the text in the brackets.
using ProfileSections = std::map<std::string, ProfileSection, std::less<>>;

// The sections of a file. kInvalidArgument names the line that is not understood, and never its text.
Result<ProfileSections> parse_profile_file(std::string_view text, const std::string& file);

class Profile {
 public:
  Profile() = default;
  Profile(std::string name, ProfileSections credentials, ProfileSections config)
      : name_(std::move(name)), credentials_(std::move(credentials)), config_(std::move(config)) {}

  const std::string& name() const { return name_; }
  bool exists() const { return credentials_section() != nullptr || config_section() != nullptr; }
  // A setting of the profile: from the credentials file, else from the config file. nullopt if missing or empty.
  std::optional<std::string> setting(std::string_view name) const;
  // The endpoint of a service, in the section [services NAME] of the config file that the profile names.
  std::optional<std::string> service_endpoint(std::string_view service) const;

 private:
  const ProfileSection* credentials_section() const;
  const ProfileSection* config_section() const;

  std::string name_ = "default";
  ProfileSections credentials_;
  ProfileSections config_;
};

// The profile AWS_PROFILE, or "default", of the files AWS_SHARED_CREDENTIALS_FILE and AWS_CONFIG_FILE, or those in
// $HOME/.aws. A missing file has no sections. kInvalidArgument if AWS_PROFILE names no profile.
Result<Profile> read_profile(const std::function<std::optional<std::string>(const char* name)>& environment);

}  // namespace cairn::storage
