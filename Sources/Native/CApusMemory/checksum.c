#include "CApusMemory.h"

#include <pthread.h>
#include <string.h>

// The polynomial of Castagnoli, with its bits in reverse order.
enum { POLYNOMIAL = 0x82f63b78 };

static uint32_t tables[8][256];
static pthread_once_t tables_once = PTHREAD_ONCE_INIT;

static void make_tables(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t value = byte;
        for (int bit = 0; bit < 8; bit++) value = value & 1 ? value >> 1 ^ (uint32_t)POLYNOMIAL : value >> 1;
        tables[0][byte] = value;
    }
    for (int byte = 0; byte < 256; byte++)
        for (int table = 1; table < 8; table++)
            tables[table][byte] = tables[table - 1][byte] >> 8 ^ tables[0][tables[table - 1][byte] & 255];
}

uint32_t apus_crc32c_portable(uint32_t before, const void *bytes, size_t byte_count) {
    pthread_once(&tables_once, make_tables);
    const uint8_t *next = bytes;
    uint32_t value = ~before;
    for (; byte_count >= 8; byte_count -= 8, next += 8) {
        uint32_t low = value ^ ((uint32_t)next[0] | (uint32_t)next[1] << 8 | (uint32_t)next[2] << 16
            | (uint32_t)next[3] << 24);
        value = tables[7][low & 255] ^ tables[6][low >> 8 & 255] ^ tables[5][low >> 16 & 255] ^ tables[4][low >> 24]
            ^ tables[3][next[4]] ^ tables[2][next[5]] ^ tables[1][next[6]] ^ tables[0][next[7]];
    }
    for (; byte_count > 0; byte_count--, next++) value = value >> 8 ^ tables[0][(value ^ *next) & 255];
    return ~value;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) static uint32_t with_instructions(uint32_t value, const uint8_t *next, size_t count) {
    uint64_t wide = value;
    for (; count >= 8; count -= 8, next += 8) {
        uint64_t word;
        memcpy(&word, next, 8);
        wide = __builtin_ia32_crc32di(wide, word);
    }
    value = (uint32_t)wide;
    for (; count > 0; count--, next++) value = __builtin_ia32_crc32qi(value, *next);
    return value;
}

static int has_instructions(void) { return __builtin_cpu_supports("sse4.2"); }
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>

__attribute__((target("crc"))) static uint32_t with_instructions(uint32_t value, const uint8_t *next, size_t count) {
    for (; count >= 8; count -= 8, next += 8) {
        uint64_t word;
        memcpy(&word, next, 8);
        value = __builtin_arm_crc32cd(value, word);
    }
    for (; count > 0; count--, next++) value = __builtin_arm_crc32cb(value, *next);
    return value;
}

// HWCAP_CRC32 of the kernel's asm/hwcap.h.
static int has_instructions(void) { return (getauxval(AT_HWCAP) & 1 << 7) != 0; }
#else
static uint32_t with_instructions(uint32_t value, const uint8_t *next, size_t count) {
    return ~apus_crc32c_portable(~value, next, count);
}

static int has_instructions(void) { return 0; }
#endif

uint32_t apus_crc32c(uint32_t before, const void *bytes, size_t byte_count) {
    if (!has_instructions()) return apus_crc32c_portable(before, bytes, byte_count);
    return ~with_instructions(~before, bytes, byte_count);
}
