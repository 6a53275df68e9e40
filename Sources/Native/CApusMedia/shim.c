#include "CApusMedia.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
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

SwrContext *apus_resampler(const AVChannelLayout *layout, enum AVSampleFormat format, int rate, int out_rate) {
    AVChannelLayout one = AV_CHANNEL_LAYOUT_MONO;
    SwrContext *context = NULL;
    if (swr_alloc_set_opts2(&context, &one, AV_SAMPLE_FMT_S16, out_rate, (AVChannelLayout *)layout, format, rate, 0, NULL) < 0)
        return NULL;
    if (swr_init(context) < 0) swr_free(&context);
    return context;
}

int apus_resample_frame(SwrContext *context, const AVFrame *frame, int16_t *out, int out_count) {
    uint8_t *plane = (uint8_t *)out;
    return swr_convert(context, &plane, out_count, (const uint8_t **)frame->extended_data, frame->nb_samples);
}

int apus_resample(SwrContext *context, const int16_t *samples, int count, int16_t *out, int out_count) {
    const uint8_t *in = (const uint8_t *)samples;
    uint8_t *plane = (uint8_t *)out;
    return swr_convert(context, &plane, out_count, &in, count);
}

static int devices = -1;

static void load_devices(void) {
    char name[32];
    // The libraries of one release of FFmpeg have the same number.
    snprintf(name, sizeof name, "libavdevice.so.%d", LIBAVFORMAT_VERSION_MAJOR);
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) return;
    void (*register_all)(void) = (void (*)(void))dlsym(library, "avdevice_register_all");
    if (register_all == NULL) return;
    register_all();
    devices = 0;
}

int apus_av_register_devices(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load_devices);
    return devices;
}

int apus_copy_picture(const AVFrame *frame, uint8_t *out, int out_count) {
    return av_image_copy_to_buffer(
        out, out_count, (const uint8_t *const *)frame->data, frame->linesize, frame->format, frame->width,
        frame->height, 1);
}
