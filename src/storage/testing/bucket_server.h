// BucketServer: a store of the S3 protocol in memory, behind an HttpServer, for tests. Tags are numbers in quotes.
//
// The hooks break requests: they are called by one thread at a time, and set before the first request.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "storage/testing/http_server.h"

namespace cairn::storage {

class BucketServer {
 public:
  BucketServer() : server_([this](const ServerRequest& request) { return handle(request); }) {}

  // Answers in place of the store, which does nothing.
  std::function<std::optional<ServerAnswer>(const ServerRequest& request)> before;
  // Changes the answer of the store, which has done its work.
  std::function<void(const ServerRequest& request, ServerAnswer& answer)> after;
  bool keeps_conditions = true;
  bool has_full_checksums = true;  // takes x-amz-checksum-type
  bool removes_batches = true;

  HttpServer& http() { return server_; }
  // For S3Client: the variables of the environment.
  std::optional<std::string> variable(const std::string& name) const;

 private:
  struct Object {
    std::string bytes;
    std::string tag;
    std::string checksum;
  };
  struct Upload {
    std::string key;
    std::map<std::uint32_t, Object> parts;
  };

  ServerAnswer handle(const ServerRequest& request);
  ServerAnswer handle_object(const ServerRequest& request, const std::string& key);
  ServerAnswer handle_upload(const ServerRequest& request, const std::string& key);
  ServerAnswer handle_bucket(const ServerRequest& request);
  ServerAnswer get(const ServerRequest& request, const Object& object) const;
  ServerAnswer put(const ServerRequest& request, const std::string& key);
  ServerAnswer complete(const std::string& key, const std::string& id);
  ServerAnswer list(const ServerRequest& request) const;
  ServerAnswer list_uploads(const ServerRequest& request) const;
  ServerAnswer list_parts(const Upload& upload) const;
  ServerAnswer remove_batch(const ServerRequest& request);
  bool holds_condition(const ServerRequest& request, const std::string& key) const;

  std::map<std::string, Object> objects_;
  std::map<std::string, Upload> uploads_;
  int last_tag_ = 0;
  HttpServer server_;  // the last member: its threads use the others
};

// An answer of the protocol for a failure.
ServerAnswer fault_answer(int status, const std::string& code);

}  // namespace cairn::storage
