// Modules of Python in this process that link torch: functions of theirs may take a pointer from a tensor, and launch on
// it, without an operator. Read in memory, for a module that was compiled a moment ago need not be in sys.modules.
#pragma once
#include <link.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace grape {

struct Objects {
  // How many shared objects were loaded so far.
  static uint64_t loads() {
    uint64_t count = 0;
    dl_iterate_phdr([](dl_phdr_info* info, size_t, void* found) { return *static_cast<uint64_t*>(found) = info->dlpi_adds, 1; }, &count);
    return count;
  }

  // The files of those modules, torch's own among them.
  static std::vector<std::string> modules() {
    std::vector<std::string> files;
    dl_iterate_phdr(
        [](dl_phdr_info* info, size_t, void* found) {
          if (is_module_beside_torch(*info)) static_cast<std::vector<std::string>*>(found)->emplace_back(info->dlpi_name);
          return 0;
        },
        &files);
    return files;
  }

 private:
  static bool is_module_beside_torch(const dl_phdr_info& info) {
    if (!info.dlpi_name || !std::strchr(info.dlpi_name, '/')) return false;  // the program, and the kernel's own object
    const ElfW(Dyn)* dynamic = nullptr;
    for (size_t i = 0; i < info.dlpi_phnum; i++)
      if (info.dlpi_phdr[i].p_type == PT_DYNAMIC) dynamic = reinterpret_cast<const ElfW(Dyn)*>(info.dlpi_addr + info.dlpi_phdr[i].p_vaddr);
    if (!dynamic) return false;
    uintptr_t names = 0;
    size_t size = 0;
    for (auto* entry = dynamic; entry->d_tag != DT_NULL; entry++) {
      if (entry->d_tag == DT_STRTAB) names = entry->d_un.d_ptr;
      if (entry->d_tag == DT_STRSZ) size = entry->d_un.d_val;
    }
    if (!names) return false;
    if (names < info.dlpi_addr) names += info.dlpi_addr;  // glibc has added it already, others leave the table alone
    const std::string_view table(reinterpret_cast<const char*>(names), size);
    bool links = false;
    for (auto* entry = dynamic; entry->d_tag != DT_NULL; entry++) {
      if (entry->d_tag != DT_NEEDED || entry->d_un.d_val >= size) continue;
      auto name = table.substr(entry->d_un.d_val);
      links = links || name.rfind("libc10", 0) == 0 || name.rfind("libtorch", 0) == 0;
    }
    return links && table.find("PyInit_") != std::string_view::npos;
  }
};

}  // namespace grape
