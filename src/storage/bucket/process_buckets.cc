#include "storage/bucket/process_buckets.h"

#include <map>
#include <utility>

#include "os/process_state.h"
#include "storage/bucket/bucket_address.h"
#include "storage/bucket/bucket_storage.h"
#include "storage/bucket/s3_client.h"

namespace cairn::storage {
namespace {

struct OpenBucket {
  std::shared_ptr<ObjectStore> store;    // owned with the storages and files of the bucket
  std::shared_ptr<BucketMemory> memory;  // as `store`
};

struct ProcessBuckets {
  std::map<std::string, OpenBucket> by_name;

  // The connections belong to the parent: the child neither uses nor closes them.
  void in_child() { new std::map<std::string, OpenBucket>(std::exchange(by_name, {})); }
};

os::ProcessState<ProcessBuckets>& process_buckets = os::ProcessState<ProcessBuckets>::instance();

Result<std::shared_ptr<ObjectStore>> connect(const BucketAddress& address) {
  Result<std::unique_ptr<S3Client>> client = S3Client::open(address);
  if (!client) return std::move(client).error().while_doing("opening '" + address.text() + "'");
  return std::shared_ptr<ObjectStore>(*std::move(client));
}

}  // namespace

Result<std::unique_ptr<Storage>> open_bucket(const std::string& url) {
  CAIRN_TRY_ASSIGN(const BucketAddress address, parse_bucket_address(url));
  const std::string name = BucketAddress{address.dialect, address.bucket, {}}.text();
  const auto find = [&name](ProcessBuckets& buckets) {
    const auto found = buckets.by_name.find(name);
    return found == buckets.by_name.end() ? OpenBucket() : found->second;
  };
  OpenBucket bucket = process_buckets.use(find);
  if (!bucket.store) {
    CAIRN_TRY_ASSIGN(std::shared_ptr<ObjectStore> store, connect(address));
    OpenBucket made{std::move(store), std::make_shared<BucketMemory>()};
    // Another thread may have connected meanwhile.
    bucket = process_buckets.use(
        [&](ProcessBuckets& buckets) { return buckets.by_name.emplace(name, std::move(made)).first->second; });
  }
  return std::unique_ptr<Storage>(std::make_unique<BucketStorage>(bucket.store, name, address.prefix, bucket.memory));
}

void use_store(const std::string& bucket, std::shared_ptr<ObjectStore> store) {
  process_buckets.use([&](ProcessBuckets& buckets) {
    if (store) {
      buckets.by_name.insert_or_assign(bucket, OpenBucket{std::move(store), std::make_shared<BucketMemory>()});
    } else {
      buckets.by_name.erase(bucket);
    }
  });
}

}  // namespace cairn::storage
