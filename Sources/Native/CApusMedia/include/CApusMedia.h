// libav for Swift: the headers, the macros that Swift does not import, and the functions that need a C callback. See
// docs/concepts.md: only the device and client targets import this.
#pragma once
#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libavutil/avutil.h>
#include <libavutil/error.h>
#include <libavutil/imgutils.h>
#include <libavutil/opt.h>
#include <libswresample/swresample.h>
#include <libswscale/swscale.h>
#include <stdint.h>

// Macros of libav without a Swift form.
static const int64_t APUS_AV_NOPTS = AV_NOPTS_VALUE;
static const int APUS_AV_EOF = AVERROR_EOF;
static const int APUS_AV_EXIT = AVERROR_EXIT;
static const int APUS_AV_INVALID_DATA = AVERROR_INVALIDDATA;
static const int APUS_AV_NOT_FOUND = AVERROR_HTTP_NOT_FOUND;
static const int APUS_AV_PROTOCOL_NOT_FOUND = AVERROR_PROTOCOL_NOT_FOUND;

// AVERROR(EAGAIN): the decoder or encoder needs more input first.
int apus_av_again(void);
// AVERROR(ETIMEDOUT), AVERROR(ECONNREFUSED).
int apus_av_timed_out(void);
int apus_av_refused(void);

// Stops libav from writing to standard error; its errors are returned as codes. Idempotent.
void apus_av_silence(void);

// A stop request and a deadline for libav's blocking calls. Any thread may use it.
typedef struct apus_interrupt apus_interrupt;
apus_interrupt *apus_interrupt_new(void);
void apus_interrupt_free(apus_interrupt *interrupt);
// Blocking calls end with AVERROR_EXIT from now on.
void apus_interrupt_stop(apus_interrupt *interrupt);
int apus_interrupt_is_stopped(const apus_interrupt *interrupt);
// Blocking calls end with AVERROR_EXIT after this time of CLOCK_MONOTONIC, in nanoseconds; 0 is never.
void apus_interrupt_deadline(apus_interrupt *interrupt, int64_t nanoseconds);

// A format context whose interrupt callback is set: libav copies the callback when it opens its input, and ignores one
// that is set later. `interrupt` must outlive the context.
AVFormatContext *apus_format_context(apus_interrupt *interrupt);

// A converter to signed 16-bit samples of one channel at another rate; NULL if libswresample refuses it. Freed by
// swr_free.
SwrContext *apus_resampler(const AVChannelLayout *layout, enum AVSampleFormat format, int rate, int out_rate);
// Converts the samples of a decoded frame. Returns the number written to `out`, or an error code.
int apus_resample_frame(SwrContext *context, const AVFrame *frame, int16_t *out, int out_count);
// Converts samples of one channel.
int apus_resample(SwrContext *context, const int16_t *samples, int count, int16_t *out, int out_count);

// Registers the inputs and outputs of libavdevice, which is loaded at the first call. Returns 0, or -1 where this machine
// does not have it. May be called from any thread.
int apus_av_register_devices(void);

// Copies a picture's planes without padding. Returns the number of bytes, or an error code.
int apus_copy_picture(const AVFrame *frame, uint8_t *out, int out_count);

// An encoder of AMR. Used by one thread at a time.
typedef struct apus_amr apus_amr;
static const int APUS_AMR_NO_LIBRARY = -1;
static const int APUS_AMR_NO_MEMORY = -2;
// The room that a frame needs; the longest one has 61 bytes.
static const int APUS_AMR_FRAME_BYTES = 64;

// Creates an encoder of opencore-amrnb, or with `is_wide` of vo-amrwbenc, whose library is loaded from the file of this
// name. Returns 0, APUS_AMR_NO_LIBRARY where this machine does not have it, or APUS_AMR_NO_MEMORY.
int apus_amr_new(const char *library, int is_wide, apus_amr **out);
// Encodes 20 ms: 160 samples of 8,000 Hz, or 320 of 16,000 Hz if it is wide. `mode` is 0 to 7, or to 8 if it is wide.
// Writes a frame of the storage format (RFC 4867 §5.3) to `out`, which has room for APUS_AMR_FRAME_BYTES, and returns
// the number of its bytes.
int apus_amr_encode(apus_amr *amr, int mode, const int16_t *samples, uint8_t *out);
// Frees the encoder, and releases its library. NULL is ignored.
void apus_amr_free(apus_amr *amr);
