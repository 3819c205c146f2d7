// The services that give out keys for some hours: of a container, of an instance, and of a web identity.
//
// Each function asks the service once, with few tries, and looks at `stop` while it waits. kUnavailable: the service
// did not answer, or refused. Errors hold no part of a key or token.
#pragma once

#include <cairn/result.h>

#include <string>

#include "os/parallel.h"
#include "storage/bucket/bucket_settings.h"
#include "storage/bucket/http_transfer.h"
#include "storage/bucket/store_answer.h"

namespace cairn::storage {

// AWS_CONTAINER_CREDENTIALS_RELATIVE_URI or _FULL_URI. A plain http address must be one of the host itself, or one of
// the fixed addresses of ECS and EKS: kInvalidArgument otherwise.
struct ContainerService {
  std::string url;
  std::string token_file;  // AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE, read at each request; may be empty
  std::string token;       // AWS_CONTAINER_AUTHORIZATION_TOKEN; may be empty
};
Result<TemporaryKeys> keys_of_container(HttpConnections& http, const ContainerService& service,
                                        const os::StopFlag* stop);

// The metadata service of an EC2 instance, version 2 of its protocol.
struct InstanceService {
  std::string url;  // "http://169.254.169.254"
};
Result<TemporaryKeys> keys_of_instance(HttpConnections& http, const InstanceService& service, const os::StopFlag* stop);

// AssumeRoleWithWebIdentity of the security token service.
struct WebIdentity {
  std::string url;  // of the token service
  std::string role;
  std::string session_name;
  std::string token_file;  // read at each request
};
Result<TemporaryKeys> keys_of_web_identity(HttpConnections& http, const WebIdentity& identity,
                                           const os::StopFlag* stop);

}  // namespace cairn::storage
