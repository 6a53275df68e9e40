// Preloaded into a process, gives it another wall clock. All other clocks are right, so timers and sleeps are too.
//
// APUS_CLOCK_OFFSET       seconds that the clock is ahead; behind if negative
// APUS_CLOCK_OFFSET_FILE  a file with that number, which is read again every 50 ms
//
// libfaketime changes CLOCK_BOOTTIME as well, by which Swift's tasks sleep: a node then sets timers that have passed, and
// keeps a processor busy.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const long long read_again_ns = 50 * 1000 * 1000;

typedef int (*clock_function)(clockid_t, struct timespec *);

static _Atomic(clock_function) right_clock;
static _Atomic(const char *) offset_file;
static atomic_llong offset_seconds;
static atomic_llong read_at_ns;

static int right_time(clockid_t clock, struct timespec *time) {
    clock_function function = atomic_load(&right_clock);
    if (!function) {
        function = (clock_function)dlsym(RTLD_NEXT, "clock_gettime");
        atomic_store(&right_clock, function);
    }
    return function(clock, time);
}

__attribute__((constructor)) static void begin(void) {
    const char *offset = getenv("APUS_CLOCK_OFFSET");
    if (offset) atomic_store(&offset_seconds, atoll(offset));
    atomic_store(&offset_file, getenv("APUS_CLOCK_OFFSET_FILE"));
}

static long long offset(void) {
    const char *file = atomic_load(&offset_file);
    struct timespec now;
    if (!file || right_time(CLOCK_MONOTONIC, &now)) return atomic_load(&offset_seconds);
    long long now_ns = now.tv_sec * 1000000000LL + now.tv_nsec;
    long long last_ns = atomic_load(&read_at_ns);
    if (now_ns - last_ns < read_again_ns || !atomic_compare_exchange_strong(&read_at_ns, &last_ns, now_ns))
        return atomic_load(&offset_seconds);
    int descriptor = open(file, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) return atomic_load(&offset_seconds);
    char text[32] = {0};
    if (read(descriptor, text, sizeof text - 1) > 0) atomic_store(&offset_seconds, atoll(text));
    close(descriptor);
    return atomic_load(&offset_seconds);
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    int result = right_time(clock, time);
    if (!result && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) time->tv_sec += offset();
    return result;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    (void)zone;
    struct timespec now;
    int result = clock_gettime(CLOCK_REALTIME, &now);
    if (!result) *time = (struct timeval){.tv_sec = now.tv_sec, .tv_usec = now.tv_nsec / 1000};
    return result;
}

time_t time(time_t *seconds) {
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
    if (seconds) *seconds = now.tv_sec;
    return now.tv_sec;
}
