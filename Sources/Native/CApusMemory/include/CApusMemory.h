#ifndef CAPUSMEMORY_H
#define CAPUSMEMORY_H

#include <stddef.h>

/// Prefetches memory into the processor's cache. It has no other effect and never fails, whatever the address.
static inline void apus_prefetch(const void *_Nullable address, size_t byte_count) {
    for (size_t offset = 0; offset < byte_count; offset += 64) __builtin_prefetch((const char *)address + offset);
}

/// The bytes that this process has allocated with malloc and not freed; 0 where the C library does not tell.
size_t apus_allocated_bytes(void);

#endif
