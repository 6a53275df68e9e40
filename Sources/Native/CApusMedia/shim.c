#include "CApusMedia.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

struct apus_interrupt {
    _Atomic int stopped;
    _Atomic int64_t deadline;
};

int apus_av_again(void) { return AVERROR(EAGAIN); }
int apus_av_timed_out(void) { return AVERROR(ETIMEDOUT); }
int apus_av_refused(void) { return AVERROR(ECONNREFUSED); }

static void discard(void *context, int level, const char *format, va_list arguments) {}

void apus_av_silence(void) { av_log_set_callback(discard); }

apus_interrupt *apus_interrupt_new(void) { return calloc(1, sizeof(apus_interrupt)); }

void apus_interrupt_free(apus_interrupt *interrupt) { free(interrupt); }

void apus_interrupt_stop(apus_interrupt *interrupt) { atomic_store(&interrupt->stopped, 1); }

int apus_interrupt_is_stopped(const apus_interrupt *interrupt) { return atomic_load(&interrupt->stopped); }

void apus_interrupt_deadline(apus_interrupt *interrupt, int64_t nanoseconds) {
    atomic_store(&interrupt->deadline, nanoseconds);
}

static int is_due(void *opaque) {
    apus_interrupt *interrupt = opaque;
    if (atomic_load(&interrupt->stopped)) return 1;
    int64_t deadline = atomic_load(&interrupt->deadline);
    if (deadline == 0) return 0;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec >= deadline;
}

AVFormatContext *apus_format_context(apus_interrupt *interrupt) {
    AVFormatContext *context = avformat_alloc_context();
    if (context == NULL) return NULL;
    context->interrupt_callback.callback = is_due;
    context->interrupt_callback.opaque = interrupt;
    return context;
}
