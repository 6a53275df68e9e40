// The load: one publisher and many viewers of one stream, in one process beside the server, and what it cost.
//
//     load PROTOCOL PORT PID VIEWERS SECONDS JOINS TOKENS FOLDER [late]
// PROTOCOL is apus, apus_wss, apus_ws, nginx_rtmp or twin; PID the server's (its children count too); TOKENS a file with the
// publisher's token in its first line and one for each viewer and join after it, or "-". Prints one line
// `KEY=VALUE …`; FOLDER gets the single samples, PROTOCOL.serve and PROTOCOL.first, in milliseconds. With `late` the viewers
// come 1.9 s after the stream's first key frame, so that each begins with some 50 frames.
//
// The stream is 1 Mb/s: 25 video frames a second of 4,700 bytes, a key frame of 20,000 every 2 s, and 47
// audio frames a second of 250 bytes. Every byte that arrives is compared with what was sent.
#include "load.h"
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { FRAME_BYTES = 4700, KEY_BYTES = 20000, AUDIO_BYTES = 250, FRAMES_A_KEY = 50, FRAMES_KEPT = 256, SAMPLES_MAX = 65536 };
static const double FRAME_SECONDS = 0.040, AUDIO_SECONDS = 1024.0 / 48000, WARM_SECONDS = 2.5, JOIN_SECONDS = 0.1, LATE_SECONDS = 1.9;
static const double PING_SECONDS = 40;  // as ApusClient does while it has a stream

const uint8_t avc_record[] = {1, 0x42, 0xc0, 0x1e, 0xff, 0xe1, 0, 9, 0x67, 0x42, 0xc0, 0x1e, 0xd9, 0, 0xa0, 0x47, 0x20, 1, 0, 4, 0x68, 0xce, 0x3c, 0x80};
const size_t avc_record_count = sizeof avc_record;
const char *device = "fanout-cam";

static const struct protocol *protocol;
static int viewer_count, poller;
static struct connection **connections;
static int connection_count;
static bool is_measured;
static uint64_t delivered_bytes, delivered_frames, wrong_frames, video_sent, audio_sent;
static uint8_t noise[KEY_BYTES * 2];
static struct { double first, last; int count; uint64_t number; } arrivals[FRAMES_KEPT];
static double serve_samples[SAMPLES_MAX], first_samples[SAMPLES_MAX];
static int serve_count, first_count;
static double now;

static double clock_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

void fail(const char *what) {
    fprintf(stderr, "load %s: %s%s%s\n", protocol ? protocol->name : "", what, errno ? ": " : "", errno ? strerror(errno) : "");
    exit(1);
}

// ---- Bytes

void send_all(struct connection *c, const void *bytes, size_t count) {
    const char *from = bytes;
    while (count > 0) {
        ssize_t n = c->ssl ? SSL_write(c->ssl, from, (int)count) : send(c->fd, from, count, MSG_NOSIGNAL);
        if (n <= 0) {
            bool is_full = c->ssl ? SSL_get_error(c->ssl, (int)n) == SSL_ERROR_WANT_WRITE : errno == EAGAIN;
            struct pollfd wait = {.fd = c->fd, .events = POLLOUT};
            if (!is_full || poll(&wait, 1, 5000) != 1) fail("the server does not take what is sent");
            continue;
        }
        from += n;
        count -= (size_t)n;
    }
}

// Reads what is there; false where nothing is left.
static bool read_some(struct connection *c) {
    if (c->in_capacity - c->in_count < 32768) {
        c->in_capacity = c->in_count + 131072;
        c->in = realloc(c->in, c->in_capacity);
    }
    size_t room = c->in_capacity - c->in_count;
    ssize_t n = c->ssl ? SSL_read(c->ssl, c->in + c->in_count, (int)room) : recv(c->fd, c->in + c->in_count, room, 0);
    if (n <= 0) {
        bool is_empty = c->ssl ? SSL_get_error(c->ssl, (int)n) == SSL_ERROR_WANT_READ : n < 0 && errno == EAGAIN;
        if (!is_empty) fail("the server closed a connection");
        return false;
    }
    c->in_count += (size_t)n;
    return true;
}

static void take_all(struct connection *c) {
    size_t at = 0, n;
    while ((n = protocol->take(c, c->in + at, c->in_count - at)) > 0) at += n;
    memmove(c->in, c->in + at, c->in_count - at);
    c->in_count -= at;
}

void await_ready(struct connection *c) {
    while (!c->is_ready) {
        if (!read_some(c)) fail("the server does not answer");
        take_all(c);
    }
}

// ---- Frames

// A frame's payload: its number, then bytes that follow from it.
static const uint8_t *payload_of(enum kind kind, uint64_t number, size_t *count) {
    static uint8_t payload[KEY_BYTES];
    *count = kind == AUDIO ? AUDIO_BYTES : kind == KEY_FRAME ? KEY_BYTES : FRAME_BYTES;
    memcpy(payload, noise + number % KEY_BYTES, *count);
    put(payload, number, 8);
    return payload;
}

void received(struct connection *c, enum kind kind, const uint8_t *payload, size_t count) {
    uint64_t number = count < 8 ? UINT64_MAX : get(payload, 8);
    size_t expected = kind == AUDIO ? AUDIO_BYTES : kind == KEY_FRAME ? KEY_BYTES : FRAME_BYTES;
    if (number >= (kind == AUDIO ? audio_sent : video_sent) || count != expected ||
        memcmp(payload + 8, noise + number % KEY_BYTES + 8, count - 8) != 0) {
        wrong_frames++;
        return;
    }
    if (kind == KEY_FRAME && c->played_at > 0) {
        if (!c->is_counted && first_count < SAMPLES_MAX) first_samples[first_count++] = (now - c->played_at) * 1000;
        c->played_at = 0;
    }
    if (!c->is_counted || !is_measured) return;
    delivered_bytes += count;
    if (kind == AUDIO) return;
    delivered_frames++;
    typeof(arrivals[0]) *a = &arrivals[number % FRAMES_KEPT];
    if (a->number != number || a->count == 0) {
        a->number = number;
        a->count = 0;
        a->first = now;
    }
    a->last = now;
    if (++a->count == viewer_count && serve_count < SAMPLES_MAX) serve_samples[serve_count++] = (a->last - a->first) * 1000;
}

static void publish_due(struct connection *publisher, double start) {
    size_t count;
    while (start + (double)video_sent * FRAME_SECONDS <= now) {
        enum kind kind = video_sent % FRAMES_A_KEY == 0 ? KEY_FRAME : VIDEO;
        uint64_t number = video_sent++;
        const uint8_t *payload = payload_of(kind, number, &count);
        protocol->send(publisher, kind, number, payload, count);
    }
    while (start + (double)audio_sent * AUDIO_SECONDS <= now) {
        uint64_t number = audio_sent++;
        const uint8_t *payload = payload_of(AUDIO, number, &count);
        protocol->send(publisher, AUDIO, number, payload, count);
    }
}

// ---- What the server used

// Adds up what a process and its children use: CPU seconds on all of its threads, resident KiB.
static void usage_of(int pid, double *cpu, double *resident) {
    char path[512], line[256];
    snprintf(path, sizeof path, "/proc/%d/task", pid);
    DIR *tasks = opendir(path);
    if (!tasks) fail("the server is gone");
    for (struct dirent *entry; (entry = readdir(tasks));) {
        if (entry->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "/proc/%d/task/%s/schedstat", pid, entry->d_name);
        FILE *file = fopen(path, "r");
        unsigned long long spent = 0;
        if (file && fscanf(file, "%llu", &spent) == 1) *cpu += (double)spent / 1e9;
        if (file) fclose(file);
        snprintf(path, sizeof path, "/proc/%d/task/%s/children", pid, entry->d_name);
        file = fopen(path, "r");
        int child;
        while (file && fscanf(file, "%d", &child) == 1) usage_of(child, cpu, resident);
        if (file) fclose(file);
    }
    closedir(tasks);
    snprintf(path, sizeof path, "/proc/%d/status", pid);
    FILE *file = fopen(path, "r");
    double size;
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "VmRSS: %lf", &size) == 1) *resident += size;
    if (file) fclose(file);
}

// ---- Connections

static struct connection *dial(int port, enum role role, SSL_CTX *tls, const char *token) {
    struct connection *c = calloc(1, sizeof *c);
    int one = 1;
    struct timeval patience = {.tv_sec = 10};
    c->role = role;
    c->fd = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(c->fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (connect(c->fd, (struct sockaddr *)&address, sizeof address)) fail("connect");
    if (tls) {
        c->ssl = SSL_new(tls);
        SSL_set_fd(c->ssl, c->fd);
        if (SSL_connect(c->ssl) != 1) fail("the TLS handshake failed");
    }
    protocol->open(c, token);
    fcntl(c->fd, F_SETFL, fcntl(c->fd, F_GETFL) | O_NONBLOCK);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
    epoll_ctl(poller, EPOLL_CTL_ADD, c->fd, &event);
    connections[connection_count++] = c;
    return c;
}

static void play(struct connection *c) {
    c->played_at = clock_seconds();
    protocol->play(c);
}

static const char *next_token(FILE *tokens) {
    static char line[8192];
    if (!tokens) return "";
    if (!fgets(line, sizeof line, tokens)) fail("there are too few tokens");
    line[strcspn(line, "\n")] = 0;
    return line;
}

// ---- Samples

static int ascending(const void *a, const void *b) {
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

static double percentile(double *samples, int count, double share) {
    if (count == 0) return -1;
    qsort(samples, (size_t)count, sizeof *samples, ascending);
    int index = (int)(share * count);
    return samples[index < count ? index : count - 1];
}

static void keep(const char *folder, const char *what, const double *samples, int count) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s.%s", folder, protocol->name, what);
    FILE *file = fopen(path, "a");
    if (!file) fail("the samples cannot be written");
    for (int i = 0; i < count; i++) fprintf(file, "%.3f\n", samples[i]);
    fclose(file);
}

// Publishes and receives until a time; later joins ask to play at random times on the way.
static void stream_until(double end, double start, struct connection *publisher, struct connection **joins, int join_count) {
    static double next_ping;
    static int pinged;
    double next_join = now;
    int joined = 0;
    while ((now = clock_seconds()) < end) {
        publish_due(publisher, start);
        if (joined < join_count && now >= next_join) {
            play(joins[joined++]);
            next_join = now + 2 * JOIN_SECONDS * drand48();
        }
        if (protocol->ping && now >= next_ping) {
            protocol->ping(connections[pinged++ % connection_count]);
            next_ping = now + PING_SECONDS / connection_count;
        }
        struct epoll_event events[256];
        int n = epoll_wait(poller, events, 256, 1);
        for (int i = 0; i < n; i++) {
            struct connection *c = events[i].data.ptr;
            ERR_clear_error();
            while (read_some(c)) {
                now = clock_seconds();
                take_all(c);
            }
        }
    }
}

int main(int argc, char **argv) {
    if (argc != 9 && !(argc == 10 && strcmp(argv[9], "late") == 0)) return 64;
    const struct protocol *known[] = {&apus_protocol, &wss_protocol, &ws_protocol, &rtmp_protocol, &twin_protocol};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(argv[1], known[i]->name) == 0) protocol = known[i];
    if (!protocol) return 64;
    int port = atoi(argv[2]), pid = atoi(argv[3]), join_count = atoi(argv[6]);
    double seconds = atof(argv[5]);
    viewer_count = atoi(argv[4]);
    FILE *tokens = strcmp(argv[7], "-") == 0 ? NULL : fopen(argv[7], "r");
    struct rlimit files = {.rlim_cur = 8192, .rlim_max = 8192};
    setrlimit(RLIMIT_NOFILE, &files);
    signal(SIGPIPE, SIG_IGN);
    srand48((long)(clock_seconds() * 1e6));
    for (size_t i = 0; i < sizeof noise; i++) noise[i] = (uint8_t)(lrand48() >> 8);
    poller = epoll_create1(0);
    connections = calloc((size_t)(viewer_count + join_count + 1), sizeof *connections);
    bool is_web_socket = protocol == &wss_protocol || protocol == &ws_protocol;
    SSL_CTX *tls = protocol->is_encrypted || is_web_socket ? SSL_CTX_new(TLS_client_method()) : NULL;
    if (tls) {
        SSL_CTX_set_min_proto_version(tls, TLS1_3_VERSION);
        SSL_CTX_set_ciphersuites(tls, "TLS_AES_128_GCM_SHA256");
        SSL_CTX_set_mode(tls, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    }

    // The twin takes its publisher on a port beside, without TLS; the others on the same port.
    bool is_twin = protocol == &twin_protocol;
    struct connection *publisher = dial(port + is_twin, PUBLISHER, is_twin ? NULL : tls, next_token(tokens));
    SSL_CTX *viewers_tls = protocol->is_encrypted ? tls : NULL;
    int viewers_port = port + protocol->viewers_port;
    struct connection **joins = calloc((size_t)join_count + 1, sizeof *joins);
    for (int i = 0; i < join_count; i++) joins[i] = dial(viewers_port, VIEWER, viewers_tls, next_token(tokens));
    double idle_kib = 0, streaming_kib = 0, cpu = 0, cpu_before = 0, ignored = 0;
    usage_of(pid, &ignored, &idle_kib);
    double start = now = clock_seconds();
    if (argc == 10) stream_until(start + LATE_SECONDS, start, publisher, NULL, 0);
    for (int i = 0; i < viewer_count; i++) {
        struct connection *viewer = dial(viewers_port, VIEWER, viewers_tls, next_token(tokens));
        viewer->is_counted = true;
        play(viewer);
    }

    double warm = clock_seconds();
    stream_until(warm + WARM_SECONDS, start, publisher, NULL, 0);
    is_measured = true;
    usage_of(pid, &cpu_before, &ignored);
    stream_until(warm + WARM_SECONDS + seconds, start, publisher, NULL, 0);
    is_measured = false;
    usage_of(pid, &cpu, &streaming_kib);
    stream_until(now + JOIN_SECONDS * join_count + (join_count ? 2.5 : 0), start, publisher, joins, join_count);

    double expected = seconds / FRAME_SECONDS * viewer_count;
    if (wrong_frames > 0) fail("frames arrived damaged");
    if ((double)delivered_frames < expected * 0.95) fail("frames are missing");
    keep(argv[8], "serve", serve_samples, serve_count);
    keep(argv[8], "first", first_samples, first_count);
    printf("cpu_s_per_gb=%.4f cpu_s=%.4f gb=%.4f rss_per_viewer_kib=%.2f serve_p50=%.2f serve_p99=%.2f first_p50=%.2f first_p99=%.2f frames=%llu joins=%d\n",
           (cpu - cpu_before) / ((double)delivered_bytes / 1e9), cpu - cpu_before, (double)delivered_bytes / 1e9,
           (streaming_kib - idle_kib) / viewer_count, percentile(serve_samples, serve_count, 0.5),
           percentile(serve_samples, serve_count, 0.99), percentile(first_samples, first_count, 0.5),
           percentile(first_samples, first_count, 0.99), (unsigned long long)delivered_frames, first_count);
    return 0;
}
