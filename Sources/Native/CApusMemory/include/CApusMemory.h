#ifndef CAPUSMEMORY_H
#define CAPUSMEMORY_H

#include <stddef.h>
#include <stdint.h>

/// Prefetches memory into the processor's cache. It has no other effect and never fails, whatever the address.
static inline void apus_prefetch(const void *_Nullable address, size_t byte_count) {
    for (size_t offset = 0; offset < byte_count; offset += 64) __builtin_prefetch((const char *)address + offset);
}

/// The bytes that this process has allocated with malloc and not freed; 0 where the C library does not tell.
size_t apus_allocated_bytes(void);

/// The CRC-32C (RFC 3720 §12.1) of bytes that follow those of `before`, which is 0 for the first ones. It uses the
/// processor's instructions where there are some.
uint32_t apus_crc32c(uint32_t before, const void *_Nullable bytes, size_t byte_count);

/// The same, without these instructions.
uint32_t apus_crc32c_portable(uint32_t before, const void *_Nullable bytes, size_t byte_count);

#endif
