// SPDX-License-Identifier: Apache-2.0
#include "transport/verbs/place.h"

#include <dirent.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <vector>

namespace jhetcc::transport::verbs {
namespace {

/// Names in a folder, sorted; numbers by their value.
std::vector<std::string> namesIn(const std::string& folder) {
  std::vector<std::string> names;
  DIR* opened = opendir(folder.c_str());
  if (opened == nullptr) return names;
  while (const dirent* entry = readdir(opened)) {
    if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
  }
  closedir(opened);
  std::sort(names.begin(), names.end(), [](const std::string& a, const std::string& b) {
    return a.size() != b.size() ? a.size() < b.size() : a < b;
  });
  return names;
}

/// Empty where it cannot be read: entries of a GID table that are not in use refuse it.
std::string lineOf(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// "0000:0000:0000:0000:0000:ffff:0a09:0001", as sysfs writes a GID.
std::string textOf(const Gid& gid) {
  std::string text;
  for (size_t k = 0; k < gid.size(); k += 2) {
    char part[8];
    std::snprintf(part, sizeof part, "%s%02x%02x", k ? ":" : "", gid[k], gid[k + 1]);
    text += part;
  }
  return text;
}

std::string portFolder(const std::string& sysfs, const std::string& device, const std::string& port) {
  return sysfs + "/class/infiniband/" + device + "/ports/" + port;
}

bool isRoceV2(const std::string& folder, const std::string& index) {
  return lineOf(folder + "/gid_attrs/types/" + index) == "RoCE v2";
}

}  // namespace

Gid gidOf(const net::Address& address) {
  const std::string bytes = address.ipBytes();
  Gid gid{};
  if (bytes.size() == 4) gid[10] = gid[11] = 0xff;
  std::copy(bytes.begin(), bytes.end(), gid.end() - static_cast<ptrdiff_t>(bytes.size()));
  return gid;
}

Result<Place> findPlace(const net::Address& address, const std::string& sysfs) {
  const Gid gid = gidOf(address);
  const std::string wanted = textOf(gid);
  std::string seen;
  for (const std::string& device : namesIn(sysfs + "/class/infiniband")) {
    seen += (seen.empty() ? "" : ", ") + device;
    for (const std::string& port : namesIn(portFolder(sysfs, device, ""))) {
      const std::string folder = portFolder(sysfs, device, port);
      for (const std::string& index : namesIn(folder + "/gids")) {
        if (lineOf(folder + "/gids/" + index) != wanted || !isRoceV2(folder, index)) continue;
        return Place{device, static_cast<uint8_t>(std::atoi(port.c_str())),
                     static_cast<uint8_t>(std::atoi(index.c_str())), gid};
      }
    }
  }
  return Status(Kind::kUnavailable, Scope::kEndpoint, "no_rdma_device",
                "no RDMA device carries " + address.host() + " as a RoCE v2 address (devices: " +
                    (seen.empty() ? "none" : seen) + "); use an interface that has one, or JHETCC_TRANSPORT=tcp");
}

bool isStill(const Place& place, const std::string& sysfs) {
  const std::string folder = portFolder(sysfs, place.device, std::to_string(place.port));
  const std::string index = std::to_string(place.gid_index);
  return lineOf(folder + "/gids/" + index) == textOf(place.gid) && isRoceV2(folder, index);
}

}  // namespace jhetcc::transport::verbs
