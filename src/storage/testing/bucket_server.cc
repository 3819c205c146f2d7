#include "storage/testing/bucket_server.h"

#include <string_view>

#include "core/checksum.h"
#include "core/whole_number.h"
#include "storage/bucket/bucket_address.h"
#include "storage/bucket/store_answer.h"

namespace cairn::storage {
namespace {

constexpr std::string_view kBucketPath = "/bucket";
constexpr const char* kDate = "Sat, 28 Nov 2026 20:00:00 GMT";
constexpr const char* kIsoDate = "2026-11-28T20:00:00.000Z";

std::uint32_t crc_of(const std::string& bytes) { return crc32(std::as_bytes(std::span(bytes))); }

std::string element(const std::string& name, const std::string& text) {
  return "<" + name + ">" + text + "</" + name + ">";
}

std::string url_encoded(const std::string& text) { return percent_encoded(text, SlashEncoding::kKept); }

ServerAnswer xml_answer(const std::string& body) {
  ServerAnswer answer;
  answer.body = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n" + body;
  return answer;
}

bool has_wrong_checksum(const ServerRequest& request) {
  const std::string checksum = request.header("x-amz-checksum-crc32");
  return !checksum.empty() && checksum != crc32_in_base64(crc_of(request.body));
}

}  // namespace

ServerAnswer fault_answer(int status, const std::string& code) {
  ServerAnswer answer = xml_answer(element("Error", element("Code", code) + element("Message", "of the test")));
  answer.status = status;
  return answer;
}

std::optional<std::string> BucketServer::variable(const std::string& name) const {
  if (name == "AWS_ENDPOINT_URL_S3") return server_.url();
  if (name == "AWS_ACCESS_KEY_ID") return "test-key";
  if (name == "AWS_SECRET_ACCESS_KEY") return "test-secret";
  return std::nullopt;
}

ServerAnswer BucketServer::handle(const ServerRequest& request) {
  if (before) {
    if (std::optional<ServerAnswer> answer = before(request)) return *std::move(answer);
  }
  const std::string& path = request.path;
  ServerAnswer answer;
  if (path.substr(0, kBucketPath.size()) != kBucketPath) {
    answer = fault_answer(404, "NoSuchBucket");
  } else if (path.size() <= kBucketPath.size() + 1) {
    answer = handle_bucket(request);
  } else {
    const std::string key = path.substr(kBucketPath.size() + 1);
    const bool is_upload = request.query.count("uploads") != 0 || request.query.count("uploadId") != 0;
    answer = is_upload ? handle_upload(request, key) : handle_object(request, key);
  }
  answer.headers.emplace_back("Date", kDate);
  if (after) after(request, answer);
  return answer;
}

bool BucketServer::holds_condition(const ServerRequest& request, const std::string& key) const {
  const auto found = objects_.find(key);
  const std::string tag = request.header("if-match");
  if (!keeps_conditions) return true;
  if (request.header("if-none-match") == "*" && found != objects_.end()) return false;
  return tag.empty() || (found != objects_.end() && found->second.tag == tag);
}

ServerAnswer BucketServer::handle_object(const ServerRequest& request, const std::string& key) {
  if (!holds_condition(request, key)) return fault_answer(412, "PreconditionFailed");
  if (request.method == "PUT") return put(request, key);
  const auto found = objects_.find(key);
  if (request.method == "DELETE") {
    if (found != objects_.end()) objects_.erase(found);
    ServerAnswer answer;
    answer.status = 204;
    return answer;
  }
  if (found == objects_.end()) return fault_answer(404, "NoSuchKey");
  return get(request, found->second);
}

ServerAnswer BucketServer::put(const ServerRequest& request, const std::string& key) {
  if (has_wrong_checksum(request)) return fault_answer(400, "BadDigest");
  const std::string tag = "\"" + std::to_string(++last_tag_) + "\"";
  objects_[key] = {request.body, tag, crc32_in_base64(crc_of(request.body))};
  ServerAnswer answer;
  answer.headers.emplace_back("ETag", tag);
  return answer;
}

ServerAnswer BucketServer::get(const ServerRequest& request, const Object& object) const {
  ServerAnswer answer;
  answer.body = object.bytes;
  answer.headers.emplace_back("ETag", object.tag);
  answer.headers.emplace_back("Last-Modified", kDate);
  const std::string range = request.header("range");
  if (range.empty()) {
    answer.headers.emplace_back("x-amz-checksum-crc32", object.checksum);
    return answer;
  }
  const std::size_t dash = range.find('-');
  const auto begin = *whole_number<std::size_t>(range.substr(6, dash - 6));
  const auto last = std::min(*whole_number<std::size_t>(range.substr(dash + 1)), object.bytes.size() - 1);
  if (begin >= object.bytes.size()) return fault_answer(416, "InvalidRange");
  answer.status = 206;
  answer.body = object.bytes.substr(begin, last - begin + 1);
  if (answer.body.size() == object.bytes.size()) answer.headers.emplace_back("x-amz-checksum-crc32", object.checksum);
  answer.headers.emplace_back("Content-Range", "bytes " + std::to_string(begin) + "-" + std::to_string(last) + "/" +
                                                   std::to_string(object.bytes.size()));
  return answer;
}

ServerAnswer BucketServer::handle_upload(const ServerRequest& request, const std::string& key) {
  if (request.query.count("uploads") != 0) {
    if (!has_full_checksums && !request.header("x-amz-checksum-type").empty())
      return fault_answer(400, "InvalidArgument");
    const std::string id = "upload-" + std::to_string(++last_tag_);
    uploads_[id].key = key;
    return xml_answer(element("InitiateMultipartUploadResult", element("UploadId", id)));
  }
  const std::string id = request.query.at("uploadId");
  const auto found = uploads_.find(id);
  if (found == uploads_.end() || found->second.key != key) return fault_answer(404, "NoSuchUpload");
  if (request.method == "POST") return complete(key, id);
  if (request.method == "GET") return list_parts(found->second);
  ServerAnswer answer;
  if (request.method == "DELETE") {
    uploads_.erase(found);
    answer.status = 204;
    return answer;
  }
  if (has_wrong_checksum(request)) return fault_answer(400, "BadDigest");
  const std::string tag = "\"" + std::to_string(++last_tag_) + "\"";
  found->second.parts[*whole_number<std::uint32_t>(request.query.at("partNumber"))] = {
      request.body, tag, crc32_in_base64(crc_of(request.body))};
  answer.headers.emplace_back("ETag", tag);
  return answer;
}

ServerAnswer BucketServer::complete(const std::string& key, const std::string& id) {
  const Upload upload = uploads_.at(id);
  Object object;
  for (const auto& [number, part] : upload.parts) object.bytes += part.bytes;
  object.tag = "\"" + std::to_string(++last_tag_) + "-" + std::to_string(upload.parts.size()) + "\"";
  object.checksum = crc32_in_base64(crc_of(object.bytes));
  objects_[key] = object;
  uploads_.erase(id);
  return xml_answer(element("CompleteMultipartUploadResult",
                            element("ETag", object.tag) + element("ChecksumCRC32", object.checksum)));
}

ServerAnswer BucketServer::handle_bucket(const ServerRequest& request) {
  if (request.query.count("delete") != 0) return remove_batch(request);
  if (request.query.count("uploads") != 0) return list_uploads(request);
  return list(request);
}

ServerAnswer BucketServer::list(const ServerRequest& request) const {
  const auto query = [&](const char* name) {
    const auto found = request.query.find(name);
    return found == request.query.end() ? std::string() : found->second;
  };
  const std::string prefix = query("prefix");
  const std::string after_name = query("continuation-token");
  const auto count_max = whole_number<std::size_t>(query("max-keys")).value_or(1000);
  std::string body;
  std::string last;
  std::size_t count = 0;
  bool has_more = false;
  for (const auto& [key, object] : objects_) {
    if (key.substr(0, prefix.size()) != prefix) continue;
    const std::size_t slash = query("delimiter").empty() ? std::string::npos : key.find('/', prefix.size());
    const std::string name = slash == std::string::npos ? key : key.substr(0, slash + 1);
    if ((!after_name.empty() && name <= after_name) || name == last) continue;
    if (count == count_max) {
      has_more = true;
      break;
    }
    ++count;
    last = name;
    body += slash != std::string::npos
                ? element("CommonPrefixes", element("Prefix", url_encoded(name)))
                : element("Contents", element("Key", url_encoded(name)) + element("ETag", object.tag) +
                                          element("Size", std::to_string(object.bytes.size())) +
                                          element("LastModified", kIsoDate));
  }
  body += element("IsTruncated", has_more ? "true" : "false") + element("EncodingType", "url");
  if (has_more) body += element("NextContinuationToken", last);
  return xml_answer(element("ListBucketResult", body));
}

ServerAnswer BucketServer::list_uploads(const ServerRequest& request) const {
  std::string body;
  const std::string prefix = request.query.at("prefix");
  for (const auto& [id, upload] : uploads_) {
    if (upload.key.substr(0, prefix.size()) != prefix) continue;
    body += element("Upload",
                    element("Key", url_encoded(upload.key)) + element("UploadId", id) + element("Initiated", kIsoDate));
  }
  return xml_answer(element("ListMultipartUploadsResult", body + element("EncodingType", "url")));
}

ServerAnswer BucketServer::list_parts(const Upload& upload) const {
  std::string body;
  for (const auto& [number, part] : upload.parts) {
    body += element("Part", element("PartNumber", std::to_string(number)) + element("ETag", part.tag) +
                                element("Size", std::to_string(part.bytes.size())) +
                                element("ChecksumCRC32", part.checksum));
  }
  return xml_answer(element("ListPartsResult", body));
}

ServerAnswer BucketServer::remove_batch(const ServerRequest& request) {
  if (!removes_batches) return fault_answer(501, "NotImplemented");
  std::string_view rest = request.body;
  for (std::size_t at; (at = rest.find("<Key>")) != std::string_view::npos;) {
    rest.remove_prefix(at + 5);
    std::string key(rest.substr(0, rest.find("</Key>")));
    for (const auto& [entity, text] : {std::pair("&lt;", "<"), std::pair("&gt;", ">"), std::pair("&amp;", "&")}) {
      for (std::size_t i; (i = key.find(entity)) != std::string::npos;)
        key.replace(i, std::string_view(entity).size(), text);
    }
    objects_.erase(key);
  }
  return xml_answer("<DeleteResult/>");
}

}  // namespace cairn::storage
